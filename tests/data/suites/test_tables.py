"""The suite ``tables``: what its rules say, what is stored of it, and who may see which kind."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
import torch

from simic.data.batches import Dataset, load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from simic.data.suites import kinds as kinds_module
from simic.data.suites.kinds import KINDS, Draws, Problem, Sources
from simic.data.suites.tables import BASE, HELD_OUT, REAL, SINGLE, SINGLE_VAL
from simic.errors import SimicError
from simic.params import Prepare
from tests import standard

FEW = {"train": 18, "val": 8, "held_out": 6, "held_out_kinds": 9, "outside": 28}
WIDTHS = {"breast_cancer": 30, "wine": 13, "diabetes": 10, "digits": 64, "iris": 4, "hastie": 10}
WIDTHS |= {"friedman1": 10, "friedman2": 4, "friedman3": 4}  # others: 12


def tables(samples: int | None = 704, **instances) -> Prepare:
    return standard.Prepare(task="suite", samples=samples, suite={"name": "tables", "instances": FEW | instances})


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    prepare(tables(), 1, folder / "out", folder)
    return folder / "out"


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_a_bank_has_of_each_group_its_kinds_and_base_and_other_ones_in_equal_number(bank):
    meta, held = read_meta(bank), load_held_out(bank)
    train = [task.kind for task in meta.tasks if task.group == "train"]
    assert train == [name for names in zip(BASE, SINGLE, strict=False) for name in names]
    val = [task.kind for task in meta.tasks if task.group == "val"]
    assert val == [*SINGLE_VAL[:8]]
    assert [task.kind for task in held.tasks if task.group == "held_out_kinds"] == [*HELD_OUT]
    assert {task.group for task in held.tasks} == {"held_out", "held_out_kinds"}
    outside = [task for record in held.outside for task in record.tasks]
    assert {task.group for task in outside} == {"outside"}
    assert Counter(task.kind in REAL for task in outside) == {True: 14, False: 14}


def test_the_kind_of_a_task_is_a_number_for_training_kinds_alone(bank):
    meta = read_meta(bank)
    names, kinds = meta.kinds()
    assert names == sorted({*BASE, *SINGLE[:9]})
    for task, kind in zip(meta.tasks, kinds, strict=True):
        assert (kind == -1) if task.group == "val" else (names[kind] == task.kind)


def test_a_finite_source_is_of_outside_kinds_or_of_others(tmp_path, monkeypatch):
    def mine(draws):
        iris = KINDS["tables"]["iris"](draws)

        def sample(draws, n):
            x, y = iris.sample(draws, n)
            return x.repeat(1, 1, 1, 3), y

        return Problem(3, {}, sample)

    monkeypatch.setitem(kinds_module.KINDS["tables"], "mine", mine)
    asked = standard.Prepare(
        task="suite", samples=60, suite={"name": "tables", "kinds": ("mine",), "instances": FEW | {"outside": 10}}
    )
    with pytest.raises(SimicError, match="outside kinds read iris, and so do others"):
        prepare(asked, 1, tmp_path / "out", tmp_path)


# --- what is stored --------------------------------------------------------------------------------------------------


def splits(bank: Path) -> list[Dataset]:
    held = load_held_out(bank)
    return [load_split(bank, "train"), load_split(bank, "val"), held.train, held.val, held.test]


def test_columns_are_standardised_clipped_and_kept_in_half_precision(bank):
    for data in splits(bank):
        assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64 and data.shape == (1, 1, 12)
        assert torch.equal(data.x.half().float(), data.x) and data.x.abs().max() <= 5.0
    meta, train = read_meta(bank), load_split(bank, "train")
    for place, task in enumerate(meta.tasks[: FEW["train"]]):
        draws = Draws(1, task.kind, "train", int(task.name.split("-")[-1]), Sources(Path()))
        raw, y = KINDS["tables"][task.kind](draws).sample(draws.of_split("train"), len(train))
        wide = raw[:, 0, 0].double()
        expected = ((wide - wide.mean(0)) / wide.std(0, correction=0)).clamp(-5, 5)
        x = train.x[place * len(train) : (place + 1) * len(train), 0, 0].double()
        assert (x - expected).abs().max() <= 5 * 2**-11  # half the last digit of float16 at 5, and some of float32
        assert torch.equal(train.y[place * len(train) : (place + 1) * len(train)], y)
        assert len(task.mean) == len(task.std) == 12


def test_outside_tables_have_their_own_widths_each_in_a_record(bank):
    records = load_held_out(bank).outside
    assert [record.train.shape[-1] for record in records] == [4, 10, 12, 13, 30, 64]
    for record in records:
        assert {WIDTHS.get(task.kind, 12) for task in record.tasks} == {record.train.shape[-1]}
        for data in (record.train, record.val, record.test):
            assert data.task_classes == tuple(task.classes for task in record.tasks)
            for place, task in enumerate(record.tasks):
                y = data.y[place * len(data) : (place + 1) * len(data)]
                assert y.max() == task.classes - 1
                counts = torch.bincount(y)
                assert counts.max() - counts.min() <= 1
        assert record.outside == ()


def test_a_single_outside_task_lacks_the_classes_that_others_have(tmp_path):
    prepare(tables(60, outside=1), 1, tmp_path / "out", tmp_path)
    held = load_held_out(tmp_path / "out")
    (record,) = held.outside
    assert record.train.tasks == 1 and record.train.task_classes == (2,) and held.train.classes > 2
    assert record.train.lacking is not None and int(record.train.lacking.sum()) == held.train.classes - 2


def test_no_row_is_in_two_splits_nor_in_two_groups(bank):
    def rows(data):
        return set(map(tuple, data.x.flatten(1).tolist()))

    for data in (splits(bank), *([record.train, record.val, record.test] for record in load_held_out(bank).outside)):
        assert all(not a & b for a, b in combinations(map(rows, data), 2))


def test_an_outside_instance_divides_a_whole_source_among_its_splits_and_another_one_otherwise():
    labels = torch.arange(150) % 3

    def pools(instance):
        draws = [Draws(1, "iris", "outside", instance, Sources(Path()), split) for split in ("train", "val", "test")]
        return [set(each.of_pool("iris", labels, labels.repeat(3)).tolist()) for each in draws]

    assert [len(pool) for pool in pools(0)] == [90, 30, 30] and set().union(*pools(0)) == set(range(150))
    assert pools(0) == pools(0) != pools(1)
