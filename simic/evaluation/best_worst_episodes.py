"""Show the hosts on which the learned policy won and lost most against the best common schedule, step by step."""

import numpy as np
from torch import Tensor

from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import total
from simic.evaluation import endpoints
from simic.evaluation.result import Case, Decision, HeadroomReport, Timeline
from simic.evaluation.scoring import EvaluationSetup, Performance, Turn
from simic.growth.life.vocabulary import Op

OF_EACH = 3  # hosts that won, and as many that lost


def best_and_worst(setup: EvaluationSetup, headroom: HeadroomReport, done: Performance) -> tuple[Case, ...]:
    """Return the episodes with the largest gain, then those with the largest loss, which comes last; no host twice."""
    accuracy, params = np.array(done.score.test_accuracy_pct), np.array(done.score.params, dtype=np.float64)
    reached = endpoints.scores(accuracy, params, headroom)
    schedules = endpoints.scores(np.array(headroom.test_pct), np.array(headroom.params), headroom)
    order = np.argsort(schedules[:, headroom.common] - reached, kind="stable").tolist()
    each, oracle = min(OF_EACH, len(order) // 2), endpoints.oracle_schedules(headroom)
    return tuple(
        Case(
            row=row,
            parameters=setup.held_out.tasks[headroom.rows[row]].parameters,
            score=float(reached[row]),
            common=float(schedules[row, headroom.common]),
            oracle=headroom.schedules[oracle[row]],
            oracle_score=float(schedules[row, oracle[row]]),
            timeline=timeline(setup.env, done, row),
        )
        for row in (*order[:each], *order[len(order) - each :])
    )


def timeline(env: GrowthEnv, done: Performance, host: int = 0) -> Timeline:
    """Return how one of the hosts grew."""
    names = [item.name for item in env.blueprints]
    infos = [turn.info for turn in done.turns]
    return Timeline(
        stages=tuple(tuple(info.stage[host].tolist()) for info in infos),
        blueprints=tuple(
            tuple(names[index] if index >= 0 else None for index in info.blueprint[host].tolist()) for info in infos
        ),
        alphas=tuple(tuple(round(alpha, 6) for alpha in info.alpha[host].tolist()) for info in infos),
        decisions=tuple(
            _decision(turn, host, names, done.probabilities) for turn in done.turns if _decided(turn, host)
        ),
        live_accuracy_pct=tuple(_measured(info.live_accuracy[host]) for info in infos),
        committed_accuracy_pct=tuple(_measured(info.committed_accuracy[host]) for info in infos),
        rollback_steps=tuple(turn.situation.step for turn in done.turns if bool(turn.info.panicked[host])),
    )


def _decided(turn: Turn, host: int) -> bool:
    return bool(turn.situation.alive[host]) and int(turn.action.op[host]) != Op.WAIT


def _decision(turn: Turn, host: int, names: list[str], probabilities: Tensor | None) -> Decision:
    op, slot, step = int(turn.action.op[host]), int(turn.action.slot[host]), turn.situation.step
    of = turn.info.blueprint if op == Op.GERMINATE else turn.situation.slots.blueprint
    index = int(of[host, slot])
    took_effect = int(turn.info.effective_op[host]) == op
    return Decision(
        step=step,
        op=Op(op).name,
        slot=slot,
        blueprint=names[index] if index >= 0 else None,
        refused_by_gate=None if took_effect else int(turn.info.gate[host]),
        reward=float(total(turn.info.components)[host]),
        probability=None if probabilities is None else round(float(probabilities[step, host]), 6),
    )


def _measured(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None
