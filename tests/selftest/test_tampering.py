"""Every tampering changes a file of a finished run, and nothing but what it says."""

import shutil
from pathlib import Path

import pytest

from simic.evaluation import result
from simic.pipeline.paths import Workspace
from simic.selftest import tampering
from simic.selftest.catalogue import ALL
from simic.selftest.fault import Fault
from simic.selftest.runner import Laboratory
from simic.training import checkpoint

FINISHED = [fault for fault in ALL if fault.tampering is not None and fault.tampering.after != "interrupted"]
PLACES = {
    "provenance-telemetry-of-another-run": "telemetry",
    "provenance-checkpoints-of-another-run": "checkpoints",
    "provenance-checkpoints-exchanged-before-evaluation": "checkpoints",
    "provenance-policy-of-another-run": "models",
    "provenance-best-and-latest-swapped": "checkpoints",
    "provenance-checkpoint-weights-edited": "checkpoints/best",
    "provenance-data-changed-after-training": "data/prepared",
    "provenance-params-changed-after-training": "params.yaml",
    "provenance-grown-weights-replaced": "reports/grown",
    "provenance-headline-edited": "reports/metrics.json",
    "provenance-headroom-of-another-run": "reports/headroom.json",
    "provenance-evaluation-of-another-run": "reports/evaluation.json",
    "evaluation-estimate-edited": "reports/evaluation.json",
    "evaluation-scores-edited-throughout": "reports/",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def copied(laboratory: Laboratory, tmp_path: Path) -> Workspace:
    source = laboratory.folder / "clean-1" / "workspace"
    return Workspace(Path(shutil.copytree(source, tmp_path / "copy")))


@pytest.fixture
def donor(laboratory: Laboratory) -> Workspace:
    return Workspace(laboratory.folder / "clean-2" / "workspace")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FINISHED, ids=lambda fault: fault.id)
def test_it_changes_the_files_it_is_about(fault: Fault, copied: Workspace, donor: Workspace) -> None:
    before, others = contents(copied.root), contents(donor.root)
    assert fault.tampering is not None
    fault.tampering.do(copied, donor)
    after = contents(copied.root)
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert changed and all(name.startswith(PLACES.get(fault.id, "telemetry/")) for name in changed)
    assert contents(donor.root) == others


@pytest.mark.slow
def test_raised_scores_are_whole_and_raised(copied: Workspace, donor: Workspace) -> None:
    before = result.read(copied.evaluation).policies["learned"].test_accuracy_pct.estimate
    tampering.raise_scores(copied, donor)
    after = result.read(copied.evaluation)
    found = after.policies["learned"]
    assert before < found.test_accuracy_pct.estimate <= before + tampering.POINTS + 1e-3
    assert found.test_accuracy_pct.estimate == pytest.approx(
        sum(found.per_seed.test_accuracy_pct) / len(found.per_seed.test_accuracy_pct)
    )
    assert "static" in after.standings["held_out"].policies


@pytest.mark.slow
def test_a_changed_checkpoint_still_passes_its_verification(copied: Workspace, donor: Workspace) -> None:
    work = copied.state / "work" / "0" / "checkpoints" / "000004"
    shutil.copytree(copied.checkpoints / "latest", work)
    before = checkpoint.read(work).tensors
    tampering.change_latest_weights(copied, donor)
    after = checkpoint.read(work).tensors
    changed = {name.partition(".")[0] for name, tensor in after.items() if not tensor.equal(before[name])}
    assert changed == {"ppo/policy"}


def test_one_byte_of_the_last_file_of_a_log_is_changed(tmp_path: Path) -> None:
    log = tmp_path / ".simic" / "work" / "0" / "telemetry"
    log.mkdir(parents=True)
    for number in range(2):
        (log / f"{number:06d}.safetensors").write_bytes(b"abc")
    workspace = Workspace(tmp_path)
    tampering.damage_log(workspace, workspace)
    assert [path.read_bytes() for path in sorted(log.iterdir())] == [b"abc", b"abb"]
