"""What the reference says of a survey against the rule of training and against sequences done by hand."""

import pytest
import torch

from simic.audit.reference.agent.survey import lost_by, outcome, schedule
from simic.envs.explorer import Tries
from simic.params import Lifecycle
from simic.training.survey import best_sequence

LIFECYCLES = (
    Lifecycle(training_dwell=1, min_prune_age=1, sequential_development=False),
    Lifecycle(),
    Lifecycle(gates="strict", blending_dwell=9, embargo_steps=0),
)


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize("steps", [3, 14, 25, 60])
def test_tries_are_timed_as_in_training(lifecycle, steps):
    expected = Tries.of(lifecycle, steps)
    assert schedule(lifecycle, steps) == (expected.age, list(expected.starts))


def test_a_try_is_kept_where_it_has_gained_enough():
    """Judged at step 2: the first has gained 6 points, the second 4, of which 5 are asked."""
    rising, slow = [0.10, 0.12, 0.16, 0.20], [0.10, 0.10, 0.14, 0.90]
    assert outcome([rising, slow], (0, 1), 2, (0, 1)) == 0.20
    assert outcome([rising, slow], (1, 0), 2, (0, 1)) == 0.16  # begun one step later
    assert outcome([rising, slow], (1,), 2, (0,)) == 0.90


@pytest.mark.parametrize("steps", [14, 30])
def test_the_sequence_of_training_loses_nothing(steps):
    lifecycle = LIFECYCLES[0]
    curves = torch.sin(torch.arange(3 * 4 * steps).double() * 0.37).reshape(3, 4, steps).abs()
    chosen = best_sequence(curves, Tries.of(lifecycle, steps)).tolist()
    assert lost_by(curves.tolist(), chosen, lifecycle, steps) == pytest.approx(0.0, abs=1e-12)
    assert lost_by(curves.tolist(), chosen[::-1], lifecycle, steps) > 1e-3
    assert lost_by(curves.tolist(), chosen[:-1], lifecycle, steps) == 1.0
