"""Recorded episodes played again by the reference, from files alone: what telemetry says of a host follows from who it
was, the prepared data and the decisions that were recorded.

The reference is on its own from the first step to the last, so float32 and float64 drift apart: what hangs on the
decisions (stages, alphas, sizes, gates) must agree to the end, losses and norms for the first steps.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from simic.audit.comparison import Comparison
from simic.audit.reference.world.host import ReferenceHost, Told, World
from simic.audit.reference.world.life import GERMINATE
from simic.audit.world.ledger import Ledger
from simic.audit.world.tour import HEADS
from simic.params import Params
from simic.telemetry.columns import Array

DECIDED = ("effective_op", "gate", "gate_passed", "params", "committed_params", "flops", "committed_flops")
DECIDED_COMPONENTS = ("shaping", "intervention", "death")
DECIDED_SLOTS = ("stage", "blueprint", "alpha")
DRIFTING = ("val_loss", "train_loss", "host_grad_norm")
SCORES = ("live_accuracy", "committed_accuracy")
EARLY = 6  # steps for which these are compared
OTHER_NAMES = {"blueprint": "slot_blueprint"}  # a column of that name is the action's
FLIPPED = 2  # samples that rounding may answer the other way
# Ten times the largest deviation of clean runs, at most, and of medians over the steps; what is not named must agree
# exactly.
ALLOWED = {"alpha": 9e-7, "components.shaping": 1e-14, "val_loss": 1e-3, "train_loss": 1e-3, "host_grad_norm": 1.6e-2}
TYPICAL = {"val_loss": 2.6e-5, "train_loss": 2e-6, "host_grad_norm": 1.2e-4}
# Hosts for tables move in every step by AdamW's 0.005 a weight, with gradients that are sums over 48 rows of 32 units:
# rounding is about sqrt(48 * 32) * 2^-24 = 2.3e-6 of each. Over the 48 steps of EARLY epochs, in which the loss falls
# by about 0.3 nats, that is a random walk to sqrt(48) * 2.3e-6 * 0.3 = 5e-6; the largest of 48 hosts was 3.4e-6.
TYPICAL_OF = {"tables": {"train_loss": 2e-5}}


def replay_episode(
    params: Params, prepared: Path, steps: Mapping[str, Array], iteration: int, place: int
) -> tuple[Comparison, ...]:
    """The training episode of environment ``place`` in one iteration: ``steps`` are its columns as telemetry publishes
    them, ``[T]`` or ``[T, K]``. NoReference for settings that have none.
    """
    world = World.read(params, prepared)
    length, task = world.steps_of(iteration), world.task_of(iteration, place)
    host = ReferenceHost(world, place, iteration, task, length)
    bounds = {**ALLOWED, **dict.fromkeys(SCORES, 100.0 * FLIPPED / len(host.validating.y) + 1e-4)}
    typical = TYPICAL | TYPICAL_OF.get(params.train.host.family, {})
    ledger, threads = Ledger(_named(bounds), _named(typical)), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        host.reset()
        said = f"iteration {iteration + 1}"
        ledger.number("replayed steps", said, len(steps["op"]), length)
        for step in range(len(steps["op"])):
            action, where = {head: int(steps[head][step]) for head in HEADS}, f"{said}, step {step + 1}, host {place}"
            if action["op"] == GERMINATE:
                had = host.masks().blueprint[action["slot"]][action["blueprint"]]
                ledger.number("replayed choice of a blueprint", where, 1.0, float(had))
            host.train(action)
            _compare(ledger, host.measure(), steps, step, where)
    finally:
        torch.set_num_threads(threads)
    return ledger.comparisons()


def _named(bounds: Mapping[str, float]) -> dict[str, float]:
    return {f"replayed {what}": bound for what, bound in bounds.items()}


def _compare(ledger: Ledger, told: Told, steps: Mapping[str, Array], step: int, where: str) -> None:
    for name in (*DECIDED, *((*DRIFTING, *SCORES) if step < EARLY else ())):
        ledger.number(f"replayed {name}", where, float(steps[name][step]), float(told.numbers[name]))
    for name in DECIDED_COMPONENTS:
        column = f"components.{name}"
        ledger.number(f"replayed {column}", where, float(steps[column][step]), told.components[name])
    for name in DECIDED_SLOTS:
        found = steps[OTHER_NAMES.get(name, name)][step]
        ledger.numbers(f"replayed {name}", where, found.tolist(), told.per_slot[name])
