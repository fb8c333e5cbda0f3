"""The log: appended once, every damage noticed, cut back exactly to where a checkpoint was written."""

import json
import math
import resource
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.errors import SimicError
from simic.telemetry.recorder import Recorder, Silent, decode, encode, intact, keep_before, read
from simic.telemetry.rows import EpisodeRow, EventRow, FindingRow, TimingRow, UpdateRow


def event(iteration: int, detail: str = "") -> EventRow:
    return EventRow(iteration=iteration, step=1, name="germinated", env=0, slot=2, detail=detail)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    with Recorder(path) as recorder:
        for iteration in range(4):
            recorder.append(event(iteration, 'é\n"x"'))
    return path


def test_rows_come_back_as_they_went_in(log):
    assert list(read(log)) == [event(iteration, 'é\n"x"') for iteration in range(4)]


def test_every_line_is_json_with_the_crc_of_its_payload(log):
    for line in log.read_bytes().splitlines():
        parsed = json.loads(line)
        payload = line[len(b'{"crc32":"00000000",') : -1]
        assert int(parsed["crc32"], 16) == zlib.crc32(payload)
        assert parsed["kind"] == "event"


@given(st.lists(st.floats(), max_size=5), st.dictionaries(st.text(max_size=5), st.floats(), max_size=3))
def test_floats_come_back_bit_for_bit(values, metrics):
    row = UpdateRow(
        iteration=1, env_steps=2, metrics=metrics, validation_accuracy=math.nan, best_iteration=None, state_chain=""
    )
    back = decode(encode(row))
    assert isinstance(back, UpdateRow)
    assert math.isnan(back.validation_accuracy)
    assert encode(back) == encode(row)
    assert [repr(back.metrics[key]) for key in metrics] == [repr(value) for value in metrics.values()]


def test_a_field_named_by_a_keyword_has_its_plain_name_in_the_log():
    one = {"env_id": [0], "length": [3], "committed_accuracy": [1.0], "live_accuracy": [1.0], "params": [5]}
    rest = {"committed_params": [5], "germinated": [0], "fossilized": [0], "pruned": [0], "panicked": [False]}
    row = EpisodeRow(iteration=0, split="train", return_=[1.5], **one, **rest)
    assert json.loads(encode(row))["row"]["return"] == [1.5]
    assert decode(encode(row)) == row


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(at, bit):
    line = bytearray(encode(event(7, "some detail")))
    line[at % len(line)] ^= 1 << bit
    assert decode(bytes(line)) is None


def test_a_damaged_line_is_named(log):
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], lines[2].replace(b"germ", b"gerM"), lines[3]]))
    with pytest.raises(SimicError, match=r"telemetry\.jsonl: line 3 is damaged"):
        list(read(log))
    assert intact(log) == (len(lines[0]) + len(lines[1]), 2, True)


def test_a_torn_tail_is_left_out_only_where_it_is_allowed(log):
    content = log.read_bytes()
    log.write_bytes(content[:-5])
    assert len(list(read(log, torn_tail=True))) == 3
    with pytest.raises(SimicError, match="line 4 is damaged"):
        list(read(log))
    # the torn line must not hide damage before it
    log.write_bytes(content.replace(b"germ", b"gerM", 1)[:-5])
    with pytest.raises(SimicError, match="line 1 is damaged"):
        list(read(log, torn_tail=True))


def test_a_log_that_is_absent_is_named(tmp_path):
    with pytest.raises(SimicError, match=r"none\.jsonl: telemetry not readable: No such file"):
        list(read(tmp_path / "none.jsonl"))
    assert intact(tmp_path / "none.jsonl") == (0, 0, False)


def test_truncation_returns_to_an_offset_and_says_how_many_rows_went(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    with Recorder(path) as recorder:
        recorder.append(event(0))
        offset = recorder.flush_and_sync()
        recorder.append(event(1))
        recorder.append(event(2))
    path.write_bytes(path.read_bytes() + b'{"crc32":"torn')
    with Recorder(path) as recorder:
        assert recorder.truncate(offset) == 3
        assert recorder.flush_and_sync() == offset
        recorder.append(event(9))
    assert [row.iteration for row in read(path)] == [0, 9]


def test_a_log_shorter_than_its_checkpoint_knows_is_refused(log):
    with Recorder(log) as recorder, pytest.raises(SimicError, match="rows are lost"):
        recorder.truncate(10_000)


def test_rows_are_on_disk_after_a_sync(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    recorder = Recorder(path)
    recorder.append(event(0))
    assert recorder.flush_and_sync() == path.stat().st_size == len(encode(event(0)))
    recorder.close()


def test_a_full_disk_is_one_message_and_loses_no_row_that_was_written(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    with Recorder(path) as recorder:
        recorder.append(event(0))

    def write_more():
        with Recorder(path) as recorder:
            recorder.append(event(1))
            recorder.flush_and_sync()

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        with pytest.raises(SimicError, match="telemetry cannot be written: File too large"):
            write_more()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [row.iteration for row in read(path, torn_tail=True)] == [0]


def test_timing_keeps_the_rows_before_an_iteration(tmp_path):
    path = tmp_path / "timing.jsonl"
    with Recorder(path) as recorder:
        for iteration in range(5):
            seconds = dict.fromkeys(("collect_seconds", "update_seconds", "validate_seconds", "record_seconds"), 1.0)
            recorder.append(TimingRow(iteration=iteration, **seconds))
    path.write_bytes(path.read_bytes()[:-3])
    keep_before(path, 3)
    assert [row.iteration for row in read(path)] == [0, 1, 2]


def test_severities_are_ordered():
    finding = FindingRow(iteration=0, check="c", severity="high", message="m")
    assert finding.at_least("medium")
    assert finding.at_least("high")
    assert not finding.at_least("critical")


def test_a_silent_log_keeps_nothing() -> None:
    log = Silent()
    log.append(FindingRow(iteration=0, check="x", severity="low", message="y"))
    assert (log.flush_and_sync(), log.truncate(5)) == (0, 0)
    log.close()
