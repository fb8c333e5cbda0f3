"""Every fault of the catalogue can be planted in the source as it is today."""

from collections import Counter

import pytest

from simic.selftest.catalogue import ALL, BY_ID
from simic.selftest.fault import FAMILIES, Fault, Patch, planted
from simic.selftest.runner import NEEDS, reusable
from simic.selftest.scratch import PACKAGE, patched


@pytest.mark.parametrize("fault", [fault for fault in ALL if fault.patches], ids=lambda fault: fault.id)
def test_every_patch_applies_once_and_compiles(fault: Fault) -> None:
    sources: dict[str, str] = {}
    for patch in fault.patches:
        before = sources.get(patch.file) or (PACKAGE / patch.file).read_text()
        sources[patch.file] = patched(before, patch)
        assert sources[patch.file] != before
        compile(sources[patch.file], patch.file, "exec")


def test_there_are_enough_faults_of_every_family() -> None:
    of_family = Counter(fault.family for fault in ALL)
    assert len(ALL) >= 64 and of_family.keys() == set(FAMILIES) and min(of_family.values()) >= 8
    assert sum(bool(fault.patches) for fault in ALL) >= 50
    assert sum(fault.own for fault in ALL) >= 20


def test_a_fault_has_an_id_of_its_own_and_says_what_is_wrong() -> None:
    assert len(BY_ID) == len(ALL) == len({fault.title for fault in ALL})
    for fault in ALL:
        assert fault.id.startswith(fault.family) and fault.title.endswith(".") and not fault.title.startswith(" ")


def test_no_fault_is_in_the_audit_nor_in_the_self_test() -> None:
    assert not [p for fault in ALL for p in fault.patches if p.file.startswith(("audit", "selftest"))]


def test_a_fault_without_a_change_is_refused() -> None:
    with pytest.raises(ValueError, match="fault maths-nothing: needs a patch or one tampering"):
        planted("maths", "nothing", "low", "Nothing is wrong.")


def test_what_a_fault_cannot_change_is_not_run_again() -> None:
    def patch_of(file: str) -> tuple[str, ...]:
        return reusable(Fault("", "maths", "", "low", (Patch(file, "", ""),)))

    everything = tuple(NEEDS)
    assert patch_of("rng.py") == patch_of("data/batches.py") == ()
    assert patch_of("envs/masks.py") == patch_of("growth/life/gates.py") == ("prepare",)
    assert patch_of("agent/ppo.py") == patch_of("telemetry/publish.py") == ("prepare", "headroom")
    assert patch_of("evaluation/gap.py") == ("prepare", "train")
    assert patch_of("cli.py") == everything
    after = {fault.tampering.after: reusable(fault) for fault in ALL if fault.tampering is not None}
    assert after == {
        "evaluate": everything,
        "train": ("prepare", "headroom", "train"),
        "interrupted": ("prepare", "headroom"),
    }
