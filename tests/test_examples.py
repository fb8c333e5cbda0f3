"""The params files of examples/ hold what differs alone, and each goes through the chain as its first line says."""

import json
import os
import runpy
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from simic import params
from tests.helpers import copy_checkout

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def same(values: Any, default: Any, name: str = "") -> list[str]:
    """Keys of a params file that say what holds without them."""
    if isinstance(values, dict) and values and isinstance(default, dict):
        return [
            path for key in values for path in same(values[key], default.get(key), f"{name}.{key}")
        ]
    return [name] if values == default else []


def forget_environments() -> None:
    """Forget those that another test may have registered already."""
    for own in ("Picture-v0", "Platform-v0"):
        gymnasium.registry.pop(own, None)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_says_how_to_run_it(path: Path) -> None:
    forget_environments()
    params.load(path, whole=False)
    assert same(yaml.safe_load(path.read_text()), params.Params().model_dump(mode="json")) == []
    assert f"simic run --params examples/{path.name}" in path.read_text()


def write_mnist(folder: Path) -> None:
    """Digits of scikit-learn's, three times as large and noisy, in files of MNIST's format."""
    digits = load_digits()
    rows = np.arange(4000) % len(digits.target)
    noise = np.random.default_rng(1).integers(0, 15, (4000, 24, 24))
    images = 15 * digits.images[rows].repeat(3, 1).repeat(3, 2) + noise
    for part, rows_of_part in (("train", slice(3000)), ("t10k", slice(3000, 4000))):
        arrays = {"images-idx3": images, "labels-idx1": digits.target[rows]}
        for name, array in arrays.items():
            values = array[rows_of_part].astype("u1")
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{part}-{name}-ubyte").write_bytes(header + values.tobytes())


def write_text(folder: Path) -> None:
    products = ", ".join(f"{n} × {n} = {n * n}" for n in range(9000))
    (folder / "tinyshakespeare.txt").write_text(products)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write"), [("mnist", write_mnist), ("text", write_text)])
def test_an_example_goes_through_the_whole_chain(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    copy_checkout(tmp_path)
    (tmp_path / "data" / "raw").mkdir(parents=True)
    write(tmp_path / "data" / "raw")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [
        sys.executable,
        "-m",
        "simic",
        "run",
        "--params",
        f"examples/{name}.yaml",
        "-S",
        "runtime.progress=none",
    ]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    evaluation = json.loads((tmp_path / "reports" / "evaluation.json").read_text())
    assert set(evaluation["policies"]) >= {"learned", "static"}
    assert (tmp_path / "reports" / "report.html").is_file()
    assert (tmp_path / "reports" / "grown" / "network.pt2").is_file()


@pytest.mark.parametrize(
    (
        "name",
        "steps",
        "least",
    ),  # random actions return 5, 0.14, -1,200 and 0.18; a lock without memory pays 0
    [
        ("agent", 20_000, 0.8),
        ("extensions/picture", 12_000, 10),
        ("extensions/hybrid", 20_000, 0.35),
        ("continuous", 26_000, -700),
        ("tensors", 40_000, 0.7),
    ],
)
def test_an_example_of_the_agent_learns(
    name: str,
    steps: int,
    least: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["example", "--steps", str(steps)])
    forget_environments()
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert float(capsys.readouterr().out.splitlines()[-1].split()[2]) > least


def test_the_study_submits_complete_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.overrides import Overrides

    submitted: list[dict[str, Any]] = []
    program = runpy.run_path(str(ROOT / "examples" / "study.py"))

    def run_deployment(name: str, parameters: dict[str, Any], **_: Any) -> SimpleNamespace:
        submitted.append(
            Overrides.model_validate(parameters["overrides"]).model_dump(exclude_none=True)
        )
        return SimpleNamespace(name="brave-mole")

    monkeypatch.setitem(program["main"].__globals__, "run_deployment", run_deployment)
    program["main"]()
    assert [run["rng_seed"] for run in submitted] == [1, 2, 3, 1, 2, 3]
    assert {run["train"]["policy"]["core"] for run in submitted} == {"lstm", "none"}
