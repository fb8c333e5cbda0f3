"""Who watches an agent hears of everything in order, may end it, and changes nothing that is learned."""

from pathlib import Path

import pytest

from simic.agent import Agent
from simic.agent.callbacks import (
    EVALUATED,
    RETURN,
    Callback,
    IterationReport,
    PeriodicEvaluation,
    ProgressBar,
    Writer,
)
from simic.agent.rollout import StepRecord
from simic.errors import SimicError

from .test_agent import Sign, equal, make_agent

STEPS = 64  # of an update


class Told(Callback):
    """Notes what it hears; says False at the update of that number."""

    def __init__(self, enough: int | None = None) -> None:
        self.heard: list[str] = []
        self.enough = enough

    def on_start(self, agent: Agent, steps: int) -> None:
        self.heard.append(f"start {steps}")

    def on_step(self, agent: Agent, step: StepRecord) -> None:
        self.heard.append(f"step {step.step}")

    def on_update(self, agent: Agent, report: IterationReport) -> bool | None:
        self.heard.append(f"update {report.iteration}")
        return report.iteration != self.enough

    def on_end(self, agent: Agent, failed: bool) -> None:
        self.heard.append("failed" if failed else "end")


def test_all_is_told_in_order_and_a_function_hears_of_updates() -> None:
    told, reports = Told(), []
    make_agent().train(STEPS * 2, told, reports.append)
    steps = [f"step {step}" for step in range(16)]
    assert told.heard == ["start 128", *steps, "update 1", *steps, "update 2", "end"]
    assert [report.iteration for report in reports] == [1, 2]


def test_false_ends_training_after_the_update_and_an_error_is_told() -> None:
    agent, told = make_agent(), Told(enough=1)
    agent.train(STEPS * 5, told)
    assert told.heard[-2:] == ["update 1", "end"] and agent.env_steps == STEPS

    def fail(report: IterationReport) -> None:
        raise ZeroDivisionError

    told = Told()
    with pytest.raises(ZeroDivisionError):
        agent.train(STEPS, told, fail)
    assert told.heard[-1] == "failed"


def test_evaluation_changes_nothing_and_keeps_the_best(tmp_path: Path) -> None:
    alone, watched = make_agent(), make_agent()
    alone.train(STEPS * 12)
    evaluation = PeriodicEvaluation(STEPS * 3, episodes=16, best=tmp_path / "best.safetensors")
    kept = list[tuple[dict[str, float], int]]()
    writer = Writer(lambda values, steps: kept.append((values, steps)), evaluation)
    watched.train(STEPS * 12, evaluation, writer)
    assert equal(alone, watched)
    assert [steps for steps, _ in evaluation.history] == [STEPS * n for n in (3, 6, 9, 12)]
    means = [mean for _, mean in evaluation.history]
    best = Agent.load(tmp_path / "best.safetensors", Sign)
    assert best.env_steps == evaluation.history[means.index(max(means))][0]
    assert sum(best.evaluate(16)) / 16 == max(means) == evaluation.best_return
    # The writer has every update, and every evaluation once.
    evaluated = [(steps, row[EVALUATED]) for row, steps in kept if EVALUATED in row]
    assert evaluated == evaluation.history
    updates = [(steps, row) for row, steps in kept if EVALUATED not in row]
    assert [steps for steps, _ in updates] == [STEPS * n for n in range(1, 13)]
    assert all(RETURN in row and "train/policy_loss" in row for _, row in updates)


@pytest.mark.parametrize(
    ("settings", "evaluations"), [({"patience": 2}, 3), ({"target": -1.0}, 1), ({}, 5)]
)
def test_it_ends_when_nothing_improves_or_it_is_good_enough(
    settings: dict, evaluations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "evaluate", lambda agent, episodes: [1.0] * episodes)
    evaluation = PeriodicEvaluation(STEPS, **settings)
    make_agent().train(STEPS * 5, evaluation)
    assert len(evaluation.history) == evaluations


def test_a_callback_that_could_not_do_its_work_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for make, words in (
        (lambda: Writer("runs"), "write = 'runs': must be a function of values and steps"),
        (lambda: Writer(print, print), "evaluation = .*print.*: must be a PeriodicEvaluation"),
        (lambda: PeriodicEvaluation(1, best=tmp_path), "is a folder, must be a file"),
        (lambda: PeriodicEvaluation(1, best=tmp_path / "file" / "best"), "file: is a file, must"),
        (lambda: PeriodicEvaluation(1, target="high"), "target = 'high': must be a number"),
        (lambda: make_agent().train(0, ProgressBar), "ProgressBar'>: must be a Callback, or a"),
    ):
        with pytest.raises(SimicError, match=words):
            make()


def test_mlflow_keeps_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    def keep(values: dict[str, float], steps: int) -> None:
        mlflow.log_metrics(values, step=steps)

    # Not by mlflow.set_tracking_uri, which would stay for the tests behind this one.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    with mlflow.start_run() as run:
        make_agent().train(STEPS * 2, Writer(keep))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/value_loss")
    assert [metric.step for metric in history] == [STEPS, STEPS * 2]


def test_the_bar_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    make_agent().train(STEPS * 2, ProgressBar())
    lines = capsys.readouterr().out.split("\r")
    assert lines[1].startswith("64 of 128 steps, return ")
    assert lines[2].startswith("128 of 128 steps") and lines[2].endswith("\n")
