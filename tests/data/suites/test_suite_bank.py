"""A bank: the tasks of a suite one after another, those held out in a file of their own."""

import os
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from simic.data.batches import Dataset, load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from simic.data.sources import read_bundled
from simic.data.suites import kinds as kinds_module
from simic.data.suites import suite_bank as suite_bank_module
from simic.data.suites.kinds import KINDS, Draws, Problem, Sources
from simic.data.suites.tables_suite import SINGLE_VAL
from simic.errors import SimicError
from simic.params import Prepare
from tests import standard
from tests.data.refusals import refused
from tests.patches import HELD_OUT

FEW = {"train": 5, "val": 2, "held_out": 3, "held_out_kinds": 2}
KNOWN = ("digits", "brightness", "digits_permuted")


def suite(samples=60, instances=FEW, name="patches", **changes) -> Prepare:
    return standard.Prepare(
        task="suite", samples=samples, suite={"name": name, "instances": instances, **changes}
    )


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bank")
    prepare(suite(kinds=KNOWN), 1, folder / "out", folder)
    return folder / "out"


def test_rows_are_those_of_one_task_after_another_each_standardised_by_its_own_training_split(bank):
    """By an oracle that draws each instance alone and standardises it with numpy: what is drawn depends on kind, group
    and number, not on how many there are or on other kinds.
    """
    meta = read_meta(bank)
    held_out = load_held_out(bank)
    splits = [(load_split(bank, split), split, meta.tasks) for split in ("train", "val")]
    splits += [
        (data, split, held_out.tasks)
        for split, data in vars(held_out).items()
        if isinstance(data, Dataset)
    ]
    for data, split, tasks in splits:
        n = meta.samples[split]
        assert (data.tasks, len(data), len(data.x)) == (len(tasks), n, n * len(tasks))
        for place, task in enumerate(tasks):
            group = "held_out" if task.group == "held_out_kinds" else task.group
            draws = Draws(1, task.kind, group, int(task.name.split("-")[-1]), Sources(Path()))
            problem = KINDS["patches"][task.kind](draws)
            train, _ = problem.sample(draws.of_split("train"), meta.samples["train"])
            raw = train.numpy().astype(np.float64)
            x, y = problem.sample(draws.of_split(split), n)
            rows = slice(place * n, (place + 1) * n)
            expected = (x.numpy() - np.float32(raw.mean())) / np.float32(raw.std())
            assert data.x[rows].numpy().tobytes() == expected.tobytes()
            assert torch.equal(data.y[rows], y)
            assert task.parameters == problem.parameters
            assert data.task_classes[place] == task.classes == problem.classes


def test_kinds_take_turns_and_every_group_has_as_many_as_asked_for(bank):
    meta = read_meta(bank)
    tasks = (*meta.tasks, *load_held_out(bank).tasks)
    groups = {
        "train": [*KNOWN, *KNOWN[:2]],
        "val": KNOWN[:2],
        "held_out": KNOWN,
        "held_out_kinds": HELD_OUT,
    }
    expected = [(group, name) for group, names in groups.items() for name in names]
    assert [(task.group, task.kind) for task in tasks] == expected
    assert meta.of_group("train") == [0, 1, 2, 3, 4] and meta.of_group("val") == [5, 6]
    assert len({task.name for task in tasks}) == 12


@pytest.mark.parametrize("kinds", [None, (), ("pairs_far", "brightness")])
def test_held_out_kinds_have_no_task_in_training(tmp_path, kinds):
    many = {"train": 20, "val": 20, "held_out": 20, "held_out_kinds": 6}
    prepare(suite(20, many, held_out_kinds=kinds), 1, tmp_path / "out", tmp_path)
    expected = set(HELD_OUT if kinds is None else kinds)
    visible = read_meta(tmp_path / "out").tasks
    hidden = load_held_out(tmp_path / "out").tasks
    assert {task.kind for task in visible} == set(KINDS["patches"]) - expected
    assert {task.kind for task in hidden if task.group == "held_out_kinds"} == expected
    assert not {task.kind for task in hidden if task.group == "held_out"} & expected


# --- refused ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "for validation": ({"name": "tables", "kinds": SINGLE_VAL[1:2]}, "is for validation alone"),
    "for evaluation": (
        {"name": "tables", "kinds": ("linear", "iris")},
        "'iris' is for evaluation alone",
    ),
    "unknown kind": (
        {"kinds": ("digits", "digts")},
        "suite 'patches' has no kind 'digts'; it has pairs_near",
    ),
    "unknown held-out kind": (
        {"held_out_kinds": ("nothing",)},
        "suite 'patches' has no kind 'nothing'; it has",
    ),
    "both": (
        {"kinds": ("digits", "gratings")},
        "in suite 'patches' 'gratings' is in held_out_kinds",
    ),
    "none left": (
        {"held_out_kinds": tuple(KINDS["patches"])},
        "suite 'patches' has no kind that is not held out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_kinds_that_cannot_be_drawn_are_refused_in_one_line(tmp_path, case):
    changes, message = REFUSED[case]
    assert message in refused(suite(**changes), tmp_path)


def of(
    classes=2,
    parameters=None,
    x=lambda n: torch.zeros(n, 1, 16, 16),
    y=lambda n: torch.arange(n) % 2,
):
    return lambda draws: Problem(classes, parameters or {}, lambda draws, n: (x(n), y(n)))


def test_a_test_row_that_is_a_training_row_by_chance_is_drawn_again(tmp_path, monkeypatch):
    """Six columns of two values: 64 rows, of which training and validation have nearly half."""

    def few(draws, values=2):
        def sample(draws, n):
            x = torch.zeros(n, 1, 16, 16)
            x[:, 0, 0, :6] = draws.integers(values, n, 6).float()
            return x, torch.arange(n) % 2

        return Problem(2, {}, sample)

    monkeypatch.setitem(kinds_module.KINDS["patches"], "mine", few)
    prepare(
        suite(kinds=("mine",), held_out_kinds=("digits", "brightness")),
        1,
        tmp_path / "out",
        tmp_path,
    )
    held_out = load_held_out(tmp_path / "out")
    for number in range(len(held_out.tasks)):
        train, val, test = (
            part.x.view(len(held_out.tasks), -1, 256)[number]
            for part in (held_out.train, held_out.val, held_out.test)
        )
        assert not (test[:, None] == torch.cat((train, val))).all(2).any()
    assert [task.kind for task in held_out.tasks].count("mine") == FEW["held_out"]
    monkeypatch.setitem(kinds_module.KINDS["patches"], "mine", lambda draws: few(draws, values=1))
    refusal = refused(suite(kinds=("mine",)), tmp_path)
    assert "kind 'mine': 24 of 24 test samples are training samples however often" in refusal


CALLS = count()  # no two splits have the same rows
WRONG = {
    "no Problem": (lambda draws: None, "kind 'mine': gave NoneType, must be a Problem"),
    "shape": (
        of(x=lambda n: torch.zeros(n, 1, 8, 8) + next(CALLS)),
        "kind 'mine': samples are torch.float32 [1, 8, 8], those of kind",
    ),
    "too few": (of(x=lambda n: torch.zeros(n - 1, 1, 16, 16)), "must be float32 [n, C, H, W]"),
    "doubles": (
        of(x=lambda n: torch.zeros(n, 1, 16, 16).double()),
        "x and y of 24 samples are torch.float64",
    ),
    "nan": (
        of(x=lambda n: torch.zeros(n, 1, 16, 16) / 0.0),
        "kind 'mine': x has values that are not finite",
    ),
    "label": (of(y=lambda n: torch.arange(n) % 3), "kind 'mine': 2 classes, labels from 0 to 2"),
    "one class": (of(1, y=lambda n: torch.zeros(n, dtype=torch.int64)), "1 classes"),
    "parameters": (
        of(parameters={"scale": torch.ones(2)}),
        "kind 'mine': only plain values can be recorded",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_users_kind_gives_is_checked(tmp_path, monkeypatch, case):
    function, message = WRONG[case]
    monkeypatch.setitem(kinds_module.KINDS["patches"], "mine", function)
    assert message in refused(suite(kinds=("digits", "mine")), tmp_path)


def test_a_bank_of_which_another_process_draws_a_part_is_the_same(tmp_path, monkeypatch):
    """What is recorded of the real tables that the other process alone has read, too."""
    params = standard.Prepare(
        task="suite", samples=60, suite={"name": "tables", "instances": {"train": 24, "val": 2}}
    )
    prepare(params, 1, tmp_path / "alone", tmp_path)
    monkeypatch.setattr(suite_bank_module, "LEAST_APART", 5)
    prepare(params, 1, tmp_path / "both", tmp_path)
    for file in (tmp_path / "alone").iterdir():
        assert (tmp_path / "both" / file.name).read_bytes() == file.read_bytes()


def test_what_goes_wrong_in_the_other_process_is_said_here():
    with suite_bank_module._beside(refuse) as answer, pytest.raises(SimicError, match="too few"):
        answer()
    with pytest.raises(SimicError, match="has ended"), suite_bank_module._beside(end) as answer:
        answer()


def refuse() -> None:
    raise SimicError("too few")


def end() -> None:
    os._exit(1)


def test_sources_of_both_processes_are_recorded():
    first, second = Sources(Path()), Sources(Path())
    for shelf, name in ((first, "iris"), (second, "wine"), (second, "iris")):
        shelf.read(name, lambda folder, name=name: read_bundled(name))
    iris = first.sources["iris"]
    first.add(second.without_samples())
    assert first.sources["iris"] is iris and len(first.sources["wine"]) == 0
    assert first.dropped.keys() == {"iris", "wine"} and first.dropped == second.dropped
