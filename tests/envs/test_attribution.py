"""Configurations, contributions with their standard errors, interactions."""

import statistics
from itertools import combinations

import pytest
import torch

from simic.envs import attribution
from simic.envs.attribution import ALL_OFF, COMMITTED, MAIN, WITHOUT
from simic.growth.life.vocabulary import Stage


def example(make_slots):
    stages = [
        [Stage.DORMANT, Stage.HOLDING, Stage.FOSSILIZED],
        [Stage.TRAINING, Stage.BLENDING, Stage.PRUNED],
    ]
    return make_slots(stages, alpha=[[0.0, 1.0, 1.0], [0.0, 0.5, 0.0]])


def test_configurations_leave_out_what_they_say(make_slots):
    slots = example(make_slots)
    acting = attribution.measurable(slots).numpy()
    fossilized = (slots.stage == Stage.FOSSILIZED).numpy()
    off = torch.from_numpy(attribution.switched_off(acting, fossilized))
    assert off.shape == (3 + 3 + 3 + 3, 2, 3)
    assert not off[MAIN].any()
    assert off[ALL_OFF].tolist() == [[False, True, True], [False, True, False]]
    assert off[COMMITTED].tolist() == [[False, True, False], [False, True, False]]
    acting = [[False, True, True], [False, True, False]]
    for k in range(3):
        solo = [[row[j] and j != k for j in range(3)] for row in acting]
        assert off[attribution.alone(3, k)].tolist() == solo
    for a, b in combinations(range(3), 2):
        rest = [[row[j] and j not in (a, b) for j in range(3)] for row in acting]
        assert off[attribution.together(3, a, b)].tolist() == rest
    for k in range(3):
        assert off[WITHOUT + k].tolist() == [
            [row[j] and j == k for j in range(3)] for row in acting
        ]


@pytest.mark.parametrize("is_whole", [True, False], ids=["answers", "shares of a sequence"])
def test_contribution_is_the_difference_of_accuracies_and_nan_where_nothing_acts(
    make_slots, is_whole
):
    slots = example(make_slots)
    correct = torch.rand(12, 2, 400, generator=torch.Generator().manual_seed(3))
    correct = correct < 0.6 if is_whole else correct
    result = attribution.attribute(slots, correct, torch.ones(12, 2))
    acting = attribution.measurable(slots)
    assert acting.tolist() == [[False, True, True], [False, True, False]]
    assert torch.equal(result.contribution.isnan(), ~acting) and torch.equal(
        result.contribution_se.isnan(), ~acting
    )
    for env, slot in ((0, 1), (0, 2), (1, 1)):
        differences = (correct[MAIN, env].double() - correct[WITHOUT + slot, env].double()).tolist()
        assert (
            abs(float(result.contribution[env, slot]) - 100 * statistics.mean(differences)) < 1e-3
        )
        error = 100 * statistics.stdev(differences) / 20  # √400
        assert abs(float(result.contribution_se[env, slot]) - error) < 1e-3
    for accuracies, row, env in (
        (result.accuracy, MAIN, 1),
        (result.committed_accuracy, COMMITTED, 0),
    ):
        assert abs(float(accuracies[env]) - 100 * float(correct[row, env].double().mean())) < 1e-3
    assert (
        abs(float(result.all_off_accuracy[1]) - 100 * float(correct[ALL_OFF, 1].double().mean()))
        < 1e-3
    )


def worth(table: dict[tuple[int, ...], float], slots: int) -> torch.Tensor:
    """``correct [Cfg, 1, 100]`` of a host whose seeds, when only those of a key are on, answer so many of 100 right."""
    all_slots = tuple(range(slots))
    sets = [all_slots, (), ()] + [tuple(j for j in all_slots if j != k) for k in all_slots]
    sets += [(k,) for k in all_slots] + list(combinations(all_slots, 2))
    return torch.stack([torch.arange(100) < table[on] for on in sets])[:, None]


def test_interactions_are_those_of_a_known_table(make_slots):
    table = {
        (): 20,
        (0,): 35,
        (1,): 22,
        (2,): 15,
        (0, 1): 50,
        (0, 2): 25,
        (1, 2): 30,
        (0, 1, 2): 61,
    }
    slots = make_slots([[Stage.HOLDING] * 3], alpha=[[1.0, 0.5, 1.0]])
    correct = worth(table, 3)
    # I_ij = f({i,j}) - f({i}) - f({j}) + f(∅)
    interactions = {(0, 1): 50 - 35 - 22 + 20, (0, 2): 25 - 35 - 15 + 20, (1, 2): 30 - 22 - 15 + 20}
    for (i, j), value in interactions.items():
        samples = attribution.interaction(correct, 3, i, j)
        assert 100 * float(samples.mean()) == pytest.approx(value, abs=1e-4)
    result = attribution.attribute(slots, correct, torch.ones(12, 1))
    expected = [sum(value for pair, value in interactions.items() if k in pair) for k in range(3)]
    assert result.interaction[0].tolist() == pytest.approx(expected, abs=1e-4)
    strongest = [
        max([0, *(value for pair, value in interactions.items() if k in pair)]) for k in range(3)
    ]
    assert result.boost[0].tolist() == pytest.approx(strongest, abs=1e-4)
    assert result.contribution[0].tolist() == pytest.approx([61 - 30, 61 - 25, 61 - 50], abs=1e-4)
