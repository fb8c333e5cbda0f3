"""The disk is full from any write of any stage on: earlier outputs are as they were, one line names the disk and the
file, and with room again the same command makes what an undisturbed run makes. Or it is read-only: one line names it.

On small file systems of their own, which only root can mount. `make prove` has every write of every stage and of its
record with DVC: `pytest -m prove tests/pipeline/test_full_disk.py`.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from simic import seals
from simic.errors import EXIT_REFUSED, exit_with_message
from simic.pipeline import dvc_record, engine, stages
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.pipeline.hook import sitecustomize as hook
from tests.pipeline.hook.sitecustomize import Writes
from tests.pipeline.small_suite import tree

OUTPUTS = {
    "prepare": ("data/prepared",),
    "headroom": ("reports/headroom.json",),
    "train": ("checkpoints", "models", "telemetry"),
    "evaluate": ("reports/grown", "reports/evaluation.json", "reports/metrics.json"),
    "audit": (
        "reports/findings.json",
        "reports/findings.sarif",
        "reports/audit_metrics.json",
        "reports/certificate.json",
        "reports/figures",
    ),
}
DIFFER = ("timing.jsonl", "run.json")  # between equal runs
MOUNTS = os.geteuid() == 0 and shutil.which("mount") is not None


def mount(*arguments: str) -> bool:
    return MOUNTS and subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A project that nobody can write to: root cannot where it can mount, others have no permission."""
    (tmp_path / ".simic").mkdir()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree().model_dump(mode="json")))
    mounted = mount("--bind", str(tmp_path), str(tmp_path)) and mount("-o", "remount,bind,ro", str(tmp_path))
    if not mounted and os.geteuid() == 0:
        pytest.skip("root writes wherever it likes")
    if not mounted:
        (tmp_path / ".simic").chmod(0o500)
    yield tmp_path
    os.chdir(ROOT)
    if mounted:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("stage", ["prepare", "run"])
def test_a_read_only_project_is_named(read_only: Path, simic: Simic, stage: str) -> None:
    error = simic.refuses(stage, root=read_only)
    assert ".simic" in error and ("make it writable" in error or "make it accessible" in error), error


@dataclass(frozen=True)
class Stage:
    """The workspace before it, with outputs of an earlier run of other params; what it makes; its writes."""

    name: str
    before: Path
    expected: dict[str, str]
    writes: int
    writes_of_dvc: int


def contents(root: Path, name: str) -> dict[str, str]:
    """Outputs of a stage, by the hash of each: of a folder all its files together."""
    found = {}
    for output in OUTPUTS[name]:
        path = root / output
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
        kept = [(str(file.relative_to(root)), seals.content_hash(file)) for file in files if file.name not in DIFFER]
        found[output] = str(kept)
    return found


def refresh(name: str, workspace: Workspace) -> None:
    """As `simic run` does."""
    with engine.workspace_lock(workspace):
        engine.refresh(name, workspace, engine.Execution(), lambda line: None)


@pytest.fixture(scope="session")
def writes() -> Writes:
    return Writes()


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system, with room for what MLflow's open stores hold of projects that are gone."""
    folder = tmp_path_factory.mktemp("small-disk")
    if not mount("-t", "tmpfs", "-o", "size=256m", "none", str(folder)):
        pytest.skip("only root can mount a file system of a few megabytes")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Chain:
    """Every stage once, undisturbed, on the disk, after an earlier run with another seed; made when it is asked for."""

    def __init__(self, root: Path, kept: Path, writes: Writes, store: bytes) -> None:
        self._workspace, self._kept, self._writes, self._store = Workspace(root), kept, writes, store
        self._found: dict[str, Stage] = {}

    def __getitem__(self, name: str) -> Stage:
        for each in list(stages.STAGES)[len(self._found) :]:
            if name in self._found:
                break
            self._found[each] = self._run(each)
        return self._found[name]

    def _run(self, name: str) -> Stage:
        root = self._workspace.root
        before = Path(shutil.copytree(root, self._kept / name))
        (before / "mlflow.db").write_bytes(self._store)  # its own would keep its files on the disk
        shutil.rmtree(before / "mlruns", ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            count = watch_dvc(patch, root, 0)
            self._writes.begin(root, 0)
            refresh(name, self._workspace)
            return Stage(name, before, contents(root, name), self._writes.end(), int(count.read_text()))


@pytest.fixture(scope="session")
def chain(
    tmp_path_factory: pytest.TempPathFactory, disk: Path, writes: Writes, suite_run: Workspace, initialised: bytes
) -> Chain:
    root = disk / "undisturbed"
    begin(Workspace(Path(shutil.copytree(suite_run.root, root))), initialised)
    return Chain(root, tmp_path_factory.mktemp("before"), writes, initialised)


def begin(workspace: Workspace, store: bytes) -> None:
    """A project with that run in it, and with params that no stage has seen."""
    (workspace.root / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", workspace.root / ".dvc")
    described = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    for stage in described["stages"].values():  # without code: there is none
        stage["deps"] = [dep for dep in stage["deps"] if not dep.startswith(("simic", "extensions"))]
    described.pop("plots")
    (workspace.root / "dvc.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    (workspace.root / "mlflow.db").write_bytes(store)
    params = tree("audit.certify=false", "rng_seed=2").model_dump(mode="json")
    workspace.params.write_text(yaml.safe_dump(params, sort_keys=False))
    dvc_record.adopt_scm(workspace.root)


def watch_dvc(patch: pytest.MonkeyPatch, root: Path, at: int) -> Path:
    """The file in which DVC's process says how many writes there were."""
    count = root.parents[1] / "writes-of-dvc"  # not on the disk
    patch.setenv("PYTHONPATH", f"{ROOT}:{Path(hook.__file__).parent}")
    for name, value in (("AT", at), ("BELOW", root), ("COUNT", count)):
        patch.setenv(f"FULL_DVC_{name}", str(value))
    return count


def assert_law(
    stage: Stage, at: int, who: str, disk: Path, writes: Writes, capfd: pytest.CaptureFixture[str]
) -> str | None:
    """The line that is said; None where the disk was not needed any more."""
    for earlier_case in set(disk.iterdir()) - {disk / "undisturbed"}:
        shutil.rmtree(earlier_case)
    root = disk / f"{stage.name}-{who}-{at}"  # MLflow keeps a store open: its place must be no other's
    workspace = Workspace(Path(shutil.copytree(stage.before, root)))
    earlier = contents(root, stage.name)
    assert earlier != stage.expected
    capfd.readouterr()
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        if who == "dvc":
            watch_dvc(patch, root, at)
        else:
            writes.begin(root, at)
        try:
            with exit_with_message("simic"):
                refresh(stage.name, workspace)
        except SystemExit as stopped:
            code = stopped.code
        finally:
            writes.end()
    said = capfd.readouterr().err
    where = f"{stage.name}, write {at} of {who}: {said}"
    assert "Traceback" not in said, where
    found = contents(root, stage.name)
    for output in OUTPUTS[stage.name]:
        assert found[output] in (earlier[output], stage.expected[output]), (output, where)
    if code:
        assert code == EXIT_REFUSED, where
        line = said.splitlines()[-1]
        assert line.startswith("simic: ") and str(root) in line and "No space left on device" in line, where
        assert len(line) < 600, where  # DVC has a line for every file
    else:
        assert found == stage.expected, where
    (root / hook.BALLAST).unlink(missing_ok=True)
    refresh(stage.name, workspace)
    assert contents(root, stage.name) == stage.expected, where
    assert not dvc_record.is_stale(root, stage.name), where
    return said.splitlines()[-1] if code else None


def test_a_disk_that_is_full_costs_nothing_but_time(chain, disk, writes, capfd) -> None:
    stage = chain["prepare"]
    assert assert_law(stage, stage.writes // 2, "simic", disk, writes, capfd) is not None


PARTS = 8  # of all writes, so that some can be tried


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", stages.STAGES)
def test_a_disk_that_is_full_from_any_write_on_costs_nothing_but_time(name, part, chain, disk, writes, capfd) -> None:
    stage = chain[name]
    for who, count in (("simic", stage.writes), ("dvc", stage.writes_of_dvc)):
        for at in range(1 + part, count + 1, PARTS):
            said = assert_law(stage, at, who, disk, writes, capfd)
            with capfd.disabled():
                print(f"{name}: full at write {at} of {count} of {who}: {said or 'done'}")
