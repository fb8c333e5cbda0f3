"""A small training is derived again down to the weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from simic import params
from simic.data.prepare import prepare
from simic.training import kept_iteration
from tests import standard
from tests.helpers import ROOT
from tests.reference import iteration
from tests.reference import ppo as reference
from tests.reference.finished_run import part
from tests.reference.small_training import small_run

SETTINGS = {
    "no memory, per head": (
        "prepare.task=digits", "train.reward.mode=shaped", "train.episode_end=truncate", "train.policy.core=none",
        "train.ppo.ratio=per_head", "train.ppo.entropy_scale={op: 2.0}", "train.host_optimizer.name=sgd",
        "train.ppo.minibatches=2", "train.ppo.target_kl=0.02",
    ),
    "tables, gru": ("train.episode_end=truncate", "train.ppo.normalize_observations=false"),
}  # fmt: skip


def differences(overrides: tuple[str, ...], folder: Path) -> set[str]:
    """Return the kinds of comparisons that differ in a small training with these settings."""
    tree = params.load(ROOT / "params.yaml", [*overrides, "prepare.samples=160"])
    suite = tree.prepare.suite.model_copy(
        update={"instances": standard.Instances(train=6, val=3, held_out=1, held_out_kinds=1)}
    )
    prepare(tree.prepare.model_copy(update={"suite": suite}), tree.rng_seed, folder / "prepared", folder)
    subject = small_run(tree, folder / "prepared", folder)
    parts = part(subject.iterations), part(lambda: subject.episodes(every=True))
    assert all(each.lines for each in parts), [each.reason for each in parts]
    return {line.what for each in parts for line in each.differences}


def test_clean_training_is_the_reference(tmp_path: Path) -> None:
    assert differences(SETTINGS["no memory, per head"], tmp_path) == set()


def test_a_row_on_the_edge_of_the_clip_is_followed_to_either_side_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another clean training."""
    given, right = list[tuple](), iteration._followed
    monkeypatch.setattr(iteration, "_followed", lambda *each: given.append(each) or right(*each))
    assert differences(SETTINGS["tables, gru"], tmp_path) == set()
    update, before, recorded = given[-1]
    plain, _, none = update.run(before)
    assert iteration._distance(before, plain, recorded) < iteration.ALLOWED["weights"] / 10
    assert none == []  # of so few rows
    monkeypatch.setattr(reference, "EDGE", 1.0)
    nearest = update.run(before)[2][0]
    other, metrics, _ = replace(update, crossed=frozenset({nearest})).run(before)
    assert iteration._distance(before, plain, other) > iteration.ALLOWED["weights"] / 10
    learned, told = right(update, before, other)
    assert iteration._distance(before, learned, other) == 0.0 and told == metrics
    monkeypatch.undo()
    crossed = replace(update, crossed=frozenset({nearest})).run(before)[0]
    assert iteration._distance(before, crossed, plain) == 0.0  # too far from the edge


def test_what_is_kept_whole_does_not_depend_on_how_long_training_is() -> None:
    tree = params.load(ROOT / "params.yaml")
    kept = {n: kept_iteration.chosen(tree.model_copy(update={"train": tree.train.model_copy(update={"iterations": n})}))
            for n in range(1, 400)}  # fmt: skip
    assert all(kept[n] == [number for number in kept[399] if number < n] for n in kept)
    assert all(kept[n][-1] >= 0.6 * (n - 1) for n in kept) and kept[3] == [0, 1, 2]
