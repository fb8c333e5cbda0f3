"""Replay of recorded training episodes from files alone: host, prepared data and recorded decisions.

The reference runs on its own from the first step to the last, so float32 and float64 drift apart: stages, alphas,
sizes and masks follow from the decisions and must agree to the end; losses, accuracies, observations and rewards are
compared in the first steps, and by their quartiles.
"""

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tests.reference.comparison import ComparisonLog
from tests.reference.host import ReferenceHost, StepState, World
from tests.reference.iteration import RecordedIteration
from tests.reference.life import GERMINATE

HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
DECIDED = (
    "effective_op",
    "gate",
    "gate_passed",
    "params",
    "committed_params",
    "flops",
    "committed_flops",
)
DECIDED_COMPONENTS = ("shaping", "intervention", "death")
DECIDED_SLOTS = {
    "stage": "stage",
    "blueprint": "slot_blueprint",
    "alpha": "alpha",
}  # column of telemetry by name
DRIFTING = ("val_loss", "train_loss", "host_grad_norm")
SEED_NORM = "seed_grad_norm"  # of each seed that learns, relative to itself
SCORES = ("live_accuracy", "committed_accuracy", "all_off_accuracy")
EARLY = 6  # steps for which these are compared
FLIPPED = 2  # samples that rounding may answer the other way
# Where the loss of a host has drifted, so have its answers: a sample whose best class leads by less than this many
# times the drift may flip as well. One host in a hundred drifts; where the loss was 4e-4 off, 3 samples of 256 flipped.
LEAD_PER_DRIFT = 200.0
# Ten times the largest deviation of clean runs, at most, and of third quartiles over hosts and steps; the rest must
# agree exactly (docs/history/experiments.md). Hosts for tables drift faster: AdamW moves each weight by 0.005 a step.
ALLOWED = {
    "alpha": 9e-7,
    "component shaping": 1e-14,
    "val_loss": 1e-3,
    "train_loss": 1e-3,
    "host_grad_norm": 1.6e-2,
}
ALLOWED |= {SEED_NORM: 0.05}
TYPICAL = {
    "val_loss": 1e-5,
    "train_loss": 2e-6,
    "host_grad_norm": 1.2e-4,
    "observation": 1e-4,
    "reward": 1e-4,
}
TYPICAL |= {SEED_NORM: 1e-5}
TYPICAL_OF = {"tables": {"train_loss": 1e-5}}
# Where pixels of a pooled window are equally large, rounding decides which of them the gradient goes to. A seed before
# the pool sees the neighbours of that pixel, so its gradient is one of many: 12 % apart in a clean run. Of hosts for
# tables one in fifty drifts, by 2e-3 nats in six steps; the others agree to 3e-7.
ALLOWED_OF = {
    "cnn": {SEED_NORM: 1.0},
    "tables": {"val_loss": 2e-2, "train_loss": 2e-2},
}
ANYTHING = float("inf")  # of what is judged by its quartile alone
# Change of a standard error by a flipped sample, as a share of that of the mean
ERROR_OF_FLIPPED = 0.25


def bounds(world: World) -> tuple[dict[str, float], dict[str, float]]:
    """Return the bounds of single comparisons and of quartiles, for the hosts of this run."""
    flipped = 100.0 * FLIPPED / world.bank.counts["val"] + 1e-4
    drifting = dict.fromkeys(("observation", "reward"), ANYTHING)
    drifting |= {"contribution": flipped, "contribution_se": ERROR_OF_FLIPPED * flipped}
    family = world.params.train.host.family
    allowed = {**ALLOWED, **drifting, **dict.fromkeys(SCORES, flipped)} | ALLOWED_OF.get(family, {})
    return allowed, TYPICAL | TYPICAL_OF.get(family, {})


def replay_episode(
    world: World, steps: Mapping[str, NDArray[Any]], iteration: int, place: int, record: RecordedIteration | None,
    log: ComparisonLog,
) -> None:  # fmt: skip
    """Replay the training episode of environment ``place``: ``steps`` are its published columns, ``[T]`` or ``[T, K]``;
    of a ``kept`` iteration observations and masks are compared too.
    """
    length = world.steps_of(iteration)
    title = f"iteration {iteration + 1}, host {place}"
    host = ReferenceHost(world, place, iteration, world.task_of(iteration, place), length)
    log.number("steps", title, len(steps["op"]), length)
    for step in range(len(steps["op"])):
        label = f"{title}, step {step + 1}"
        state = host.states[-1]
        if record is not None:
            _compare_seen(log, state, record, step, place, label)
        action = {head: int(steps[head][step]) for head in HEADS}
        if action["op"] == GERMINATE:
            allowed = state.masks["blueprint"][action["slot"]][action["blueprint"]]
            log.number("choice of a blueprint", label, 1.0, float(allowed))
        host.play(action)
        _compare_step(
            log,
            host.states[-1],
            {name: values[step] for name, values in steps.items()},
            step,
            label,
        )


def _compare_step(
    log: ComparisonLog, state: StepState, recorded: Mapping[str, Any], step: int, label: str
) -> None:
    for name in (*DECIDED, *(DRIFTING if step < EARLY else ())):
        if name in recorded:
            log.number(name, label, float(recorded[name]), float(state.numbers[name]))
    for name in DECIDED_COMPONENTS:
        log.number(
            f"component {name}",
            label,
            float(recorded[f"components.{name}"]),
            state.components[name],
        )
    for name, column in DECIDED_SLOTS.items():
        log.numbers(name, label, recorded[column].tolist(), state.per_slot[name])
    if step < EARLY:
        for k, (norm, own) in enumerate(
            zip(recorded[SEED_NORM].tolist(), state.per_slot[SEED_NORM], strict=True)
        ):
            if not (math.isnan(norm) and math.isnan(own)):
                log.number(SEED_NORM, f"{label}, slot {k}", norm, own, own)
        log.number("reward", label, float(recorded["reward"]), state.numbers["reward"])
        drift = abs(float(recorded["val_loss"]) - state.numbers["val_loss"])
        flips = 100.0 * float((state.lead < LEAD_PER_DRIFT * drift).double().mean())
        for name in SCORES:
            log.number(name, label, float(recorded[name]), state.numbers[name], explained=flips)
        log.numbers(
            "contribution",
            label,
            recorded["contribution"].tolist(),
            state.per_slot["contribution"],
            explained=flips,
        )
        errors = recorded["contribution_se"].tolist(), state.per_slot["contribution_se"]
        log.numbers("contribution_se", label, *errors, explained=ERROR_OF_FLIPPED * flips)


def _compare_seen(
    log: ComparisonLog,
    state: StepState,
    record: RecordedIteration,
    step: int,
    place: int,
    label: str,
) -> None:
    seen = record.tensors
    if step < EARLY:
        log.numbers("observation", label, seen["features"][step, place].tolist(), state.features)
    log.numbers("categories", label, seen["categories"][step, place].tolist(), state.categories)
    log.equal("heads with a mask", label, state.masks.keys() == record.masks.keys())
    for head in sorted(state.masks.keys() & record.masks.keys()):
        log.equal(
            f"mask of {head}", label, record.masks[head][step, place].tolist() == state.masks[head]
        )
