"""The suite ``tables``: what its rules say, what is stored of it, and who may see which kind."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from simic.data.batches import load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from simic.data.suites import kinds as kinds_module
from simic.data.suites.kinds import KINDS, Draws, Problem, Sources
from simic.data.suites.tables_suite import BASE, HELD_OUT, REAL, SINGLE, SINGLE_VAL, SINGLES
from simic.params import Prepare
from tests import standard
from tests.data.refusals import refused

FEW = {"train": 18, "val": 8, "held_out": 6, "held_out_kinds": 9, "outside": 28}
WIDTHS = {"breast_cancer": 30, "wine": 13, "diabetes": 10, "digits": 64, "iris": 4, "hastie": 10}
WIDTHS |= {"friedman1": 10, "friedman2": 4, "friedman3": 4}  # others: 12


def tables(samples: int = 352, **instances) -> Prepare:
    return standard.Prepare(
        task="suite", samples=samples, suite={"name": "tables", "instances": FEW | instances}
    )


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    prepare(tables(), 1, folder / "out", folder)
    return folder / "out"


def drawn(name: str, instance: int, n: int = 120) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Draw rows of a test split, whose labels are right."""
    draws = Draws(1, name, "train", instance, Sources(Path()))
    problem = KINDS["tables"][name](draws)
    x, y = problem.sample(draws.of_split("test"), n)
    return problem, x[:, 0, 0].double(), y


# --- the rules, once more by hand ------------------------------------------------------------------------------------


def dot(weights, row):
    return math.fsum(weight * value for weight, value in zip(weights, row, strict=True))


def level(value, column, count, parameters):
    uniform = column in parameters.get("columns", {}).get("uniform", [])
    share = (
        (value + math.sqrt(3)) / math.sqrt(12)
        if uniform
        else 0.5 * (1 + math.erf(value / math.sqrt(2)))
    )
    return min(int(share * count), count - 1)


def undone(value, form, rate):
    """Return what a column held before it was distorted."""
    if form == 0:
        return math.log(value) / rate
    if form == 1:
        return -math.log(-value) / rate
    return math.asinh(value) / (1.5 * rate) if form == 2 else math.copysign(value * value, value)


def undistorted(row, shape):
    return [
        undone(value, form, shape["rate"]) for value, form in zip(row, shape["forms"], strict=True)
    ]


def rooted(row, powers):
    return [
        math.copysign(abs(value) ** (1 / power), value)
        for value, power in zip(row, powers, strict=True)
    ]


def direction(row):
    length = math.sqrt(dot(row, row))
    return [value / length * math.sqrt(12) for value in row]


def pairs(rule, row):
    return [row[a] * row[b] for a, b in zip(rule["first"], rule["second"], strict=True)]


def spread(rule, row):
    ranked = sorted(row)
    return sum(ranked[place] for place in rule["plus"]) - sum(
        ranked[place] for place in rule["minus"]
    )


def blend(rule, row):
    u = row[rule["a"]]
    v = row[rule["b"]]
    f = rule["frequency"]
    parts = u + 0.5 * v, u * v, math.sin(f * u) + math.sin(f * v), abs(u) - abs(v)
    return sum(parts[place] for place in rule["rules"])


def category(row, rule, all):
    return (
        rule["values"][level(row[rule["column"]], rule["column"], 12, all)]
        + 0.2 * row[rule["other"]]
    )


def match(row, rule, all):
    codes = [round(row[column], 4) for column in all["columns"]["codes"]]
    return len(codes) - len(set(codes))


def waves(row, rule, all):
    waves = zip(rule["columns"], rule["frequencies"], rule["phases"], strict=True)
    return sum(math.sin(frequency * row[column] + phase) for column, frequency, phase in waves)


def nearest_point(row, rule, all):
    return min(range(len(rule["points"])), key=lambda k: math.dist(row, rule["points"][k]))


def rank(row, rule, all):
    a, b, c, d = (row[column] for column in rule["columns"])
    return math.copysign(1, (a - b) * (c - d))


# By rule: the score of the values it reads, from its own parameters and all parameters.
SCORES = {
    "linear": lambda row, rule, all: dot(rule["weights"], row),
    "sparse": lambda row, rule, all: abs(row[rule["a"]]) + rule["weight"] * row[rule["b"]],
    "product": lambda row, rule, all: dot(rule["signs"], pairs(rule, row)),
    "periodic": lambda row, rule, all: math.sin(
        rule["frequency"] * row[rule["column"]] + rule["phase"]
    ),
    "category": category,
    "order": lambda row, rule, all: dot(rule["weights"], sorted(row)),
    "match": match,
    "gain": lambda row, rule, all: (abs if rule.get("folded") else float)(
        dot(rule["weights"], row)
    ),
    "signs": lambda row, rule, all: sum(math.copysign(1, product) for product in pairs(rule, row)),
    "band": lambda row, rule, all: (
        level(row[rule["column"]], rule["column"], rule["levels"], all) in rule["yes"]
    ),
    "spread": lambda row, rule, all: spread(rule, row),
    "stripes": lambda row, rule, all: (
        math.floor(row[rule["column"]] / rule["width"] + rule["start"]) % 2
    ),
    "blend": lambda row, rule, all: blend(rule, row),
    "nearest": lambda row, rule, all: min(
        range(3), key=lambda k: abs(row[rule["of"][k]] - row[rule["to"]])
    ),
    "twins": lambda row, rule, all: row[rule["first"]] == row[rule["second"]],
    "rank": rank,
    "waves": waves,
    "place": lambda row, rule, all: sum(value < row[rule["column"]] for value in row),
    "centres": lambda row, rule, all: nearest_point(row, rule, all) % 2,
    "largest": lambda row, rule, all: max(range(3), key=lambda k: row[rule["columns"][k]]),
}
# By shape: what a rule reads of a row that is shown.
READERS = {
    "": lambda row, _: row,
    "rounded": lambda row, _: row,
    "scaled": lambda row, _: direction(row),
    "exponentiated": lambda row, all: [math.log(value) / all["shape"]["rate"] for value in row],
    "skewed": lambda row, all: undistorted(row, all["shape"]),
    "powers": lambda row, all: rooted(row, [all["shape"]["power"]] * 12),
    "odd powers": lambda row, all: rooted(row, all["shape"]["powers"]),
}
WRITTEN = {name: (name, "", "") for name in (*BASE, *HELD_OUT)}
WRITTEN |= {
    "skew": ("linear", "", "skewed"),
    "gain": ("gain", "", "scaled"),
    "heavy": ("linear", "", "odd powers"),
}
WRITTEN |= SINGLES


@pytest.mark.parametrize("name", WRITTEN)
def test_the_label_is_what_the_recorded_parameters_say(name):
    """In bands of the score, or of its distance from the middle. Rows as close to a cut as float32 is coarse are left
    out.
    """
    rule_name, way, shape = WRITTEN[name]
    for instance in range(4):
        problem, x, y = drawn(name, instance)
        parameters = problem.parameters
        rule = parameters["rule"]
        cuts = parameters["cuts"]
        assert problem.classes == len(cuts) + 1 and (2 < problem.classes < 6 or way != "bands")
        clear_rows = 0
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            score = float(SCORES[rule_name](READERS[shape](row, parameters), rule, parameters))
            if way == "folded":
                score = abs(score - rule["middle"])
            if min(abs(score - cut) for cut in cuts) > 1e-3:
                clear_rows += 1
                assert sum(score > cut for cut in cuts) == label, (instance, row)
        assert clear_rows > 90


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_a_bank_has_of_each_group_its_kinds_and_base_and_other_ones_in_equal_number(bank):
    """The kind of a task is a number for kinds of training alone."""
    meta = read_meta(bank)
    held_out = load_held_out(bank)
    groups = defaultdict[str, list[str]](list)
    for task in (
        *meta.tasks,
        *held_out.tasks,
        *(t for record in held_out.outside for t in record.tasks),
    ):
        groups[task.group].append(task.kind)
    pairs_of_kinds = zip(BASE, SINGLE, strict=False)
    assert groups["train"] == [name for names in pairs_of_kinds for name in names]
    assert groups["val"] == [*SINGLE_VAL[:8]]
    assert groups["held_out_kinds"] == [*HELD_OUT]
    assert len(groups["held_out"]) == 6
    assert Counter(kind in REAL for kind in groups["outside"]) == {True: 14, False: 14}
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
    suite = {"name": "tables", "kinds": ("mine",), "instances": FEW | {"outside": 10}}
    refusal = refused(standard.Prepare(task="suite", samples=60, suite=suite), tmp_path)
    assert "outside kinds read iris, and so do others" in refusal


# --- what is stored --------------------------------------------------------------------------------------------------


def test_columns_are_standardised_clipped_and_kept_in_half_precision(bank):
    meta = read_meta(bank)
    train = load_split(bank, "train")
    held_out = load_held_out(bank)
    for data in (train, load_split(bank, "val"), held_out.train, held_out.val, held_out.test):
        assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
        assert torch.equal(data.x.half().float(), data.x) and data.x.abs().max() <= 5.0
    tables = zip(meta.tasks, train.x.view(-1, len(train), 12), strict=True)
    for task, x in list(tables)[: FEW["train"]]:
        draws = Draws(1, task.kind, "train", int(task.name.split("-")[-1]), Sources(Path()))
        raw, _ = KINDS["tables"][task.kind](draws).sample(draws.of_split("train"), len(train))
        wide = raw[:, 0, 0].double()
        expected = ((wide - wide.mean(0)) / wide.std(0, correction=0)).clamp(-5, 5)
        # Half the last digit of float16 at 5, and some of float32.
        assert (x - expected).abs().max() <= 5 * 2**-11
        assert len(task.mean) == len(task.std) == 12


def test_outside_tables_have_their_own_widths_each_in_a_record(bank):
    records = load_held_out(bank).outside
    assert [record.train.shape[-1] for record in records] == [4, 10, 12, 13, 30, 64]
    for record in records:
        assert {WIDTHS.get(task.kind, 12) for task in record.tasks} == {record.train.shape[-1]}
        for data in (record.train, record.val, record.test):
            assert data.task_classes == tuple(task.classes for task in record.tasks)


def test_a_single_outside_task_lacks_the_classes_that_others_have(tmp_path):
    prepare(tables(60, outside=1), 1, tmp_path / "out", tmp_path)
    held_out = load_held_out(tmp_path / "out")
    (record,) = held_out.outside
    assert record.train.task_classes == (2,) and held_out.train.classes > 2
    assert record.train.lacking is not None
    assert int(record.train.lacking.sum()) == held_out.train.classes - 2


def test_an_outside_instance_divides_a_whole_source_among_its_splits_and_another_one_otherwise():
    labels = torch.arange(150) % 3

    def pools(instance):
        draws = [
            Draws(1, "iris", "outside", instance, Sources(Path()), split)
            for split in ("train", "val", "test")
        ]
        return [set(draw.of_pool("iris", labels, labels.repeat(3)).tolist()) for draw in draws]

    assert [len(pool) for pool in pools(0)] == [90, 30, 30]
    assert set().union(*pools(0)) == set(range(150))
    assert pools(0) == pools(0) != pools(1)
