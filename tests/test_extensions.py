"""Extensions of users, by the shipped examples: each trains through the real stages.

Each in a process of its own, because what an extension registers stays registered.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simic import registry
from simic.data import prepare
from simic.data.suites.suites import SUITES
from simic.envs.rewards import MODES
from simic.errors import SimicError
from simic.growth.networks import family, hosts

ROOT = Path(__file__).parents[1]
SMALL = [
    "prepare.samples=200",
    "prepare.suite={name: patches, instances: {train: 4, val: 1, held_out: 1, held_out_kinds: 0}}",
    "train.host={family: cnn, preset: baseline}",
    "train.envs=4",
    "train.episode_steps=3",
    "train.batches_per_epoch=1",
]
SMALL += ["train.batch_size=32", "train.iterations=1", "train.ppo.epochs=1"]
SMALL += ["train.actions={}", "runtime.progress=none", "runtime.threads=1"]
PROGRAM = """
import sys
from pathlib import Path
from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

tree = params.load(Path("params.yaml"), sys.argv[1:])
for stage in (stages.prepare, stages.train):
    stage(tree, Workspace(Path.cwd()))
"""


def trained(folder: Path, name: str, *overrides: str) -> Path:
    """A workspace in which the example of that name was installed as the README says, and training ran."""
    (folder / "extensions").mkdir()
    source = ROOT / "examples" / "extensions" / f"{name}.py"
    (folder / "extensions" / source.name).write_bytes(source.read_bytes())
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    command = [sys.executable, "-c", PROGRAM, f"extensions=[{name}]", *SMALL, *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def manifest(folder: Path) -> dict:
    return json.loads((folder / "checkpoints" / "latest" / "manifest.json").read_text())


def head_size(folder: Path, name: str) -> int:
    return next(h["size"] for h in manifest(folder)["specs"]["action"]["heads"] if h["name"] == name)


def test_a_blueprint_becomes_one_more_choice(tmp_path: Path) -> None:
    assert head_size(trained(tmp_path, "scale"), "blueprint") == 8  # the cnn family ships 7


@pytest.mark.slow
def test_a_host_family_grows_the_blueprints_of_another(tmp_path: Path) -> None:
    folder = trained(tmp_path, "residual", "train.host={family: residual, preset: baseline}")
    assert (head_size(folder, "blueprint"), head_size(folder, "slot")) == (7, 4)


@pytest.mark.slow
def test_a_reward_mode_is_paid_and_recorded(tmp_path: Path) -> None:
    folder = trained(tmp_path, "thrift", "train.reward.mode=thrift")
    import pyarrow.parquet

    steps = pyarrow.parquet.read_table(folder / "telemetry" / "steps.parquet").to_pylist()
    assert steps
    text = json.dumps(steps[0], default=str)
    assert "live_params" in text and "shaping" not in text


@pytest.mark.slow
def test_a_task_is_prepared_and_trained_on(tmp_path: Path) -> None:
    folder = trained(tmp_path, "moons", "prepare.task=moons", "train.host={family: mlp, preset: baseline}")
    meta = json.loads((folder / "data" / "prepared" / "meta.json").read_text())
    assert (meta["task"], meta["classes"], meta["shape"]) == ("moons", 2, [1, 1, 2])


FEW = "instances: {train: 3, val: 1, held_out: 2, held_out_kinds: 1}"
KIND = (f"{{name: patches, kinds: [digits, checks], {FEW}}}", [1, 16, 16], ["digits", "checks", "digits", "digits"])
SUITE = (f"{{name: waves, {FEW}}}", [1, 1, 32], ["sines"] * 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_suite", "shape", "kinds"),
    [KIND, SUITE],
)
def test_tasks_of_a_suite_are_prepared_and_trained_on(tmp_path: Path, of_suite, shape, kinds) -> None:
    host = "train.host={family: mlp, preset: baseline}"
    folder = trained(tmp_path, "waves", "prepare.task=suite", f"prepare.suite={of_suite}", host)
    meta = json.loads((folder / "data" / "prepared" / "meta.json").read_text())
    assert meta["shape"] == shape and [task["kind"] for task in meta["tasks"]] == kinds
    held_out = json.loads((folder / "data" / "prepared" / "held_out.json").read_text())
    assert (held_out[-1]["kind"] == "squares") == ("waves" in of_suite)


def test_the_names_that_params_know_are_those_that_are_registered() -> None:
    assert set(registry.known(registry.FAMILY)) == set(family._FAMILIES)
    assert set(registry.known(registry.PRESET)) == {name for names in hosts.PRESETS.values() for name in names}
    assert set(registry.known(registry.REWARD_MODE)) == set(MODES)
    assert set(registry.known(registry.TASK)) == {*prepare.TASKS, "suite", registry.GYM}
    assert set(registry.known(registry.SUITE)) == set(SUITES)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), ("raise RuntimeError('x')", "RuntimeError: x"), ("def broken(:", "SyntaxError")],
)
def test_an_extension_that_cannot_be_imported_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "broken_extension.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SimicError, match=words) as caught:
        registry.load_extension(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert "simic_extension_broken_extension" not in sys.modules


def test_an_extension_is_imported_once_and_its_name_belongs_to_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "counted_extension.py", tmp_path / "other" / "counted_extension.py"
    second.parent.mkdir()
    first.write_text("VALUES = []\n")
    second.write_text("VALUES = [1]\n")
    module = registry.load_extension(first)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # taken out again after the test
    assert registry.load_extension(first) is module
    with pytest.raises(SimicError, match="have the same name"):
        registry.load_extension(second)
    second.write_bytes(first.read_bytes())
    assert registry.load_extension(second) is module  # a copy of the project has the same file
