"""The update."""

import dataclasses
import math
from dataclasses import replace

import pytest
import torch

from simic.agent.metrics import UpdateMetrics
from simic.agent.normalization import Normalizers
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import Rollout, collect
from simic.errors import SimicError
from tests import standard

from .worlds import TensorWorld, learner, make_policy, weights

SETTINGS = standard.PPOParams(
    learning_rate=1e-2,
    epochs=2,
    minibatches=2,
    target_kl=None,
    entropy_coef=0.05,
    entropy_coef_final=0.01,
)


def make_ppo(policy=None, **changes) -> PPO:
    return PPO(
        policy or make_policy(), SETTINGS.model_copy(update=changes), rng_seed=1, total_updates=5
    )


def make_learner(total_updates: int = 5, **changes) -> tuple[PPO, Rollout]:
    return learner(SETTINGS.model_copy(update=changes), total_updates=total_updates)


@pytest.mark.parametrize("part", ["features", "state", "masks"])
def test_the_self_test_finds_what_was_not_replayed_as_it_was(part: str) -> None:
    ppo, rollout = make_learner()
    defects = {
        "features": rollout.features.roll(1, dims=0),
        "state": type(rollout.state)(*(memory + 1.0 for memory in rollout.state)),
        "masks": {name: torch.ones_like(mask) for name, mask in rollout.masks.items()},
    }
    metrics = ppo.update(replace(rollout, **{part: defects[part]}), 0)
    assert not metrics.first_ratio_ok and metrics.first_ratio_deviation > 1e-3


def test_metrics_are_plain_numbers_and_each_is_explained() -> None:
    ppo, rollout = make_learner()
    metrics = ppo.update(rollout, 0)
    for name, value in dataclasses.asdict(metrics).items():
        for number in value.values() if isinstance(value, dict) else [value]:
            assert type(number) in (int, float, bool), name
            assert math.isfinite(number), name
    assert (metrics.steps, metrics.epochs) == (4, 2)
    assert metrics.samples == 8 * 6 - 3  # env 2 ends after step 4
    assert metrics.approx_kl > 0 and metrics.update_kl > 0
    assert metrics.grad_norm_max >= metrics.grad_norm > 0


@pytest.fixture(scope="module")
def one_step() -> tuple[PPO, Rollout, UpdateMetrics]:
    """A learner after one step, on its whole rollout; read only."""
    ppo, rollout = make_learner(epochs=1, minibatches=1)
    return ppo, rollout, ppo.update(rollout, 0)


def test_norms_of_the_parts_make_up_the_global_one(one_step) -> None:
    """What was stepped on is clipped."""
    ppo, _, metrics = one_step
    assert metrics.grad_norm > SETTINGS.max_grad_norm
    clipping = SETTINGS.max_grad_norm / metrics.grad_norm
    norms = metrics.grad_norm_by_part
    assert metrics.grad_norm == pytest.approx(math.hypot(*norms.values()), rel=1e-5)
    for name, members in ppo.policy.groups().items():
        norm = torch.cat([parameter.grad.flatten() for parameter in members]).norm().item()
        assert norm == pytest.approx(clipping * norms[name], rel=1e-4), name


def test_raw_advantages_and_values_are_reported_before_normalisation(one_step) -> None:
    _, rollout, metrics = one_step
    advantages = rollout.advantages[rollout.valid].numpy()
    returns = rollout.returns[rollout.valid].numpy()
    residual = returns - rollout.values[rollout.valid].numpy()
    assert metrics.advantage_mean == pytest.approx(advantages.mean(), rel=1e-4)
    assert metrics.advantage_max_abs == pytest.approx(abs(advantages).max(), rel=1e-4)
    assert metrics.advantage_std == pytest.approx(advantages.std(), rel=1e-4)
    assert metrics.return_std == pytest.approx(returns.std(), rel=1e-4)
    assert metrics.explained_variance == pytest.approx(1 - residual.var() / returns.var(), rel=1e-3)


def test_a_good_action_becomes_likelier_and_the_norm_is_reported_before_clipping() -> None:
    ppo, rollout = make_learner(max_grad_norm=1e-4, learning_rate=1e-3)
    better = replace(rollout, advantages=torch.where(rollout.actions[..., 0] == 0, 1.0, -1.0))
    before = rollout.log_probs[..., 0][(rollout.actions[..., 0] == 0) & rollout.valid].mean()
    metrics = ppo.update(better, 0)
    now = ppo.policy.rescore(
        rollout.observation(), rollout.actions, rollout.state, rollout.valid, None
    )
    assert now.log_probs[..., 0][(rollout.actions[..., 0] == 0) & rollout.valid].mean() > before
    assert metrics.grad_norm > 1e-2
    assert metrics.grad_clipped_fraction == 1.0


def test_too_large_a_divergence_ends_the_update_before_the_step() -> None:
    ppo, rollout = make_learner(learning_rate=0.5, target_kl=1e-3, epochs=4)
    metrics = ppo.update(rollout, 0)
    assert metrics.stopped_early and metrics.steps < 8
    assert metrics.approx_kl > 1.5e-3
    # The estimate that stopped it was seen after `steps` steps: no step was taken on it.
    again, rollout = make_learner(learning_rate=0.5, epochs=4)
    weights_before_step = []
    step = again.adam.step_unless_skipped
    again.adam.step_unless_skipped = lambda *how: (
        weights_before_step.append(weights(again)),
        step(*how),
    )  # type: ignore[method-assign]
    again.update(rollout, 0)
    assert torch.equal(weights_before_step[metrics.steps], weights(ppo))


def test_a_loss_that_is_not_finite_skips_the_step_and_is_counted() -> None:
    ppo, rollout = make_learner(minibatches=6)
    returns = rollout.returns.clone()
    returns[3, 1] = torch.nan
    metrics = ppo.update(replace(rollout, returns=returns), 0)
    assert metrics.skipped_steps == 2  # env 1 is one of six minibatches in each of two epochs
    assert (metrics.steps, ppo.skipped_steps) == (10, 2)
    assert weights(ppo).isfinite().all() and math.isfinite(metrics.policy_loss)
    assert math.isfinite(metrics.grad_norm)


def test_schedules_count_executed_updates_only() -> None:
    ppo, rollout = make_learner(total_updates=3, learning_rate_schedule="linear")
    broken = replace(rollout, returns=torch.full_like(rollout.returns, torch.nan))
    before = weights(ppo)
    metrics = ppo.update(broken, 0)
    assert metrics.steps == 0
    assert math.isnan(metrics.policy_loss) and torch.equal(before, weights(ppo))
    updates = [ppo.update(rollout, iteration) for iteration in range(4)]
    # 0.05 → 0.01 over three executed updates, and constant after them; the rate falls to a fifth
    assert [update.entropy_coef for update in updates] == pytest.approx([0.05, 0.03, 0.01, 0.01])
    rates = [update.learning_rate for update in updates]
    assert rates == pytest.approx([0.01, 0.006, 0.002, 0.002], rel=1e-5)


def test_every_environment_is_used_once_in_each_epoch_and_orders_differ() -> None:
    ppo = make_ppo(epochs=3)
    env_ids = torch.tensor([14, 3, 9, 8, 20, 1, 7])
    schedule = list(ppo._minibatches(env_ids, env_ids.sort().values, iteration=2, minibatches=3))
    orders = []
    for epoch in range(3):
        parts = [rows for at, rows in schedule if at == epoch]
        assert torch.cat(parts).sort().values.tolist() == list(range(7))
        assert sorted(len(part) for part in parts) == [2, 2, 3]
        orders.append([sorted(part.tolist()) for part in parts])
    assert orders[0] != orders[1]
    assert orders != [
        [
            sorted(part.tolist())
            for at, part in ppo._minibatches(env_ids, env_ids.sort().values, 3, 3)
            if at == epoch
        ]
        for epoch in range(3)
    ]


def test_a_state_of_another_policy_is_refused_naming_the_tensor() -> None:
    state = make_ppo().state_dict()
    gru_ppo = make_ppo(make_policy("gru"))
    with pytest.raises(
        SimicError, match=r"rnn.* has shape \(40, 12\); this policy needs \(30, 12\)"
    ):
        gru_ppo.load_state_dict(state)
    del state["counter.updates"]
    with pytest.raises(SimicError, match=r"counter\.updates.* missing"):
        make_ppo().load_state_dict(state)


@pytest.mark.parametrize("core", ["lstm", "transformer"])
def test_episodes_that_start_inside_a_rollout_are_replayed_as_they_were(core: str) -> None:
    ends = {0: {2: (False, True), 5: (True, False)}, 3: {4: (True, False)}}
    ppo = make_ppo(make_policy(core))
    position = None
    for iteration in range(2):
        world = TensorWorld(list(range(4)), ends, same_step=True)
        world.reset()
        rollout, position = collect(
            world, ppo.policy, Normalizers(), iteration, 1, steps=8, position=position
        )
        assert rollout.starts_inside
        metrics = ppo.update(with_advantages(rollout, rollout.rewards, 0.9, 0.9), iteration)
        assert metrics.first_ratio_ok
        assert metrics.steps == 4
    forgotten = replace(with_advantages(rollout, rollout.rewards, 0.9, 0.9), starts_inside=False)
    assert not make_ppo(ppo.policy).update(forgotten, 5).first_ratio_ok
