"""Which iterations are kept, and where they cannot be played again. That a replay gives the same bytes is asserted
of whole runs, in another number of processes: tests/audit/test_end_to_end.py and test_gym_audit.py.
"""

import pytest
from small_runs import small_params

from simic.training import kept_iteration
from simic.training.checkpoint import read
from simic.training.replay import NotReplayable, replay


def test_another_machine_is_named(finished, prepared):
    manifest = read(finished / "checkpoints" / "000004").manifest
    machine = manifest.machine.model_copy(update={"threads": 99})
    elsewhere = manifest.model_copy(update={"machine": machine})
    with pytest.raises(NotReplayable, match="trained on another machine: threads"):
        replay(small_params(), prepared, 1, {}, elsewhere)


def test_what_is_kept_does_not_depend_on_how_long_training_is():
    chosen = {
        count: kept_iteration.chosen(small_params(iterations=count, horizon=None))
        for count in range(1, 200)
    }
    assert all(
        chosen[count] == [number for number in chosen[199] if number < count] for count in chosen
    )
    assert all(chosen[count][-1] >= 0.6 * (count - 1) for count in chosen) and chosen[3] == [
        0,
        1,
        2,
    ]
    assert kept_iteration.published(small_params()) == [0, 1, 2, 3]
