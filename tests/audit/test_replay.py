"""What a replay says: equal, differs, or not possible for a reason that hides no difference."""

import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from simic.audit import replay, replay_evaluation
from simic.audit.record import Table
from simic.audit.replay import Attempt, RunFiles
from simic.errors import DecisionFault, SimicError
from simic.params import GymWrapper
from simic.pipeline import stages
from simic.training import machine
from tests.gym_run import TREE, gym_run

from .synthetic import ENVS, ITERATIONS, params

RECORDED = {"steps.reward": np.array([1.0])}
ATTEMPT = Attempt(play=partial(dict), recorded=RECORDED, subject="iteration 3")


def compared(replayed):
    """Compare what a fresh process answers, or raises, with the record."""
    future = Future()
    if isinstance(replayed, Exception):
        future.set_exception(replayed)
    else:
        future.set_result(replayed)
    return replay._compare("training", ATTEMPT, future)


@pytest.mark.parametrize(
    "error", [SimicError("no kept state"), BrokenProcessPool("killed"), MemoryError("too much")]
)
def test_what_this_machine_prevents_is_not_possible(error):
    result = compared(error)
    assert result.outcome == "not possible" and str(error) in result.detail


@pytest.mark.parametrize(
    "error",
    [ValueError("shapes"), RuntimeError("an index"), DecisionFault("head 'op': no legal choice")],
)
def test_a_replay_that_fails_where_the_run_did_not_differs(error):
    result = compared(error)
    assert (result.outcome, result.differences) == ("differs", (type(error).__name__,))


def test_equal_bytes_are_equal_and_others_differ():
    assert compared(RECORDED).outcome == "equal"
    assert compared({"steps.reward": np.array([np.nextafter(1.0, 2.0)])}).differences == (
        "steps.reward",
    )
    assert compared({"steps.reward": np.array([1])}).differences == ("steps.reward",)
    missing = compared({})
    assert missing.differences == ("steps.reward",) and "1 of 1 values differ" in missing.detail


@pytest.mark.parametrize("table", ["updates", "steps", "episodes"])
def test_rows_that_are_missing_make_a_difference(clean, table):
    updates = clean.updates.columns
    hashes = {
        name: np.full(ITERATIONS, "a" * 64, dtype=object) for name in ("state_begun", "state_ended")
    }
    run = replace(clean, updates=Table({**updates, **hashes}))
    complete = replay._recorded_iteration(run, 5)
    assert complete["episodes.return"].shape == (ENVS,)
    rows = getattr(run, table)
    short = replace(run, **{table: rows.where(rows.column("iteration") != 5)})
    names = replay.differences(complete, replay._recorded_iteration(short, 5))
    assert names and all(name.startswith(("state", table.removesuffix("s"))) for name in names)


def test_a_policy_that_is_missing_in_the_evaluation_makes_a_difference(clean):
    tree = params()
    changed = tree.model_copy(
        update={"evaluate": tree.evaluate.model_copy(update={"policies": ("learned",)})}
    )
    population = replay_evaluation.choose_population(changed, clean.evaluation, 0)
    complete = replay_evaluation.recorded_hosts(clean.evaluation, population)
    assert "learned.test_accuracy_pct" in complete
    missing = clean.evaluation.model_copy(update={"actions": {}})
    assert replay.differences(complete, replay_evaluation.recorded_hosts(missing, population)) == [
        "learned.actions"
    ]


def test_hosts_are_grouped_as_the_evaluation_recorded(clean):
    tree = params()
    for group in (7, 20):
        described = clean.evaluation.machine.model_copy(update={"group": group})
        evaluation = clean.evaluation.model_copy(update={"machine": described})
        population = replay_evaluation.choose_population(tree, evaluation, 0)
        assert population is None or len(population.rows) == group


def test_a_run_of_another_device_is_configured_and_not_parsed(clean):
    """The name of a GPU is no name of a device."""
    described = clean.evaluation.machine.model_copy(update={"device": "NVIDIA H100 80GB HBM3"})
    assert replay._as_recorded(params(), described, 1).runtime.device == "auto"
    assert replay._as_recorded(params(), clean.evaluation.machine, 1).runtime.device == "cpu"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return gym_run(tmp_path_factory)


@pytest.fixture
def files(workspace):
    return RunFiles(workspace.prepared, workspace.telemetry, workspace.checkpoints)


def test_another_machine_than_that_of_the_evaluation_is_named(workspace, files):
    described = stages.recorded(TREE, workspace).gym.machine
    tree = replay._as_recorded(TREE, described, 1)
    device = machine.configure(tree.runtime)
    replay_evaluation._learned(tree, files, described, device)
    elsewhere = described.model_copy(update={"cpu_capability": "AVX7"})
    with pytest.raises(SimicError, match="evaluated on another machine: cpu_capability AVX7 → "):
        replay_evaluation._learned(tree, files, elsewhere, device)


def test_a_process_that_is_killed_leaves_the_other_part_its_result(workspace, files, monkeypatch):
    killed = replace(ATTEMPT, play=partial(os._exit, 9))
    monkeypatch.setattr(replay, "_training", lambda run, files: killed)
    with replay.replaying(stages.recorded(TREE, workspace), files) as results:
        training, evaluation = results()
    assert (training.outcome, evaluation.outcome) == ("not possible", "equal")


def drifting():
    """Let the observations of CartPole drift, whatever the seed and the actions."""
    task = TREE.prepare.gym.model_copy(
        update={"wrappers": (GymWrapper(name="tests.gym_toys:Drifting"),)}
    )
    return TREE.model_copy(update={"prepare": TREE.prepare.model_copy(update={"gym": task})})


def test_an_environment_is_excused_only_where_the_same_actions_lead_elsewhere(files):
    assert replay_evaluation.environment_repeats(TREE, files)
    assert not replay_evaluation.environment_repeats(drifting(), files)
