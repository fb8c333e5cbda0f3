"""Lives that the rules allow break no rule of the recomputation, under any rules; what is changed in them does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simic.audit.recompute import life as recomputed
from simic.audit.recompute.arrays import Array
from simic.audit.reference.world import life
from simic.audit.reference.world.life import Measured, Slot
from simic.params import Lifecycle

STEPS, HOSTS, SLOTS = 16, 60, 2
AT_ONCE: dict[str, Any] = {
    "training_dwell": 0,
    "blending_dwell": 0,
    "min_prune_age": 0,
    "embargo_steps": 0,
    "reset_steps": 0,
}
RULES = {
    "at once": Lifecycle(**AT_ONCE, max_seeds=1, sequential_development=False),
    "at once, several": Lifecycle(**AT_ONCE, sequential_development=False).model_copy(update={"min_prune_age": 2}),
    "strict": Lifecycle(**AT_ONCE, gates="strict", min_improvement_pct=0.5),
    "by hand": Lifecycle(**AT_ONCE, auto_advance=False),
    "slow": Lifecycle(training_dwell=2, blending_dwell=1, min_prune_age=1, embargo_steps=0, reset_steps=1),
}


def lives(rules: Lifecycle) -> dict[str, Array]:
    """Steps of hosts that mostly do what is possible, as telemetry has them."""
    draw = np.random.default_rng(0)
    names = ("op", "effective_op", "slot", "blueprint", "style", "tempo", "alpha_target")
    steps: dict[str, Array] = {name: np.zeros((STEPS, HOSTS), dtype=np.int64) for name in names}
    for name, kind in (("stage", np.int64), ("slot_blueprint", np.int64), ("alpha", float), ("contribution", float)):
        steps[name] = np.zeros((STEPS, HOSTS, SLOTS), dtype=kind)
    for host in range(HOSTS):
        slots = [Slot() for _ in range(SLOTS)]
        for t in range(STEPS):
            decision, heads = _decision(draw, slots, rules)
            outcome = life.advance(slots, decision, rules, 40.0)
            for slot in slots:
                seen = float(draw.normal()) if slot.acts else np.nan
                life.remember(slot, Measured(40.0 + draw.normal(), seen, 1.0, 1.0, bool(draw.random() < 0.9)))
            for name, value in {**heads, "effective_op": outcome.op}.items():
                steps[name][t, host] = value
            for k, slot in enumerate(slots):
                steps["stage"][t, host, k], steps["slot_blueprint"][t, host, k] = slot.stage, slot.seed.blueprint
                steps["alpha"][t, host, k] = slot.seed.alpha
                steps["contribution"][t, host, k] = slot.seed.contribution
    steps["valid"], steps["panicked"] = np.ones((STEPS, HOSTS), dtype=bool), np.zeros((STEPS, HOSTS), dtype=bool)
    return steps


def _decision(draw: np.random.Generator, slots: list[Slot], rules: Lifecycle) -> tuple[life.Decision, dict[str, int]]:
    possible = [(op, k) for op, row in enumerate(life.allowed(slots, rules)) for k, free in enumerate(row) if free]
    op, slot = possible[draw.integers(len(possible))]
    style, tempo, target = (int(draw.integers(n)) for n in (4, 4, 3))
    operator, curve = list(life.STYLES.values())[style]
    blueprint, speed = (int(draw.integers(n)) for n in (3, 4))
    decision = life.Decision(
        op, slot, blueprint, operator, curve, life.TEMPOS[tempo], life.TARGETS[target], life.SPEEDS[speed]
    )
    heads = {"op": op, "slot": slot, "blueprint": blueprint, "style": style, "tempo": tempo, "alpha_target": target}
    return decision, heads


def broken(steps: dict[str, Array], rules: Lifecycle) -> set[str]:
    return {what for what, bad in recomputed.violations(steps, rules) if bad.any()}


@pytest.fixture(scope="module", params=RULES)
def lived(request: pytest.FixtureRequest) -> tuple[dict[str, Array], Lifecycle]:
    rules = RULES[request.param]
    return lives(rules), rules


def test_what_is_allowed_breaks_no_rule(lived: tuple[dict[str, Array], Lifecycle]) -> None:
    assert broken(*lived) == set()


def replaced(steps: dict[str, Array]) -> Array:
    """Where a seed made room for another one, ``[n, 2]``."""
    t, host = np.nonzero((steps["effective_op"][1:] == life.GERMINATE) & (steps["op"][1:] == life.GERMINATE))
    slot = steps["slot"][t + 1, host]
    was = steps["stage"][t, host, slot]
    return np.stack((t + 1, host), axis=1)[np.isin(was, life.LIVE)]


def changed(change: Callable[[dict[str, Array], int, int], None]) -> set[str]:
    """Rules that are broken after a change where a seed was replaced."""
    rules = RULES["at once"]
    steps = lives(rules)
    where = replaced(steps)
    assert len(where) > HOSTS // 3  # else these rules would be about nothing
    change(steps, *map(int, where[-1]))
    return broken(steps, rules)


def test_a_seed_that_lingers_where_no_time_passes_is_found() -> None:
    def change(steps: dict[str, Array], t: int, host: int) -> None:
        steps["stage"][t, host, steps["slot"][t, host]] = life.TRAINING

    assert "a stage that takes no time and took some" in changed(change)


def test_a_seed_that_nobody_asked_for_is_found() -> None:
    def change(steps: dict[str, Array], t: int, host: int) -> None:
        steps["op"][t, host] = steps["effective_op"][t, host] = life.WAIT
        slot = steps["slot"][t, host]
        steps["slot_blueprint"][t, host, slot] = (steps["slot_blueprint"][t - 1, host, slot] + 1) % 3

    assert "a living seed of another blueprint" in changed(change)


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ({"reset_steps": 1}, f"op {life.GERMINATE} where it is illegal"),
        ({"min_prune_age": 9}, "a seed that ended before min_prune_age"),
        ({"training_dwell": 2}, "a stage that cannot follow the one before"),
        ({"auto_advance": False}, "a stage that cannot follow the one before"),
    ],
)
def test_what_other_rules_forbid_is_found(rules: dict[str, int | bool], what: str) -> None:
    at_once = RULES["at once"]
    assert what in broken(lives(at_once), at_once.model_copy(update=rules))
