"""The explorer: the patient rule under a plan of its own on every host, for a controller to learn from.

Trying is what a controller does not find by itself: a random sequence of decisions hardly ever takes a seed to its end,
and never prunes one to try elsewhere. Of twins with different plans some end well; which is what imitation weighs.
"""

import torch

from simic.envs.patient import Patient, Plan
from simic.envs.play import Episode

# Each with equal odds, by host; ours.
PATIENCES = (0, 1, 2, 3)  # epochs in HOLDING
KEEP_ABOVE_PCT = (-torch.inf, 2.0, 5.0, 10.0)  # the first keeps whatever it has
BEGINS = (0, 0, 0, 0, 0, 0, 2, 5)  # step of the first germination


class Explorer(Patient):
    """Tries the slots and blueprints in ``order`` in an order, and with a judgement, that are a hash of (rng_seed,
    iteration, environment).
    """

    def _plan(self, episode: Episode) -> Plan:
        tries, device = len(self.order), episode.env_ids.device
        noise = episode.noise(0, tries + 3)

        def one_of(choices: tuple[float, ...], place: int) -> torch.Tensor:
            return torch.tensor(choices, device=device)[(noise[:, tries + place] * len(choices)).long()]

        return Plan(
            order=self.order[noise[:, :tries].argsort(dim=1, stable=True)],
            patience=one_of(PATIENCES, 0),
            keep_above=one_of(KEEP_ABOVE_PCT, 1),
            errors=torch.tensor(0.0, device=device),
            begin=one_of(BEGINS, 2),
        )
