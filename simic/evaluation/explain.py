"""Explain a decision of the evaluated policy: what it saw, how likely each choice was, and what the decision hangs on.

The episode of the evaluation is played again with one host. What a decision hangs on is found by occlusion (Zeiler and
Fergus 2014, arXiv 1311.2901), one input at a time: a number is replaced by its mean over training, a flag is turned, a
slot's blueprint is taken away, and the memory is forgotten.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from simic.agent.core import RecurrentState
from simic.agent.distributions import MASKED_LOGIT
from simic.agent.policy import ActorCritic
from simic.agent.spec import Observation
from simic.data.batches import data_hash, load_held_out
from simic.envs.observations import columns
from simic.envs.play import Situation
from simic.errors import SimicError
from simic.evaluation.policies import EMPTY
from simic.evaluation.result import LEARNED, Evaluation
from simic.evaluation.scoring import (
    EVALUATION_ITERATION,
    Hosts,
    Turn,
    decisions,
    open_env,
    play_together,
)
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.params import Runtime
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned, LearnedActor

# How many choices are listed, and how many inputs that a decision hangs on.
MOST_LINES = 6
OTHER_EPISODE = (
    "The last bits of a host depend on its company: this is not the evaluation's own episode."
)

# Descriptions with their numbers, the largest first.
Ranked = list[tuple[str, float]]


class Witness(LearnedActor):
    """Play greedily, and keep the memory that the policy had before ``step`` (from 0)."""

    def __init__(self, learned: Learned, step: int) -> None:
        super().__init__(learned.policy, learned.normalizers, greedy=True)
        self.step = step

    def act(self, situation: Situation) -> Action:
        if situation.step == self.step:
            self.memory_before = self.memory
        return super().act(situation)


def explain(
    evaluation: Evaluation,
    checkpoint: Checkpoint,
    prepared: Path,
    runtime: Runtime,
    device: torch.device,
    task: str,
    step: int,
) -> str:
    """Describe for a terminal how the policy came to one decision on a host of the evaluation.

    Args:
        evaluation: that of the policy.
        checkpoint: the policy that was evaluated.
        prepared: folder of the prepared data.
        runtime: how to compute.
        device: where to compute.
        task: the name of a held-out task (its first host), or the number of a host.
        step: the decision, from 1.

    Raises:
        SimicError: policy or data are not those of the evaluation, or there is no such decision.
    """
    learned = Learned.of(checkpoint, device)
    if LEARNED not in evaluation.policies:
        raise SimicError(
            f"the evaluation has no policy {LEARNED!r} to explain: name it in evaluate.policies"
        )
    if (learned.iteration, data_hash(prepared)) != (
        evaluation.checkpoint_iteration,
        evaluation.data_sha256,
    ):
        raise SimicError(
            "reports/evaluation.json is of another policy or other data; run simic evaluate first"
        )
    host = find_host(evaluation, task)
    if not 1 <= step <= evaluation.episode_steps:
        raise SimicError(
            f"step {step}: must be 1 to {evaluation.episode_steps}, as the report counts them"
        )

    held_out = load_held_out(prepared, device)
    hosts = Hosts(torch.tensor([evaluation.rows[host]]), torch.tensor([host]), EVALUATION_ITERATION)
    one_core = runtime.model_copy(update={"cores": 1})
    splits = (held_out.train, held_out.val)
    witness = Witness(learned, step - 1)
    env = open_env(learned.train, evaluation.rng_seed, one_core, splits, hosts.ids, device)
    blueprints = [item.name for item in env.blueprints]
    turns = play_together(env, [witness], hosts, evaluation.episode_steps)
    turn = turns[step - 1]
    if not bool(turn.situation.alive[0]):
        raise SimicError(
            f"step {step}: the host had been rolled back by then, so nothing was decided for it"
        )

    name = evaluation.tasks[evaluation.rows[host]].name
    decision = _describe(learned, witness.memory_before, turn, blueprints)
    lines = [f"{name}, host {host}, step {step} of {len(turns)}: {decision}"]
    if decisions(turns)[0][:step] != evaluation.actions[LEARNED][host][:step]:
        lines += ["", OTHER_EPISODE]
    return "\n".join(lines)


def _describe(learned: Learned, memory: RecurrentState, turn: Turn, blueprints: list[str]) -> str:
    """Ask the policy, with the memory it had then, for the choices of a turn, and what its decision hangs on."""
    observation = learned.normalizers.see(turn.situation.observation)
    action = torch.stack(tuple(turn.action), dim=-1)
    op, slot, blueprint = action[0, :3].tolist()
    likeliest = choices(learned.policy, observation, memory, blueprints)
    reasons = occlusion(learned.policy, observation, memory, action)
    lines = [
        choice_in_words(Op(op), slot, blueprints[blueprint]),
        "",
        "Seen",
        f"  accuracy {float(turn.situation.tracker.accuracy[0]):.1f} % on the validation split",
        *(
            f"  slot {slot}: {words}"
            for slot, words in enumerate(slots_in_words(turn.situation.slots, blueprints))
        ),
        "",
        "Choices, by probability",
        *(f"  {probability:.3f}  {words}" for words, probability in likeliest),
        "",
        "What the decision hangs on (log-probability that it loses when this alone is hidden; negative: gains)",
        *(f"  {nats:+7.2f}  {words}" for words, nats in reasons),
    ]
    return "\n".join(lines)


def find_host(evaluation: Evaluation, task: str) -> int:
    """Find the first host of the task of that name, or the host of that number; SimicError where there is none."""
    names = [row.name for row in evaluation.tasks]
    if task in names:
        return evaluation.rows.index(names.index(task))
    if task.isdecimal() and int(task) < len(evaluation.rows):
        return int(task)
    raise SimicError(
        f"task {task!r}: must be a host, 0 to {len(evaluation.rows) - 1}, or one of {', '.join(names)}"
    )


def slots_in_words(slots: Slots, blueprints: Sequence[str]) -> tuple[str, ...]:
    """Describe what is in each slot of the first host."""
    words = []
    columns_of_first = (
        slots.stage[0],
        slots.blueprint[0],
        slots.contribution[0],
        slots.contribution_se[0],
    )
    for stage, kind, gain, error in zip(
        *(column.tolist() for column in columns_of_first), strict=True
    ):
        seed = f"{blueprints[kind]}, " if kind >= 0 else ""
        measured = f", contributes {gain:+.1f} ± {error:.1f} points" if math.isfinite(gain) else ""
        words.append(f"{seed}{Stage(stage).name}{measured}")
    return tuple(words)


def choice_in_words(op: Op, slot: int, blueprint: str) -> str:
    """Name a choice: ``GERMINATE depthwise slot 1``.

    Args:
        op: the operation.
        slot: which slot, from 0; WAIT has none.
        blueprint: name of the seed, for GERMINATE alone.
    """
    if op is Op.WAIT:
        return op.name
    return f"{op.name} {blueprint} slot {slot}" if op is Op.GERMINATE else f"{op.name} slot {slot}"


@torch.no_grad()
def choices(
    policy: ActorCritic,
    observation: Observation,
    memory: RecurrentState,
    blueprints: Sequence[str],
) -> Ranked:
    """List the likeliest choices of op, slot and blueprint, with their probabilities.

    Args:
        policy: the policy.
        observation: what it sees of one host, normalised.
        memory: what it remembers of the steps before.
        blueprints: names of the blueprints.
    """
    # Every op, with every slot and blueprint that it uses.
    slots = policy.observation_spec.categories
    candidates = [
        (op, slot, blueprint)
        for op, uses in zip(Op, policy.action_spec.relevance, strict=True)
        for slot in range(slots if uses[1] else 1)
        for blueprint in range(len(blueprints) if uses[2] else 1)
    ]
    rows = len(candidates)
    heads = len(policy.action_spec.heads)
    device = observation.features.device
    actions = torch.zeros(rows, heads, dtype=torch.int64, device=device)
    actions[:, :3] = torch.tensor(candidates)

    # ln π of these three heads.
    readings, _ = policy.step(observation, memory)
    masks = _repeated(observation.masks, rows)
    choices = policy.choose(readings.actor.z.expand(rows, -1), masks, actions=actions)
    by_head = [choice.log_prob() for choice in choices[:3]]
    log_probs = torch.stack(by_head).sum(dim=0).tolist()
    probabilities = {
        choice_in_words(op, slot, blueprints[blueprint]): math.exp(log_prob)
        for (op, slot, blueprint), log_prob in zip(candidates, log_probs, strict=True)
        if log_prob > MASKED_LOGIT / 2
    }
    return sorted(probabilities.items(), key=lambda choice: -choice[1])[:MOST_LINES]


def _repeated(masks: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {name: mask.expand(rows, *mask.shape[1:]) for name, mask in masks.items()}


def occlusion(
    policy: ActorCritic,
    observation: Observation,
    memory: RecurrentState,
    action: Tensor,
) -> Ranked:
    """Measure by how many nats the log-probability of a decision falls when an input is hidden; negative: it rises.

    Args:
        policy: the policy.
        observation: what it sees of one host, normalised.
        memory: what it remembers of the steps before.
        action: what was decided, ``[1, heads]``.
    """
    slots = policy.observation_spec.categories
    table = columns(slots, policy.observation_spec.cardinality)
    # One row for each feature, each blueprint and the memory, and a last one in which nothing is hidden.
    rows = len(table) + slots + 2
    # Masks stay: what is legal is no secret, and every choice must stay possible.
    hidden = Observation(
        observation.features.repeat(rows, 1),
        observation.categories.repeat(rows, 1),
        _repeated(observation.masks, rows),
    )
    flags = torch.tensor([feature.flag for _, feature in table], device=hidden.features.device)
    diagonal = torch.arange(len(table))
    # Features are normalised, so 0 is the mean over training; a flag is turned, since its mean is no value of it.
    hidden.features[diagonal, diagonal] = torch.where(flags, 1.0 - observation.features[0], 0.0)
    for slot in range(slots):
        hidden.categories[len(table) + slot, slot] = EMPTY
    forgotten = torch.arange(rows, device=flags.device) == rows - 2
    memories = RecurrentState(*(part.repeat(rows, 1) for part in memory)).zeroed(forgotten)
    log_prob = policy.act(hidden, memories, noise=None, actions=action.expand(rows, -1)).joint

    names = (
        [name for name, _ in table]
        + [f"slot{slot}_blueprint" for slot in range(slots)]
        + ["memory"]
    )
    lost = zip(names, (log_prob[-1] - log_prob[:-1]).tolist(), strict=True)
    return sorted(lost, key=lambda row: -abs(row[1]))[:MOST_LINES]
