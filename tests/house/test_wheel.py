"""The wheel works where there is no checkout: it brings the published controller, templates and types."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sklearn.datasets import load_iris

ROOT = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path, **environment: str) -> str:
    command = [sys.executable, "-P", "-m", *arguments]
    process = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_wheel_grows_a_network_on_a_users_table(tmp_path: Path) -> None:
    source = tmp_path / "source"
    site = tmp_path / "site"
    place = tmp_path / "place"
    shutil.copytree(ROOT / "simic", source / "simic", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
        "-w",
        str(tmp_path),
        cwd=source,
    )
    [wheel] = tmp_path.glob("simic_grow-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    assert (site / "simic/py.typed").exists()
    iris = load_iris(as_frame=True)
    place.mkdir()
    iris.frame.assign(target=iris.target_names[iris.target]).to_csv(place / "iris.csv", index=False)
    output = run(
        "simic", "grow", "iris.csv", "--n", "1", "--epochs", "2", cwd=place, PYTHONPATH=str(site)
    )
    assert "the published controller of suite tables" in output and "\nUse " in output
    assert sorted(path.name for path in place.iterdir()) == ["grown", "iris.csv"]
