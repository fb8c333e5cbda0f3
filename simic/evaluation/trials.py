"""Try some seeds one after the other, then decide: the machine that hand rules and supervised choosers share.

A seed is judged after so many epochs in HOLDING, where its contribution is measured. All hosts are decided at once, and
each may go by numbers of its own. What happens before the last decisions does not depend on the length of the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import alignment
from simic.envs.patient import steps_to_clear, steps_to_finish
from simic.envs.play import Episode, Situation
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import ALPHA_TARGETS, TEMPO_STEPS, Action, Op, Slots, Stage
from simic.params import Lifecycle

Opening = tuple[int, int]  # slot, index of the blueprint

TEMPO, FULL_ALPHA = TEMPO_STEPS.index(min(TEMPO_STEPS)), ALPHA_TARGETS.index(1.0)
NONE = -1


def last_decisions(lifecycle: Lifecycle) -> int:
    """Return how many decisions at the end of an episode can no longer replace a seed: the next could not be kept."""
    free_at_once = lifecycle.embargo_steps == lifecycle.reset_steps == 0
    return steps_to_finish(lifecycle) + (0 if free_at_once else steps_to_clear(lifecycle))


def possible_openings(env: GrowthEnv) -> list[Opening]:
    """Return every slot and blueprint that a bare host of the environment may begin with."""
    return [(slot, kind) for slot, kind in env.openings.nonzero().tolist()]


@dataclass(frozen=True)
class TrialPlan:
    """How one host is to be decided: try the first ``tries`` of ``order``, each until it was ``patience`` epochs in
    HOLDING. One that contributes more than ``threshold`` points is kept at once. After the last try one of ``order`` is
    chosen if ``chooses``, else the last stays.

    With ``priorities``, a slope and an offset for each of ``order``, a host has an order of its own: by slope times the
    alignment of the blueprint with its task, plus offset, the largest first.
    """

    order: tuple[Opening, ...]
    tries: int
    patience: int
    threshold: float
    chooses: bool
    priorities: tuple[tuple[float, float], ...] = ()

    def padded(self, length: int) -> tuple[list[Opening], list[tuple[float, float]]]:
        """Return ``length`` openings and their priorities, the last one over and over where there are fewer."""
        given = self.priorities or tuple((0.0, -float(place)) for place in range(len(self.order)))
        more = length - len(self.order)
        return [*self.order, *[self.order[-1]] * more], [*given, *[(0.0, -torch.inf)] * more]


@dataclass(frozen=True)
class Managed:
    """The unfinished seed of each host ``[E]``; measurements are NaN where there is none."""

    busy: Tensor  # bool: there is one
    slot: Tensor
    holding: Tensor  # bool
    dwell: Tensor  # epochs in its stage
    age: Tensor
    contribution: Tensor  # points

    @classmethod
    def of(cls, slots: Slots) -> Self:
        """Look at the first unfinished seed."""
        unfinished = in_stages(slots.stage, LIVE_STAGES - {Stage.FOSSILIZED})
        busy, slot = unfinished.any(dim=1), unfinished.int().argmax(dim=1)

        def of(values: Tensor) -> Tensor:
            return values.gather(1, slot[:, None])[:, 0]

        contribution = torch.where(busy, of(slots.contribution), torch.nan)
        holding = busy & (of(slots.stage) == Stage.HOLDING)
        return cls(busy, slot, holding, of(slots.dwell), of(slots.age), contribution)


class TrialActor:
    """Plays a plan of its own on each host, or one on all. A subclass says what is chosen after the last try.

    At the last decision a seed that contributes above 0 is kept, whatever the plan.
    """

    def __init__(self, lifecycle: Lifecycle, plans: Sequence[TrialPlan]) -> None:
        length = max(len(plan.order) for plan in plans)
        self.lifecycle, self.tail = lifecycle, last_decisions(lifecycle)
        orders, priorities = zip(*(plan.padded(length) for plan in plans), strict=True)
        self.numbers = {
            "order": torch.tensor(orders),
            "priorities": torch.tensor(priorities),
            **{
                name: torch.tensor([getattr(plan, name) for plan in plans])
                for name in ("tries", "patience", "threshold", "chooses")
            },
        }
        openings = {opening for plan in plans for opening in plan.order}
        self.asks: dict[str, tuple[int, ...]] = {
            "op": (Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE),
            "slot": tuple(sorted({slot for slot, _ in openings})),
            "blueprint": tuple(sorted({kind for _, kind in openings})),
            "style": (0,),
            "tempo": (TEMPO,),
            "alpha_target": (FULL_ALPHA,),
            "alpha_speed": (0,),
            "alpha_curve": (0,),
        }

    def start(self, episode: Episode) -> None:
        """Forget all seeds; the plans stay."""
        hosts, device = len(episode.env_ids), episode.env_ids.device
        self.steps = episode.steps
        self.rows = torch.arange(hosts, device=device)
        self.order, self.priorities, self.tries, self.patience, self.threshold, self.chooses = (
            values.to(device).expand(hosts, *values.shape[1:]) for values in self.numbers.values()
        )
        self.ordered = not bool(self.priorities[..., 0].any())  # else by what is seen at the first decision
        self.tried = torch.zeros(hosts, dtype=torch.int64, device=device)
        self.chosen = torch.full((hosts,), NONE, device=device)  # place in the order
        self.settled = torch.zeros(hosts, dtype=torch.bool, device=device)  # the chosen one grows

    def choose(self, situation: Situation) -> Tensor:
        """Return the place in the order ``[E]`` of what is to grow after the last try; NONE: what is there."""
        raise NotImplementedError

    def note(self, situation: Situation, seed: Managed, judged: Tensor) -> None:
        """Remember what is seen of the seeds that are tried; ``judged`` bool ``[E]``: this is their last such epoch."""
        raise NotImplementedError

    def act(self, situation: Situation) -> Action:
        """Decide one step of all hosts."""
        if not self.ordered:
            self._put_in_order(situation.observation)
        seed, left = Managed.of(situation.slots), self.steps - situation.step
        judged = seed.holding & seed.contribution.isfinite() & (seed.dwell >= self.patience)
        late = seed.busy & ~seed.holding & (seed.age > self.tail + self.patience)  # a gate that will not open
        self.note(situation, seed, judged & ~self.settled)
        wanted = self._wanted(situation, judged | late)
        if left <= self.tail:
            wanted = torch.full_like(wanted, NONE)
        good = judged & (seed.contribution > self.threshold)
        if left == 1:
            good |= seed.holding & (seed.contribution > 0)
        return self._action(situation, seed, wanted, good, judged | late)

    def _put_in_order(self, observation: Observation) -> None:
        """Give every host its own order; equal priorities keep their places."""
        aligned = alignment(observation.features, observation.masks["blueprint"].shape[-1])
        aligned = aligned.gather(1, self.order[..., 1])
        slope, offset = self.priorities.unbind(dim=2)
        places = (slope * aligned + offset).argsort(dim=1, descending=True, stable=True)
        self.order = self.order.gather(1, places[..., None].expand_as(self.order))
        self.ordered = True

    def _wanted(self, situation: Situation, over: Tensor) -> Tensor:
        """Return the place in the order ``[E]`` of what should grow next; NONE: nothing else. ``over``: a try ended."""
        ended = self.chooses & (self.tried == self.tries) & over & (self.chosen == NONE)
        if bool(ended.any()):
            self.chosen = torch.where(ended, self.choose(situation), self.chosen)
            self.settled = self.settled | (ended & ((self.chosen == NONE) | (self.chosen == self.tries - 1)))
        following = torch.where(self.chooses & ~self.settled, self.chosen, NONE)
        return torch.where(self.tried < self.tries, self.tried, following)

    def _action(self, situation: Situation, seed: Managed, wanted: Tensor, good: Tensor, over: Tensor) -> Action:
        masks, rows = situation.observation.masks, self.rows
        slot, kind = self.order[rows, wanted.clamp(min=0)].unbind(dim=1)
        germinable = masks["slot"][rows, int(Op.GERMINATE), slot] & masks["blueprint"][rows, slot, kind]
        germinate = (wanted != NONE) & germinable & (~seed.busy | (over & ~good & (slot == seed.slot)))
        op = torch.where(masks["slot"][rows, int(Op.ADVANCE), seed.slot], int(Op.ADVANCE), int(Op.WAIT))
        op = torch.where(over & (wanted != NONE), int(Op.PRUNE), op)
        op = torch.where(good, int(Op.FOSSILIZE), op)
        op = torch.where(seed.busy & masks["slot"][rows, op, seed.slot], op, int(Op.WAIT))
        op = torch.where(germinate, int(Op.GERMINATE), op)
        self.settled = self.settled | (germinate & (self.tried == self.tries))
        self.tried = self.tried + (germinate & (self.tried < self.tries))
        slot, zero = torch.where(germinate, slot, seed.slot), torch.zeros_like(op)
        return Action(op, slot, kind, zero, zero + TEMPO, zero + FULL_ALPHA, zero, zero)


class Alone(TrialActor):
    """Grows one seed on each host and records its contribution after its first epochs."""

    def start(self, episode: Episode) -> None:
        """Forget all seeds."""
        super().start(episode)
        shape = len(self.rows), int(self.patience.max())
        self.contributions = torch.full(shape, torch.nan, device=self.rows.device)  # [E, patience] points

    def note(self, situation: Situation, seed: Managed, judged: Tensor) -> None:
        """Write down this epoch of the seeds in HOLDING."""
        epoch = (seed.dwell - 1).clamp(0, self.contributions.shape[1] - 1)[:, None]
        written = self.contributions.scatter(1, epoch, seed.contribution.float()[:, None])
        trying = seed.holding & (self.chosen == NONE) & (seed.dwell <= self.patience)
        self.contributions = torch.where(trying[:, None], written, self.contributions)

    def choose(self, situation: Situation) -> Tensor:
        """Return the place of the only seed there is."""
        return torch.zeros_like(self.rows)


class ByLength:
    """Plays the actor for the length of the episode, or for the length nearest to it; of two the shorter."""

    def __init__(self, by_epochs: Mapping[int, TrialActor]) -> None:
        self.by_epochs = dict(by_epochs)
        asked = [actor.asks for actor in self.by_epochs.values()]
        self.asks = {head: tuple(sorted({index for each in asked for index in each[head]})) for head in asked[0]}

    def start(self, episode: Episode) -> None:
        """Take the actor for an episode of this length."""
        self.actor = self.by_epochs[min(self.by_epochs, key=lambda epochs: (abs(epochs - episode.steps), epochs))]
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        """Decide as that actor does."""
        return self.actor.act(situation)
