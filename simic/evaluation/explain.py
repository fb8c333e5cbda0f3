"""Explain a decision of the evaluated policy: what it saw, what it hangs on, and the outcome of every alternative.

The episode of the evaluation is played again to that step; from there every other legal choice is replayed in a host of
its own. Each is played by two hosts side by side: the last bits of a host that shares an operation with no other depend
on its company, those of two equal ones do not (docs/history/experiments.md), and that both end alike is checked.

What a decision hangs on is found by occlusion (Zeiler and Fergus 2014, arXiv 1311.2901), one input at a time: a number
is replaced by its mean over training, a flag is turned, a slot's blueprint is taken away, and the memory is forgotten.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, RecurrentState
from simic.agent.spec import Observation
from simic.data.batches import HeldOut, data_hash, load_held_out
from simic.envs.observations import EPOCHS_UNIT, Feature, columns
from simic.envs.play import Situation
from simic.envs.rewards import score
from simic.errors import SimicError
from simic.evaluation.counterfactual import CounterfactualActor, Offers, Replay, at_step, reward_scale
from simic.evaluation.page import aligned
from simic.evaluation.policies import EMPTY
from simic.evaluation.result import LEARNED, Evaluation, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, Turn, of_rows, open_env, play_for_score
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Runtime
from simic.training import worker_layout
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned

TWINS = 2
MOST_LINES = 6  # of what a decision hangs on
LEAST_NATS = 0.01  # smaller changes of a log-probability are not worth a line


@dataclass(frozen=True)
class Explanation:
    """One decision of one host; probabilities and values are the policy's, outcomes those of replays."""

    task: str
    row: int
    step: int  # from 0
    steps: int
    slots: tuple[str, ...]  # what was in each
    accuracy_pct: float  # live, on the validation split, when it was decided
    occlusion: tuple[tuple[str, float], ...]
    value: float  # expected discounted return, in units of reward
    taken: TriedChoice
    others: tuple[TriedChoice, ...]  # the likeliest first
    recorded_score: float  # of the evaluation's own episode
    exact: bool  # all replays were bit for bit the same up to the decision, and the choice taken ended in the same bits


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation of the policy, and what it takes to replay its episodes."""

    learned: Learned
    scale: float  # one unit of the critic in units of reward
    evaluation: Evaluation
    held_out: HeldOut
    runtime: Runtime
    device: torch.device

    @classmethod
    def open(
        cls, evaluation: Evaluation, checkpoint: Checkpoint, prepared: Path, runtime: Runtime, device: torch.device
    ) -> "Evaluated":
        """Raise SimicError unless policy and data are those that were evaluated."""
        learned = Learned.of(checkpoint, device)
        if LEARNED not in evaluation.policies:
            raise SimicError(f"the evaluation has no policy {LEARNED!r} to explain: name it in evaluate.policies")
        if (learned.iteration, data_hash(prepared)) != (evaluation.checkpoint_iteration, evaluation.data_sha256):
            raise SimicError("reports/evaluation.json is of another policy or other data; run simic evaluate first")
        scale = reward_scale(checkpoint, learned.train.ppo.gamma)
        return cls(learned, scale, evaluation, load_held_out(prepared, device), runtime, device)

    def row(self, task: str) -> int:
        """Return the first host of the task of that name, or the host of that number."""
        names, rows = [each.name for each in self.evaluation.tasks], self.evaluation.rows
        if task in names:
            return rows.index(names.index(task))
        if task.isdecimal() and int(task) < len(rows):
            return int(task)
        raise SimicError(f"task {task!r}: must be a host, 0 to {len(rows) - 1}, or one of {', '.join(names)}")

    def replay(self, row: int, step: int, choices: int) -> tuple[CounterfactualActor, Replay]:
        """Play the policy's own choice in one step of one host and the likeliest others, each by twins side by side."""
        ranks = torch.arange(choices, device=self.device).repeat_interleave(TWINS)
        actor = CounterfactualActor(self.learned.actor(greedy=True), at_step(step), ranks)
        setup = self._setup(row, len(ranks))
        with closing(setup.env):
            [(_, done)] = play_for_score(setup, {LEARNED: actor})
            return actor, Replay.of(setup, done, self.scale)

    def _setup(self, row: int, count: int) -> EvaluationSetup:
        """Return so many hosts equal to that of an evaluation's row; each process has whole pairs of twins."""
        held_out, ids = self.held_out, torch.full((count,), row)
        layout = worker_layout.layout(self.runtime, count, self.device)
        group = layout.group + layout.group % TWINS
        splits = held_out.train, held_out.val
        env = open_env(
            self.learned.train, self.evaluation.rng_seed, self.runtime, splits, ids, self.device, group=group
        )
        tasks = torch.full_like(env.env_ids, self.evaluation.rows[row])
        return EvaluationSetup(env, held_out, tasks, self.evaluation.data_sha256, self.runtime)


def explain(evaluated: Evaluated, task: str, step: int) -> Explanation:
    """Explain the decision in ``step`` (from 1) on a host of the evaluation; SimicError where there is none."""
    row, steps = evaluated.row(task), evaluated.learned.train.longest_episode
    if not 1 <= step <= steps:
        raise SimicError(f"step {step}: must be 1 to {steps}, as the report counts them")
    at = step - 1
    _, own = evaluated.replay(row, at, choices=1)
    situation = own.done.turns[at].situation
    if not bool(situation.alive[0]):
        raise SimicError(f"step {step}: the host had been rolled back by then, so nothing was decided for it")
    policy, normalizers = evaluated.learned.policy, evaluated.learned.normalizers
    seen, memory = _before(evaluated.learned, own.done.turns[:step])
    shown = normalizers.see(seen)
    legal = int(Offers.of(policy, shown, memory).log_prob.isfinite().sum())
    actor, replays = evaluated.replay(row, at, legal)
    names = [item.name for item in blueprints_of(evaluated.learned.train.host.family)]
    choices = [replays.choice(host, at, float(actor.log_prob[host]), names) for host in range(0, TWINS * legal, TWINS)]
    recorded, host = evaluated.evaluation.policies[LEARNED].per_seed, evaluated.evaluation.host.params
    price, added = evaluated.learned.train.price, recorded.params[row] - host
    action = torch.stack([head[:1] for head in own.done.turns[at].action], dim=-1)
    return Explanation(
        task=evaluated.evaluation.tasks[evaluated.evaluation.rows[row]].name,
        row=row,
        step=at,
        steps=steps,
        slots=_slots(situation, names),
        accuracy_pct=float(situation.tracker.accuracy[0]),
        occlusion=tuple(occlusion(policy, normalizers, seen, memory, action, steps)),
        value=float(policy.act(shown, memory, greedy=True).value) * evaluated.scale,
        taken=choices[0],
        others=tuple(choices[1:]),
        recorded_score=float(score(np.array(recorded.test_accuracy_pct[row]), np.array(added), host, price)),
        exact=_same(own, replays, at),
    )


def _before(learned: Learned, turns: Sequence[Turn]) -> tuple[Observation, RecurrentState]:
    """Return what the first host showed at the last of these steps, and the policy's memory of those before."""
    *earlier, last = [of_rows(turn.situation.observation, slice(0, 1)) for turn in turns]
    memory = learned.policy.initial_state(1)
    for seen in earlier:
        _, _, memory = learned.policy.remember(learned.normalizers.see(seen), memory)
    return last, memory


def _slots(situation: Situation, blueprints: Sequence[str]) -> tuple[str, ...]:
    """Describe what is in each slot of the first host."""
    slots, told = situation.slots, []
    columns: list[Tensor] = [slots.stage, slots.blueprint, slots.alpha, slots.contribution, slots.contribution_se]
    for stage, kind, alpha, gain, error in zip(*(column[0].tolist() for column in columns), strict=True):
        held = f"{blueprints[kind]}, alpha {alpha:.2f}, " if kind >= 0 else ""
        measured = f", contributes {gain:+.1f} ± {error:.1f} points" if math.isfinite(gain) else ""
        told.append(f"{held}{Stage(stage).name}{measured}")
    return tuple(told)


def _same(own: Replay, replays: Replay, step: int) -> bool:
    """Return whether all hosts showed the same bits up to the decision, and twins and the choice taken to the end."""
    alone, tried = (
        torch.stack([turn.situation.observation.features for turn in each.done.turns]) for each in (own, replays)
    )
    prefix = torch.equal(tried[: step + 1], alone[: step + 1, :1].expand(-1, tried.shape[1], -1))
    twins = (
        torch.equal(tried[:, ::TWINS], tried[:, 1::TWINS]) and (replays.test[::TWINS] == replays.test[1::TWINS]).all()
    )
    return bool(prefix and twins and torch.equal(tried[:, 0], alone[:, 0]) and replays.test[0] == own.test[0])


# --- occlusion -------------------------------------------------------------------------------------------------------


def occlusion(
    policy: ActorCritic, normalizers: Normalizers, seen: Observation, memory: RecurrentState, action: Tensor, steps: int
) -> list[tuple[str, float]]:
    """Return each input in words and the log-probability in nats that ``action [1, heads]`` loses without it (negative:
    gains), the largest first. ``seen`` and ``memory`` are of one host, before normalisation.
    """
    slots = policy.observation_spec.categories
    table = columns(slots, policy.observation_spec.cardinality)
    shown = normalizers.see(seen)
    flags = torch.tensor([row.flag for _, row in table], device=shown.features.device)
    # One row for each feature, each blueprint and the memory, and a last one in which nothing is hidden.
    count = len(table) + slots + 2
    many = Observation(
        shown.features.repeat(count, 1),
        shown.categories.repeat(count, 1),
        {name: mask.expand(count, *mask.shape[1:]) for name, mask in shown.masks.items()},
    )
    places = torch.arange(len(table))
    many.features[places, places] = torch.where(flags, 1.0 - shown.features[0], 0.0)
    places = torch.arange(slots)
    many.categories[len(table) + places, places] = EMPTY
    before = RecurrentState(*(part.repeat(count, 1) for part in memory))
    before = before.zeroed(torch.arange(count, device=flags.device) == count - 2)
    log_prob = policy.act(many, before, greedy=True, actions=action.expand(count, -1)).joint
    lost = (log_prob[-1] - log_prob[:-1]).tolist()
    words = [in_words(name, row, float(seen.features[0, place]), steps) for place, (name, row) in enumerate(table)]
    words += [f"slot {slot}: which blueprint it holds" for slot in range(slots)] + [
        "what it remembers of earlier steps"
    ]
    ranked = sorted(zip(words, lost, strict=True), key=lambda each: -abs(each[1]))
    return [(what, nats) for what, nats in ranked if abs(nats) >= LEAST_NATS]


def in_words(name: str, row: Feature, value: float, steps: int) -> str:
    """Return a feature's name and its value in the unit before it was squashed (simic.envs.observations)."""
    slot, _, rest = name.partition("_")
    told = f"slot {slot.removeprefix('slot')}: {rest}" if slot.startswith("slot") and rest else name
    told = told.replace("_", " ")
    if row.flag:
        return f"{told}: {'yes' if value else 'no'}"
    if row.unit == "points, symlog":
        size = math.expm1(abs(value) * math.log1p(100.0))
        return f"{told} {math.copysign(size, value):+.1f} points"
    if row.unit == "fraction":
        return f"{told} {100.0 * value:.1f} %"
    if row.unit.endswith("/ episode"):
        return f"{told} {value * steps:.0f} steps"
    unbounded = value / (1.0 - value) if value < 1.0 else math.inf
    if row.unit.startswith("steps, "):
        return f"{told} {EPOCHS_UNIT * unbounded:.0f} steps"
    if row.unit.endswith("x/(1+x)"):
        value, unit = unbounded, row.unit.removesuffix(", x/(1+x)")
        return f"{told} {value:.3g}{'' if unit in ('1', 'count') else f' ({unit})'}"
    return f"{told} {value:.3g}{'' if row.unit == '1' else f' ({row.unit})'}"


# --- in words, for a terminal ----------------------------------------------------------------------------------------


def page(explained: Explanation) -> str:
    """Say what the policy saw, how sure it was, what it expected, and what each choice came to."""
    taken, choices = explained.taken, (explained.taken, *explained.others)
    best = max(choices, key=lambda each: each.score)
    lines = [
        f"{explained.task}, host {explained.row}, step {explained.step + 1} of {explained.steps}: {taken.words}",
        "",
        "Seen",
        f"  accuracy {explained.accuracy_pct:.1f} % on the validation split",
        *(f"  slot {number}: {slot}" for number, slot in enumerate(explained.slots)),
        "",
        "What the decision hangs on (log-probability that it loses when this alone is hidden; negative: gains)",
        *(f"  {nats:+7.2f}  {what}" for what, nats in explained.occlusion[:MOST_LINES]),
        *([] if explained.occlusion else ["  nothing alone"]),
        "",
        f"Value: {explained.value:.2f} expected, {taken.return_to_go:.2f} came (discounted rewards from here on)",
        "",
        "What every choice comes to, all else equal (score in points, on the test split; expected: by the critic)",
        *(f"  {line}" for line in _outcomes(choices, best)),
        "",
        _verdict(taken, best, len(choices)),
        _exactness(explained),
    ]
    return "\n".join(lines)


def _outcomes(choices: Sequence[TriedChoice], best: TriedChoice) -> list[str]:
    taken = choices[0]
    cells = [("", "choice", "probability", "score", "difference", "expected", "return")]
    for choice in choices:
        mark = ("*" if choice is best else "") + (">" if choice is taken else "")
        numbers = f"{choice.probability:.3f}", f"{choice.score:.1f}", f"{choice.score - taken.score:+.1f}"
        cells.append((mark, choice.words, *numbers, f"{choice.expected:.2f}", f"{choice.return_to_go:.2f}"))
    return ["  ".join(row) for row in aligned(cells, left=2)]


def _verdict(taken: TriedChoice, best: TriedChoice, count: int) -> str:
    if count == 1:
        return "Nothing else was legal."
    if best.score == taken.score:
        return f"Taken (>) was the best (*) of {count}."
    lost = best.score - taken.score
    return f"Best (*) of {count}: {best.words}, {lost:.1f} points more than what was done (>)."


def _exactness(explained: Explanation) -> str:
    exact = (
        "Every replay is the same to the bit up to the decision."
        if explained.exact
        else "The replays differ in the last bits before the decision, and training amplifies that: do not trust them."
    )
    if abs(explained.recorded_score - explained.taken.score) < 1e-3:
        return exact
    return (
        f"{exact} They are not the evaluation's own episode, which ended with {explained.recorded_score:.1f}: beside "
        "other hosts the last bits were others."
    )
