"""What the survey concludes: the best sequence of openings, by curves of its tasks."""

from itertools import permutations

import torch

from simic.agent.rollout import Rollout
from simic.envs.explorer import Tries
from simic.envs.observations import columns
from simic.training.survey import best_sequence, openings_tried

TRIES = Tries(age=2, starts=(0, 3, 6))


def curve(*values):
    return [value / 100 for value in values]


def test_what_shows_early_is_tried_before_what_shows_late():
    """Two tasks, each with an opening of its own; one of them shows nothing by the time it would be judged."""
    nothing = curve(*[50] * 10)
    early, late = curve(50, 60, 90, *[90] * 7), curve(50, 50, 50, 70, *[80] * 6)
    curves = torch.tensor([[early, nothing, nothing], [nothing, late, nothing]], dtype=torch.float64)
    found = best_sequence(curves, Tries(age=2, starts=(0, 3)))
    assert found.tolist() == [0, 1]  # the other way round the second task's seed would be pruned


def test_it_is_the_best_of_all_sequences_played_one_by_one():
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        curves = torch.rand(6, 4, 10, generator=generator, dtype=torch.float64)

        def ends(sequence, curves=curves):
            total = 0.0
            for task in curves:
                for start, opening in zip(TRIES.starts, sequence, strict=True):
                    reached = task[opening, 9 - start]
                    if task[opening, 2] - task[opening, 0] > 0.05:
                        break
                total += float(reached)
            return total / len(curves)

        best = max(permutations(range(4), 3), key=ends)
        assert best_sequence(curves, TRIES).tolist() == list(best)


def test_with_fewer_openings_than_tries_all_are_tried():
    assert sorted(best_sequence(torch.rand(3, 2, 10, dtype=torch.float64), TRIES).tolist()) == [0, 1]


def test_curves_are_those_of_each_task_and_opening_and_end_with_their_host():
    names = [name for name, _ in columns(1)]
    envs, steps = 6, 4
    features = torch.full((steps, envs, len(names)), torch.nan)
    features[..., names.index("accuracy_lag_0")] = torch.arange(steps)[:, None] * 10.0 + torch.arange(envs)
    valid = torch.ones(steps, envs, dtype=torch.bool)
    valid[2:, 5] = False
    rollout = Rollout.__new__(Rollout)
    object.__setattr__(rollout, "raw_features", features)
    object.__setattr__(rollout, "valid", valid)
    found = openings_tried(rollout, 3, 1)
    assert found.shape == (2, 3, 4)
    assert found[0, 1].tolist() == [1.0, 11.0, 21.0, 31.0]
    assert found[1, 2].tolist() == [5.0, 15.0, 0.0, 0.0]
