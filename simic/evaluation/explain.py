"""Why a decision of the evaluated policy was made: what it saw, and what else would have come to what.

The episode of the evaluation is played again to that step; from there every other legal choice is replayed in a host of
its own. Each is played by two hosts side by side: the last bits of a host that shares an operation with no other depend
on its company, those of two equal ones do not (docs/history/experiments.md), and that both end alike is checked.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.agent.core import RecurrentState
from simic.agent.spec import Observation
from simic.data.batches import HeldOut, data_hash, load_held_out
from simic.envs.actions import choices as action_words
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation
from simic.envs.rewards.transition import score
from simic.errors import SimicError
from simic.evaluation.counterfactual import Replay, reward_scale
from simic.evaluation.departing import Departing, Offers, at_step
from simic.evaluation.evidence import evidence
from simic.evaluation.result import LEARNED, Evaluation, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.evaluation.side_by_side import Turn, of_rows
from simic.growth.life.vocabulary import Action, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Runtime
from simic.training import worker_layout
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned

TWINS = 2


@dataclass(frozen=True)
class Explanation:
    """One decision of one host; probabilities and values are the policy's, outcomes those of replays."""

    task: str
    row: int
    step: int  # from 0
    steps: int
    slots: tuple[str, ...]  # what was in each
    accuracy_pct: float  # live, on the validation split, when it was decided
    evidence: tuple[tuple[str, float], ...]
    heads: dict[str, dict[str, float]]  # probability of every legal choice, of the heads that the op uses
    value: float  # expected discounted return, in the reward's unit
    taken: TriedChoice
    others: tuple[TriedChoice, ...]  # the likeliest first
    recorded_score: float  # of the evaluation's own episode
    exact: bool  # all replays were bit for bit the same up to the decision, and the choice taken ended in the same bits


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation of the policy, and what it takes to replay its episodes."""

    learned: Learned
    scale: float  # of the critic: one unit of it in units of reward
    evaluation: Evaluation
    held_out: HeldOut
    runtime: Runtime
    device: torch.device

    @classmethod
    def open(
        cls, evaluation: Evaluation, checkpoint: Checkpoint, prepared: Path, runtime: Runtime, device: torch.device
    ) -> "Evaluated":
        """SimicError unless policy and data are those that were evaluated."""
        learned = Learned.of(checkpoint, device)
        if LEARNED not in evaluation.policies:
            raise SimicError(f"the evaluation has no policy {LEARNED!r} to explain: name it in evaluate.policies")
        if (learned.iteration, data_hash(prepared)) != (evaluation.checkpoint_iteration, evaluation.data_sha256):
            raise SimicError("reports/evaluation.json is of another policy or other data; run simic evaluate first")
        scale = reward_scale(checkpoint, learned.train.ppo.gamma)
        return cls(learned, scale, evaluation, load_held_out(prepared, device), runtime, device)

    def row(self, task: str) -> int:
        """The first host of the task of that name, or the host of that number."""
        names, rows = [each.name for each in self.evaluation.tasks], self.evaluation.rows
        if task in names:
            return rows.index(names.index(task))
        if task.isdecimal() and int(task) < len(rows):
            return int(task)
        raise SimicError(f"task {task!r}: must be a host, 0 to {len(rows) - 1}, or one of {', '.join(names)}")

    def setup(self, row: int, count: int) -> EvaluationSetup:
        """So many hosts equal to that of an evaluation's row; groups of them hold whole pairs."""
        train, seed, held_out = self.learned.train, self.evaluation.rng_seed, self.held_out
        ids = torch.full((count,), row)
        found = worker_layout.layout(self.runtime, count, self.device)
        found = worker_layout.layout(self.runtime, count, self.device, found.group + found.group % TWINS)
        make = worker_layout.population(self.runtime, found)
        backend = self.runtime.backend
        env = GrowthEnv(train, seed, held_out.train, held_out.val, ids, self.device, backend, make)
        tasks = torch.full_like(env.env_ids, self.evaluation.rows[row])
        return EvaluationSetup(env, held_out, tasks, self.evaluation.data_sha256, self.runtime)

    def replay(self, row: int, step: int, choices: int) -> tuple[Departing, Replay]:
        """The policy's own choice in one step of one host and the likeliest others, each by two hosts next to each
        other.
        """
        ranks = torch.arange(choices, device=self.device).repeat_interleave(TWINS)
        actor = Departing(self.learned.actor(greedy=True), at_step(step), ranks)
        setup = self.setup(row, len(ranks))
        with closing(setup.env):
            [(_, done)] = play_for_score(setup, {LEARNED: actor})
            return actor, Replay.of(setup, done, self.scale)

    def recorded_score(self, row: int) -> float:
        """Of the evaluation's own episode, in points."""
        found, host = self.evaluation.policies[LEARNED].per_seed, self.evaluation.host.params
        accuracy, added = np.array(found.test_accuracy_pct), np.array(found.params) - host
        return float(score(accuracy, added, host, self.learned.train.price)[row])


def explain(evaluated: Evaluated, task: str, step: int) -> Explanation:
    """Of the decision in ``step`` (from 1) on a host of the evaluation; SimicError where there is none."""
    row, steps = evaluated.row(task), evaluated.learned.train.longest_episode
    if not 1 <= step <= steps:
        raise SimicError(f"step {step}: must be 1 to {steps}, as the report counts them")
    at = step - 1
    _, own = evaluated.replay(row, at, choices=1)
    situation = own.done.turns[at].situation
    if not bool(situation.alive[0]):
        raise SimicError(f"step {step}: the host had been rolled back by then, so nothing was decided for it")
    policy, seen, memory = evaluated.learned.policy, *_before(evaluated.learned, own.done.turns[:step])
    shown, action = evaluated.learned.normalizers.see(seen), _first(own.done.turns[at].action)
    legal = int(Offers.of(policy, shown, memory).log_prob.isfinite().sum())
    actor, replays = evaluated.replay(row, at, legal)
    names = [item.name for item in blueprints_of(evaluated.learned.train.host.family)]
    choices = [replays.choice(host, at, float(actor.log_prob[host]), names) for host in range(0, TWINS * legal, TWINS)]
    decided = policy.act(shown, memory, greedy=True)
    return Explanation(
        task=evaluated.evaluation.tasks[evaluated.evaluation.rows[row]].name,
        row=row,
        step=at,
        steps=steps,
        slots=_slots(situation, names),
        accuracy_pct=float(situation.tracker.accuracy[0]),
        evidence=tuple(evidence(policy, evaluated.learned.normalizers, seen, memory, action, steps)),
        heads=_heads(evaluated.learned, shown, memory, names),
        value=float(decided.value) * evaluated.scale,
        taken=choices[0],
        others=tuple(choices[1:]),
        recorded_score=evaluated.recorded_score(row),
        exact=_same(own, replays, at),
    )


def _before(learned: Learned, turns: Sequence[Turn]) -> tuple[Observation, RecurrentState]:
    """What the first host showed at the last of these steps, and what the policy remembered of those before."""
    *earlier, last = [of_rows(turn.situation.observation, slice(0, 1)) for turn in turns]
    memory = learned.policy.initial_state(1)
    for seen in earlier:
        _, _, memory = learned.policy.remember(learned.normalizers.see(seen), memory)
    return last, memory


def _first(action: Action) -> Tensor:
    """``[1, heads]`` of the first host."""
    return torch.stack([head[:1] for head in action], dim=-1)


def _heads(
    learned: Learned, shown: Observation, memory: RecurrentState, blueprints: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Of every head that the likeliest op uses, the legal choices and their probabilities, given those before."""
    policy = learned.policy
    z, _, _ = policy.remember(shown, memory)
    words = action_words(policy.observation_spec.categories, blueprints)
    found = {}
    for head, choice in zip(policy.action_spec.heads, policy.choose(z, shown.masks), strict=True):
        if choice.relevant is None or bool(choice.relevant):
            legal = torch.ones_like(choice.log_probs[0], dtype=torch.bool) if choice.mask is None else choice.mask[0]
            chances = zip(words[head.name], choice.log_probs[0].exp().tolist(), legal.tolist(), strict=True)
            found[head.name] = {str(word): chance for word, chance, possible in chances if possible}
    return found


def _slots(situation: Situation, blueprints: Sequence[str]) -> tuple[str, ...]:
    """What is in each slot of the first host, in words."""
    slots, told = situation.slots, []
    for stage, kind, alpha, gain, error in zip(
        slots.stage[0].tolist(), slots.blueprint[0].tolist(), slots.alpha[0].tolist(),
        slots.contribution[0].tolist(), slots.contribution_se[0].tolist(), strict=True,
    ):  # fmt: skip
        held = f"{blueprints[kind]}, alpha {alpha:.2f}, " if kind >= 0 else ""
        measured = f", contributes {gain:+.1f} ± {error:.1f} points" if math.isfinite(gain) else ""
        told.append(f"{held}{Stage(stage).name}{measured}")
    return tuple(told)


def _same(own: Replay, replays: Replay, step: int) -> bool:
    """Whether all hosts showed the same bits up to the decision, twins to the end, and so did the choice taken."""
    alone, tried = (
        torch.stack([turn.situation.observation.features for turn in each.done.turns]) for each in (own, replays)
    )
    prefix = torch.equal(tried[: step + 1], alone[: step + 1, :1].expand(-1, tried.shape[1], -1))
    twins = (
        torch.equal(tried[:, ::TWINS], tried[:, 1::TWINS]) and (replays.test[::TWINS] == replays.test[1::TWINS]).all()
    )
    return bool(prefix and twins and torch.equal(tried[:, 0], alone[:, 0]) and replays.test[0] == own.test[0])
