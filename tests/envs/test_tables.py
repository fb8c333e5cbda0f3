"""Growing tables: what each blueprint has shown, seeds that replace seeds, episodes of any length, any width."""

from dataclasses import replace

import pytest
import torch
from growth.worlds import make_table
from torch import Tensor

from simic.agent.policy import ActorCritic
from simic.certify.alignment import alignments
from simic.certify.networks import anatomy
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import alignment, columns
from simic.errors import SimicError
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import Op
from tests.standard import Policy

from .conftest import AT_ONCE
from .transitions import act

HOSTS, STEPS = 12, 12


@pytest.fixture
def tables(make_env):
    def build(**changes) -> GrowthEnv:
        return make_env(**{"family": "tables", "lifecycle": AT_ONCE, "envs": HOSTS, "backend": "vmap", **changes})

    return build


def named(env: GrowthEnv, features: Tensor) -> dict[str, Tensor]:
    table = columns(env.host.slots, len(env.blueprints))
    return dict(zip((name for name, _ in table), features.T, strict=True))


def test_each_blueprint_remembers_whether_it_was_tried_and_what_it_last_gained(tables, play) -> None:
    """Told by hand from what was done and measured; a seed that is gone leaves what it had shown."""
    env = tables(envs=40)
    tried: list[set[int]] = [set() for _ in range(40)]
    gained: list[dict[int, float]] = [{} for _ in range(40)]
    remembered = 0
    for _, actions, (observation, *_, info) in play(env, prefer=(Op.GERMINATE,)):
        seen = named(env, observation.features)
        for row in range(40):
            if info.effective_op[row] == Op.GERMINATE:
                tried[row].add(int(actions[row, 2]))
            kind, contribution = int(info.blueprint[row, 0]), float(info.contribution[row, 0])
            if kind >= 0 and contribution == contribution:
                gained[row][kind] = contribution
            remembered += any(known != kind for known in gained[row])
            for place in range(len(env.blueprints)):
                assert bool(seen[f"blueprint{place}_tried"][row]) is (place in tried[row])
                assert bool(seen[f"blueprint{place}_gained_missing"][row]) is (place not in gained[row])
                expected = gained[row].get(place, 0.0)
                symlog = (
                    torch.tensor(expected).sign() * torch.tensor(expected).abs().log1p() / torch.tensor(101.0).log()
                )
                assert float(seen[f"blueprint{place}_gained"][row]) == pytest.approx(float(symlog), abs=1e-5)
    assert remembered > 40 and max(len(known) for known in gained) > 3


def test_a_seed_that_makes_room_is_told_and_the_governor_forgets_its_network(tables, play) -> None:
    """As after a prune: what the network with the old seed had reached is no measure of the one without it."""
    env, remembered = tables(envs=40), []
    step = env.step

    def stepping(actions: Tensor):
        result = step(actions)
        remembered.append((~env.state.vitals.losses.isnan()).sum(dim=1))
        return result

    env.step = stepping
    before = torch.zeros(40, 1, dtype=torch.int64)
    count = 0
    for (_, actions, (*_, info)), known in zip(play(env, prefer=(Op.GERMINATE,)), remembered, strict=True):
        lived = torch.isin(before, torch.tensor(sorted(LIVE_STAGES)))
        germinated = (info.effective_op == Op.GERMINATE)[:, None] & (actions[:, 1:2] == 0)
        assert torch.equal(info.replaced, lived & germinated)
        assert (known[info.replaced[:, 0]] <= 1).all()
        count += int(info.replaced.sum())
        before = info.stage
    assert count > 50


# --- how long an episode is ---


def test_all_hosts_play_as_long_as_was_drawn_or_said(tables) -> None:
    env = tables(envs=2, steps=(2, 4))
    for iteration in range(6):
        for said in (None, 3, 7):
            observation, _ = env.reset(options={"iteration": iteration, "steps": said})
            steps = said or env.length_of(iteration)
            assert env.steps == steps
            for step in range(steps):
                seen = named(env, observation.features)
                assert seen["left"].tolist() == pytest.approx([(steps - step) / (8 + steps - step)] * 2)
                observation, _, terminated, truncated, _ = env.step(act(2, Op.WAIT))
                assert (terminated | truncated).tolist() == [step + 1 == steps] * 2
            with pytest.raises(SimicError, match=f"the episode ended at step {steps}"):
                env.step(act(2, Op.WAIT))


# --- tables of any kind and width ---


@pytest.mark.parametrize("width", [4, 30])
def test_what_is_seen_does_not_depend_on_the_width_of_a_table(tables, width) -> None:
    data = make_table(width, samples=64, seed=1), make_table(width, samples=32, seed=2)
    usual, env = tables(envs=2), tables(envs=2, data=data)
    assert env.host.input_shape == (1, 1, width)
    assert (env.observation_spec, env.action_spec) == (usual.observation_spec, usual.action_spec)
    policy = ActorCritic(usual.action_spec, usual.observation_spec, Policy(), rng_seed=1)
    observation, _ = env.reset()
    state = policy.initial_state(2)
    for step in range(3):
        decision = policy.act(observation, state, torch.full((2, 8), 0.3 + 0.2 * step))
        observation, reward, *_ = env.step(decision.actions)
        state = decision.state
        assert observation.features.shape == (2, usual.observation_spec.features)
        assert observation.features.isfinite().all() and reward.isfinite().all()


def test_the_critic_is_told_the_kind_of_each_hosts_task_and_features_are_not(tables) -> None:
    data = [make_table(5, tasks=4, samples=64, seed=seed) for seed in (1, 2)]
    env, silent = tables(envs=6, data=data, kinds=(2, 0, -1, 1)), tables(envs=6, data=data)
    assert (env.observation_spec.told, env.observation_spec.hidden) == (1, 3)
    assert silent.observation_spec == replace(env.observation_spec, told=0, hidden=0)
    tasks = torch.tensor([3, 0, 1, 2, 3, 0])
    (seen, _), (same, _) = (each.reset(options={"tasks": tasks}) for each in (env, silent))
    assert seen.told is not None and seen.told.tolist() == [[1], [2], [0], [-1], [1], [2]]
    assert same.told is None
    assert torch.equal(seen.features, same.features)
    later, *_ = env.step(act(6, Op.WAIT))
    assert torch.equal(later.told, seen.told)


def test_alignment_is_that_of_each_hosts_task_in_the_training_data(tables) -> None:
    env = tables(envs=6, data=[make_table(5, tasks=4, samples=64, seed=seed) for seed in (1, 2)])
    tasks = torch.tensor([3, 0, 1, 2, 3, 0])
    observation, _ = env.reset(options={"tasks": tasks})
    parts = [*anatomy(env.train.host, env.training_data.shape, env.training_data.classes).blueprints[0].values()]
    x, y = env.training_data.of_tasks(tasks, slice(None))
    expected = torch.tensor([alignments(parts, *each) for each in zip(x.double(), y, strict=True)])
    found = alignment(observation.features, len(env.blueprints))
    assert len(found.unique(dim=0)) == 4
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
