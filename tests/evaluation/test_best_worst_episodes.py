"""The hosts that are shown are those that won and lost most, with what the schedules reached beside them."""

import numpy as np
import pytest
from tiny import tiny_train

from simic.evaluation.evaluate import best_and_worst, timeline
from simic.evaluation.policies import BASELINES
from simic.evaluation.result import HeadroomReport, HostDescription, TaskRow
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.params import Runtime
from tests.standard import Evaluate, Params

SCHEDULES, COMMON, PRICE = ("static", "norm at 0", "norm at 1"), 1, 2.0


@pytest.fixture(scope="module")
def setup(bank):
    train = tiny_train(episode_steps=7, batches_per_epoch=1, actions={"slot": [0], "blueprint": ["norm"]})
    runtime = Runtime(processes=1, threads=1, backend="loop")
    return EvaluationSetup.open(Params(train=train, evaluate=Evaluate(eval_seeds=9), runtime=runtime), bank)


@pytest.fixture(scope="module")
def done(setup):
    [(_, found)] = play_for_score(setup, {"random": BASELINES["random_legal"](setup.env)})
    return found


@pytest.fixture(scope="module")
def headroom(setup):
    """Tables that are random; the oracle of a task is another schedule than that of its host alone."""
    draw, shape = np.random.default_rng(3), (len(setup.tasks), len(SCHEDULES))
    tables = {
        name: tuple(map(tuple, draw.uniform(20, 90, shape).tolist())) for name in ("choosing_val_pct", "test_pct")
    }
    return HeadroomReport.model_construct(
        **tables, params=((500.0, 600.0, 700.0),) * shape[0], common=COMMON, schedules=SCHEDULES, price=PRICE,
        tasks=tuple(map(TaskRow.model_validate, setup.held_out.tasks)), rows=tuple(setup.tasks.tolist()),
        host=HostDescription.model_validate(setup.env.host),
    )  # fmt: skip


def test_three_won_and_three_lost_with_the_scores_of_their_own_hosts(setup, done, headroom):
    cases, host = best_and_worst(setup, headroom, done), headroom.host.params

    def score(accuracy, params):
        return accuracy - PRICE * (params - host) / host

    gains = {}
    for row in range(9):
        own = score(done.score.test_accuracy_pct[row], done.score.params[row])
        gains[row] = own - score(headroom.test_pct[row][COMMON], headroom.params[row][COMMON])
    order = sorted(gains, key=lambda row: -gains[row])
    assert [case.row for case in cases] == order[:3] + order[-3:]
    for case in cases:
        assert case.gain == pytest.approx(gains[case.row])
        of_task = [row for row in range(9) if headroom.rows[row] == headroom.rows[case.row]]
        chosen = max(
            range(3),
            key=lambda k: sum(score(headroom.choosing_val_pct[row][k], headroom.params[row][k]) for row in of_task),
        )
        assert case.oracle == SCHEDULES[chosen]
        assert case.oracle_score == pytest.approx(
            score(headroom.test_pct[case.row][chosen], headroom.params[0][chosen])
        )
        assert case.parameters == setup.held_out.tasks[headroom.rows[case.row]].parameters
        assert case.timeline == timeline(setup.env, done, case.row)
