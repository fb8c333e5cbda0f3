"""Tables say what the log says, one row per host."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from simic.errors import SimicError
from simic.telemetry import naming
from simic.telemetry.columns import EVENTS, STEPS, EventColumns, arranged, published
from simic.telemetry.curves import COLUMNS, Curves
from simic.telemetry.publish import VALIDATED_FILE, publish
from simic.telemetry.recorder import Extent, Recorder
from simic.telemetry.rows import FindingRow, TimingRow, UpdateRow
from tests.helpers import episode, iteration, steps, update

ITERATIONS = 3
COUNT = 3
HOSTS = 2
TABLES = (
    "updates.parquet",
    "steps.parquet",
    "episodes.parquet",
    "events.parquet",
    "findings.parquet",
)
SECONDS = dict.fromkeys(
    ("collect_seconds", "update_seconds", "validate_seconds", "record_seconds"), 1.0
)
FOUND = FindingRow(
    iteration=1, check="c", severity="high", message="m", evidence={"value": 3, "name": "x"}
)


def record(work: Path) -> Extent:
    with Recorder(work) as log:
        for number in range(ITERATIONS):
            if number == 1:
                log.find(FOUND)
            log.write(iteration(number, validated=number == 1, count=COUNT, hosts=HOSTS))
            log.time(TimingRow(iteration=number, **SECONDS))
        return log.flush()


@pytest.fixture
def tables(tmp_path, monkeypatch) -> Path:
    """In groups of rows, each of whole iterations."""
    monkeypatch.setattr("simic.telemetry.publish.ROWS_PER_GROUP", 2 * COUNT * HOSTS)
    publish(tmp_path, record(tmp_path), tmp_path / "out")
    return tmp_path / "out"


def rows_of(path: Path) -> list[str]:
    """NaN equals itself."""
    return [repr(sorted(row.items())) for row in pq.read_table(path).to_pylist()]


def told(rows: list[dict]) -> list[str]:
    return [repr(sorted(row.items())) for row in rows]


def test_what_was_recorded_is_in_the_tables_and_what_is_absent_is_null(tables):
    values = {name: column.tolist() for name, column in steps(COUNT, HOSTS).items()}
    rows = [
        {"iteration": i, "step": t + 1, "env": e}
        | {name: column[t][e] for name, column in values.items()}
        for i, t, e in product(range(ITERATIONS), range(COUNT), range(HOSTS))
    ]
    assert rows_of(tables / "steps.parquet") == told(rows)
    groups = pq.read_metadata(tables / "steps.parquet")
    assert [groups.row_group(k).num_rows for k in (0, 1)] == [2 * COUNT * HOSTS, COUNT * HOSTS]
    rows = [
        {"iteration": i, "split": split, "env": e}
        | {name: column.tolist()[e] for name, column in episode().items()}
        for i, split in ((0, "train"), (1, "validation"), (1, "train"), (2, "train"))
        for e in range(2)
    ]
    assert rows_of(tables / "episodes.parquet") == told(rows)
    rows = [
        update(i).model_dump(exclude={"metrics"}) | update(i).metrics for i in range(ITERATIONS)
    ]
    assert rows_of(tables / "updates.parquet") == told(rows) and rows[0]["best_iteration"] is None
    happened = {"step": 1, "name": "germinated", "env": 1, "slot": 2, "detail": "from DORMANT"}
    assert rows_of(tables / "events.parquet") == told(
        [{"iteration": i} | happened for i in range(ITERATIONS)]
    )
    row = FOUND.model_dump() | {"evidence": '{"name": "x", "value": 3}'}
    assert rows_of(tables / "findings.parquet") == told([row])


def test_of_validations_the_decisions_of_the_best_one_are_published(tmp_path):
    with Recorder(tmp_path) as log:
        for number in range(3):
            row = update(number).model_copy(update={"best_iteration": min(2, number + 1)})
            log.write(
                replace(
                    iteration(number), update=row, decisions={"decided": np.full((2, 3, 8), number)}
                )
            )
            log.time(TimingRow(iteration=number, **SECONDS))
        publish(tmp_path, log.flush(), tmp_path / "out")
    assert (load_file(tmp_path / "out" / VALIDATED_FILE)["decided"] == 1).all()


def test_every_table_exists_and_an_empty_one_has_its_columns(tables, tmp_path):
    files = ("curves.csv", "metrics.json", "timing.jsonl")
    assert sorted(path.name for path in tables.iterdir()) == sorted([*TABLES, *files])
    with Recorder(tmp_path / "quiet") as log:
        log.write(
            replace(
                iteration(0), events=EventColumns({name: np.zeros(0, np.int64) for name in EVENTS})
            )
        )
        log.time(TimingRow(iteration=0, **SECONDS))
        publish(tmp_path / "quiet", log.flush(), tmp_path / "none")
    for name in ("events.parquet", "findings.parquet"):
        full, blank = (pq.read_table(folder / name) for folder in (tables, tmp_path / "none"))
        assert blank.num_rows == 0 and blank.schema == full.schema


@pytest.mark.parametrize("damage", ["log", "line", "tail", "starts"])
def test_a_damaged_log_times_or_starts_are_refused_and_nothing_is_published(damage, tmp_path):
    extent = record(tmp_path)
    times = tmp_path / "timing.jsonl"
    file = tmp_path / "telemetry" / "000001.safetensors"
    if damage == "log":
        file.write_bytes(file.read_bytes()[:-5])
    elif damage == "starts":
        (tmp_path / "run.json").write_text('[{"code": "abc"}')
    else:
        lines = times.read_bytes().splitlines(keepends=True)
        times.write_bytes(b"".join(lines[1:] if damage == "line" else lines[:-1]))
    start = rf"\A{file}: damaged" if damage == "log" else ""
    end = "; run the same command again: it goes on from what is good and says what is lost"
    with pytest.raises(SimicError, match=f"{start}.*{end}$"):
        publish(tmp_path, extent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_are_published_as_they_are_and_nan_has_one_bit_pattern():
    """Processors make NaN with either sign; equal tables need equal bytes."""
    for kind in (np.float32, np.float64):
        values = published(np.array([np.nan, -np.nan], dtype=kind))
        assert values[:1].tobytes() == values[1:].tobytes() == np.array([np.nan]).tobytes()
    assert published(np.array([0.1], dtype=np.float32)).tolist() == [float(np.float32(0.1))]
    assert published(np.array([0.1 + 0.2])).tolist() == [0.1 + 0.2]
    assert published(np.array([3], dtype=np.int16)).dtype == np.int64
    assert published(np.array([True])).dtype == bool


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns.pop("op"),
        lambda columns: columns.update(unheard=columns["op"]),
        lambda columns: columns.update(op=columns["op"].astype(np.int64)),
        lambda columns: columns.update(value=columns["flops"]),
        lambda columns: columns.update(alpha=columns["value"]),
    ],
)
def test_what_is_not_in_the_table_is_refused(change):
    columns = steps()
    change(columns)
    with pytest.raises(ValueError, match="telemetry: column"):
        arranged(columns, STEPS)


def curves(scores: list[float], best: int | None) -> Curves:
    """Iterations with these validation scores, the best after so many."""
    lines = Curves()
    for number, score in enumerate(scores):
        metrics = {"entropy": 0.5, "value_loss": 0.25 / (number + 1), "approx_kl": float("nan")}
        row = UpdateRow(
            iteration=number, env_steps=40 * (number + 1), metrics=metrics, validation_accuracy=score,
            best_iteration=best, state_chain="",
        )  # fmt: skip
        lines.append(row, episode())
    return lines


NOT_VALIDATED = float("nan")


def test_a_row_per_iteration_with_empty_cells_for_what_was_not_measured() -> None:
    """Returns 1 and 2, fossilized 1 and 3; of the committed accuracies 40 and NaN one was measured."""
    assert curves([NOT_VALIDATED, 62.5], 2).csv().splitlines() == [
        ",".join(COLUMNS),
        "1,,1.5,40.0,2.0,0.5,0.25,,",
        "2,62.5,1.5,40.0,2.0,0.5,0.125,,",
    ]


def test_the_numbers_are_those_of_the_last_iteration_and_of_the_best_validation() -> None:
    assert json.loads(curves([62.5, 60.0, NOT_VALIDATED], 1).metrics()) == {
        "iterations": 3,
        "return": 1.5,
        "committed_accuracy": 40.0,
        "kept_seeds": 2.0,
        "entropy": 0.5,
        "value_loss": 0.25 / 3,
        "env_steps": 120,
        "best_iterations": 1,
        "best_validation_score": 62.5,
    }
    assert "best_iterations" not in json.loads(curves([NOT_VALIDATED], None).metrics())
    assert json.loads(curves([], None).metrics()) == {"iterations": 0}


def test_a_name_is_two_words_and_the_start_of_the_fingerprint() -> None:
    assert naming.run_name("0123456789abcdef") == "sober-acacia-01234567"
