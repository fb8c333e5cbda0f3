"""Stopped anywhere and resumed equals never stopped; what is found is recorded and can end a run."""

import itertools
import math
import threading
from dataclasses import replace

import pytest
import torch
from small_runs import (
    Watcher,
    assert_same_run,
    episodes_of,
    events_of,
    findings_of,
    interrupted_after,
    run,
    small_params,
    steps_of,
    telemetry_of,
    updates_of,
)

from simic.errors import SimicError
from simic.growth.life.vocabulary import Op
from simic.params import Governor
from simic.telemetry import timing
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import read
from simic.training.interrupts import Interrupted
from simic.training.session import open_session
from simic.training.trainer import StoppedByFinding, train
from tests.standard import PPOParams

OPTIONS = {"episode_steps": (2, 5), "validate_every": 1, "ppo": PPOParams(
    learning_rate_schedule="linear", entropy_scale={"slot": 2.0}, epochs=2, minibatches=2,
    ratio="per_head",
)}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(prepared, tmp_path_factory):
    """An uninterrupted run whose iterations are as long as their hashes say, and how long these are; read only."""
    work = tmp_path_factory.mktemp("drawn")
    with open_session(small_params(**OPTIONS), work, prepared) as session:
        train(session)
        return work, [session.env.length_of(iteration) for iteration in range(4)]


def test_a_run_that_was_asked_to_stop_and_resumed_is_the_run_that_never_was(
    drawn, prepared, tmp_path
):
    undisturbed, lengths = drawn
    for length in lengths[:3]:  # in the first step of the second, third and fourth iteration
        interrupted_after(length + 1, tmp_path, prepared, small_params(**OPTIONS))
    run(tmp_path, prepared, params=small_params(**OPTIONS))
    assert_same_run(tmp_path, undisturbed)
    assert [row.iteration for row in timing.read(tmp_path / "timing.jsonl")] == [0, 1, 2, 3]


class AtLook(threading.Event):
    """Set when it is looked at for the nth time."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def is_set(self):
        self.left -= 1
        return self.left <= 0


# An iteration looks once at each of its 3 steps, at each of 3 in a validation (every second), and at its end.
def test_a_stop_saves_what_is_whole_and_says_what_is_lost(finished, prepared, tmp_path):
    """The last whole iteration is saved, also between checkpoints, unless the update has moved the state since then."""
    params = small_params({"checkpoint_every": 9})
    for look, saved, lost in (
        (8, 0, "; what followed was not saved and will be done again"),
        (4, 1, ""),
    ):
        with pytest.raises(
            Interrupted, match=f"stopped with {saved} iterations saved{lost}; to resume"
        ):
            run(tmp_path, prepared, (), AtLook(look), params)
        assert len(list((tmp_path / "checkpoints").glob("*"))) == saved
    run(tmp_path, prepared, params=params)
    resumed, expected = (
        read(work / "checkpoints/000004").manifest for work in (tmp_path, finished)
    )
    assert resumed.scalars == expected.scalars
    assert telemetry_of(tmp_path) == telemetry_of(finished)


def test_rows_have_every_step_once_and_in_order(finished):
    steps = [(row.iteration, row.step) for row in steps_of(finished)]
    assert steps == list(itertools.product(range(4), (1, 2, 3)))
    updates = updates_of(finished)
    assert [row.iteration for row in updates] == [0, 1, 2, 3]
    assert [row.env_steps for row in updates] == [12, 24, 36, 48]
    assert len({row.state_chain for row in updates}) == 4
    assert [iteration for iteration, _ in episodes_of(finished, "train")] == [0, 1, 2, 3]
    assert [iteration for iteration, _ in episodes_of(finished, "validation")] == [1, 3]
    places = [(event.iteration, event.step, event.env) for event in events_of(finished)]
    assert places == sorted(places)


def test_the_best_checkpoint_is_the_one_with_the_best_validation_score_and_is_kept(finished):
    validated = episodes_of(finished, "validation")
    scores = {
        iteration + 1: sum(episode["committed_accuracy"].tolist()) / 4
        for iteration, episode in validated
    }
    best = max(scores, key=lambda iteration: (scores[iteration], -iteration))
    manifest = read(finished / "checkpoints" / "000004").manifest
    assert (manifest.best_iteration, manifest.scalars["best_score"]) == (best, scores[best])
    assert (finished / "checkpoints" / f"{best:06d}").exists()


def test_observers_are_told_in_order_and_nothing_draws_from_torchs_generator(
    prepared, tmp_path, no_global_rng
):
    """A checkpoint comes after its iteration."""
    watcher = Watcher()
    with open_session(small_params(iterations=2), tmp_path, prepared) as session, no_global_rng():
        train(session, [watcher])
        with pytest.raises(AssertionError, match="random generator"):
            torch.rand(1)
    expected = ["start"]
    for iteration in range(2):
        expected += [("step", iteration, step) for step in (1, 2, 3)]
        expected += [
            ("rollout", iteration, 3),
            ("iteration", iteration),
            ("checkpoint", iteration + 1),
        ]
    assert (watcher.calls, watcher.info.start_iteration) == ([*expected, ("end", "finished")], 0)


def test_an_observer_that_fails_ends_the_run_and_loses_nothing(finished, prepared, tmp_path):
    def fail(count):
        if count == 8:
            raise RuntimeError("observer")

    watcher = Watcher(fail)
    with pytest.raises(RuntimeError, match="observer"):
        run(tmp_path, prepared, [watcher])
    assert watcher.calls[-1] == ("end", "failed")
    run(tmp_path, prepared)
    assert_same_run(tmp_path, finished)


class Reporter(Watcher):
    """Finds something in the first iteration, and something grave in the second."""

    def on_iteration(self, update, episode):
        super().on_iteration(update, episode)
        fields = {
            "check": f"mine {update.iteration}",
            "severity": ("medium", "high")[update.iteration],
        }
        self.info.report(FindingRow(iteration=update.iteration, message="too good", **fields))


def test_a_finding_as_grave_as_stop_on_ends_the_run_before_its_checkpoint_and_a_lesser_one_does_not(
    prepared, tmp_path
):
    reporter = Reporter()
    with pytest.raises(
        StoppedByFinding, match="stopped by finding mine 1 in iteration 2: too good"
    ):
        run(tmp_path, prepared, [reporter], params=small_params(stop_on="high"))
    assert reporter.calls[-1] == ("end", "failed")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000001"]
    assert [row.check for row in findings_of(tmp_path)] == ["mine 0", "mine 1"]
    assert findings_of(tmp_path) == reporter.findings


def test_a_policy_that_is_not_the_one_that_acted_is_found(prepared, tmp_path):
    with open_session(small_params(iterations=1), tmp_path, prepared) as session:

        def tamper(count):
            if count == 3:  # after the last action, before the update replays
                with torch.no_grad():
                    session.policy.heads[0].out.weight.mul_(100)

        with pytest.raises(StoppedByFinding, match="replay_differs"):
            train(session, [Watcher(tamper)])


def sick_hosts(session, sick):
    """No host is finite after an epoch: four rollbacks in the iteration."""
    epoch = session.env.population.train_epoch

    def wrapped(*arguments):
        stats = epoch(*arguments)
        return replace(stats, finite=stats.finite & (not sick()))

    session.env.population.train_epoch = wrapped


def sick_gradients(session, sick):
    """Not one of the sixteen steps of the update has a finite gradient."""
    weight = next(session.policy.parameters())
    weight.register_hook(lambda grad: grad * math.nan if sick() else grad)


def forbidden_actions(session, sick):
    """FOSSILIZE, where no seed is there."""
    step = session.env.step
    session.env.step = lambda actions: step(
        torch.full_like(actions, Op.FOSSILIZE) if sick() else actions
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            sick_hosts,
            "rollback_budget in iteration 2: 4 rollbacks in this run, .*rollback_budget allows 3",
        ),
        (
            sick_gradients,
            "non_finite_updates in iteration 2: 16 optimizer steps had no finite .*, at most 10 may",
        ),
        (
            forbidden_actions,
            "decision_fault in iteration 2: action {'op': 4.* forbidden by the masks",
        ),
    ],
)
def test_a_spent_budget_or_a_policy_that_cannot_decide_ends_any_run(
    fault, message, prepared, tmp_path
):
    """Whatever stop_on says; what was saved before is kept."""
    settings = {
        "stop_on": "never",
        "governor": Governor(rollback_budget=3),
        "ppo": PPOParams(minibatches=4),
    }
    params, watcher = small_params(**settings), Watcher()
    with open_session(params, tmp_path, prepared) as session:
        fault(session, lambda: watcher.steps > 3)  # from the second iteration on
        with pytest.raises(
            StoppedByFinding, match=rf"^stopped by finding {message}; earlier checkpoints are kept$"
        ):
            train(session, [watcher])
    assert watcher.calls[-1] == ("end", "failed")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000001"]
    read(tmp_path / "checkpoints" / "000001")
    findings = findings_of(tmp_path)
    assert findings == watcher.findings
    assert [(row.check, row.severity) for row in findings] == [(message.split()[0], "critical")]


def test_a_state_that_is_not_finite_ends_the_run_and_earlier_checkpoints_stay(
    finished, prepared, tmp_path
):
    with open_session(small_params(), tmp_path, prepared) as session:

        def poison(count):
            if count == 9:  # no validation episode follows: only the checkpoint looks
                session.state.normalizers.observation.moments.m2.fill_(math.nan)

        with pytest.raises(SimicError, match="is not finite"):
            train(session, [Watcher(poison)])
    run(tmp_path, prepared)
    assert_same_run(tmp_path, finished)
