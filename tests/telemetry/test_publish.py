"""Tables say what the log says, one row per host, in the same bytes every time."""

import math

import pyarrow.parquet as pq
import pytest

from simic.errors import SimicError
from simic.telemetry.publish import TABLES, publish
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import EpisodeRow, EventRow, FindingRow, StepRow, TimingRow, UpdateRow


def step(iteration: int, number: int) -> StepRow:
    ints = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve", "effective_op")
    more = ("gate", "params", "committed_params", "flops", "cause")
    measured = ("alpha", "contribution", "contribution_se", "interaction", "interaction_se", "seed_grad_norm")
    floats = ("log_prob", "value", "reward", "live_accuracy", "committed_accuracy", "all_off_accuracy")
    return StepRow(
        iteration=iteration,
        step=number,
        **{name: [number, 10 + number] for name in ints + more},
        **{name: [0.5, math.nan] for name in (*floats, "val_loss", "train_loss", "host_grad_norm")},
        components={"rent": [-0.25, 0.0], "death": [0.0, -10.0]},
        **{name: [[1, 2, 3], [4, 5, 6]] for name in ("stage", "slot_blueprint")},
        **{name: [[0.0, 0.5, 1.0], [math.nan] * 3] for name in measured},
        **{name: [True, False] for name in ("gate_passed", "panicked", "valid")},
    )


def update(iteration: int) -> UpdateRow:
    return UpdateRow(
        iteration=iteration,
        env_steps=50,
        metrics={"policy_loss": 0.5, "entropy_by_head/op": math.nan},
        validation_accuracy=math.nan,
        best_iteration=None if iteration == 0 else 1,
        state_chain="ab",
    )


@pytest.fixture
def files(tmp_path):
    with Recorder(tmp_path / "telemetry.jsonl") as log:
        for iteration in range(2):
            for number in (1, 2):
                log.append(step(iteration, number))
            log.append(update(iteration))
        evidence = {"value": 3, "name": "x"}
        log.append(FindingRow(iteration=1, check="c", severity="high", message="m", evidence=evidence))
    with Recorder(tmp_path / "timing.jsonl") as timing:
        seconds = dict.fromkeys(("collect_seconds", "update_seconds", "validate_seconds", "record_seconds"), 1.0)
        timing.append(TimingRow(iteration=0, **seconds))
    return tmp_path / "telemetry.jsonl", tmp_path / "timing.jsonl", tmp_path / "out"


@pytest.fixture
def published(files):
    publish(*files)
    return files[2]


def test_a_step_becomes_one_row_per_host(published):
    table = pq.read_table(published / "steps.parquet").to_pydict()
    assert table["iteration"] == [0] * 4 + [1] * 4
    assert table["step"] == [1, 1, 2, 2] * 2
    assert table["env"] == [0, 1] * 4
    assert table["op"] == [1, 11, 2, 12] * 2
    assert table["components/rent"] == [-0.25, 0.0] * 4
    assert table["components/death"] == [0.0, -10.0] * 4
    assert table["stage"] == [[1, 2, 3], [4, 5, 6]] * 4
    assert table["alpha"][0] == [0.0, 0.5, 1.0]
    assert math.isnan(table["val_loss"][1])
    assert table["panicked"] == [True, False] * 4


def test_metrics_are_columns_of_their_own_and_absent_is_null(published):
    table = pq.read_table(published / "updates.parquet").to_pydict()
    assert table["policy_loss"] == [0.5, 0.5]
    assert all(map(math.isnan, table["entropy_by_head/op"]))
    assert table["best_iteration"] == [None, 1]


def test_every_table_exists_and_an_empty_one_has_its_columns(published):
    assert sorted(path.name for path in published.iterdir()) == sorted([*TABLES.values(), "timing.jsonl"])
    events = pq.read_table(published / "events.parquet")
    assert events.num_rows == 0
    assert events.column_names == list(EventRow.model_fields)
    assert "return" in pq.read_table(published / "episodes.parquet").column_names
    assert EpisodeRow.model_fields["return_"].alias == "return"
    findings = pq.read_table(published / "findings.parquet").to_pydict()
    assert findings["evidence"] == ['{"name": "x", "value": 3}']


def test_equal_rows_give_equal_bytes(files, published):
    first = {path.name: path.read_bytes() for path in published.iterdir()}
    publish(*files)
    assert {path.name: path.read_bytes() for path in published.iterdir()} == first


def test_more_rows_than_a_group_holds_are_all_there(files, monkeypatch):
    monkeypatch.setattr("simic.telemetry.publish.ROWS_PER_GROUP", 3)
    publish(*files)
    assert pq.read_table(files[2] / "steps.parquet").num_rows == 8
    assert pq.ParquetFile(files[2] / "steps.parquet").num_row_groups == 2


def test_a_damaged_log_is_refused_and_publishes_nothing(files):
    log = files[0]
    log.write_bytes(log.read_bytes().replace(b'"policy_loss":0.5', b'"policy_loss":0.6', 1))
    with pytest.raises(SimicError, match="line 3 is damaged"):
        publish(*files)
    assert not files[2].exists()
