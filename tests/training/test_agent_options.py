"""Options of the agent reach training, and what they mutate is in the checkpoint."""

import threading

import pytest
from small_runs import assert_same_run, small_params

from simic.params import PPOParams
from simic.telemetry import recorder
from simic.telemetry.rows import UpdateRow
from simic.training.checkpoint import read
from simic.training.interrupts import Interrupted
from simic.training.session import open_session
from simic.training.trainer import train

EVERYTHING = {
    "learning_rate_schedule": "adaptive",
    "entropy_scale": {"slot": 2.0},
    "entropy_floor": {"op": 0.5},
    "gradient_accumulation": 2,
    "ratio": "per_head",
    "head_weight": "mean",
    "minibatches": 2,
}


def tree():
    return small_params(ppo=PPOParams(**EVERYTHING))


def run(work, prepared, params, stop=None):
    with open_session(params, work, prepared) as session:
        train(session, stop=stop)


class StopAfter(threading.Event):
    """Asks to stop when it has been looked at so often."""

    def __init__(self, looks: int):
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_a_run_with_every_option_goes_on_as_if_it_had_never_stopped(prepared, tmp_path):
    run(tmp_path / "straight", prepared, tree())
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", prepared, tree(), StopAfter(8))
    run(tmp_path / "stopped", prepared, tree())
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    tensors = read(tmp_path / "straight" / "checkpoints" / "000004").tensors
    assert "ppo/counter.learning_rate" in tensors
    rates = [row.metrics["learning_rate"] for row in rows(tmp_path / "straight", UpdateRow)]
    assert len(set(rates)) > 1


def rows(work, kind):
    return [row for row in recorder.read(work / "telemetry.jsonl") if isinstance(row, kind)]
