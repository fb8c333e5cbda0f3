"""Progress says what was measured, in plain lines where there is no terminal."""

from small_runs import small_params

from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from simic.training.observers import Lines, RunInfo
from tests.helpers import episode, update


def info(tmp_path, start: int) -> RunInfo:
    return RunInfo(small_params(iterations=10), tmp_path, "d", start, lambda finding: None)


def test_a_line_has_the_means_over_hosts_and_the_time_left(tmp_path):
    lines, clock = [], iter([100.0, 104.0, 108.0, 110.0])
    watcher = Lines(lines.append, lambda: next(clock), {"static": 60.0, "tuned_rule": 70.125})
    watcher.on_start(info(tmp_path, 2))
    watcher.on_iteration(update(2), episode((50.0, 60.0)))  # 4 s for one iteration, 7 left
    watcher.on_iteration(update(3, 71.25), episode((50.0, 60.0)))
    watcher.on_finding(FindingRow(iteration=3, check="c", severity="high", message="m"))
    watcher.on_end("interrupted")
    assert lines == [
        f"train: run {run_name(tmp_path.name)}",
        "train: resuming after iteration 2 of 10",
        "train:  3/10   5 epochs  committed  55.0 %  kept 2.0 seeds  0:28 left",
        "train:  4/10   5 epochs  committed  55.0 %  kept 2.0 seeds  "
        "validation  71.2 (static 60.0, tuned rule 70.1)  0:24 left",
        "train: high finding c: m",
        "train: interrupted after 0:10",
    ]
