"""Samples that are in two splits are found, whichever tasks have them."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from simic.data.prepare import prepare
from tests.reference import evaluation
from tests.reference.bank import OF_HELD_OUT, OF_VALIDATION, shared_samples
from tests.reference.comparison import ComparisonLog
from tests.standard import Instances, Prepare, Suite


def shared(folder):
    """Return the largest share of each kind."""
    found = {}
    for _, what, share in shared_samples(folder):
        found[what] = max(share, found.get(what, 0.0))
    return {what: share for what, share in found.items() if share}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    suite = Suite(instances=Instances(train=2, val=1, held_out=1, held_out_kinds=1))
    prepare(Prepare(task="suite", samples=120, suite=suite), 1, folder / "bank", folder)
    assert shared(folder / "bank") == {}
    return folder / "bank"


@pytest.mark.parametrize(
    ("target", "source", "found"),
    [
        (("trainval", "x_train", 2), ("trainval", "x_train", 0), {OF_VALIDATION: 1.0}),
        (("test", "x_train", 0), ("trainval", "x_train", 0), {OF_HELD_OUT: 1.0}),
        (
            ("test", "x_test", 1),
            ("trainval", "x_train", 1),
            {"test samples that are in training tasks": 1.0},
        ),
        (("test", "x_test", 0), ("test", "x_val", 0), {"test samples that are in val": 1.0}),
    ],
)
def test_a_task_with_the_samples_of_another_is_found(prepared, tmp_path, target, source, found):
    bank = shutil.copytree(prepared, tmp_path / "bank")
    files = {name: load_file(bank / f"{name}.safetensors") for name in ("trainval", "test")}
    (into, x, place), (origin, name, first) = target, source
    tasks = {"trainval": 3, "test": 2}
    count = len(files[into][x]) // tasks[into]
    taken = len(files[origin][name]) // tasks[origin]
    rows = files[origin][name][first * taken :][: min(count, taken)]
    copied = files[into][x][place * count :][:count]
    copied[:] = rows.repeat(-(-count // len(rows)), *[1] * (rows.ndim - 1))[:count]
    save_file(files[into], bank / f"{into}.safetensors")
    assert shared(bank) == found


def test_a_row_that_two_tasks_have_by_chance_is_no_difference():
    few = 2 / 2048
    many = 0.05
    scored = "test samples that are in train"
    of_tasks = [
        (name, share, share == few)
        for name in (OF_HELD_OUT, OF_VALIDATION)
        for share in (few, many)
    ]
    for what, share, ok in (*of_tasks, (scored, few, False)):
        (log := ComparisonLog(evaluation.ALLOWED)).note(what, "a task", share)
        assert [line.ok for line in log.comparisons()] == [ok], (what, share)
