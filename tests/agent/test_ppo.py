"""The update."""

import dataclasses
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simic import params
from simic.agent import ppo as ppo_module
from simic.agent.metrics import UpdateMetrics, explanations
from simic.agent.normalization import Normalizers
from simic.agent.ppo import PPO, collect, with_advantages
from simic.errors import SimicError
from tests import standard

from .worlds import TensorWorld, episodes, forget_masks, make_policy, make_rollout, weights

SETTINGS = standard.PPOParams(
    learning_rate=1e-2, epochs=2, minibatches=2, target_kl=None, entropy_coef=0.05, entropy_coef_final=0.01
)


def make_ppo(policy=None, settings: params.PPOParams = SETTINGS, total_updates: int = 5) -> PPO:
    return PPO(policy or make_policy(), settings, rng_seed=1, total_updates=total_updates)


def stale_observation(rollout):
    return replace(rollout, features=rollout.features.roll(1, dims=0))


def stale_memory(rollout):
    return replace(rollout, state=type(rollout.state)(*(part + 1.0 for part in rollout.state)))


@pytest.mark.parametrize("defect", [stale_observation, stale_memory, forget_masks])
def test_the_self_test_finds_what_was_not_replayed_as_it_was(defect) -> None:
    ppo = make_ppo()
    metrics = ppo.update(defect(make_rollout(ppo.policy, episodes(6, 8), 8)), 0)
    assert not metrics.first_ratio_ok and metrics.first_ratio_deviation > 1e-3


def test_metrics_are_plain_numbers_and_each_is_explained() -> None:
    ppo = make_ppo()
    metrics = ppo.update(make_rollout(ppo.policy, episodes(6, 8), 8), 0)
    assert set(explanations()) == {item.name for item in dataclasses.fields(UpdateMetrics)}
    for name, value in dataclasses.asdict(metrics).items():
        for number in value.values() if isinstance(value, dict) else [value]:
            assert type(number) in (int, float, bool), name
            assert math.isfinite(number), name
    assert (metrics.steps, metrics.epochs) == (4, 2)
    assert metrics.samples == 8 * 6 - 3  # env 2 ends after step 4
    assert metrics.approx_kl > 0 and metrics.exact_kl > 0
    assert metrics.grad_norm_max >= metrics.grad_norm > 0


def test_norms_of_the_parts_make_up_the_global_one() -> None:
    """What was stepped on is clipped."""
    ppo = make_ppo(settings=SETTINGS.model_copy(update={"epochs": 1, "minibatches": 1}))
    metrics = ppo.update(make_rollout(ppo.policy, episodes(6, 8), 8), 0)
    assert metrics.grad_norm > SETTINGS.max_grad_norm and metrics.grad_clipped_fraction == 1.0
    clipping = SETTINGS.max_grad_norm / metrics.grad_norm
    norms = metrics.grad_norm_by_part
    assert metrics.grad_norm == pytest.approx(math.hypot(*norms.values()), rel=1e-5)
    for name, members in ppo.policy.groups().items():
        norm = torch.cat([parameter.grad.flatten() for parameter in members]).norm().item()
        assert norm == pytest.approx(clipping * norms[name], rel=1e-4), name


def test_an_update_is_read_in_six_files() -> None:
    ppo = make_ppo()
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    agent, run = Path(ppo_module.__file__).parent, set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, given: run.add(Path(frame.f_code.co_filename)))
    try:
        ppo.update(rollout, 0)
    finally:
        sys.setprofile(before)
    files = {path.stem for path in run if path.parent == agent}
    assert files == {"ppo", "rollout", "policy", "distributions", "metrics", "normalization"}


def test_too_large_a_divergence_ends_the_update_before_the_step() -> None:
    settings = SETTINGS.model_copy(update={"learning_rate": 0.5, "target_kl": 1e-3, "epochs": 4})
    ppo = make_ppo(settings=settings)
    metrics = ppo.update(make_rollout(ppo.policy, episodes(6, 8), 8), 0)
    assert metrics.stopped_early and metrics.steps < 8
    assert metrics.approx_kl > 1.5e-3
    # The estimate that stopped it was seen after `steps` steps: no step was taken on it.
    again = make_ppo(settings=settings.model_copy(update={"target_kl": None, "minibatches": 2}))
    seen = []
    step = again.adam.step
    again.adam.step = lambda: (seen.append(weights(again)), step())  # type: ignore[method-assign]
    again.update(make_rollout(again.policy, episodes(6, 8), 8), 0)
    assert torch.equal(seen[metrics.steps], weights(ppo))


def test_a_loss_that_is_not_finite_skips_the_step_and_is_counted() -> None:
    ppo = make_ppo(settings=SETTINGS.model_copy(update={"minibatches": 6}))
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    returns = rollout.returns.clone()
    returns[3, 1] = torch.nan
    metrics = ppo.update(replace(rollout, returns=returns), 0)
    assert metrics.skipped_steps == 2  # env 1 is one of six minibatches in each of two epochs
    assert (metrics.steps, ppo.skipped_steps) == (10, 2)
    assert weights(ppo).isfinite().all() and math.isfinite(metrics.policy_loss)
    assert math.isfinite(metrics.grad_norm)


def test_schedules_count_executed_updates_only() -> None:
    ppo = make_ppo(total_updates=3)
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    broken = replace(rollout, returns=torch.full_like(rollout.returns, torch.nan))
    before = weights(ppo)
    metrics = ppo.update(broken, 0)
    assert metrics.steps == 0
    assert math.isnan(metrics.policy_loss) and torch.equal(before, weights(ppo))
    coefficients = [ppo.update(rollout, i).entropy_coef for i in range(4)]
    # 0.05 → 0.01 over three executed updates, and constant after them
    assert coefficients == pytest.approx([0.05, 0.03, 0.01, 0.01])


def test_every_environment_is_used_once_in_each_epoch_and_orders_differ() -> None:
    ppo = make_ppo(settings=SETTINGS.model_copy(update={"minibatches": 3, "epochs": 3}))
    env_ids = torch.tensor([14, 3, 9, 8, 20, 1, 7])
    schedule = list(ppo._minibatches(env_ids, env_ids.sort().values, iteration=2, parts=3))
    orders = []
    for epoch in range(3):
        parts = [rows for at, rows in schedule if at == epoch]
        assert torch.cat(parts).sort().values.tolist() == list(range(7))
        assert sorted(len(part) for part in parts) == [2, 2, 3]
        orders.append([sorted(part.tolist()) for part in parts])
    assert orders[0] != orders[1]
    assert orders != [
        [sorted(part.tolist()) for at, part in ppo._minibatches(env_ids, env_ids.sort().values, 3, 3) if at == epoch]
        for epoch in range(3)
    ]


def test_a_state_of_another_policy_is_refused_naming_the_tensor() -> None:
    state = make_ppo().state_dict()
    other = make_ppo(make_policy("gru"))
    with pytest.raises(SimicError, match=r"rnn.* has shape \(40, 12\); this policy needs \(30, 12\)"):
        other.load_state_dict(state)
    del state["counter.updates"]
    with pytest.raises(SimicError, match=r"counter\.updates.* missing"):
        make_ppo().load_state_dict(state)


def test_episodes_that_start_inside_a_rollout_are_replayed_as_they_were() -> None:
    ends = {0: {2: (False, True), 5: (True, False)}, 3: {4: (True, False)}}
    ppo = make_ppo()
    position = None
    for iteration in range(2):
        world = TensorWorld(list(range(4)), ends, same_step=True)
        world.reset()
        rollout, position = collect(world, ppo.policy, Normalizers(), iteration, 1, steps=8, position=position)
        assert rollout.starts_inside
        metrics = ppo.update(with_advantages(rollout, rollout.rewards, 0.9, 0.9), iteration)
        assert metrics.first_ratio_ok
        assert metrics.steps == 4
    forgotten = replace(with_advantages(rollout, rollout.rewards, 0.9, 0.9), starts_inside=False)
    assert not make_ppo(ppo.policy).update(forgotten, 5).first_ratio_ok
