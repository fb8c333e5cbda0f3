"""The suite of two rules, looks at pairs of modules, and rivals that choose sets of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import together
from benchmarks.together_rivals import EPOCHS, Improvement, across, features_of, halve
from examples.extensions.together import CONTROL, FRESH, LEFT_OUT, NEW_RULES, TRAINED
from simic import params
from simic.data.batches import Dataset
from simic.data.suites.kinds import KINDS, Draws, Sources
from simic.growth.networks.hosts import build_host

NAMES = [item.name for item in together.KINDS]


def data_of(kind: str, rows: int) -> Dataset:
    draws = Draws(1, kind, "held_out", 0, Sources(Path()))
    problem = (KINDS["together"] | KINDS["fresh_together"])[kind](draws)
    x, y = problem.sample(draws.of_split("test"), rows)
    return Dataset(x, y, problem.classes)


@pytest.mark.parametrize(
    ("join", "classes"), [("xor", 2), ("gate", 2), ("order", 3), ("sum", 2), ("both", 4)]
)
def test_a_join_has_equally_many_rows_of_each_class(join: str, classes: int) -> None:
    kind = next(name for name in (*TRAINED, *CONTROL, *FRESH) if name.startswith(join))
    y = data_of(kind, 600).y
    assert y.bincount(minlength=classes).tolist() == [600 // classes] * classes


def test_what_is_held_out_is_not_trained() -> None:
    pairs = {name.split("_", 1)[1] for name in TRAINED}
    assert not pairs & {name.split("_", 1)[1] for name in (*LEFT_OUT, *NEW_RULES)}
    assert len({*TRAINED, *LEFT_OUT, *NEW_RULES, *CONTROL}) == 3 * (27 + 9 + 27) + 36


def test_the_best_look_finds_the_two_modules_of_an_exclusive_or() -> None:
    """Neither of them says anything alone."""
    data = data_of("xor_periodic_match", 2048)
    host = build_host(
        params.load(together.ROOT / "params.yaml").train.host, data.shape, data.classes
    )
    looks = together.look(host, data)
    chosen = together.SETS[int(together.best_look(looks)[0])]
    assert {NAMES[kind] for kind in chosen} == {"periodic", "equality"}
    assert looks[0, chosen[0], chosen[1]] > 2 * np.abs(looks[0, :, -1]).max()


def test_halving_goes_on_with_the_best_and_spends_one_training() -> None:
    # Set 2 is ahead at first, set 0 after two epochs, set 1 at the end.
    val = np.zeros((1, 3, EPOCHS))
    val[0, 2] = 0.5
    val[0, 0, 1:] = 0.6
    val[0, 1, 20:] = 1.0
    order = np.array([[0, 1, 2]])
    for plan, chosen, epochs in (
        (((3, 1),), 2, 1 + EPOCHS - 3),
        (((3, 2),), 0, 2 + EPOCHS - 6),
        (((2, 1), (1, 0)), 0, 1 + EPOCHS - 2),
        (((3, 1), (2, 1)), 0, 2 + EPOCHS - 5),
    ):
        sets, spent = halve(plan, order, val)
        assert (sets.tolist(), spent.tolist()) == ([chosen], [epochs])


def test_expected_improvement_leaves_a_set_that_turns_out_bad() -> None:
    draw = np.random.default_rng(0)
    # Sets are good or bad, which the curves show from the first epoch on, and nothing else does.
    is_good = draw.random((200, 6)) < 0.3
    curves = np.where(is_good, 0.9, 0.5)[..., None] + draw.normal(0, 0.01, (200, 6, EPOCHS))
    expected = np.zeros((200, 6, 1)) - 0.001 * np.arange(6)[:, None]
    player = Improvement.fit(expected, curves, curves[:, :, -1])
    for task in range(0, 200, 20):
        chosen, epochs = player.play(expected[task], curves[task])
        assert is_good[task, chosen] or not is_good[task].any()
        assert 0 < epochs <= EPOCHS


def test_a_chooser_is_asked_about_groups_that_it_does_not_know() -> None:
    # Scores are noise that features identify: whoever saw a task predicts them.
    draw = np.random.default_rng(0)
    scores = draw.random((80, 5))
    features = np.stack((scores, draw.random((80, 5))), -1)
    features[..., 0] = np.arange(400).reshape(80, 5)
    groups = [f"group {task % 8}" for task in range(80)]
    predicted = across(groups, features, scores, groups, features)
    gains = scores - scores.mean(1, keepdims=True)
    assert abs(np.corrcoef(predicted.flat, gains.flat)[0, 1]) < 0.3


def test_a_set_is_described_by_its_pair_and_its_modules() -> None:
    looks = torch.arange(132.0).view(1, 11, 12).double().numpy()
    rows = features_of(looks, [(), (3,), (1, 2)])
    assert rows.shape == (1, 3, 10 + 2 * 11)
    assert rows[0, :, 0].tolist() == [0.0, looks[0, 3, 3], looks[0, 1, 2]]
    assert rows[0, :, 9].tolist() == [0, 1, 2]


def test_a_try_goes_on_in_the_same_host_and_ends_with_the_best(monkeypatch) -> None:
    tasks = 2
    data = data_of("xor_periodic_match", 96)
    both = Dataset(data.x.repeat(tasks, 1, 1, 1), data.y.repeat(tasks), 2, (2, 2))
    tree = params.load(together.ROOT / "params.yaml")
    train = tree.train.model_copy(update={"batches_per_epoch": 1})
    host_params = tree.train.host.model_copy(update={"preset": "double"})
    ground = together.Ground(
        tree.model_copy(update={"train": train}),
        build_host(host_params, both.shape, 2),
        both,
        both,
    )
    grown: list[list[tuple[int, ...]]] = []
    fill = together._filled
    monkeypatch.setattr(
        together, "_filled", lambda sets, width: (grown.append([*sets]), fill(sets, width))[1]
    )
    order = np.array([[5, 40, 12], [9, 3, 30]])
    val, test = together.tries(ground, (2, 3), order, 0)
    assert val.shape == (tasks, EPOCHS) and np.isnan(test).all() and np.isfinite(val).all()
    assert grown[:2] == [[together.SETS[k] for k in column] for column in order.T[:2]]
    best = val[:, [2, 5]].argmax(1)
    assert grown[2:] == [[together.SETS[order[task, best[task]]] for task in range(tasks)]]
