"""Which of several models a person should use is said plainly, and never by a difference that chance may have made."""

import numpy as np

from simic.evaluation.floors import Contender, advice

N = 400
EQUAL = np.full(N, 1 / N)


def contender(name: str, right: int, size: int = 100, shift: int = 0) -> Contender:
    correct = np.roll(np.arange(N) < right, shift)
    return Contender(name, correct, size, 1.0)


def test_the_grown_network_is_named_where_it_is_clearly_best() -> None:
    said = advice(
        [contender("logistic regression", 300), contender("grown network", 380, 2000)], EQUAL
    )
    assert said == (
        "Use the grown network: accuracy 95.0 % for 2,000 parameters and 1.0 s, against 75.0 % for 100 parameters "
        "and 1.0 s of the best of the others, logistic regression."
    )


def test_the_plainest_that_is_as_good_is_named_and_what_the_grown_network_is_behind() -> None:
    rows = [
        contender("majority class", 200),
        contender("logistic regression", 390),
        contender("grown network", 380),
    ]
    said = advice(rows, EQUAL)
    assert said.startswith("Use logistic regression: accuracy 97.5 % for 100 parameters and 1.0 s.")
    assert "The grown network is not the one to take here: 95.0 % for " in said and said.endswith(
        "(2.5 points less)."
    )


def test_a_lead_within_chance_is_no_reason() -> None:
    rows = [contender("logistic regression", 370), contender("grown network", 372, 2000, shift=12)]
    said = advice(rows, EQUAL)
    assert (
        said.startswith("Use logistic regression")
        and "0.5 points more, which may be chance" in said
    )


def test_where_nothing_beats_the_commonest_class_nothing_is_recommended() -> None:
    said = advice([contender("majority class", 388), contender("grown network", 388)], EQUAL)
    assert said.startswith(
        "Use none of these: nothing beats always answering the commonest class (97.0 % for "
    )


def test_of_uneven_classes_each_counts_as_much() -> None:
    """Three in a hundred: who never finds them is right in 97 of 100."""
    rare = np.arange(N) < 12
    weights = np.where(rare, 0.5 / 12, 0.5 / (N - 12))
    never, finds = Contender("majority class", ~rare, 1, 0.0), np.ones(N, dtype=bool)
    finds[100:140] = False
    said = advice([never, Contender("grown network", finds, 900, 2.0)], weights)
    assert said.startswith(
        "Use the grown network: balanced accuracy 94.8 % for 900 parameters and 2.0 s"
    )
