"""The warm start: the explorer decides, what won among twins is cloned, and a stop costs nothing."""

import math

import numpy as np
import pytest
import torch
from small_runs import assert_same_run, findings_of, interrupted_after, run, small_params, steps_of, updates_of

from simic.audit.live import LiveAudit
from simic.envs.actions import action_spec
from simic.errors import SimicError
from simic.growth.life.vocabulary import Op
from simic.training.checkpoint import read


def params(**changes):
    return small_params(**{"envs": 4, "twins": 2, "warm_start": 3, "iterations": 4, "episode_steps": 12} | changes)


@pytest.fixture(scope="module")
def warm(prepared, tmp_path_factory):
    """A run of three iterations of imitation and one of PPO, with the audit that watches every run; read only."""
    work = tmp_path_factory.mktemp("warm")
    run(work, prepared, [LiveAudit()], params=params())
    return work


def test_the_live_audit_has_nothing_to_say_of_it(warm):
    assert findings_of(warm) == []


def test_demonstrated_actions_are_0_where_their_op_uses_no_head(warm):
    shown = read(warm / "checkpoints" / "000002").tensors
    actions = torch.cat([shown[f"demonstrations/{number:03d}.actions"].flatten(0, 1) for number in range(2)])
    sizes = actions.amax(dim=0) + 1
    unused = ~action_spec(int(sizes[1]), int(sizes[2])).relevance_table("cpu")[actions[:, 0]]
    assert not actions[unused].any()
    assert actions[:, 5].any() and actions[:, 0].unique().tolist()[:2] == [Op.WAIT, Op.GERMINATE]


def test_demonstrations_are_kept_as_long_as_they_are_cloned_and_no_longer(warm):
    def shown(iteration):
        return {n.split("/")[1][:3] for n in read(warm / "checkpoints" / f"{iteration:06d}").tensors if "demonst" in n}

    assert shown(2) == {"000", "001"}
    assert shown(3) == shown(4) == set()


def test_the_explorer_germinates_at_once_on_most_hosts_and_the_policy_learns_of_all_its_episodes(warm):
    first = [step for step in steps_of(warm) if step.step == 1 and step.iteration < 3]
    assert np.mean([op == Op.GERMINATE for step in first for op in step.op]) > 0.5
    updates = updates_of(warm)
    assert [update.metrics["samples"] for update in updates] == [48, 96, 144, 48]
    assert [update.env_steps for update in updates] == [48, 96, 144, 192]
    assert all(update.metrics["first_ratio_ok"] for update in updates)
    assert [math.isnan(update.metrics["approx_kl"]) for update in updates] == [True] * 3 + [False]
    assert [math.isnan(update.metrics["ratio_max"]) for update in updates] == [True] * 3 + [False]
    assert [update.metrics["entropy_coef"] > 0 for update in updates] == [False] * 3 + [True]


@pytest.mark.parametrize("steps", [5, 17, 30, 40])
def test_a_stop_inside_the_imitation_phase_changes_no_byte(warm, prepared, tmp_path, steps):
    interrupted_after(steps, tmp_path, prepared, params())
    run(tmp_path, prepared, params=params())
    assert_same_run(tmp_path, warm)


def test_twins_are_shown_different_plans(warm):
    first = [step for step in steps_of(warm) if step.step == 1 and step.iteration < 3]
    choices = [list(zip(step.op, step.slot, step.blueprint, strict=True)) for step in first]
    assert any(row[0] != row[1] and row[2] != row[3] for row in choices)


def test_a_choice_that_the_explorer_needs_and_that_is_closed_is_refused_before_a_step(prepared, tmp_path):
    with pytest.raises(SimicError, match=r"Explorer needs tempo 3, which train.actions.tempo closes: allow it, or"):
        run(tmp_path, prepared, params=params(actions={"tempo": (5, 8)}))
    assert not steps_of(tmp_path)
