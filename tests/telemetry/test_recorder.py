"""The log: a file for each iteration, every damage noticed, cut back exactly to where a checkpoint was written."""

import resource

import numpy as np
import pytest

from simic import durable
from simic.errors import SimicError
from simic.telemetry.recorder import NOTHING, Chain, Extent, Recorder, encode, read
from simic.telemetry.rows import FindingRow
from tests.helpers import iteration

NAMES = [f"00000{number}.safetensors" for number in range(4)]


def finding(number: int, check: str = "c") -> FindingRow:
    return FindingRow(
        iteration=number,
        check=check,
        severity="high",
        message='é\n"x"',
        evidence={"value": float("inf")},
    )


def record(work, count: int = 4) -> Extent:
    with Recorder(work) as recorder:
        for number in range(count):
            recorder.find(finding(number))
            recorder.write(iteration(number, validated=number % 2 == 1))
        return recorder.flush()


@pytest.fixture
def work(tmp_path):
    record(tmp_path)
    return tmp_path


@pytest.fixture
def extent(work) -> Extent:
    return Extent(4, durable.sha256(work / "telemetry" / NAMES[3]))


def test_what_is_recorded_comes_back_bit_for_bit(work):
    files = list(read(work / "telemetry"))
    assert [file.path.name for file in files] == NAMES
    for number, file in enumerate(files):
        expected = iteration(number, validated=number % 2 == 1)
        assert repr(file.update) == repr(expected.update)
        assert file.findings == [finding(number)]
        assert file.events.texts == expected.events.texts
        for table, columns in expected.tables().items():
            recorded = file.columns(table)
            assert list(recorded) == list(columns)
            for name, values in columns.items():
                assert (recorded[name].dtype, recorded[name].shape) == (values.dtype, values.shape)
                assert recorded[name].tobytes() == values.tobytes(), name
        assert bool(file.columns("validation")) == (number % 2 == 1)


def test_columns_that_are_views_are_written_as_what_they_show(tmp_path):
    record_of_views = iteration(0)
    turned = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    record_of_views.steps["reward"] = turned
    record_of_views.train["return"] = np.arange(4.0)[::2]
    with Recorder(tmp_path) as recorder:
        recorder.write(record_of_views)
    [file] = read(tmp_path / "telemetry")
    assert file.columns("steps")["reward"].tolist() == turned.tolist()
    assert file.columns("train")["return"].tolist() == [0.0, 2.0]


def test_damage_to_any_byte_of_any_file_is_found(tmp_path):
    """Each byte of small files, one bit of it."""
    with Recorder(tmp_path) as recorder:
        for number in range(3):
            recorder.find(finding(number))
            extent = recorder.flush()
    for number in range(3):
        file = tmp_path / "telemetry" / NAMES[number]
        content = file.read_bytes()
        for at in range(len(content)):
            file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
            damage = Chain.of(tmp_path / "telemetry").damage(extent)
            assert damage is not None and damage.endswith(f"{NAMES[number]}: damaged"), (number, at)
        file.write_bytes(content)
    assert Chain.of(tmp_path / "telemetry").damage(extent) is None


@pytest.mark.parametrize("number", [0, 3])
def test_a_missing_file_is_found_wherever_it_is(number, work, extent):
    (work / "telemetry" / NAMES[number]).unlink()
    damage = Chain.of(work / "telemetry").damage(extent)
    assert damage == f"{work / 'telemetry' / NAMES[number]}: missing"
    earlier = (
        Extent(number, durable.sha256(work / "telemetry" / NAMES[number - 1]))
        if number
        else NOTHING
    )
    assert Chain.of(work / "telemetry").damage(earlier) is None


@pytest.mark.parametrize("content", [b"", b"\x02" + bytes(7) + b"{}", encode("", None, [])[:-3]])
def test_what_is_no_file_of_a_log_is_refused_in_one_message(content, work, extent):
    (work / "telemetry" / NAMES[3]).write_bytes(content)
    assert (
        Chain.of(work / "telemetry").damage(extent) == f"{work / 'telemetry' / NAMES[3]}: damaged"
    )
    with pytest.raises(SimicError, match=r"000003\.safetensors: telemetry not readable: "):
        _ = list(read(work / "telemetry"))[3].update


def test_going_on_drops_what_is_after_the_checkpoint_and_says_how_much(work):
    folder = work / "telemetry"
    (folder / ".000004.safetensors.123.tmp").write_bytes(b"torn")
    extent = Extent(2, durable.sha256(folder / NAMES[1]))
    with Recorder(work, extent, 2) as recorder:
        assert recorder.dropped == 2
        assert sorted(path.name for path in folder.iterdir()) == NAMES[:2]
        recorder.find(finding(2))
        recorder.write(iteration(2))
        recorder.find(finding(3))
        recorder.write(iteration(3, validated=True))
        again = recorder.flush()
    assert again == Extent(4, durable.sha256(folder / NAMES[3]))
    assert Chain.of(folder).damage(again) is None


def test_findings_that_no_iteration_follows_are_kept_in_a_file_of_their_own(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.find(finding(-1))
        assert recorder.flush().files == 1
        assert recorder.flush().files == 1
        recorder.write(iteration(0))
        recorder.find(finding(0))
    files = list(read(tmp_path / "telemetry"))
    assert [(file.update is None, len(file.findings)) for file in files] == [
        (True, 1),
        (False, 0),
        (True, 1),
    ]
    assert files[0].columns("steps") == {} == files[0].columns("train")


def test_an_error_keeps_the_findings_that_led_to_it_and_is_not_hidden(tmp_path, monkeypatch):
    def fail(recorder: Recorder) -> None:
        recorder.find(finding(0))
        raise RuntimeError("the cause")

    first = Recorder(tmp_path)
    with pytest.raises(RuntimeError, match="the cause"), first:
        fail(first)
    assert [file.findings for file in read(tmp_path / "telemetry")] == [[finding(0)]]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    later = Recorder(tmp_path)
    monkeypatch.setattr(durable, "replace_file", full)
    with pytest.raises(RuntimeError, match="the cause"), later:
        fail(later)


def test_a_full_disk_is_one_message_and_loses_nothing_that_was_written(work, extent):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_more() -> None:
        with Recorder(work, extent, 4) as recorder:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            recorder.write(iteration(4))

    try:
        with pytest.raises(
            SimicError,
            match="telemetry cannot be written: File too large; what was written is kept",
        ):
            write_more()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in (work / "telemetry").iterdir()) == NAMES
    assert Chain.of(work / "telemetry").damage(extent) is None
