"""The observer reports what the checks find, once, and again only when it gets worse."""

from dataclasses import replace

from simic.audit.live import LiveAudit
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import FindingRow
from simic.training.observers import RunInfo

from .synthetic import ITERATIONS, params, recorded


def watch(iterations, work_dir, start=0):
    """Return the findings of one process over these iterations."""
    findings = []
    observer = LiveAudit()
    observer.on_start(RunInfo(params(), work_dir, "d" * 64, start, findings.append))
    for iteration in iterations:
        observer.on_rollout(iteration.update.iteration, iteration.steps)
        observer.on_iteration(iteration.update, iteration.train)
    observer.on_end("finished")
    return findings


def damaged(changes):
    """Yield the clean run with metrics of some iterations replaced; its returns fall, so that signs count."""
    for iteration in recorded():
        metrics = {**iteration.update.metrics, **changes.get(iteration.update.iteration, {})}
        falling = {**iteration.train, "return": -iteration.train["return"]}
        yield replace(
            iteration,
            update=iteration.update.model_copy(update={"metrics": metrics}),
            train=falling,
        )


def test_a_defect_is_reported_once_and_in_its_iteration_and_a_clean_run_is_silent(tmp_path):
    assert watch(recorded(), tmp_path) == []
    findings = watch(damaged({7: {"first_ratio_deviation": 0.01}}), tmp_path)
    assert [(row.check, row.iteration, row.severity) for row in findings] == [("R1", 7, "critical")]
    assert "0.01" in findings[0].message


def test_a_finding_that_gets_worse_is_reported_again(tmp_path):
    findings = watch(damaged({5: {"ratio_max": 30.0}, 9: {"ratio_mean": 20.0}}), tmp_path)
    assert [(row.iteration, row.severity) for row in findings] == [(5, "medium"), (9, "high")]


def test_a_broken_reward_is_found_in_the_iteration_it_is_paid(tmp_path):
    broken = recorded()
    broken[3].steps["components/shaping"][1, 0] += 0.5
    assert {(row.check, row.iteration) for row in watch(broken, tmp_path)} == {("P5", 3)}


def test_a_resumed_run_remembers_what_it_was_told(tmp_path):
    everything = list(damaged({7: {"ratio_max": 30.0}}))
    with Recorder(tmp_path) as log:
        for iteration in everything[:12]:
            log.write(iteration)
        log.find(FindingRow(iteration=7, check="R2", severity="medium", message="said before"))
    assert watch(everything[12:], tmp_path, start=12) == []
    # Without that memory it would be told again: the damaged update is still among the recent ones.
    assert [row.check for row in watch(everything, tmp_path)] == ["R2"]
    assert ITERATIONS > 12
