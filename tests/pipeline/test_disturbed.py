"""Killed by SIGKILL, asked to stop or out of disk at any change of a file in any stage: earlier outputs are as they
were or as they will be, a stop and a full disk are told in one line, and the same command again makes what an
undisturbed run makes, without training anything twice; with real stages, DVC and MLflow. Kills inside training:
tests/training/test_killed.py.

Small file systems can be mounted by root alone. `make prove` has every change of every stage and of its record with
DVC for kills, every second one for full disks and every fourth one for stops, in hours: `pytest -m prove
tests/pipeline/test_disturbed.py`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from simic import cli, params, seals
from simic.errors import EXIT_INTERRUPTED, EXIT_REFUSED, exit_with_message
from simic.pipeline import dvc_record, engine, stages, tracking, training_work
from simic.pipeline.paths import Workspace
from simic.training import trainer
from simic.training.observers import Observer
from simic.training.session import open_session
from tests.conftest import Simic
from tests.helpers import FORKING, ROOT, print_to
from tests.pipeline.hook import sitecustomize as hook
from tests.pipeline.small_suite import tree

OUTPUTS = {
    "prepare": ("data/prepared",),
    "headroom": ("reports/headroom.json",),
    "train": ("checkpoints", "models", "telemetry"),
    "evaluate": ("reports/grown", "reports/evaluation.json", "reports/metrics.json"),
    "audit": (
        "reports/findings.json",
        "reports/audit_metrics.json",
        "reports/figures/*.svg",  # each for itself
    ),
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}


def test_a_read_only_project_is_named(tmp_path: Path, simic: Simic) -> None:
    """Even root can make no file in the kernel's own folders."""
    (tmp_path / ".simic").symlink_to("/sys/kernel")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree().model_dump(mode="json")))
    error = simic.refuses("run", root=tmp_path)
    assert "/sys/kernel/workspace.lock" in error and (
        "make it writable" in error or "make it accessible" in error
    )


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system, with room for what MLflow's open stores hold of projects that are gone."""
    folder = tmp_path_factory.mktemp("small-disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system of a few megabytes")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass(frozen=True)
class Stage:
    """The workspace before it, with outputs of an earlier run of other params; what it makes; changes of files."""

    name: str
    before: Path
    expected: dict[str, str]
    changes: dict[str, int]  # of simic, and of DVC


class Steps(Observer):
    """Counts how many are trained."""

    count = 0

    def on_step(self, iteration: int, step: int) -> None:
        self.count += 1


def refresh(name: str, workspace: Workspace) -> None:
    """As `simic run` does; nothing is left to be trained."""
    steps = Steps()
    with engine.workspace_lock(workspace):
        engine.refresh(
            name,
            params.load(workspace.params),
            workspace,
            engine.Execution((steps,)),
            lambda line: None,
        )
    assert steps.count == 0, "trained again"


def contents(root: Path, name: str) -> dict[str, str]:
    """Hash the outputs of a stage, by place; of a folder all its files together."""
    outputs = {}
    for path in (path for output in OUTPUTS[name] for path in root.glob(output)):
        files = [file for file in sorted([path, *path.rglob("*")]) if file.is_file()]
        outputs[path.relative_to(root).as_posix()] = str(
            [
                (file.relative_to(root).as_posix(), seals.content_hash(file))
                for file in files
                if file.name not in seals.APART
            ]
        )
    return outputs


def points(workspace: Workspace) -> str:
    """Every step and value of the one run, as often as MLflow has it."""
    client, experiment_id = tracking.connect(workspace)
    [run] = client.search_runs([experiment_id])
    assert run.info.status == "FINISHED" and tracking.MARKER in run.data.metrics
    histories = {
        name: client.get_metric_history(run.info.run_id, name) for name in sorted(run.data.metrics)
    }
    return str(
        [
            (name, sorted((point.step, point.value) for point in points))
            for name, points in histories.items()
        ]
    )


def left(workspace: Workspace, name: str) -> dict[str, str]:
    """What a stage that is done must leave."""
    assert not dvc_record.is_stale(workspace.root, name)
    assert list(workspace.work_root.glob(".*")) == []
    assert [
        path for path in workspace.root.rglob("*.tmp") if ".dvc" not in path.parts
    ] == []  # DVC leaves its own
    # MLflow refuses a project that was copied after it was told, so it is asked of training alone.
    return contents(workspace.root, name) | (
        {"MLflow": points(workspace)} if name == "train" else {}
    )


def main(name: str, root: str, notes: Path, how: str, program: str, at: int) -> None:
    """What is disturbed, in a process of its own; at 0 nothing is, and all changes are counted."""
    print_to(notes / "said")
    if program != "simic":
        os.environ |= {
            "PYTHONPATH": f"{ROOT}:{Path(hook.__file__).parent}",
            "DISTURB_DVC": f"{root}:{at}:{how}:{notes / 'changes-of-dvc'}",
        }
    if program != "dvc":
        processes, number = (
            () if how == "full" else (os.getpid(),),
            SIGNALS.get(how, signal.SIGKILL),
        )
        hook.watch(root, at, notes / "changes-of-simic", processes, number)
    with exit_with_message("simic"):
        cli._interruptible(lambda: refresh(name, Workspace(Path(root))), name)


def disturbed(
    name: str, root: Path, notes: Path, how: str = "", program: str = "", at: int = 0
) -> tuple[int | None, str]:
    """Return exit code and output; what is noted lies where the disk is never full."""
    process = FORKING.Process(target=main, args=(name, str(root), notes, how, program, at))
    process.start()
    process.join()
    return process.exitcode, (notes / "said").read_text()


class Chain:
    """Every stage once, undisturbed, after an earlier run with another seed; made when it is asked for."""

    def __init__(self, workspace: Workspace, store: bytes) -> None:
        self._workspace, self._store = workspace, store
        self._found: dict[str, Stage] = {}

    def __getitem__(self, name: str) -> Stage:
        for stage in list(stages.STAGES)[len(self._found) :]:
            if name in self._found:
                break
            self._found[stage] = self._run(stage)
        return self._found[name]

    def _run(self, name: str) -> Stage:
        workspace, root = self._workspace, self._workspace.root
        if name == "train":  # all but its end
            loaded = params.load(workspace.params)
            training_work.begin(loaded, workspace, fresh=False)
            with open_session(
                loaded, workspace.work(stages.fingerprint(loaded, workspace)), workspace.prepared
            ) as session:
                trainer.train(session)
        before = Path(shutil.copytree(root, root.with_name(f"before-{name}")))
        (before / "mlflow.db").write_bytes(self._store)  # its own would keep its files elsewhere
        shutil.rmtree(before / "mlruns", ignore_errors=True)
        # Counted in a copy, as all are disturbed: MLflow has no run of it, and is told less; of the first it never has.
        notes, places = root.parent, [root]
        if self._found:
            places.append(Path(shutil.copytree(before, root.with_name(f"counted-{name}"))))
        for place in places:
            code, output = disturbed(name, place, notes)
            assert code == 0, output
        changes = {
            program: int((notes / f"changes-of-{program}").read_text())
            for program in ("simic", "dvc")
        }
        return Stage(name, before, left(workspace, name), changes)


@pytest.fixture(scope="session")
def chain(
    tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace, initialised: bytes
) -> Chain:
    """Of a project with that run in it, and with params that no stage has seen."""
    workspace = Workspace(
        Path(shutil.copytree(suite_run.root, tmp_path_factory.mktemp("chain") / "undisturbed"))
    )
    shutil.rmtree(workspace.state)
    (workspace.root / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", workspace.root / ".dvc")
    described = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    for stage in described["stages"].values():  # without code: there is none
        stage["deps"] = [
            dep for dep in stage["deps"] if not dep.startswith(("simic", "extensions"))
        ]
    described.pop("plots")
    (workspace.root / "dvc.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    (workspace.root / "mlflow.db").write_bytes(initialised)
    written = tree("rng_seed=2").model_dump(mode="json")
    workspace.params.write_text(yaml.safe_dump(written, sort_keys=False))
    dvc_record.configure(workspace.root)
    return Chain(workspace, initialised)


def assert_nothing_is_lost(stage: Stage, how: str, program: str, at: int, folder: Path) -> str:
    """Return what was said."""
    for earlier_case in folder.iterdir():
        shutil.rmtree(earlier_case) if earlier_case.is_dir() else earlier_case.unlink()
    # MLflow keeps a store open: its place must be no other's.
    workspace = Workspace(
        Path(shutil.copytree(stage.before, folder / f"{stage.name}-{how}-{program}-{at}"))
    )
    root, earlier = workspace.root, contents(stage.before, stage.name)
    code, printed = disturbed(stage.name, root, stage.before.parent, how, program, at)
    case = f"{stage.name}, {how} at {at} of {program}: {code} {printed}"
    assert "Traceback" not in printed, case
    outputs = contents(root, stage.name)
    assert earlier.items() - stage.expected.items(), "nothing is to be made anew"
    for output in outputs.keys() | earlier.keys():
        assert outputs.get(output) in (earlier.get(output), stage.expected.get(output)), (
            output,
            case,
        )
    if how == "kill":
        assert code == -signal.SIGKILL, case
    elif how == "stop":
        assert code == EXIT_INTERRUPTED and printed.splitlines()[-1].startswith(
            "simic: stopped "
        ), case
    elif code:
        line = printed.splitlines()[-1]
        assert code == EXIT_REFUSED and line.startswith("simic: ") and len(line) < 600, case
        assert str(root) in line and "No space left on device" in line, case
    else:
        assert outputs.items() <= stage.expected.items(), case
    (root / hook.BALLAST).unlink(missing_ok=True)
    refresh(stage.name, workspace)
    assert left(workspace, stage.name) == stage.expected, case
    return case


PARTS = 8  # of all changes, so that some can be tried
# Many changes need no room: the disk is then full at the next that does.
STRIDES = {"kill": 1, "stop": 4, "full": 2}
MANY = [
    pytest.param(name, how, part, marks=pytest.mark.prove)
    for name in stages.STAGES
    for how in STRIDES
    for part in range(PARTS)
]


@pytest.mark.parametrize(
    ("name", "how", "part"), [("prepare", "kill", None), ("prepare", "full", None), *MANY]
)
def test_a_disturbance_costs_nothing_but_time(
    name: str, how: str, part: int | None, chain: Chain, tmp_path: Path, request, capfd
) -> None:
    """At the change in the middle, or at many."""
    stage, folder = chain[name], request.getfixturevalue("disk") if how == "full" else tmp_path
    for program, count in stage.changes.items() if part is not None else ():
        assert count > 5
        for at in range(1 + part * STRIDES[how], count + 1, PARTS * STRIDES[how]):
            case = assert_nothing_is_lost(stage, how, program, at, folder)
            with capfd.disabled():
                print(case)
    if part is None:
        assert_nothing_is_lost(stage, how, "simic", stage.changes["simic"] // 2, folder)
