"""Extensions of users, by the shipped examples: each trains through the real stages, in a process of its own, because
what an extension registers stays registered.
"""

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simic import params, registry
from simic.agent import export
from simic.data import prepare
from simic.data.suites.suites import SUITES
from simic.envs.rewards import MODES
from simic.errors import SimicError
from simic.growth.networks import family, hosts
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.helpers import in_processes

ROOT = Path(__file__).parents[1]
SMALL = [
    "prepare.samples=200", "train.envs=4", "train.episode_steps=3", "train.batches_per_epoch=1", "train.batch_size=32",
    "train.iterations=1", "train.ppo.epochs=1", "train.actions={}", "runtime.progress=none", "runtime.threads=1",
]  # fmt: skip
FEW = "instances: {train: 3, val: 1, held_out: 2, held_out_kinds: 1}"
MLP = "train.host={family: mlp, preset: baseline}"
# A blueprint, a host family and a reward mode; a kind of the shipped suite; a task; a suite.
RUNS = {
    "grown": (
        "extensions=[scale, residual, thrift]", "prepare.task=digits",
        "train.host={family: residual, preset: baseline}", "train.reward.mode=thrift",
    ),
    "kind": ("extensions=[waves]", f"prepare.suite={{name: tables, kinds: [product, corner], {FEW}}}", MLP),
    "moons": ("extensions=[moons]", "prepare.task=moons", MLP),
    "suite": ("extensions=[waves]", f"prepare.suite={{name: waves, {FEW}}}", MLP),
}  # fmt: skip
# By run: the shape of its samples, and the kinds of its tasks.
PREPARED = {
    "grown": ([1, 8, 8], ["digits"]),
    "kind": ([1, 1, 12], ["product", "corner", "product", "only_product_rounded"]),
    "moons": ([1, 1, 2], ["moons"]),
    "suite": ([1, 1, 32], ["sines"] * 4),
}


def train_runs(project: Path) -> None:
    """Prepare and train each run, without the exported program, which takes longer than all of this."""
    os.chdir(project)
    export.export_policy = lambda *_: None
    for name, overrides in RUNS.items():
        tree = params.load(Path("params.yaml"), [*SMALL, *overrides])
        for stage in (stages.prepare, stages.train):
            stage(tree, Workspace(project))
        for place in ("data/prepared", "checkpoints", "telemetry"):
            Path(place).rename(f"{name}-{Path(place).name}")


def test_what_extensions_add_is_prepared_and_trained_on(tmp_path: Path) -> None:
    """The examples, installed as the README says."""
    shutil.copytree(ROOT / "examples" / "extensions", tmp_path / "extensions")
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    in_processes(tmp_path, partial(train_runs, tmp_path))
    for name, (shape, kinds) in PREPARED.items():
        meta = json.loads((tmp_path / f"{name}-prepared" / "meta.json").read_text())
        assert meta["shape"] == shape and [task["kind"] for task in meta["tasks"]] == kinds
        assert (tmp_path / f"{name}-checkpoints" / "latest").is_dir()
    manifest = json.loads((tmp_path / "grown-checkpoints" / "latest" / "manifest.json").read_text())
    sizes = {head["name"]: head["size"] for head in manifest["specs"]["action"]["heads"]}
    assert (sizes["blueprint"], sizes["slot"]) == (8, 4)  # the cnn family ships 7
    steps = pq.read_table(tmp_path / "grown-telemetry" / "steps.parquet")
    assert (
        "components/live_params" in steps.column_names
        and "components/shaping" not in steps.column_names
    )


def test_the_names_that_params_know_are_those_that_are_registered() -> None:
    assert set(registry.known(registry.FAMILY)) == set(family._FAMILIES)
    assert set(registry.known(registry.PRESET)) == {
        name for names in hosts.PRESETS.values() for name in names
    }
    assert set(registry.known(registry.REWARD_MODE)) == set(MODES)
    assert set(registry.known(registry.TASK)) == {*prepare.TASKS, "suite", registry.GYM}
    assert set(registry.known(registry.SUITE)) == set(SUITES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("raise RuntimeError('x')", "RuntimeError: x"),
        ("def broken(:", "SyntaxError"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_an_extension_that_cannot_be_imported_is_named(
    tmp_path: Path, content: str | None, words: str
) -> None:
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


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["extensions=[lost]"], "lost.py: ModuleNotFoundError: No module named 'nowhere'"),
        (["prepare.gym={id: 'nowhere:X-v0'}"], "prepare.gym.id = 'nowhere:X-v0': No module named"),
        (
            ["prepare.gym={id: CartPole-v1, wrappers: [{name: 'nowhere:Wrap'}]}"],
            "prepare.gym.id = 'CartPole-v1': No module named 'nowhere'",
        ),
    ],
    ids=["extension", "environment", "wrapper"],
)
def test_a_module_that_is_not_installed_is_one_line_at_the_start(
    overrides: list[str], words: str, tmp_path: Path, simic: Simic
) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "lost.py").write_text("import nowhere\n")
    if not overrides[0].startswith("extensions"):
        overrides = ["prepare.task=gym", "train.episode_steps=8", *overrides]
    options = [option for override in overrides for option in ("-S", override)]
    assert words in simic.refuses("run", *options, root=tmp_path)
