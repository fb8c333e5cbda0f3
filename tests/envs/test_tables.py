"""Growing tables: seeds that replace seeds, tables of any width, and what the critic is told of them."""

from dataclasses import replace

import torch
from growth.worlds import make_table
from torch import Tensor

from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import Op

from .conftest import AT_ONCE
from .transitions import act

TABLES = {"family": "tables", "lifecycle": AT_ONCE, "backend": "vmap"}


def test_a_seed_that_makes_room_is_told_and_the_governor_forgets_its_network(make_env, play) -> None:
    """As after a prune: what the network with the old seed had reached is no measure of the one without it."""
    env, remembered = make_env(20, **TABLES), []
    step = env.step

    def stepping(actions: Tensor):
        result = step(actions)
        remembered.append((~env.state.vitals.losses.isnan()).sum(dim=1))
        return result

    env.step = stepping
    before = torch.zeros(20, 1, dtype=torch.int64)
    count = 0
    for (_, actions, (*_, info)), known in zip(play(env, prefer=(Op.GERMINATE,)), remembered, strict=True):
        lived = torch.isin(before, torch.tensor(sorted(LIVE_STAGES)))
        germinated = (info.effective_op == Op.GERMINATE)[:, None] & (actions[:, 1:2] == 0)
        assert torch.equal(info.replaced, lived & germinated)
        assert (known[info.replaced[:, 0]] <= 1).all()
        count += int(info.replaced.sum())
        before = info.stage
    assert count > 50


def test_the_critic_is_told_the_kind_of_each_hosts_task_and_features_are_not(make_env) -> None:
    data = [make_table(5, tasks=4, samples=64, seed=seed) for seed in (1, 2)]
    env, silent = make_env(data=data, kinds=(2, 0, -1, 1), **TABLES), make_env(data=data, **TABLES)
    assert (env.observation_spec.told, env.observation_spec.hidden) == (1, 3)
    assert silent.observation_spec == replace(env.observation_spec, told=0, hidden=0)
    tasks = torch.tensor([3, 0, 1, 2, 3, 0])
    (seen, _), (same, _) = (each.reset(options={"tasks": tasks}) for each in (env, silent))
    assert seen.told is not None and seen.told.tolist() == [[1], [2], [0], [-1], [1], [2]]
    assert same.told is None
    assert torch.equal(seen.features, same.features)
    later, *_ = env.step(act(6, Op.WAIT))
    assert torch.equal(later.told, seen.told)
