"""Replay of evaluation and headroom from files alone: on the held-out data the published weights decide as recorded,
schedules do what they say, and the grown networks have the claimed sizes and accuracies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from simic.certify import life, streams
from simic.certify.agent import MASKS, Network, Scale, Tensors, noise
from simic.certify.bank import Bank
from simic.certify.comparison import ComparisonLog
from simic.certify.episodes import HEADS
from simic.certify.epochs import answers, points
from simic.certify.host import Action, ReferenceHost, Told, World
from simic.certify.iteration import Known
from simic.certify.ppo import Learner

EVALUATION_ITERATION, VALIDATION_ITERATION, SEARCH_ITERATION = 1 << 40, 1 << 41, 1 << 43
VALIDATION, SAMPLED = "validation", "learned_sampled"
LEARNED = ("learned", SAMPLED, VALIDATION)  # their decisions are derived; the others are played as recorded
BACKWARD_AND_FORWARD = 3  # passes of a sample that is trained on
HOSTS = 5  # of each policy, and of schedules
# Deviation of a decision: how much likelier another one was, or how far the noise lay outside its share. Float32 and
# float64 drift apart over an episode, and one of the first eight decisions may be off (docs/history/experiments.md).
EARLY = 8
FIRST, MEAN = "decisions, first steps but one", "decisions, mean"
VAL, TEST, SCORE = "validation accuracy", "test accuracy", "score"  # in points
ALLOWED = {FIRST: 0.5, MEAN: 0.25, **dict.fromkeys((VAL, TEST, SCORE), 25.0)}
TYPICAL = {
    FIRST: 0.005,
    MEAN: 0.02,
    **dict.fromkeys((VAL, TEST, SCORE), 2.0),
}  # on nine hosts of ten all decisions agree exactly
NEXT_OP = dict.fromkeys((life.GERMINATED, life.TRAINING, life.BLENDING), life.ADVANCE) | {life.HOLDING: life.FOSSILIZE}


@dataclass(frozen=True)
class Claimed:
    """Hold what is claimed of one host at its end: accuracies in points, where there are any, and numbers by name."""

    test_accuracy_pct: float | None
    val_accuracy_pct: float | None
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Ground:
    """Hold the tasks to grow on (``world``) and to score on (``test``); ``iteration`` is part of a host's identity."""

    world: World
    test: Bank | None
    iteration: int = EVALUATION_ITERATION


def chosen(rng_seed: int, about: int, count: int, most: int = HOSTS) -> list[int]:
    """Choose so many of ``count`` by hash."""
    order = streams.permutation(streams.key(rng_seed, streams.EVALUATION, about), count)
    return sorted(order[:most].tolist())


def replay_decisions(
    ground: Ground, known: Known, state: Tensors, name: str, host: int, task: int, actions: Sequence[Sequence[int]],
    claimed: Claimed, log: ComparisonLog,
) -> None:  # fmt: skip
    """Replay the recorded episode of a policy on one host; decisions of a learned one are derived, too."""
    played = ReferenceHost(ground.world, host, ground.iteration, task, len(actions))
    told = [played.reset()]
    for action in actions:
        played.train(dict(zip(HEADS, action, strict=True)))
        told.append(played.measure())
    where = f"{name}, host {host}"
    if name in LEARNED:
        misplaced = _misplaced(known, state, told, actions, host, sampled=name == SAMPLED)
        log.note(FIRST, where, float(misplaced[:EARLY].sort().values[-2:][0]))
        log.note(MEAN, where, float(misplaced.mean()))
    stages = [each.per_slot["stage"] for each in told]
    pruned = sum(b == life.PRUNED != a for one, other in pairwise(stages) for a, b in zip(one, other, strict=True))
    # A seed that another one replaced in the same step counts too.
    for action, (before, after) in zip(actions, pairwise(told), strict=True):
        slot = action[HEADS.index("slot")]
        pruned += after.numbers["effective_op"] == life.GERMINATE and before.per_slot["stage"][slot] in life.LIVE
    _compare_end(ground, played, told, {"pruned": pruned}, claimed, where, log)


def replay_schedule(
    ground: Ground, schedule: str, host: int, task: int, steps: int, claimed: Claimed, log: ComparisonLog
) -> None:
    """Replay a schedule (``BLUEPRINT at SLOT + …, step N``, or ``static``) on one host."""
    played = ReferenceHost(ground.world, host, ground.iteration, task, steps)
    told = [played.reset()]
    seeds, begin = _parsed(schedule, ground.world)
    for step in range(steps):
        played.train(_open_loop(played, seeds, step >= begin))
        told.append(played.measure())
    _compare_end(ground, played, told, {}, claimed, f"{schedule}, host {host}", log)


def _parsed(schedule: str, world: World) -> tuple[dict[int, int], int]:
    """Return the blueprint's index by slot, and the step of the first germination."""
    if schedule == "static":
        return {}, 0
    seeds, step = schedule.split(", step ")
    pairs = [seed.split(" at ") for seed in seeds.split(" + ")]
    return {int(slot): list(world.body.blueprints[int(slot)]).index(kind) for kind, slot in pairs}, int(step)


def _open_loop(host: ReferenceHost, seeds: Mapping[int, int], due: bool) -> Action:
    """Return the next action of a schedule: advance, fossilize or germinate in the lowest slot possible, or wait."""
    masks = host.masks()
    shared = {"style": 0, "tempo": life.TEMPOS.index(min(life.TEMPOS)), "alpha_target": life.TARGETS.index(1.0)}
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
    known: Known, state: Tensors, told: Sequence[Told], actions: Sequence[Sequence[int]], host: int, sampled: bool
) -> Tensor:
    """Return how far each decision is from that of the published weights, ``[T]``."""
    interface, train = known.interface, known.params.train
    seen = torch.tensor([each.features for each in told[:-1]], dtype=torch.float64)[:, None]
    scale = Scale.read(state, "observation")
    seen = seen if scale is None else scale.see(seen, interface.flags)
    categories = torch.tensor([each.categories for each in told[:-1]])[:, None]
    critic = torch.full((len(actions), 1, interface.told), -1)
    network = Network(Learner.read(state).weights, interface, train.policy)
    rows = {f"{MASKS}{name}": torch.tensor([each.masks[name] for each in told[:-1]]) for name in told[0].masks}
    rows["actions"] = torch.tensor([list(action) for action in actions])
    drawn = noise(
        known.params.rng_seed, streams.EVALUATION, EVALUATION_ITERATION, [host], len(actions), len(interface.factors)
    )
    with torch.no_grad():
        z, _ = network.read(seen, categories, critic)
        judged = network.judge(z[:, 0], rows, drawn[:, 0] if sampled else None)
    return judged.misplaced.max(dim=1).values


def _compare_end(
    ground: Ground, host: ReferenceHost, told: Sequence[Told], own: Mapping[str, float], claimed: Claimed, where: str,
    log: ComparisonLog,
) -> None:  # fmt: skip
    """Compare what is claimed of a host at its end."""
    kept = frozenset(k for k, slot in enumerate(host.slots) if slot.stage == life.FOSSILIZED)
    params, reached = told[-1].numbers["committed_params"], told[-1].numbers["committed_accuracy"]
    expected = {
        SCORE: reached - host.settings.price * (params / host.body.params - 1.0),
        "params": params,
        "flops_per_sample": told[-1].numbers["committed_flops"],
        "germinated": sum(slot.germinations for slot in host.slots),
        "fossilized": len(kept),
        "training_flops": BACKWARD_AND_FORWARD * len(host.order) * sum(each.numbers["flops"] for each in told[1:]),
        **own,
    }
    for name, value in claimed.numbers.items():
        log.number(name, where, value, expected[name])
    if claimed.val_accuracy_pct is not None:
        log.number(VAL, where, claimed.val_accuracy_pct, reached)
    if ground.test is not None and claimed.test_accuracy_pct is not None:
        test = ground.test.samples("test", host.task)
        scored = answers(host.world.body, host.weights, host.slots, kept, test, host.classes)
        log.number(TEST, where, claimed.test_accuracy_pct, points(scored.correct))
