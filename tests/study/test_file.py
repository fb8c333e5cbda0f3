"""A study file is refused whole, in one line that says what is wrong, before anything runs."""

from pathlib import Path
from typing import Any

import yaml

from simic.pipeline.paths import Workspace
from simic.study import file
from simic.study.plan import StudyPlan
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.study.small_study import STUDY, project

WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("name", {"name": value}) for value in ("", "a/b", "..", 3)),
    ("base", {"base": "train.envs=8"}),
    ("must be KEY.PATH=VALUE", {"base": ["train.envs"]}),
    ("train.lr: unknown key", {"base": ["train.lr=1"]}),
    *(("grid", {"grid": value}) for value in (3, {"train.envs": []}, {"a=b": [1]})),
    ("key 3", {"grid": {3: [1]}}),
    ("train.ppo.lr: unknown key", {"grid": {"train.ppo.lr": [1]}}),
    ("train.ppo.learning_rate = 'fast'", {"grid": {"train.ppo.learning_rate": [0.1, "fast"]}}),
    ("grid must not have evaluate.policies", {"grid": {"evaluate.policies": [["blind"]]}}),
    ("the same cell", {"grid": {"train.ppo.learning_rate": [0.1, 0.1]}}),
    ("the same cell", {"grid": {"runtime.threads": [1, 2]}}),
    *(("seeds", {"seeds": value}) for value in (0, True, 2.5, [], [1, 1], [-1])),
    ("at most 10000", {"seeds": 5000, "grid": {"train.price": [0.0, 1.0, 2.0]}}),
    *(("policies", {"policies": value}) for value in ([], ["oracle"], ["blind", "blind"])),
    ("policies must name one that is trained", {"policies": ["static"]}),
    ("repeats: unknown key; known here are name, base", {"repeats": 3}),
]


def refused(simic: Simic, path: Path, *options: str) -> str:
    """The one line in which `simic study` says why."""
    return simic.refuses("study", path.name, *options, root=path.parent)


def test_every_wrong_study_is_refused_in_one_line_that_says_why(tmp_path: Path, simic: Simic) -> None:
    for said, change in WRONG:
        error = refused(simic, project(tmp_path, **change))
        assert said in error, (change, error)
    for missing in ("name", "seeds", "policies"):
        path = project(tmp_path)
        path.write_text(yaml.safe_dump({key: value for key, value in STUDY.items() if key != missing}))
        assert missing in refused(simic, path)
    for broken in (b"", b"name: ["):
        path.write_bytes(broken)
        assert "rates.yaml" in refused(simic, path)
    assert "must be processes or dask" in refused(simic, project(tmp_path), "--runner", "threads")
    path.unlink()
    assert "no such file; examples/studies/memory.yaml shows one" in refused(simic, path)
    assert not (tmp_path / ".simic").exists()


def test_a_count_of_seeds_means_the_first_ones(tmp_path: Path) -> None:
    assert file.read(project(tmp_path, seeds=3)).seeds == (1, 2, 3)
    assert file.read(project(tmp_path)).seeds == tuple(STUDY["seeds"])


def test_the_example_is_a_valid_study_and_says_how_to_run_it() -> None:
    path = ROOT / "examples" / "studies" / "memory.yaml"
    found = StudyPlan.of(file.read(path), path, Workspace(ROOT))
    assert len(found.cells) == 6 and len({cell.headroom for cell in found.cells}) == 1
    assert f"simic study {path.relative_to(ROOT)}" in path.read_text()
    assert {cell.params["train"]["policy"]["core"] for cell in found.cells} == {"lstm", "none"}
