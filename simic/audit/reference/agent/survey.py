"""What is to be tried one after the other, from how every opening did alone."""

from collections.abc import Sequence
from itertools import permutations

from simic import params

FEWEST_RAMP_STEPS = 3  # of the fastest tempo
MOST_TRIES, SHARE_OF_A_TRY = 3, 0.3
CONVINCING_PCT = 5.0  # gain of accuracy in points by the time a try is judged


def schedule(lifecycle: params.Lifecycle, steps: int) -> tuple[int, list[int]]:
    """The age at which a seed is judged, and when those that are tried one after the other germinate."""
    slowest = lifecycle.blending_dwell if lifecycle.gates == "strict" else 0
    finish = 1 + max(1, lifecycle.training_dwell) + max(FEWEST_RAMP_STEPS, slowest) + 1
    clear = 1
    if lifecycle.sequential_development:
        clear = 1 + max(1, lifecycle.embargo_steps) + max(1, lifecycle.reset_steps) + 1
    age = max(lifecycle.min_prune_age, finish, round(SHARE_OF_A_TRY * steps) - clear)
    starts = [start for start in range(0, steps, age + clear) if start == 0 or start < steps - finish]
    return age, starts[:MOST_TRIES]


def outcome(curves: Sequence[Sequence[float]], openings: Sequence[int], age: int, starts: Sequence[int]) -> float:
    """Where one task ends that tries these openings, each kept if it has gained enough when it is judged, the last in
    any case. ``curves`` are the accuracies of the task by opening and step.
    """
    steps = len(curves[0])
    for place, (opening, start) in enumerate(zip(openings, starts, strict=True)):
        curve = curves[opening]
        gained_pct = 100.0 * (curve[min(age, steps - 1)] - curve[0])
        if gained_pct > CONVINCING_PCT or place == len(openings) - 1:
            return curve[steps - 1 - start]
    raise AssertionError("the last try is kept")


def lost_by(
    curves: Sequence[Sequence[Sequence[float]]], chosen: Sequence[int], lifecycle: params.Lifecycle, steps: int
) -> float:
    """How much better than the chosen openings the best ones end, on the mean of tasks ``[tasks][openings][steps]``; 0
    if they are the best.
    """
    age, starts = schedule(lifecycle, steps)
    starts = starts[: len(curves[0])]

    def mean(openings: Sequence[int]) -> float:
        return sum(outcome(task, openings, age, starts) for task in curves) / len(curves)

    if len(chosen) != len(starts):
        return 1.0
    return max(map(mean, permutations(range(len(curves[0])), len(starts)))) - mean(chosen)
