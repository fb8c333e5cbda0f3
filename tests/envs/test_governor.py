"""Vital signs of one host at a time, and that rows do not touch each other."""

import math

import pytest
import torch

from simic.envs import governor
from simic.envs.governor import Cause, Vitals
from simic.params import Governor

CLASSES = 10
CHANCE = math.log(CLASSES)
PARAMS = Governor(min_history=3, window=5, consecutive_panics=2)


def chance(*classes: int) -> torch.Tensor:
    """Loss of a uniform guess among so many."""
    return torch.tensor([math.log(count) for count in classes], dtype=torch.float64)


def watch(losses: list[float], finite: list[bool] | None = None, classes: int = CLASSES):
    """Causes, health and the last vital signs of a single host that validates with these losses."""
    vitals = Vitals.empty(1, PARAMS)
    causes = []
    healths = []
    for loss, ok in zip(losses, finite or [True] * len(losses), strict=True):
        vitals, cause, healthy = governor.check(
            vitals, torch.tensor([loss]), torch.tensor([ok]), chance(classes), PARAMS
        )
        causes.append(Cause(int(cause)))
        healths.append(bool(healthy))
    return causes, healths, vitals


@pytest.mark.parametrize(
    ("loss", "finite_gradient"), [(math.nan, True), (math.inf, True), (1.0, False)]
)
def test_a_non_finite_loss_or_gradient_is_a_panic_at_once(loss, finite_gradient):
    assert watch([loss], [finite_gradient])[:2] == ([Cause.NON_FINITE], [False])


def test_collapse_to_chance_is_a_panic_only_for_a_host_that_was_better():
    good = [0.5, 0.5, 0.5]
    assert watch([*good, CHANCE * 1.05, CHANCE * 1.05])[0][-2:] == [Cause.NONE, Cause.COLLAPSE]
    assert (
        watch([*good, CHANCE * 1.08, CHANCE * 1.08])[0][-1] == Cause.NONE
    )  # outside the band of 6.5 %
    assert watch([*good, CHANCE, 0.5, CHANCE])[0][-1] == Cause.NONE  # it does not last
    assert watch([CHANCE] * 4)[0][-1] == Cause.NONE  # never was better
    assert watch([0.5, 0.5, CHANCE, CHANCE])[0][-1] == Cause.NONE  # too little history


def test_divergence_must_last():
    # Above 5 · ln 10 = 11.5, above 3 times the mean and six sigma.
    causes, healths, _ = watch([0.5, 0.5, 0.5, 20.0, 0.5, 20.0, 20.0])
    assert causes == [Cause.NONE] * 6 + [Cause.DIVERGENCE]
    assert healths == [True, True, True, False, True, False, False]


def test_an_anomalous_loss_never_enters_the_history():
    *_, vitals = watch([0.5, 0.5, 0.5, 20.0])
    assert vitals.losses.nan_to_num(0).max() == 0.5 and int(vitals.anomalies) == 1


def test_thresholds_follow_the_number_of_classes():
    # 8 is above 5 · ln 2 = 3.5 but below 5 · ln 10 = 11.5.
    history = [0.1, 0.1, 0.1, 8.0, 8.0]
    assert watch(history)[0][-1] == Cause.NONE
    assert watch(history, classes=2)[0][-1] == Cause.DIVERGENCE
