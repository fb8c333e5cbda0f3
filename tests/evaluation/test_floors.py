"""Which of several models a person should use is said plainly, and never by a difference that chance may have made."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from simic.data.own.rates import rates
from simic.evaluation import floors
from simic.evaluation.floors import Contender, _ranking, advice, is_uneven
from simic.growth.grown_network import FittedStructure

N = 400
EQUAL = np.full(N, 1 / N)


def contender(name: str, right: int, size: int = 100, shift: int = 0) -> Contender:
    correct = np.roll(np.arange(N) < right, shift)
    return Contender(name, correct, size, 1.0)


MAJORITY = contender("majority class", 200)
PLAIN, GROWN = "logistic regression", "grown network"


@pytest.mark.parametrize(
    ("models", "sentences"),
    [
        (
            [contender(PLAIN, 300), contender(GROWN, 380, 2000)],
            [
                "Use the grown network: accuracy 95.0 % for 2,000 parameters and 1.0 s. The best of the others "
                "is logistic regression: 75.0 % for 100 parameters and 1.0 s."
            ],
        ),
        (  # the plainest that is as good
            [MAJORITY, contender(PLAIN, 390), contender(GROWN, 380)],
            [
                "Use logistic regression: accuracy 97.5 % for 100 parameters and 1.0 s.",
                "The grown network is not the one to take here: 95.0 % for ",
                "(2.5 points less).",
            ],
        ),
        (  # a name has an article where one belongs before it
            [replace(contender("host alone", 390), article="the "), contender(GROWN, 380)],
            ["Use the host alone: accuracy 97.5 % for 100 parameters and 1.0 s"],
        ),
        (  # within chance
            [contender(PLAIN, 370), contender(GROWN, 372, 2000, shift=12)],
            ["Use logistic regression", "0.5 points more, which may be chance"],
        ),
        (
            [contender("majority class", 388), contender(GROWN, 388)],
            ["Use none of these: nothing beats always answering the commonest class (97.0 % for "],
        ),
    ],
)
def test_the_plainest_model_that_no_other_surely_beats_is_named(models, sentences) -> None:
    text = advice(models, EQUAL)
    assert text.startswith(sentences[0])
    assert all(sentence in text for sentence in sentences)


def test_of_uneven_classes_each_counts_as_much() -> None:
    """Three in a hundred: who never finds them is right in 97 of 100."""
    rare = np.arange(N) < 12
    weights = np.where(rare, 0.5 / 12, 0.5 / (N - 12))
    never, finds = Contender("majority class", ~rare, 1, 0.0), np.ones(N, dtype=bool)
    finds[100:140] = False
    text = advice([never, Contender("grown network", finds, 900, 2.0)], weights)
    assert text.startswith(
        "Use the grown network: balanced accuracy 94.8 % for 900 parameters and 2.0 s"
    )


def test_models_beside_a_grown_network_have_all_rows_and_scikit_learns_own_settings() -> None:
    """Classes are the sign of a product of two columns with noise: trees need many rounds, a line needs all rows."""
    draws = np.random.default_rng(3)
    samples = {}
    for split in ("train", "val", "test"):
        x = draws.normal(size=(600, 4)).astype(np.float32)
        score = x[:, 0] * x[:, 1] + 0.4 * x[:, 2] + 0.3 * draws.normal(size=600)
        samples[split] = floors.Samples(x, 2 * x + 1, (score > 0).astype(np.int64))
    train, val, test = samples.values()
    models = [
        LogisticRegression(C=strength, max_iter=300).fit(train.x, train.y)
        for strength in (0.01, 0.1, 1.0, 10.0)
    ]
    best = min(models, key=lambda model: log_loss(val.y, model.predict_proba(val.x)))
    boosting = HistGradientBoostingClassifier(random_state=0).fit(train.raw, train.y)
    structure = FittedStructure(model="", input_shape=(1, 1, 4), classes=2)
    for found, x, model in (
        (floors._fit_logistic(samples, structure), test.x, best),
        (floors._fit_boosting(samples, structure), test.raw, boosting),
    ):
        np.testing.assert_array_equal(found.correct, model.predict(x) == test.y)
        np.testing.assert_array_equal(found.chances["test"], model.predict_proba(x))


def test_probabilities_of_uneven_classes_are_ranked_and_a_threshold_chosen_on_validation() -> None:
    """Of 40 samples 10 are rare; each fourth of these looks common. At 0.5 nothing rare is found."""
    y = torch.arange(40) % 4 == 0
    split = SimpleNamespace(y=y.long(), classes=2)
    held_out: Any = SimpleNamespace(val=split, test=split)
    rare = np.where(y, 0.4, 0.1)
    rare[::16] = 0.1
    chances = np.stack([1 - rare, rare], 1)
    assert is_uneven(held_out)
    ranking = _ranking({"val": chances, "test": chances}, held_out)
    found = 7 / 10
    assert ranking is not None and ranking.threshold == 0.4
    assert ranking.balanced_pct == pytest.approx(100 * (found + 1) / 2)
    assert ranking.auc_pct == pytest.approx(100 * (found + (1 - found) / 2))
    assert 70 < ranking.average_precision_pct < 80
    assert _ranking({}, held_out) is None


def test_levels_become_rates_that_no_row_has_from_its_own_answer() -> None:
    """Levels of one row each say nothing of it: its rate is that of all rows, not its answer."""
    y = np.arange(60) % 2
    trained, table = rates(np.arange(60.0), 60, y)
    assert np.abs(trained - 0.5).max() < 0.1 and np.array_equal(table[:60, 1] > 0.5, y == 1)
    # A new level and a missing one are as likely as any row.
    assert np.allclose(table[60:], 0.5)
    shared = np.arange(60) // 2 % 2 * 7.0
    answers = (shared > 0).astype(int)
    trained, _ = rates(shared, 8, answers)
    assert np.array_equal(trained[:, 1] > 0.5, answers == 1)
