"""Replay episodes of the learned policy with one decision changed, and grade policy and critic by the outcomes.

All else stays: host, order of samples, and the policy itself, which decides from then on by what it sees. So a
different outcome is due to that decision. A single replay also contains the rounding that the new decision changes and
training amplifies; over many decisions that averages out. The best alternative is chosen by validation and scored by
test, so that no choice flatters itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from simic.agent.distributions import MASKED_LOGIT
from simic.agent.normalization import RewardNormalizer
from simic.agent.policy import ActorCritic, RecurrentState
from simic.agent.spec import Observation
from simic.envs.actions import to_action
from simic.envs.play import Episode, Situation
from simic.envs.rewards import score
from simic.evaluation.result import DecisionGrade, GradedDecision, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, Performance, Turn
from simic.evaluation.statistics import CONFIDENCE, Interval, Values, mean_interval, rows_by_task
from simic.growth.life.vocabulary import Action, Op
from simic.training.checkpoint import Checkpoint
from simic.training.learned import LearnedActor

NAMED = 3  # heads that tell choices apart: op, slot and blueprint; the others are as the policy would have them then
FEWEST_PAIRS = 4  # of a rank correlation: its interval divides by n - 3
SCALES = "normalizers/reward."  # of the rewards that the critic was taught with, in a checkpoint
RANK_VARIANCE = 1.06  # of Spearman's coefficient after Fisher's z, times n - 3 (Fieller, Hartley, Pearson 1957)

# --- another decision ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offers:
    """All choices of op, slot and blueprint that N states may have: whole ``actions [N, A, heads]`` and the
    log-probability ``[N, A]`` of these three heads together, -inf where the masks forbid them.
    """

    actions: Tensor
    log_prob: Tensor

    @classmethod
    def of(cls, policy: ActorCritic, seen: Observation, memory: RecurrentState) -> "Offers":
        """Return the offers at a normalised observation, given the memory of the steps before."""
        z, _, _ = policy.remember(seen, memory)
        joint, used = policy.joint(z, seen.masks), policy.action_spec.relevance
        assert joint.slot is not None  # every action of growth has a slot head
        slots, kinds = (range(head.size) for head in policy.action_spec.heads[1:NAMED])
        named = [
            (op, slot, kind)
            for op, uses in enumerate(used)
            for slot, kind in product(slots if uses[1] else (0,), kinds if uses[2] else (0,))
        ]
        op, slot, kind = torch.tensor(named, device=z.device).T
        levels = [joint.op[:, op], joint.slot[:, op, slot], joint.rest[0][:, op, slot, kind]]
        relevant = policy.relevance[op]
        log_prob = torch.where(relevant[:, :NAMED], torch.stack(levels, dim=-1), 0.0).sum(dim=-1)
        likeliest = [level.argmax(dim=-1)[:, op, slot] for level in joint.rest[1:]]
        heads = torch.stack([*(column.expand(len(z), -1) for column in (op, slot, kind)), *likeliest], dim=-1)
        possible = log_prob > MASKED_LOGIT / 2
        return cls(torch.where(relevant, heads, 0), torch.where(possible, log_prob, -torch.inf))

    def are(self, action: Action) -> Tensor:
        """Mark the offer ``[N, A]`` that an action ``[N]`` is."""
        return (self.actions[..., :NAMED] == torch.stack(action[:NAMED], dim=-1)[:, None]).all(dim=-1)


@dataclass(frozen=True)
class Question:
    """A decision of an episode, and what else could have been chosen.

    ``due`` marks the hosts ``[E]`` whose decision in a situation, given the policy's own action, is the one asked about
    (the first such counts); ``others`` marks its alternatives among the offers ``[E, A]``.
    """

    name: str
    due: Callable[[Situation, Action], Tensor]
    others: Callable[[Offers, Action], Tensor]


def _other_openings(offers: Offers, action: Action) -> Tensor:
    return (offers.actions[..., 0] == Op.GERMINATE) & ~offers.are(action)


def _the_opposite(offers: Offers, action: Action) -> Tensor:
    opposite = torch.where(action.op == Op.PRUNE, int(Op.FOSSILIZE), int(Op.PRUNE))
    return offers.are(action._replace(op=opposite))


FIRST_SEED = Question("which seed first", lambda situation, action: action.op == Op.GERMINATE, _other_openings)
VERDICT = Question(
    "keep or prune",
    lambda situation, action: (action.op == Op.PRUNE) | (action.op == Op.FOSSILIZE),
    _the_opposite,
)


def at_step(step: int) -> Question:
    """Ask about the decision in a step of the episode (from 0); all that is legal then is an alternative."""
    return Question(
        f"step {step}",
        lambda situation, action: torch.full_like(action.op, situation.step == step, dtype=torch.bool),
        lambda offers, action: ~offers.are(action),
    )


class CounterfactualActor(LearnedActor):
    """The greedy policy, which answers one question with the alternative of that ``rank [E]`` (1: the likeliest of
    them; 0: its own choice). Where there are fewer alternatives it takes its own choice.
    """

    def __init__(self, actor: LearnedActor, question: Question, rank: Tensor | int) -> None:
        super().__init__(actor.policy, actor.normalizers, greedy=True)
        self.question, self.rank = question, rank

    def start(self, episode: Episode) -> None:
        super().start(episode)
        nowhere = torch.full_like(episode.env_ids, -1)
        self.asked_at = nowhere  # step at which the question came up, -1: never
        self.departed = torch.zeros_like(nowhere, dtype=torch.bool)
        self.log_prob = self.own_log_prob = nowhere.float()  # then: of what was done, and of the policy's own choice

    def act(self, situation: Situation) -> Action:
        memory = self.memory
        action = super().act(situation)
        due = (self.asked_at < 0) & situation.alive & self.question.due(situation, action)
        if not bool(due.any()):
            return action
        offers = Offers.of(self.policy, self.normalizers.see(situation.observation), memory)
        own, chosen, departs = self._chosen(offers, action)
        self.asked_at = torch.where(due, situation.step, self.asked_at)
        self.departed |= due & departs
        rows = torch.arange(len(due), device=due.device)
        self.log_prob = torch.where(due, offers.log_prob[rows, chosen], self.log_prob)
        self.own_log_prob = torch.where(due, offers.log_prob[rows, own], self.own_log_prob)
        other = to_action(offers.actions[rows, chosen])
        pairs = zip(action, other, strict=True)
        return Action(*(torch.where(due & departs, instead, own) for own, instead in pairs))

    def _chosen(self, offers: Offers, action: Action) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places ``[E]`` of the own and of the taken choice among the offers, and whether they differ."""
        own, candidates = offers.are(action), self.question.others(offers, action)
        order = torch.where(candidates, offers.log_prob, -torch.inf).masked_fill(own, torch.inf)
        ranked = order.argsort(dim=1, descending=True, stable=True)
        rank = torch.as_tensor(self.rank, device=own.device).expand(len(own))[:, None]
        exists = (rank < (order > -torch.inf).sum(dim=1, keepdim=True)) & (rank > 0)
        place = ranked.gather(1, torch.where(exists, rank, 0))
        return ranked[:, 0], place[:, 0], exists[:, 0]


def counterfactual_actors(actor: LearnedActor, openings: int) -> dict[str, CounterfactualActor]:
    """Return the policy once for every alternative that is tried: the ``openings`` next likeliest first seeds, and the
    first verdict reversed. Empty where ``openings`` is 0.
    """
    if not openings:
        return {}
    ranks = range(1, openings + 1)
    first = {f"{FIRST_SEED.name}, {rank}": CounterfactualActor(actor, FIRST_SEED, rank) for rank in ranks}
    return {**first, VERDICT.name: CounterfactualActor(actor, VERDICT, 1)}


# --- outcomes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """Episodes of one actor on all hosts with their scores ``[H]`` in points, and for every step ``[T, H]`` the
    discounted return still to come, and r + γ V(s'), which the critic expected it to be, float64 in units of reward.
    """

    done: Performance
    test: Values
    val: Values
    to_go: Tensor
    expected: Tensor

    @classmethod
    def of(cls, setup: EvaluationSetup, done: Performance, scale: float) -> "Replay":
        """Score as the evaluation scores; ``scale`` is one unit of the critic in units of reward."""
        train, host = setup.env.train, setup.env.host.params
        added = np.array(done.score.params) - host
        test, val = (
            score(np.array(accuracy), added, host, train.price)
            for accuracy in (done.score.test_accuracy_pct, done.score.val_accuracy_pct)
        )
        assert done.values is not None  # who is graded has a critic
        rewards, gamma = torch.stack([turn.reward for turn in done.turns]), train.ppo.gamma
        alive = torch.stack([turn.situation.alive for turn in done.turns])
        following = torch.where(alive, scale * done.values.double(), 0.0).roll(-1, dims=0)
        following[-1] = 0.0  # after an end
        return cls(done, test, val, returns_to_go(rewards, gamma), rewards + gamma * following)

    def choice(self, host: int, step: int, log_prob: float, blueprints: Sequence[str]) -> TriedChoice:
        """Describe what was decided in a step for one host, and what came of it."""
        action = self.done.turns[step].action
        op = Op(int(action.op[host]))
        return TriedChoice(
            op=op.name,
            slot=None if op is Op.WAIT else int(action.slot[host]),
            blueprint=blueprints[int(action.blueprint[host])] if op is Op.GERMINATE else None,
            probability=round(float(np.exp(log_prob)), 6),
            score=round(float(self.test[host]), 4),
            val_score=round(float(self.val[host]), 4),
            return_to_go=round(float(self.to_go[step, host]), 6),
            expected=round(float(self.expected[step, host]), 6),
        )


def returns_to_go(rewards: Tensor, gamma: float) -> Tensor:
    """Return Σ γ^k r of each step and those after it ``[T, H]`` float64, in units of reward."""
    returns = rewards.clone()
    for step in range(len(rewards) - 2, -1, -1):
        returns[step] += gamma * returns[step + 1]
    return returns


def reward_scale(checkpoint: Checkpoint, gamma: float) -> float:
    """Return what one unit of a checkpoint's critic is in units of reward."""
    state = {name.removeprefix(SCALES): x for name, x in checkpoint.tensors.items() if name.startswith(SCALES)}
    if not state:
        return 1.0
    normalizer = RewardNormalizer(len(state["running"]), gamma)
    normalizer.load_state_dict(state)
    return float(normalizer.sigma)


def same_until(first: Sequence[Turn], second: Sequence[Turn], step: Tensor) -> Tensor:
    """Return bool ``[H]``: whether two episodes showed a host the same bits up to its ``step [H]``."""
    differs = [
        (a.situation.observation.features != b.situation.observation.features).any(dim=1) & (a.situation.step <= step)
        for a, b in zip(first, second, strict=True)
    ]
    return ~torch.stack(differs).any(dim=0)


# --- grades ----------------------------------------------------------------------------------------------------------


def grade(
    setup: EvaluationSetup,
    learned: Performance,
    tried: Mapping[str, tuple[CounterfactualActor, Performance]],
    scale: float,
) -> dict[str, DecisionGrade]:
    """Grade policy and critic for each question, on every decision that was replayed; ``scale`` as in ``Replay``."""
    own = Replay.of(setup, learned, scale)
    replays: dict[str, list[tuple[CounterfactualActor, Replay]]] = {}
    for actor, done in tried.values():
        replays.setdefault(actor.question.name, []).append((actor, Replay.of(setup, done, scale)))
    return {question: _graded(setup, own, of_question) for question, of_question in replays.items()}


def _graded(setup: EvaluationSetup, own: Replay, replays: list[tuple[CounterfactualActor, Replay]]) -> DecisionGrade:
    names = [item.name for item in setup.env.blueprints]
    exact = [same_until(own.done.turns, replay.done.turns, actor.asked_at) for actor, replay in replays]
    inexact = sum(int((actor.departed & ~same).sum()) for (actor, _), same in zip(replays, exact, strict=True))
    decisions: list[GradedDecision] = []
    for host in range(len(setup.tasks)):
        tried = zip(replays, exact, strict=True)
        kept = [(actor, replay) for (actor, replay), same in tried if same[host] and actor.departed[host]]
        if kept:
            actor, _ = kept[0]
            step = int(actor.asked_at[host])
            taken = own.choice(host, step, float(actor.own_log_prob[host]), names)
            others = tuple(replay.choice(host, step, float(at.log_prob[host]), names) for at, replay in kept)
            decisions.append(GradedDecision(row=host, step=step, taken=taken, others=others))
    return graded(decisions, setup.tasks.tolist(), inexact)


def graded(decisions: Sequence[GradedDecision], tasks: Sequence[int], inexact: int) -> DecisionGrade:
    """Derive all figures from the decisions; ``tasks`` are those of the rows, and intervals are over tasks."""
    of_task = [tasks[each.row] for each in decisions]
    advantage = [each.taken.score - float(np.mean([other.score for other in each.others])) for each in decisions]
    regret = [
        max((each.taken, *each.others), key=lambda choice: choice.val_score).score - each.taken.score
        for each in decisions
    ]
    best = [each.taken.score >= max(other.score for other in each.others) for each in decisions]
    pairs = [
        (other.expected - each.taken.expected, other.return_to_go - each.taken.return_to_go)
        for each in decisions
        for other in each.others
    ]
    return DecisionGrade(
        decisions=tuple(decisions),
        inexact=inexact,
        best=float(np.mean(best)) if best else None,
        chance=float(np.mean([1 / (1 + len(each.others)) for each in decisions])) if best else None,
        advantage=_over_tasks(advantage, of_task),
        regret=_over_tasks(regret, of_task),
        critic=critic(pairs),
    )


def _over_tasks(values: list[float], tasks: list[int]) -> Interval | None:
    """Return the interval over the means of tasks, over hosts where there is one task; None below two values."""
    means = [float(np.mean([values[k] for k in places])) for places in rows_by_task(dict(enumerate(tasks)))]
    return mean_interval(means) if len(means) > 1 else None


def critic(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Return Spearman's rank correlation of expected and true differences between an alternative and what was done;
    None of too few pairs, or where one of both never changes.
    """
    table: NDArray[np.float64] = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if len(table) < FEWEST_PAIRS or (np.ptp(table, axis=0) == 0.0).any():
        return None
    rank = float(np.corrcoef(stats.rankdata(table, axis=0).T)[0, 1])  # of equals the mean rank
    if abs(rank) == 1.0:
        return Interval(rank, rank, rank)  # Fisher's z has no end there
    half = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)) * np.sqrt(RANK_VARIANCE / (len(table) - 3))
    low, high = np.tanh(np.arctanh(rank) + np.array([-half, half]))
    return Interval(rank, float(low), float(high))
