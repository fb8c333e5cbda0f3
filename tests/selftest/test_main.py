"""What the command writes, and when it refuses to."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from simic.audit import known
from simic.audit.known import SelfTest
from simic.selftest import __main__ as command
from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import Fault
from simic.selftest.judgement import Judgement
from simic.selftest.runner import Tried


def missed(
    folder: Path, faults: Sequence[Fault], processes: int, told: Callable[[str], None]
) -> Iterator[tuple[SimpleNamespace, Tried | None]]:
    """In place of runs: nobody notices anything, nor a clean run."""
    laboratory = SimpleNamespace(clean={1: {"F1": "low"}})
    yield laboratory, None
    for fault in faults:
        yield laboratory, Tried(fault, Judgement("missed", {}), 1.0)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command writes what comes with the package, without running anything."""
    monkeypatch.setattr(command, "self_test", missed)
    monkeypatch.setattr(known, "FILE", tmp_path / "shipped.json")
    return known.FILE


def test_what_is_shipped_is_what_was_printed(shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--ship", "--out", str(tmp_path / "out.json")]) == 0
    found = SelfTest.model_validate_json(shipped.read_bytes())
    assert {fault.id for fault in found.faults} == BY_ID.keys() and not found.changed_code
    assert found.clean == ({"F1": "low"},) and known.sums(found)["all"].ended["missed"] == len(BY_ID)
    assert json.loads((tmp_path / "out.json").read_bytes())["code"] == found.code
    *_, every, own = capsys.readouterr().out.splitlines()
    assert every.split() == ["all", str(len(BY_ID)), *"00000000", str(len(BY_ID))] and own.startswith("own ")


def test_nothing_is_shipped_that_was_not_asked_for(shipped: Path) -> None:
    assert command.main(["--only", "maths"]) == 0 and not shipped.exists()


def test_a_part_is_not_shipped(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--ship", "--only", "maths"]) == 2 and not shipped.exists()
    message = "simic: --ship with --only: reports need all faults; leave one of them out\n"
    assert capsys.readouterr().err == message
