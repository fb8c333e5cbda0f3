"""An exported program is the same bytes wherever it is made, and computes what it did before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

EXPORT = """
from pathlib import Path
import simic
from simic.agent.export import export_policy
from simic.growth.grown_network import grown_network, write_network
from tests.agent.worlds import make_policy
from tests.growth.worlds import make_population, mixed_slots
assert Path(simic.__file__).is_relative_to(Path.cwd())
export_policy(make_policy(), None, Path("out/policy"))
population = make_population("cnn", 4)
write_network(grown_network(population, mixed_slots(population), 2), Path("out/grown"), [], "# A network")
"""


def made_in(folder: Path) -> dict[str, bytes]:
    """By a copy of the package there: every file that is written."""
    shutil.copytree(ROOT / "simic", folder / "simic", ignore=shutil.ignore_patterns("__pycache__"))
    env = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    subprocess.run([sys.executable, "-P", "-c", EXPORT], cwd=folder, env=env, check=True)
    return {path.name: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_bytes_do_not_depend_on_where_the_source_is(tmp_path: Path) -> None:
    files, elsewhere = (
        made_in(tmp_path / "one"),
        made_in(tmp_path / "a" / "folder of another" / "length"),
    )
    assert {"policy.pt2", "network.pt2"} <= files.keys()
    assert [
        name for name in files if files[name] != elsewhere[name]
    ] == [] and files.keys() == elsewhere.keys()
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
