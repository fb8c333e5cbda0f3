"""Replay of evaluation and headroom from files alone: on the held-out data the published weights decide as recorded,
schedules do what they say, and the grown networks, the exported one too, have the claimed sizes and accuracies.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from simic.params import Host
from tests.reference import agent, life, streams
from tests.reference.agent import MASKS, Tensors
from tests.reference.bank import OF_HELD_OUT, OF_VALIDATION, Bank, NoReference, Samples
from tests.reference.comparison import ComparisonLog
from tests.reference.episodes import HEADS
from tests.reference.epochs import answers, points
from tests.reference.host import ReferenceHost, StepState, World
from tests.reference.iteration import Known
from tests.reference.networks import Block, Weights, anatomy, part_of

EVALUATION_ITERATION = 1 << 40
VALIDATION_ITERATION = 1 << 41
SEARCH_ITERATION = 1 << 43
VALIDATION = "validation"
SAMPLED = "learned_sampled"
LEARNED = (
    "learned",
    SAMPLED,
    VALIDATION,
)  # their decisions are derived; the others are played as recorded
BACKWARD_AND_FORWARD = 3  # passes of a sample that is trained on
HOSTS = 5  # of each policy, and of schedules
# Deviation of a decision: how much likelier another one was, or how far the noise lay outside its share. Float32 and
# float64 drift apart over an episode, and one of the first eight decisions may be off (docs/history/experiments.md).
EARLY = 8
FIRST = "decisions, first steps but one"
MEAN = "decisions, mean"
VAL = "validation accuracy"
TEST = "test accuracy"
SCORE = "score"  # in points
# Of columns with few values two tasks draw a row or two alike; of a copied task every row is.
ALLOWED = dict.fromkeys((OF_VALIDATION, OF_HELD_OUT), 0.01)
ALLOWED |= {FIRST: 0.5, MEAN: 0.25, **dict.fromkeys((VAL, TEST, SCORE), 25.0)}
# On nine hosts of ten all decisions agree exactly.
TYPICAL = {FIRST: 0.005, MEAN: 0.02, **dict.fromkeys((VAL, TEST, SCORE), 2.0)}
CLOSE_CALL = 1e-5  # lead of the best class over the next, relative to it, within which float32 may see it otherwise
ROUNDED_PCT = 1e-4  # accuracies are recorded with four decimals
NEXT_OP = dict.fromkeys((life.GERMINATED, life.TRAINING, life.BLENDING), life.ADVANCE) | {
    life.HOLDING: life.FOSSILIZE
}
Claimed = Mapping[str, float]  # of one host at its end, by name


@dataclass(frozen=True)
class Ground:
    """Hold the tasks to grow on (``world``) and to score on (``test``); ``iteration`` is part of a host's identity."""

    world: World
    test: Bank | None
    iteration: int = EVALUATION_ITERATION


def chosen(rng_seed: int, about: int, count: int, most: int = HOSTS) -> list[int]:
    order = streams.permutation(streams.key(rng_seed, streams.EVALUATION, about), count)
    return sorted(order[:most].tolist())


def replay_decisions(
    ground: Ground, known: Known, state: Tensors, name: str, host: int, task: int, actions: Sequence[Sequence[int]],
    claimed: Claimed, log: ComparisonLog,
) -> None:  # fmt: skip
    """Replay the recorded episode of a policy on one host; decisions of a learned one are derived, too."""
    played = ReferenceHost(ground.world, host, ground.iteration, task, len(actions))
    for action in actions:
        played.play(dict(zip(HEADS, action, strict=True)))
    label = f"{name}, host {host}"
    states = played.states
    if name in LEARNED:
        misplaced = _misplaced(known, state, states[:-1], actions, host, sampled=name == SAMPLED)
        log.note(FIRST, label, float(misplaced[:EARLY].sort().values[-2:][0]))
        log.note(MEAN, label, float(misplaced.mean()))
    stages = [each.per_slot["stage"] for each in states]
    pruned = sum(
        b == life.PRUNED != a
        for one, other in pairwise(stages)
        for a, b in zip(one, other, strict=True)
    )
    # A seed that another one replaced in the same step counts too.
    for action, (before, after) in zip(actions, pairwise(states), strict=True):
        slot = action[HEADS.index("slot")]
        pruned += (
            after.numbers["effective_op"] == life.GERMINATE
            and before.per_slot["stage"][slot] in life.LIVE
        )
    _compare_end(ground, played, {"pruned": pruned}, claimed, label, log)


def replay_schedule(
    ground: Ground,
    schedule: str,
    host: int,
    task: int,
    steps: int,
    claimed: Claimed,
    log: ComparisonLog,
) -> None:
    """Replay a schedule (``BLUEPRINT at SLOT + …, step N``, or ``static``) on one host."""
    played = ReferenceHost(ground.world, host, ground.iteration, task, steps)
    seeds, begin = _parsed(schedule, ground.world)
    for step in range(steps):
        played.play(_open_loop(played, seeds, step >= begin))
    _compare_end(ground, played, {}, claimed, f"{schedule}, host {host}", log)


def _parsed(schedule: str, world: World) -> tuple[dict[int, int], int]:
    """Return the blueprint's index by slot, and the step of the first germination."""
    if schedule == "static":
        return {}, 0
    seeds, step = schedule.split(", step ")
    pairs = [seed.split(" at ") for seed in seeds.split(" + ")]
    return {
        int(slot): list(world.body.blueprints[int(slot)]).index(kind) for kind, slot in pairs
    }, int(step)


def _open_loop(host: ReferenceHost, seeds: Mapping[int, int], due: bool) -> life.Action:
    """Return the next action of a schedule: advance, fossilize or germinate in the lowest slot possible, or wait."""
    masks = host.states[-1].masks
    shared = {
        "style": 0,
        "tempo": life.TEMPOS.index(min(life.TEMPOS)),
        "alpha_target": life.TARGETS.index(1.0),
    }
    shared |= {"alpha_speed": 0, "alpha_curve": 0}
    for k, slot in enumerate(host.slots):
        op = NEXT_OP.get(slot.stage, life.WAIT)
        if slot.stage == life.DORMANT and k in seeds and due and slot.germinations == 0:
            op = life.GERMINATE
        fits = op != life.GERMINATE or masks["blueprint"][k][seeds[k]]
        if op != life.WAIT and masks["slot"][op][k] and fits:
            return {"op": op, "slot": k, "blueprint": seeds.get(k, 0), **shared}
    return {"op": life.WAIT, "slot": 0, "blueprint": 0, **shared}


def _misplaced(
    known: Known,
    state: Tensors,
    states: Sequence[StepState],
    actions: Sequence[Sequence[int]],
    host: int,
    sampled: bool,
) -> Tensor:
    """Return how far each decision is from that of the published weights, ``[T]``."""
    interface = known.interface
    features = torch.tensor([each.features for each in states], dtype=torch.float64)
    rows = {
        f"{MASKS}{name}": torch.tensor([each.masks[name] for each in states])
        for name in states[0].masks
    }
    rows["actions"] = torch.tensor([list(action) for action in actions])
    noise = None
    if sampled:
        purpose = known.params.rng_seed, streams.EVALUATION, EVALUATION_ITERATION
        noise = agent.noise(*purpose, [host], len(actions), len(interface.factors))[:, 0]
    categories = torch.tensor([each.categories for each in states])
    return agent.misplaced(
        state, interface, known.params.train.policy, features, categories, rows, noise
    )


def _compare_end(
    ground: Ground,
    host: ReferenceHost,
    own: Mapping[str, float],
    claimed: Claimed,
    label: str,
    log: ComparisonLog,
) -> None:
    kept = frozenset(k for k, slot in enumerate(host.slots) if slot.stage == life.FOSSILIZED)
    last = host.states[-1].numbers
    params = last["committed_params"]
    reached = last["committed_accuracy"]
    expected = {
        SCORE: reached - host.settings.price * (params / host.body.params - 1.0),
        "params": params,
        "flops_per_sample": last["committed_flops"],
        "germinated": sum(slot.germinations for slot in host.slots),
        "fossilized": len(kept),
        "training_flops": BACKWARD_AND_FORWARD
        * len(host.order)
        * sum(each.numbers["flops"] for each in host.states[1:]),
        VAL: reached,
        **own,
    }
    if ground.test is not None and TEST in claimed:
        test = ground.test.samples("test", host.task)
        expected[TEST] = points(
            answers(host.body, host.weights, host.slots, kept, test, host.classes).correct
        )
    for name, value in claimed.items():
        log.number(name, label, value, expected[name])


def compare_grown(
    folder: Path, samples: Samples, classes: int, accuracy: float, params: int, log: ComparisonLog
) -> None:
    """Compare the network's answers to the test samples with the ``accuracy`` (points) and size that evaluation claims
    for its host. NoReference for a network of the user's own.
    """
    structure = json.loads((folder / "structure.json").read_text(encoding="utf-8"))
    label = folder.name
    if structure["host"] is None:
        raise NoReference(
            f"{folder}: grew in a network of the user's own, which the reference does not know"
        )
    body = anatomy(
        Host.model_validate(structure["host"]),
        tuple(structure["input_shape"]),
        structure["classes"],
    )
    tensors = {
        name: value.double() for name, value in load_file(folder / "weights.safetensors").items()
    }
    weights = Weights(Block(tensors))
    trained = dict(tensors)
    slots = [life.Slot() for _ in range(body.slots)]
    for record in structure["seeds"]:
        k = record["slot"]
        kind = list(body.blueprints[k]).index(record["blueprint"])
        seed = life.Seed(
            blueprint=kind, operator=life.OPERATORS.index(record["operator"]), alpha=record["alpha"]
        )
        slots[k] = life.Slot(life.HOLDING, seed=seed)
        for lead, place in (("seed", weights.seeds), ("gate", weights.gates)):
            start = f"joints.{k}.{lead}."
            place[k] = Block(
                {
                    name.removeprefix(start): x
                    for name, x in tensors.items()
                    if name.startswith(start)
                }
            )
        for name in part_of(body, k, kind).fitted:
            del trained[f"joints.{k}.seed.{name}"]
    own = answers(
        body,
        weights,
        slots,
        frozenset(k for k, slot in enumerate(slots) if slot.acts),
        samples,
        classes,
    )
    program = torch.export.load(folder / "network.pt2").module()
    with torch.no_grad():
        program_correct = (program(samples.x.float())[:, :classes].argmax(1) == samples.y).double()
    differ = (program_correct != own.correct) & (own.lead >= CLOSE_CALL)
    log.note("answers of exported weights and program", label, float(differ.sum()))
    size = sum(value.numel() for value in trained.values())
    log.number("parameters of the exported network", label, size, structure["params"])
    log.number("parameters that evaluation counts", label, params, structure["params"])
    slack = ROUNDED_PCT + 100.0 * float((own.lead < CLOSE_CALL).double().mean())
    for source, correct in (("weights", own.correct), ("program", program_correct)):
        log.note(
            f"accuracy of the exported {source}",
            label,
            max(0.0, abs(points(correct) - accuracy) - slack),
        )
