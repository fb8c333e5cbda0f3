"""A table of seeds: a line for each setting, by the params that differ between its runs."""

import json
from pathlib import Path

import pytest

from tests.conftest import Simic


def run(folder: Path, seed: int, core: str, score: float) -> Path:
    (folder / "reports").mkdir(parents=True)
    (folder / "params.yaml").write_text(
        f"rng_seed: {seed}\ntrain: {{policy: {{core: {core}}}, envs: 8}}\n"
    )
    (folder / "reports" / "metrics.json").write_text(json.dumps({"score": score}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    scores = {("gru", 1): 60.0, ("gru", 2): 62.0, ("none", 1): 50.0}
    return [
        run(tmp_path / f"{core}-{seed}", seed, core, score)
        for (core, seed), score in scores.items()
    ]


def test_a_setting_is_a_line_and_one_seed_has_no_interval(runs: list[Path], simic: Simic) -> None:
    code, out, _ = simic("table", *runs)
    # Student's t with one degree of freedom: 61 +- 12.706 * 1.0
    gru, none = out.splitlines()
    assert code == 0 and gru == 'train.policy.core="gru"   score 61.00 [48.29, 73.71] (2 seeds)'
    assert none == 'train.policy.core="none"   score 50.00 (one seed)'


def test_a_folder_without_results_and_a_metric_that_is_not_there_are_named(
    runs: list[Path], simic: Simic, tmp_path: Path
) -> None:
    assert "metrics.json: no such file; give folders" in simic.refuses("table", tmp_path)
    assert "--metric gap: must be one of score" in simic.refuses("table", *runs, "--metric", "gap")
