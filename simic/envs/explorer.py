"""The explorer: the patient rule under a plan of its own on every host, for a controller to learn from.

Random decisions hardly ever take a seed to its end, and never prune one to try elsewhere. This rule does both; of twins
with different plans some end well, and imitation gives those the most weight.
"""

import torch
from torch import Tensor

from simic.envs.patient import Patient, Tries, preferred
from simic.envs.play import Episode
from simic.params import Lifecycle

KEEP_ABOVE_PCT = (-torch.inf, 2.0, 5.0, 10.0)  # with equal odds; the first keeps whatever it has
PATIENCE_EPOCHS = 1  # in HOLDING; the same for all, so that a clone can learn when to judge
TINY = 1e-9


class Explorer(Patient):
    """Tries the ``openings [K, P]`` in a random order, and keeps seeds by a random threshold, both a hash of (rng_seed,
    iteration, environment). The odds of a blueprint are half of those of the one that the patient rule prefers to it.
    """

    def __init__(self, lifecycle: Lifecycle, steps: int, openings: Tensor, family: str) -> None:
        super().__init__(lifecycle, steps, openings.nonzero().tolist())
        ranks = [kind for kind in preferred(family) if openings[:, kind].any()]
        self.odds = torch.tensor(
            [0.5 ** (ranks.index(kind) if kind in ranks else len(ranks)) for kind in self.order[:, 1].tolist()]
        )

    def _plan(self, episode: Episode) -> Tries:
        tries, device = len(self.order), episode.env_ids.device
        noise = episode.noise(0, tries + 1)
        # The smallest of exponential clocks with these rates comes first, and so on (Plackett and Luce).
        clocks = -noise[:, :tries].clamp(min=TINY).log() / self.odds.to(device)
        threshold = (noise[:, tries] * len(KEEP_ABOVE_PCT)).long()
        return Tries(
            order=self.order[clocks.argsort(dim=1, stable=True)],
            patience=torch.tensor(PATIENCE_EPOCHS, device=device),
            keep_above=torch.tensor(KEEP_ABOVE_PCT, device=device)[threshold],
            errors=torch.tensor(0.0, device=device),
        )
