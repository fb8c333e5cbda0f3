"""Cells are computed once, in folders named by what decides their content, and share what does not differ."""

import shutil
from pathlib import Path

import pytest

from simic import durable, seals
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.study import cells, table
from simic.study.plan import StudyPlan
from tests.study.small_study import BASE, plan, rows


def test_all_cells_share_one_preparation_and_one_headroom(whole: StudyPlan, ran: list[str]) -> None:
    assert sorted(set(ran)) == ["headroom", "prepare"] and len(ran) == 2
    assert [len(list(whole.folder.glob(f"{name}-*"))) for name in cells.SHARED] == [1, 1]
    assert not (Path(whole.cells[0].project) / "data").exists()  # nor does the project notice


def test_a_finished_cell_is_not_computed_again(whole: StudyPlan) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*") if path.is_file()}

    before = written()
    for cell in whole.cells:
        cells.run(cell, whole.folder)
    assert written() == before


def test_a_digit_changed_in_a_result_is_noticed(whole: StudyPlan, tmp_path: Path) -> None:
    cell = whole.cells[0]
    written = (whole.folder / cell.fingerprint / cells.RESULT).read_text()
    for changed in (written.replace("1", "2", 1), written[:-9], ""):
        file = tmp_path / cell.fingerprint / cells.RESULT
        file.parent.mkdir(exist_ok=True)
        file.write_text(changed)
        with pytest.raises(SimicError, match=r"not readable: .*; remove it to compute it again"):
            cells.finished(cell, tmp_path)


@pytest.mark.slow
def test_a_cell_is_what_the_stages_make_of_its_params(whole: StudyPlan, tmp_path: Path) -> None:
    """Stage by stage in a workspace of its own, trained with the cell's seed, measured with the params' own."""
    cell, own = whole.cells[-1], Workspace(tmp_path)
    tree = cells.params.validate(cell.params, "cell")
    stages.prepare(tree, own)
    stages.headroom(tree, own)
    stages.train(tree.model_copy(update={"rng_seed": cell.seed}), own)
    stages.evaluate(tree, own)
    assert tree.train.ppo.learning_rate == 0.01 and cell.seed == 4
    assert own.evaluation.read_bytes() == Workspace(whole.folder / cell.fingerprint).evaluation.read_bytes()


def test_seals_of_a_cell_hold_what_it_was_made_of(whole: StudyPlan) -> None:
    cell = whole.cells[0]
    broken, looked = seals.broken(whole.folder / cell.fingerprint, cells.params.validate(cell.params, "cell"))
    assert {"train", "evaluate"} <= set(looked)
    assert [text for text in broken if text.startswith("train") and "rng_seed" not in text] == []


def test_the_table_has_a_row_for_each_cell_and_policy(whole: StudyPlan) -> None:
    found = rows(whole.folder / table.TABLE)
    assert [(row["train.ppo.learning_rate"], row["seed"], row["policy"]) for row in found] == [
        (rate, seed, policy) for rate in ("0.001", "0.01") for seed in ("1", "4") for policy in ("learned", "static")
    ]
    for row in found:
        evaluation = result.read(Workspace(whole.folder / row["cell"]).evaluation)
        standing = next(iter(evaluation.standings.values())).policies[row["policy"]]
        assert float(row["score"]) == round(standing.score.estimate, 4)
        assert (int(row["controller_trainings"]) > 0) == (row["policy"] == "learned")


def test_the_summary_is_paired_by_training_seed(whole: StudyPlan) -> None:
    scores = {
        (row["seed"], row["train.ppo.learning_rate"]): float(row["score"])
        for row in rows(whole.folder / table.TABLE)
        if row["policy"] == "learned"
    }
    difference = sum(scores[seed, "0.01"] - scores[seed, "0.001"] for seed in ("1", "4")) / 2
    lines = list(table.summary(whole))
    assert lines[0].startswith("learned:") and f"{difference:+.1f} [" in lines[2] and "(2 seeds)" in lines[2]
    assert "(2 seeds)" in lines[1] and "p =" not in lines[1]


def test_cost_is_what_cells_took_and_unknown_before(whole: StudyPlan, tmp_path: Path) -> None:
    fresh = plan(tmp_path)
    assert list(fresh.lines(2))[-1].endswith("not known before the first cell is done")
    assert "left     4 of 4 cells; for all of them prepare 1 times, headroom 1 times" in list(fresh.lines(2))
    shutil.copytree(whole.folder, fresh.folder, symlinks=True)
    assert [cell.fingerprint for cell in fresh.cells] == [cell.fingerprint for cell in whole.cells]
    assert fresh.cost(2) == "nothing is left to do"
    for cell, seconds in zip(fresh.cells[:2], (100.0, 300.0), strict=True):
        file = fresh.folder / cell.fingerprint / cells.RESULT
        file.write_bytes(durable.with_checksum(durable.checked(file.read_bytes()) | {"seconds": seconds}))
    for cell in fresh.cells[2:]:
        (fresh.folder / cell.fingerprint / cells.RESULT).unlink()
    # two cells of 200 s, one after the other or side by side
    assert fresh.cost(1) == "about 6:40 with 1 workers: a cell took 3:20, the mean of 2"
    assert fresh.cost(2).startswith("about 3:20 with 2 workers")


def test_code_params_and_seed_decide_which_cell_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan(tmp_path).cells[0]
    other_rate = plan(tmp_path, base=[*BASE, "train.ppo.gamma=0.9"]).cells[0]
    other_policy = plan(tmp_path, policies=["learned", "blind"]).cells[0]
    assert len({first.fingerprint, other_rate.fingerprint, other_policy.fingerprint}) == 3
    assert first.headroom == other_rate.headroom and first.prepared == other_policy.prepared
    assert plan(tmp_path, base=[*BASE, "runtime.checkpoint_every=2"]).cells[0].fingerprint == first.fingerprint
    monkeypatch.setattr(seals, "code_hashes", lambda places: {"growth": "changed"})
    assert plan(tmp_path).cells[0].prepared != first.prepared
