"""Steps between any two states are paid by the environment and by the reference alike."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic.envs import rewards
from simic.growth.life.vocabulary import Op, Slots
from simic.params import PPOParams, Train
from tests.envs.transitions import GAMMA, HOST, SETTING, WEIGHTS, random_states, transition
from tests.reference import life
from tests.reference import rewards as reference

ENVS = 6
SLOTS = 3
OF_SEED = ("contribution", "contribution_se", "accuracy", "germination_accuracy", "alpha")


def state(slots: Slots, env: int, sizes: torch.Tensor, accuracy: torch.Tensor) -> reference.State:
    own = []
    for k in range(SLOTS):
        seed = life.Seed(**{name: getattr(slots, name)[env, k].item() for name in OF_SEED})
        own.append(life.Slot(int(slots.stage[env, k]), int(slots.dwell[env, k]), seed=seed))
    return reference.State(own, sizes[env].tolist(), accuracy[env].item())


@pytest.mark.parametrize("mode", reference.MODES)
@pytest.mark.parametrize(("ended", "terminal"), [(False, False), (True, False), (True, True)])
def test_a_step_is_paid_as_by_the_reference(mode: str, ended: bool, terminal: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    weights = WEIGHTS.model_copy(update={"mode": mode})
    end = "terminate" if terminal else "truncate"
    train = Train(reward=weights, ppo=PPOParams(gamma=GAMMA), price=5.0, episode_end=end)
    states = [
        replace(slots, alpha=torch.rand(ENVS, SLOTS, generator=draw))
        for slots in random_states(13, ENVS, SLOTS)
    ]
    for number, (before, after) in enumerate(pairwise(states)):
        op = (Op.WAIT, Op.FOSSILIZE, Op.PRUNE)[number % 3]
        slot = number % SLOTS
        sizes = torch.randint(0, 300, (2, ENVS, SLOTS), generator=draw)
        accuracies = 100 * torch.rand(2, ENVS, generator=draw)
        named = {"seed_params": sizes, "committed_accuracy": accuracies}
        given = {f"{name}_before": values[0] for name, values in named.items()}
        given |= {"seed_params_after": sizes[1], "committed_accuracy": accuracies[1]}
        step = transition(before, after, op, slot, ended=ended, terminal=terminal, **given)
        paid = rewards.components(mode, step, replace(SETTING, weights=weights, price=5.0))
        for env in range(ENVS):
            two = (
                state(slots, env, sizes[n], accuracies[n])
                for n, slots in enumerate((before, after))
            )
            expected = reference.components(
                reference.Step(*two, int(op), slot, ended), train, HOST, 10
            )
            found = {name: float(term[env]) for name, term in paid.items()}
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), (number, env)
