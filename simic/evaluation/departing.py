"""The learned policy but for one decision: what else it could have chosen, and one of that in place of its own choice.

All else stays: host, order of samples, and the policy itself, which decides from then on by what it sees. So what ends
otherwise does so because of that decision (a counterfactual replay).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from simic.agent.core import RecurrentState
from simic.agent.distributions import MASKED_LOGIT
from simic.agent.policy import ActorCritic
from simic.agent.spec import Observation
from simic.envs.actions import to_action
from simic.envs.play import Episode, Situation
from simic.growth.life.vocabulary import Action, Op
from simic.training.learned import LearnedActor

NAMED = 3  # heads that tell choices apart: op, slot and blueprint; the others are as the policy would have them then


@dataclass(frozen=True)
class Offers:
    """All choices of op, slot and blueprint that N states may have: whole ``actions [N, A, heads]`` and the log-
    probability ``[N, A]`` of these three heads together, -inf where the masks forbid them.
    """

    actions: Tensor
    log_prob: Tensor

    @classmethod
    def of(cls, policy: ActorCritic, seen: Observation, memory: RecurrentState) -> "Offers":
        """At a normalised observation after what is remembered."""
        z, _, _ = policy.remember(seen, memory)
        joint, used = policy.joint(z, seen.masks), policy.action_spec.relevance
        slots, kinds = (range(head.size) for head in policy.action_spec.heads[1:NAMED])
        named = [
            (op, slot, kind)
            for op, uses in enumerate(used)
            for slot, kind in product(slots if uses[1] else (0,), kinds if uses[2] else (0,))
        ]
        op, slot, kind = torch.tensor(named, device=z.device).T
        levels = [joint.op[:, op], _of_slot(joint.slot)[:, op, slot], joint.rest[0][:, op, slot, kind]]
        relevant = policy.relevance[op]
        log_prob = torch.where(relevant[:, :NAMED], torch.stack(levels, dim=-1), 0.0).sum(dim=-1)
        likeliest = [level.argmax(dim=-1)[:, op, slot] for level in joint.rest[1:]]
        heads = torch.stack([*(column.expand(len(z), -1) for column in (op, slot, kind)), *likeliest], dim=-1)
        possible = log_prob > MASKED_LOGIT / 2
        return cls(torch.where(relevant, heads, 0), torch.where(possible, log_prob, -torch.inf))

    def are(self, action: Action) -> Tensor:
        """Bool ``[N, A]``: which one an action ``[N]`` is."""
        return (self.actions[..., :NAMED] == torch.stack(action[:NAMED], dim=-1)[:, None]).all(dim=-1)


def _of_slot(level: Tensor | None) -> Tensor:
    assert level is not None  # every action of growth has a slot head
    return level


@dataclass(frozen=True)
class Question:
    """Which decision of an episode is asked about, and what else could have been chosen then.

    ``due`` says of a situation and the policy's own action whether it is this decision (bool ``[E]``; the first such
    counts), ``others`` of the offers and that action which are its alternatives (bool ``[E, A]``).
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
    """Whatever is decided in that step of an episode (from 0), and all that is legal then."""
    return Question(
        f"step {step}",
        lambda situation, action: torch.full_like(action.op, situation.step == step, dtype=torch.bool),
        lambda offers, action: ~offers.are(action),
    )


class Departing(LearnedActor):
    """The policy, greedy, which answers a question otherwise: with the alternative of that ``rank [E]`` (1: the
    likeliest of them; 0: none, its own choice). Where there are not so many it does as it would.
    """

    def __init__(self, actor: LearnedActor, question: Question, rank: Tensor | int) -> None:
        super().__init__(actor.policy, actor.normalizers, greedy=True)
        self.question, self.rank = question, rank

    def start(self, episode: Episode) -> None:
        """Nothing was asked yet."""
        super().start(episode)
        nowhere = torch.full_like(episode.env_ids, -1)
        self.asked_at = nowhere  # step at which the question came up, -1: never
        self.departed = torch.zeros_like(nowhere, dtype=torch.bool)
        self.log_prob = self.own_log_prob = nowhere.float()  # then: of what was done, and of the policy's own choice

    def act(self, situation: Situation) -> Action:
        """The policy's own action, or the alternative."""
        memory = self.memory
        action = super().act(situation)
        due = (self.asked_at < 0) & situation.alive & self.question.due(situation, action)
        if not bool(due.any()):
            return action
        seen = self.normalizers.see(situation.observation)
        offers = Offers.of(self.policy, seen, memory)
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
        """The places ``[E]`` in the offers of the policy's own choice and of what is done, and whether they differ."""
        own, candidates = offers.are(action), self.question.others(offers, action)
        order = torch.where(candidates, offers.log_prob, -torch.inf).masked_fill(own, torch.inf)
        ranked = order.argsort(dim=1, descending=True, stable=True)
        rank = torch.as_tensor(self.rank, device=own.device).expand(len(own))[:, None]
        exists = (rank < (order > -torch.inf).sum(dim=1, keepdim=True)) & (rank > 0)
        place = ranked.gather(1, torch.where(exists, rank, 0))
        return ranked[:, 0], place[:, 0], exists[:, 0]
