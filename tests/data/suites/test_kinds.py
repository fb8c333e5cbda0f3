"""Kinds: what any gives, and who may see which sample of a finite source."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch

import tests.patches  # noqa: F401 - registers its suite
from simic import registry
from simic.data.sources import Source, read_bundled
from simic.data.suites.kinds import GROUPS, KINDS, Draws, Sources, kind
from simic.data.suites.suites import SUITES, TaskSuite, suite
from simic.errors import SimicError

SPLITS = ("train", "val", "test")
ALL = [(suite, name) for suite in registry.shipped(registry.SUITE) for name in KINDS[suite]]
SHELF = Sources(Path())  # a finite source is read once
SHAPES = {"patches": (1, 16, 16), "tables": (1, 1, 12)}


def problem_of(suite, name, group="train", instance=0, rng_seed=1):
    draws = Draws(rng_seed, name, group, instance, SHELF)
    return KINDS[suite][name](draws), draws


def drawn(suite, name, split="train", n=60, **choices):
    problem, draws = problem_of(suite, name, **choices)
    return problem.sample(draws.of_split(split), n)


@pytest.mark.parametrize(("suite", "name"), ALL)
def test_every_kind_gives_as_many_finite_balanced_samples_of_its_suites_shape(suite, name):
    for instance, group in enumerate(GROUPS):
        problem, draws = problem_of(suite, name, group, instance)
        for split, n in zip(SPLITS, (97, 30, 61), strict=True):
            x, y = problem.sample(draws.of_split(split), n)
            # Outside kinds have their own widths.
            shape = x.shape[1:] if name in SUITES[suite].outside else SHAPES[suite]
            assert x.shape == (n, *shape) and x.isfinite().all() and x.is_contiguous()
            assert x.dtype == torch.float32 and y.dtype == torch.int64 and y.shape == (n,)
            assert y.min() >= 0 and y.max() < problem.classes
            wrong_labels = problem.parameters.get("label_noise", 0.0) > 0 and split != "test"
            counts = torch.bincount(y, minlength=problem.classes)
            assert wrong_labels or counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("suite", "name"), ALL)
def test_equal_names_give_equal_bytes_and_any_other_instance_group_split_or_seed_gives_others(
    suite, name
):
    """Other bytes, and of other instances other recorded parameters."""
    base = drawn(suite, name)
    assert all(map(torch.equal, base, drawn(suite, name)))
    for change in (
        {"instance": 1},
        {"group": "val"},
        {"group": "held_out"},
        {"split": "val"},
        {"rng_seed": 2},
    ):
        assert not torch.equal(base[0], drawn(suite, name, **change)[0]), change
    problems = [problem_of(suite, name, instance=instance)[0] for instance in range(8)]
    assert len({str(problem.parameters) for problem in problems}) > 1


# --- pools -----------------------------------------------------------------------------------------------------------


def pools(labels, name="digits", kind="any", rng_seed=1):
    """Return all samples that each group and split may use."""
    places = {}
    for group, split in product(GROUPS, SPLITS):
        draws = Draws(rng_seed, kind, group, 0, Sources(None), split)
        # More than there are, of every class.
        places[group, split] = set(draws.of_pool(name, labels, labels.repeat(2)).tolist())
    return places


def test_pools_of_groups_and_splits_are_disjoint_together_the_whole_source_and_depend_on_it_and_the_seed_alone():
    labels = read_bundled("digits").y
    places = pools(labels)
    assert sum(map(len, places.values())) == len(set().union(*places.values())) == 1797
    # Half, a fifth, the rest of 1,797; of each 60, 20, 20 %; rounded by class.
    group_shares = {"train": 0.5, "val": 0.2, "held_out": 0.3}
    split_shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    for (group, split), pool in places.items():
        assert abs(len(pool) - group_shares[group] * split_shares[split] * 1797) < 10
        assert set(labels[list(pool)].tolist()) == set(range(10)), "every class is in every pool"
    assert places == pools(labels, kind="other")
    assert places != pools(labels, rng_seed=2) and places != pools(labels, name="letters")


def test_a_pool_is_used_up_before_a_sample_is_used_again_and_too_few_samples_for_every_pool_are_refused():
    labels = torch.arange(60) % 2
    draws = Draws(1, "any", "train", 0, Sources(None), "train")
    chosen = draws.of_pool("mine", labels, torch.zeros(20, dtype=torch.int64))
    # 30 of the class, half of them of this group, 60 % of those in this split
    counts = Counter(chosen.tolist())
    assert len(counts) == 9 and set(counts.values()) == {2, 3} and (labels[chosen] == 0).all()
    draws = Draws(1, "mine", "val", 0, Sources(None), "val")
    with pytest.raises(SimicError, match="kind 'mine': rare has 3 samples of class 1: too few"):
        draws.of_pool("rare", torch.tensor([0] * 50 + [1] * 3), torch.tensor([1]))


def test_a_source_is_read_once_for_a_bank_and_its_duplicates_are_dropped(tmp_path):
    reads = []

    def reader(folder):
        reads.append(folder)
        return Source("mine", "", "none", torch.arange(6.0)[:, None] % 4, torch.arange(6) % 2)

    shelf = Sources(tmp_path)
    first, second = (
        Draws(1, name, "train", 0, shelf).source("mine", reader) for name in ("a", "b")
    )
    assert first is second and reads == [tmp_path]
    assert first.x.flatten().tolist() == [0, 1, 2, 3] and sum(shelf.dropped.values()) == 2


# --- draws -----------------------------------------------------------------------------------------------------------


def test_a_share_of_the_labels_is_replaced_by_others_and_those_of_the_test_split_stay():
    for classes in (2, 5):
        y = torch.arange(10_000) % classes
        for split in ("train", "val"):
            draws = Draws(1, "any", "train", 0, Sources(None), split)
            steps = (draws.mislabelled(y, classes, 0.2) - y) % classes
            # 4 σ of 10,000 coins: √(0.2 · 0.8 / 10⁴) = 0.004
            assert abs(float((steps > 0).float().mean()) - 0.2) < 0.016
            # Any other label is as likely.
            assert (torch.bincount(steps)[1:] > 0.8 * 2000 / (classes - 1)).all()
        assert Draws(1, "any", "train", 0, Sources(None), "test").mislabelled(y, classes, 0.2) is y


def test_parameters_cover_their_range_and_no_more():
    draws = [Draws(1, "any", "train", instance, Sources(None)) for instance in range(200)]
    assert {draw.whole(2, 5) for draw in draws} == {2, 3, 4, 5}
    numbers = [draw.number(0.5, 1.5) for draw in draws]
    assert 0.5 <= min(numbers) < 0.55 and 1.45 < max(numbers) <= 1.5
    subsets = [draw.subset(10, 3, 8) for draw in draws]
    assert {len(subset) for subset in subsets} == {3, 4, 5, 6, 7, 8}
    assert all(subset == sorted(set(subset)) and max(subset) < 10 for subset in subsets)


# --- registering -----------------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_or_a_suite_that_is_none_is_refused():
    with pytest.raises(
        SimicError, match="suite 'patches' has a kind 'digits' already; choose another name"
    ):
        kind("patches", "digits")(lambda draws: None)
    with pytest.raises(
        SimicError, match="kind 'mine': no suite 'patchs': must be one of tables, patches"
    ):
        kind("patchs", "mine")(lambda draws: None)
    assert "patchs" not in KINDS
    with pytest.raises(SimicError, match="suite 'patches' is registered already"):
        suite(TaskSuite("patches", (), {}))
