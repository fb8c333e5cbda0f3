"""Held-out data are out of reach of the code that trains and selects, and of the files that it opens."""

import ast
from pathlib import Path

import pytest
import torch

from simic.data.batches import HELD_OUT_FILE, TEST_FILE, load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from tests.helpers import ROOT
from tests.standard import Prepare

OPENERS = {"load_held_out", "TEST_FILE", "HELD_OUT_FILE", TEST_FILE, HELD_OUT_FILE}
MAY = ("simic/evaluation/", "simic/audit/", "simic/data/batches.py", "simic/data/prepare.py")


def named(tree: ast.AST) -> set[str]:
    """Return every name, attribute, import and string of a piece of code."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name", ast.Constant: "value"}
    return {getattr(node, kinds[type(node)]) for node in ast.walk(tree) if type(node) in kinds}


def test_only_evaluation_and_audit_name_what_opens_held_out_data() -> None:
    files = [path for folder in ("simic", "flows") for path in (ROOT / folder).rglob("*.py")]
    openers = {
        str(path.relative_to(ROOT))
        for path in files
        if named(ast.parse(path.read_text(encoding="utf-8"))) & OPENERS
    }
    assert {name for name in openers if not name.startswith(MAY)} == set()
    assert any(name.startswith("simic/evaluation/") for name in openers), (
        "the names are still those"
    )
    assert "simic/pipeline/promote.py" not in openers  # it selects


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bank")
    instances = {"train": 30, "val": 10, "held_out": 20, "held_out_kinds": 6}
    prepare(
        Prepare(task="suite", samples=120, suite={"instances": instances}),
        1,
        folder / "out",
        folder,
    )
    return folder / "out"


def raw(data, tasks) -> torch.Tensor:
    """Return rows before they were standardised, as integers of thousandths: equal where they were equal."""
    mean, std = (
        torch.tensor([getattr(task, name) for task in tasks]).repeat_interleave(len(data), dim=0)
        for name in ("mean", "std")
    )
    return ((data.x.flatten(1) * std + mean) * 1000).round().int()


def test_no_sample_of_training_is_one_of_a_held_out_task(bank: Path) -> None:
    """Neither as it is stored, nor as it was before its task's mean and deviation were taken out, nor with its columns
    in another order.
    """
    meta = read_meta(bank)
    held_out = load_held_out(bank)
    visible = [(load_split(bank, split), meta.tasks) for split in ("train", "val")]
    hidden = [(data, held_out.tasks) for data in (held_out.train, held_out.val, held_out.test)]
    for form in (
        lambda data, tasks: data.x,
        raw,
        lambda data, tasks: raw(data, tasks).sort(dim=-1).values,
    ):
        parts = [
            {row.numpy().tobytes() for data, tasks in group for row in form(data, tasks)}
            for group in (visible, hidden)
        ]
        assert min(map(len, parts)) > 2000 and not parts[0] & parts[1]


def nearest(rows: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """The distance of every row to the nearest of the others, without each column in turn, ``[columns, rows]``."""

    def without(part: torch.Tensor, column: int) -> torch.Tensor:
        return torch.cat((part[..., :column], part[..., column + 1 :]), -1).flatten(1)

    distances = [
        torch.cdist(without(rows, column), without(references, column))
        for column in range(rows.shape[-1])
    ]
    return torch.stack(distances).amin(dim=2)


def test_rows_of_no_split_are_near_copies_of_training_rows(bank) -> None:
    """A row in a little noise, or with one column changed, is nearer than rows are that were drawn apart."""
    held_out = load_held_out(bank)
    distances: dict[str, list[torch.Tensor]] = {"val": [], "test": []}
    for place in range(len(held_out.tasks)):
        train, val, test = (
            data.x[place * len(data) : (place + 1) * len(data)]
            for data in (held_out.train, held_out.val, held_out.test)
        )
        usual = nearest(val, train).median() + nearest(test, train).median()
        distances["val"].append(nearest(val, train) / usual)
        distances["test"].append(nearest(test, train) / usual)
    val, test = (torch.cat(parts, dim=1) for parts in distances.values())
    for one, other in ((val, test), (test, val)):
        close = other.quantile(0.02, dim=1, keepdim=True)
        assert float((one < close).double().mean(dim=1).max()) < 0.06


def copies(rows: torch.Tensor, references: torch.Tensor) -> int:
    """Count the rows that are among the others, bit for bit."""
    stored = {row.numpy().tobytes() for row in references}
    return sum(row.numpy().tobytes() in stored for row in rows)


def test_no_row_is_in_two_splits_and_no_validation_task_has_rows_of_training_tasks(bank) -> None:
    held_out = load_held_out(bank)
    assert copies(held_out.test.x, held_out.train.x) == copies(held_out.test.x, held_out.val.x) == 0
    train = load_split(bank, "train")
    assert copies(held_out.val.x, held_out.train.x) == 0
    assert copies(load_split(bank, "val").x, train.x) == 0
    tasks = read_meta(bank).tasks
    rows = train.x.reshape(len(tasks), len(train), *train.x.shape[1:])
    groups = {
        group: [place for place, task in enumerate(tasks) if task.group == group]
        for group in ("train", "val")
    }
    assert copies(rows[groups["val"]].flatten(0, 1), rows[groups["train"]].flatten(0, 1)) == 0
