"""Every fault of the catalogue can be planted in the source as it is today, and names tests that exist."""

import subprocess
import sys
from collections import Counter

import pytest

from tests.faults.__main__ import chosen
from tests.faults.catalogue import ALL
from tests.faults.fault import FAMILIES, PACKAGE, ROOT, Fault, Patch, patched, planted

FEW = ("maths-gae-gamma-squared",)


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.id)
def test_every_patch_applies_once_and_compiles(fault: Fault) -> None:
    sources: dict[str, str] = {}
    for patch in fault.patches:
        before = sources.get(patch.file) or (PACKAGE / patch.file).read_text()
        sources[patch.file] = patched(before, patch)
        assert sources[patch.file] != before
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / "tests" / file).exists()
        if name:
            function = name.partition("[")[0]
            assert f"def {function}(" in (ROOT / "tests" / file).read_text(), test


@pytest.mark.parametrize(
    ("old", "new", "message"), [("c", "d", "there 0 times"), ("= 1", "=", "there 2 times")]
)
def test_a_patch_that_does_not_fit_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patched("a = 1\nb = 1\n", Patch("x.py", old, new))


def test_there_are_enough_faults_of_every_family() -> None:
    families = Counter(fault.id.partition("-")[0] for fault in ALL)
    assert families.keys() == set(FAMILIES) and min(families.values()) >= 5
    assert len(ALL) == len({fault.id for fault in ALL}) == len({fault.title for fault in ALL})
    assert all(fault.title.endswith(".") for fault in ALL)
    with pytest.raises(ValueError, match="fault maths-nothing: needs a patch"):
        list(planted("maths", {"nothing": ("Nothing is wrong.", "agent/test_ppo.py")}))
    with pytest.raises(ValueError, match="--only unknown: no such fault"):
        chosen(["unknown"])


def test_faults_are_noticed_and_the_test_is_named() -> None:
    """In a process that has not imported simic, as the command."""
    command = [sys.executable, "-m", "tests.faults", "--only", *FEW]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {line.split()[0] for line in run.stdout.splitlines()[:-1]} == set(FEW)
    assert run.stdout.count(".py::test_") == len(FEW)


def test_a_change_that_is_no_fault_is_missed() -> None:
    """Where the copy of the package is as it was, its tests pass."""
    script = """
from tests.faults.fault import Fault, Patch
from tests.faults.runner import try_out
same = Patch("rng.py", "_GOLDEN_GAMMA = 0x9E", "_GOLDEN_GAMMA = 0x9E")
[outcome] = try_out([Fault("none", "Nothing is wrong.", (same,), ("test_rng.py",))])
assert outcome.caught_by == "", outcome
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
