"""The warm start: the explorer decides, what won among twins is cloned, and a stop costs nothing."""

import math

import pytest
import torch
from small_runs import assert_same_run, findings_of, interrupted_after, run, small_params, steps_of, updates_of

from simic.audit.live import LiveAudit
from simic.envs.actions import action_spec
from simic.envs.explorer import Tries
from simic.errors import SimicError
from simic.growth.life.vocabulary import Op
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle
from simic.training import survey
from simic.training.checkpoint import read
from simic.training.survey import best_sequence
from tests.helpers import some

QUICK = Lifecycle(max_seeds=1, training_dwell=1, min_prune_age=3, embargo_steps=0, sequential_development=False)


def params(**changes):
    """Two openings, and time to try both."""
    settings = {"envs": 4, "twins": 2, "survey": 2, "warm_start": 2, "iterations": 5, "episode_steps": 14}
    settings |= {"lifecycle": QUICK, "actions": {"slot": (0, 1), "blueprint": ("norm",)}}
    return small_params({"keep_last": 9}, **settings | changes)


@pytest.fixture(scope="module")
def warm(prepared, tmp_path_factory):
    """Two iterations of survey, two of demonstrations, one of PPO; read only."""
    work = tmp_path_factory.mktemp("warm")
    run(work, prepared, params=params())
    return work


@pytest.mark.slow
def test_the_live_audit_does_not_stop_it(warm, prepared, tmp_path):
    run(tmp_path, prepared, [LiveAudit()], params=params())
    assert updates_of(tmp_path) == updates_of(warm)
    assert not any(finding.at_least("high") for finding in findings_of(tmp_path))


@pytest.fixture(scope="module")
def groups_of_four(prepared, tmp_path_factory):
    """Four openings tried side by side, then pairs of twins; and the curves that the survey's conclusion was drawn
    from.
    """
    work, seen = tmp_path_factory.mktemp("groups"), []

    def spied(curves, tries):
        seen.append(curves)
        return best_sequence(curves, tries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "best_sequence", spied)
        several = {"slot": (0, 1), "blueprint": ("norm", "bottleneck")}
        run(work, prepared, params=params(envs=8, iterations=4, actions=several))
    return work, seen


def by_step(work, iteration, name):
    """Of every host, ``[T, E]``."""
    return torch.tensor([getattr(step, name) for step in steps_of(work) if step.iteration == iteration])


@pytest.mark.parametrize(("iteration", "size"), [(0, 4), (2, 2)])
def test_hosts_are_shared_and_rewards_compared_in_groups_of_the_phase(groups_of_four, iteration, size):
    """A seed that has just germinated changes nothing yet."""
    work, _ = groups_of_four
    first = by_step(work, iteration, "train_loss")[0].unflatten(0, (-1, size))
    assert torch.equal(first, first[:, :1].expand_as(first)) and len(first[:, 0].unique()) == len(first)
    rewards = read(work / "checkpoints" / f"{iteration + 1:06d}").tensors["demonstrations/000.rewards"]
    assert rewards.any()
    torch.testing.assert_close(rewards.unflatten(0, (-1, size)).sum(1), torch.zeros(8 // size, 14), rtol=0, atol=1e-5)


def test_the_survey_concludes_from_what_the_telemetry_shows(groups_of_four):
    work, [curves] = groups_of_four
    shown = torch.cat([by_step(work, iteration, "live_accuracy")[:-1].T.unflatten(0, (2, 4)) for iteration in (0, 1)])
    torch.testing.assert_close(100 * curves[..., 1:], shown.double(), rtol=0, atol=1e-3)
    kind = [each.name for each in blueprints_of("cnn")].index
    openings = torch.tensor([[slot, each] for slot in (0, 1) for each in sorted(map(kind, ("norm", "bottleneck")))])
    assert torch.equal(sequence_of(work, 2), openings[best_sequence(curves, Tries.of(QUICK, 14))])


def sequence_of(work, iteration):
    return read(work / "checkpoints" / f"{iteration:06d}").tensors.get("survey/sequence")


def test_what_the_survey_found_is_said_once_and_kept_from_then_on(warm):
    [finding] = findings_of(warm)
    assert (finding.iteration, finding.check, finding.severity) == (1, "survey", "info")
    found = sequence_of(warm, 2)
    assert found is not None and sorted(found.tolist()) == [[0, 0], [1, 0]]
    assert finding.message.endswith(
        f"by a survey of 4 tasks: norm in slot {found[0, 0]}, then norm in slot {found[1, 0]}"
    )
    assert sequence_of(warm, 1) is None and torch.equal(sequence_of(warm, 5), found)


def test_the_survey_tries_every_opening_on_each_task_and_twins_then_differ_by_what_they_keep(warm):
    slots = {step.iteration: [] for step in steps_of(warm)}
    for step in steps_of(warm):
        for env, (op, slot) in enumerate(zip(step.op, step.slot, strict=True)):
            if op == Op.GERMINATE:
                slots[step.iteration].append((env, slot))
    first, second = sequence_of(warm, 2)[:, 0].tolist()
    for iteration in (0, 1):
        assert sorted(slots[iteration]) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    for iteration in (2, 3):
        shown = [[slot for env, slot in slots[iteration] if env == mine] for mine in range(4)]
        assert shown == [[first], [first, second]] * 2


def test_demonstrated_actions_are_0_where_their_op_uses_no_head(warm):
    shown = [read(warm / "checkpoints" / f"{iteration:06d}").tensors for iteration in (1, 3)]
    actions = torch.cat([tensors["demonstrations/000.actions"].flatten(0, 1) for tensors in shown])
    sizes = actions.amax(dim=0) + 1
    unused = ~action_spec(int(sizes[1]), int(sizes[2])).relevance_table("cpu")[actions[:, 0]]
    assert not actions[unused].any()
    assert actions[:, 5].any() and actions[:, 0].unique().tolist()[:2] == [Op.WAIT, Op.GERMINATE]


def test_demonstrations_are_kept_as_long_as_they_are_cloned_and_no_longer(warm):
    def shown(iteration):
        return {n.split("/")[1][:3] for n in read(warm / "checkpoints" / f"{iteration:06d}").tensors if "demonst" in n}

    assert shown(1) == shown(3) == {"000"}
    assert shown(2) == shown(4) == shown(5) == set()


def test_the_policy_learns_of_all_that_is_shown_and_then_of_its_own(warm):
    updates = updates_of(warm)
    assert [update.metrics["samples"] for update in updates] == [56, 112, 56, 112, 56]
    assert [update.env_steps for update in updates] == [56, 112, 168, 224, 280]
    assert all(update.metrics["first_ratio_ok"] for update in updates)
    assert [math.isnan(update.metrics["approx_kl"]) for update in updates] == [True] * 4 + [False]
    assert [math.isnan(update.metrics["ratio_max"]) for update in updates] == [True] * 4 + [False]
    assert [update.metrics["entropy_coef"] > 0 for update in updates] == [False] * 4 + [True]


@pytest.mark.parametrize("steps", some([5, 20, 33, 50], 20))
def test_a_stop_inside_the_imitation_phase_changes_no_byte(warm, prepared, tmp_path, steps):
    interrupted_after(steps, tmp_path, prepared, params())
    run(tmp_path, prepared, params=params())
    assert_same_run(tmp_path, warm)


def test_a_survey_needs_whole_groups_of_hosts(prepared, tmp_path):
    with pytest.raises(SimicError, match=r"survey tries 3 openings side by side, and each process has 4 environments"):
        run(tmp_path, prepared, params=params(actions={"blueprint": ("norm",)}))


def test_a_choice_that_the_explorer_needs_and_that_is_closed_is_refused_before_a_step(prepared, tmp_path):
    with pytest.raises(SimicError, match=r"Explorer needs tempo 3, which train.actions.tempo closes: allow it, or"):
        run(tmp_path, prepared, params=params(actions=params().train.actions | {"tempo": (5, 8)}))
    assert not steps_of(tmp_path)
