"""Replayable episodes played again by the reference, from files alone: the published weights decide as was recorded on
what the held-out data give, and the network that is left has the accuracy that is claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from simic.audit.comparison import Comparison
from simic.audit.reference.agent.acting import Mode, act
from simic.audit.reference.agent.interface import Interface
from simic.audit.reference.agent.iteration import AgentState, Givens
from simic.audit.reference.agent.transcript import Transcript
from simic.audit.reference.rng import Draw
from simic.audit.reference.world import bank
from simic.audit.reference.world.host import ReferenceHost, Told, World
from simic.audit.reference.world.life import FOSSILIZED, GERMINATE, LIVE, PRUNED
from simic.audit.reference.world.refusal import NoReference
from simic.audit.reference.world.validation import answers, points
from simic.audit.world.ledger import Ledger
from simic.audit.world.tour import HEADS
from simic.evaluation.costs import BACKWARD_AND_FORWARD
from simic.evaluation.result import LEARNED, SAMPLED, Evaluation, PerSeed
from simic.evaluation.scoring import EVALUATION_ITERATION
from simic.params import Params
from simic.training.checkpoint import Checkpoint

MODES: dict[str, Mode] = {LEARNED: "greedy", SAMPLED: "sampled"}
# Float32 and float64 drift apart over an episode. Of a decision: how much likelier another one was, or how far the
# noise lay outside of its share. In 40 episodes of a default run this was first more than 0 after 12 steps, 0.16 at
# most; accuracies at the end differed by up to 9.8 points. In one of 16 episodes of small runs one
# decision of the first eight was off by 0.12; so one may be.
EARLY = 8  # steps in which hardly anything has drifted yet
FIRST, MEAN = "evaluated decisions, first steps but one", "evaluated decisions, mean"
ALLOWED = {FIRST: 0.005, MEAN: 0.04}
DRIFTED_PCT = 20.0


@dataclass(frozen=True)
class Replayable:
    """What there is to play: an evaluation with the checkpoint it names."""

    params: Params
    prepared: Path
    evaluation: Evaluation
    checkpoint: Checkpoint


def replay_evaluation(known: Replayable) -> tuple[Comparison, ...]:
    """One host of the trained policy acting greedily, and one of it sampled; NoReference for settings that have none,
    or where no policy's decisions were recorded.
    """
    if not known.evaluation.actions:
        raise NoReference("no trained policy was evaluated")
    ledger, threads = Ledger(ALLOWED, {}), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in known.evaluation.actions:
            _replay(known, name, ledger)
    finally:
        torch.set_num_threads(threads)
    return ledger.comparisons()


def telling(seeds: PerSeed) -> int:
    """The host whose score depends most on how it was grown: with seeds left that do not count, else with most that
    do; none that the governor rolled back, if it can be.
    """

    def rank(host: int) -> tuple[bool, int, int]:
        left = seeds.germinated[host] - seeds.pruned[host] - seeds.fossilized[host]
        return seeds.rollbacks[host] == 0, left, seeds.fossilized[host]

    return max(range(len(seeds.germinated)), key=rank)


def _replay(known: Replayable, name: str, ledger: Ledger) -> None:
    seeds = known.evaluation.policies[name].per_seed
    place = telling(seeds)
    if seeds.rollbacks[place]:
        raise NoReference(f"{name}: the governor rolled every host back")
    host, told = _decided(known, name, place, ledger)
    stages = [each.per_slot["stage"] for each in told]
    pruned = sum(b == PRUNED != a for one, other in pairwise(stages) for a, b in zip(one, other, strict=True))
    actions = known.evaluation.actions[name][place]
    for action, (before, after) in zip(actions, pairwise(told), strict=True):  # a seed that another one replaced
        slot = int(action.split()[HEADS.index("slot")])
        pruned += after.numbers["effective_op"] == GERMINATE and before.per_slot["stage"][slot] in LIVE
    _left(known, host, told, pruned, place, seeds, f"{name}, evaluation seed {place}", ledger)


def _decided(known: Replayable, name: str, place: int, ledger: Ledger) -> tuple[ReferenceHost, list[Told]]:
    """The published weights decide so, on what the reference sees of a host."""
    actions = [[int(index) for index in step.split()] for step in known.evaluation.actions[name][place]]
    world = World.read(known.params, known.prepared, bank.read_evaluated(known.prepared))
    host = ReferenceHost(world, place, EVALUATION_ITERATION, known.evaluation.rows[place], len(actions))
    told = [host.reset()]
    for action in actions:
        host.train(dict(zip(HEADS, action, strict=True)))
        told.append(host.measure())
    misplaced, where = _misplaced(known, told, actions, place, MODES[name]), f"{name}, evaluation seed {place}"
    ledger.note(FIRST, where, float(misplaced[:EARLY].sort().values[-2:][0]))
    ledger.note(MEAN, where, float(misplaced.mean()))
    return host, told


def _misplaced(known: Replayable, told: list[Told], actions: list[list[int]], place: int, mode: Mode) -> Tensor:
    """How far from what the published weights decide, by step."""
    interface = Interface.of(known.checkpoint.manifest.specs)
    given = Givens(interface, known.params.train, known.params.rng_seed, False)
    state = AgentState.of(known.checkpoint.tensors, known.params.train)
    steps, ended = torch.zeros(len(actions), 1), torch.zeros(len(actions), 1, dtype=torch.bool)
    transcript = Transcript(
        iteration=EVALUATION_ITERATION,
        env_ids=(place,),
        features=torch.tensor([each.features for each in told], dtype=torch.float64)[:, None],
        categories=torch.tensor([each.categories for each in told])[:, None],
        told=torch.full((len(told), 1, interface.told), -1),
        masks={name: torch.tensor(mask)[:, None] for name, mask in _masks(told).items()},
        actions=torch.tensor(actions)[:, None],
        rewards=steps.double(),
        terminated=ended,
        truncated=ended,
    )
    draw = Draw.EVALUATION
    acted = act(transcript, state.network(given), state.observation, given.rng_seed, mode, draw)
    return acted.misplaced[:, 0]


def _masks(told: list[Told]) -> Mapping[str, list[list[bool] | list[list[bool]]]]:
    moments = [
        {"op": each.masks.op, "slot": each.masks.slot, "blueprint": each.masks.blueprint, **each.masks.others}
        for each in told
    ]
    return {name: [moment[name] for moment in moments] for name in moments[0]}


def _left(
    known: Replayable,
    host: ReferenceHost,
    told: list[Told],
    pruned: int,
    place: int,
    seeds: PerSeed,
    where: str,
    ledger: Ledger,
) -> None:
    """What is claimed of the host at its end."""
    kept = frozenset(k for k, slot in enumerate(host.slots) if slot.stage == FOSSILIZED)
    test = bank.read_held_out(known.prepared).samples("test", host.task)
    scored = answers(host.world.body, host.weights, host.slots, kept, test, host.classes)
    samples = BACKWARD_AND_FORWARD * len(host.order)
    exact = {
        "params": told[-1].numbers["committed_params"],
        "germinated": sum(slot.germinations for slot in host.slots),
        "fossilized": len(kept),
        "pruned": pruned,
        "training_flops": samples * sum(each.numbers["flops"] for each in told[1:]),
    }
    for what, expected in exact.items():
        ledger.number(f"evaluated {what}", where, getattr(seeds, what)[place], expected)
    accuracies = {"test": points(scored.correct), "val": told[-1].numbers["committed_accuracy"]}
    for split, accuracy in accuracies.items():
        apart = abs(getattr(seeds, f"{split}_accuracy_pct")[place] - accuracy)
        ledger.note(f"evaluated {split} accuracy", where, max(0.0, apart - DRIFTED_PCT))
