"""Faults planted in a real run: one that changes nothing, one that is found, one that is refused, one that crashes."""

from pathlib import Path

import pytest

from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import Fault, Patch
from simic.selftest.play import Ending
from simic.selftest.runner import Laboratory

FIRST_WORDS = '"""The command line. '  # of simic/cli.py, which no stage imports


def fault(*patches: Patch) -> Fault:
    return Fault("evaluation-tried", "evaluation", "Something is wrong.", "high", patches)


@pytest.mark.slow
def test_a_fault_that_changes_nothing_is_missed(laboratory: Laboratory) -> None:
    tried = laboratory.try_out(fault(Patch("cli.py", FIRST_WORDS, '"""Commands. ')))
    assert (tried.judgement.word, tried.judgement.by, tried.changed) == ("missed", {}, False)
    assert not (laboratory.folder / "evaluation-tried").exists()


@pytest.mark.slow
def test_an_evaluation_of_another_run_is_found(laboratory: Laboratory) -> None:
    tried = laboratory.try_out(BY_ID["provenance-evaluation-of-another-run"])
    assert tried.judgement.word == "caught" and "critical" in tried.judgement.by.values() and tried.changed


@pytest.mark.slow
def test_a_refusal_and_a_crash_are_told_apart(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.selftest.runner.reusable", lambda fault: ("prepare", "headroom", "train"))
    read = "floors = result.read_headroom(workspace.headroom)\n    if"
    refused = 'raise SimicError("not today")\n    if'
    for new, word, end in ((refused, "refused", "not today"), ("assert False\n    if", "crashed", "AssertionError\n")):
        tried = laboratory.try_out(fault(Patch("pipeline/stages.py", read, new)))
        assert (tried.judgement.word, tried.judgement.stage) == (word, "evaluate")
        assert tried.judgement.message.endswith(end)


def test_nothing_is_judged_by_a_clean_run_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laboratory = Laboratory(tmp_path, (1, 2), processes=0)
    monkeypatch.setattr(laboratory, "_played", lambda *_: Ending("refused", "train", "no"))
    with pytest.raises(RuntimeError, match="the clean run with rng_seed 1 refused in train: no"):
        laboratory.run_clean(1)


def test_another_run_is_needed_to_take_files_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs two clean runs"):
        Laboratory(tmp_path, (1,))
