"""The params files of examples/ hold what differs alone, and each goes through the chain as its first line says."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from simic import params
from tests.helpers import copy_checkout

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
FOLDERS = {"mnist": DATA, "text": DATA / "text"}
WITH_DATA = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(not folder.is_dir(), reason="needs the files in ../shared/data"),
    )
    for name, folder in FOLDERS.items()
]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def same(values: Any, default: Any, name: str = "") -> list[str]:
    """Keys of a params file that say what holds without them."""
    if isinstance(values, dict) and values and isinstance(default, dict):
        return [
            path for key in values for path in same(values[key], default.get(key), f"{name}.{key}")
        ]
    return [name] if values == default else []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_says_how_to_run_it(path: Path) -> None:
    params.load(path, whole=False)
    assert same(yaml.safe_load(path.read_text()), params.Params().model_dump(mode="json")) == []
    assert f"simic run --params examples/{path.name}" in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_DATA)
def test_an_example_goes_through_the_whole_chain(name: str, tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    environment = os.environ | {"SIMIC_DATA_DIR": str(FOLDERS[name]), "PYTHONPATH": str(tmp_path)}
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


def test_the_agents_example_learns_what_needs_memory_masks_and_heads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agent.py", "--steps", "20000"])
    runpy.run_path(str(ROOT / "examples" / "agent.py"), run_name="__main__")
    assert float(capsys.readouterr().out.splitlines()[-1].split()[2]) > 0.8  # without memory: 0


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
