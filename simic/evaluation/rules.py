"""Hand rules: try some seeds one after the other, then decide. Also those rules that were tuned, as an actor.

*In order*: keep the first seed that contributes more than a threshold. *Return to the best*: try some, each for as
long, then grow the one again that contributed most. What there is at the end is kept if it helps. The order is one for
all hosts, or each host's own, by the alignment of blueprints with its task.

A seed is judged after so many epochs in HOLDING, where its contribution is measured. All hosts are decided at once, and
each may go by a rule of its own. What happens before the last decisions does not depend on the length of the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from simic import params as params_module
from simic.agent.spec import Observation
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import alignment
from simic.envs.patient import FULL_ALPHA, TEMPO, steps_to_clear, steps_to_finish
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.evaluation.endpoints import SETTINGS
from simic.evaluation.result import TunedRule, TunedRules, read_rules
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.params import Lifecycle, Params

Opening = tuple[int, int]  # slot, index of the blueprint

PUBLISHED = Path(__file__).parents[1] / "published" / "rules"  # NAME.json for each setting that was tuned for
NONE = -1


def last_decisions(lifecycle: Lifecycle) -> int:
    """Return how many decisions at the end of an episode can no longer replace a seed: the next could not be kept."""
    free_at_once = lifecycle.embargo_steps == lifecycle.reset_steps == 0
    return steps_to_finish(lifecycle) + (0 if free_at_once else steps_to_clear(lifecycle))


def possible_openings(env: GrowthEnv) -> list[Opening]:
    """Return every slot and blueprint that a bare host of the environment may begin with."""
    return [(slot, kind) for slot, kind in env.openings.nonzero().tolist()]


@dataclass(frozen=True)
class HandRule:
    """Try the first ``tries`` of ``order`` (default: all), each until it was ``patience`` epochs in HOLDING. One that
    contributes more than ``threshold`` points is kept at once, else the last stays; without a threshold the best of
    them is grown again.

    With ``priorities``, a slope and an offset for each of ``order``, a host has an order of its own: by slope times the
    alignment of the blueprint with its task, plus offset, the largest first.
    """

    order: tuple[Opening, ...]
    patience: int
    threshold: float | None
    priorities: tuple[tuple[float, float], ...] = ()
    tries: int | None = None

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


class HandRules:
    """Plays a rule of its own on each host, or one on all.

    At the last decision a seed that contributes above 0 is kept, whatever the rule.
    """

    def __init__(self, lifecycle: Lifecycle, rules: Sequence[HandRule]) -> None:
        length = max(len(rule.order) for rule in rules)
        self.tail = last_decisions(lifecycle)
        orders, priorities = zip(*(rule.padded(length) for rule in rules), strict=True)
        self.numbers = (
            torch.tensor(orders),
            torch.tensor(priorities),
            torch.tensor([rule.tries or len(rule.order) for rule in rules]),
            torch.tensor([rule.patience for rule in rules]),
            torch.tensor([torch.inf if rule.threshold is None else rule.threshold for rule in rules]),
            torch.tensor([rule.threshold is None for rule in rules]),
        )
        openings = {opening for rule in rules for opening in rule.order}
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
        hosts, device = len(episode.env_ids), episode.env_ids.device
        self.steps = episode.steps
        self.rows = torch.arange(hosts, device=device)
        self.order, self.priorities, self.tries, self.patience, self.threshold, self.returns = (
            values.to(device).expand(hosts, *values.shape[1:]) for values in self.numbers
        )
        self.ordered = not bool(self.priorities[..., 0].any())  # else by what is seen at the first decision
        self.tried = torch.zeros(hosts, dtype=torch.int64, device=device)
        self.most = torch.full((hosts,), -torch.inf, device=device)  # points
        self.best = torch.full_like(self.tried, NONE)  # place in the order of what contributed most
        self.chosen = torch.full_like(self.tried, NONE)  # place of what grows after the last try
        self.settled = torch.zeros(hosts, dtype=torch.bool, device=device)  # the chosen one grows

    def note(self, seed: Managed, judged: Tensor) -> None:
        """Remember which try contributed most; ``judged`` bool ``[E]``: this is the last epoch of a try."""
        better = judged & (seed.contribution > self.most)
        self.most = torch.where(better, seed.contribution, self.most)
        self.best = torch.where(better, self.tried - 1, self.best)

    def act(self, situation: Situation) -> Action:
        if not self.ordered:
            self._put_in_order(situation.observation)
        seed, left = Managed.of(situation.slots), self.steps - situation.step
        judged = seed.holding & seed.contribution.isfinite() & (seed.dwell >= self.patience)
        late = seed.busy & ~seed.holding & (seed.age > self.tail + self.patience)  # a gate that will not open
        self.note(seed, judged & ~self.settled)
        wanted = self._wanted(judged | late)
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

    def _wanted(self, over: Tensor) -> Tensor:
        """Return the place in the order ``[E]`` of what should grow next; NONE: nothing else. ``over``: a try ended."""
        ended = self.returns & (self.tried == self.tries) & over & (self.chosen == NONE)
        self.chosen = torch.where(ended, self.best, self.chosen)
        self.settled = self.settled | (ended & ((self.chosen == NONE) | (self.chosen == self.tries - 1)))
        following = torch.where(self.returns & ~self.settled, self.chosen, NONE)
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


class ByLength:
    """Plays the rules for the length of the episode, or for the length nearest to it; of two the shorter."""

    def __init__(self, by_epochs: Mapping[int, HandRules]) -> None:
        self.by_epochs = dict(by_epochs)
        asked = [actor.asks for actor in self.by_epochs.values()]
        self.asks = {head: tuple(sorted({index for each in asked for index in each[head]})) for head in asked[0]}

    def start(self, episode: Episode) -> None:
        self.actor = self.by_epochs[min(self.by_epochs, key=lambda epochs: (abs(epochs - episode.steps), epochs))]
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        return self.actor.act(situation)


# --- tuned rules -----------------------------------------------------------------------------------------------------


def rule_of(tuned: TunedRule, blueprints: Sequence[str], openings: Sequence[Opening]) -> HandRule:
    """Return a tuned rule for a host that can grow ``openings``: it leaves out what would be too large there.
    SimicError where nothing is left.
    """
    named = {opening_name(opening, blueprints): opening for opening in openings}
    places = [place for place, name in enumerate(tuned.order) if name in named]
    if not places:
        raise SimicError(f"tuned rule: none of {', '.join(tuned.order)} can grow here: possible are {', '.join(named)}")
    order, priorities = tuple(named[tuned.order[k]] for k in places), tuned.priorities
    own = tuple(priorities[k] for k in places) if priorities else ()
    return HandRule(order, tuned.patience, tuned.threshold, own, tuned.tries and min(tuned.tries, len(order)))


def opening_name(opening: Opening, blueprints: Sequence[str]) -> str:
    """Return ``BLUEPRINT at SLOT``, as schedules are named."""
    slot, kind = opening
    return f"{blueprints[kind]} at {slot}"


def setting(params: Params) -> str:
    """Return the sha256 of what rules are tuned for: the kinds of tasks, and how their hosts grow, but for how long and
    on how many tasks.
    """
    prepare, train = params.prepare.model_dump(mode="json"), params.train.model_dump(mode="json")
    prepare["suite"] = {name: prepare["suite"][name] for name in ("name", "kinds")}
    del prepare["gym"]
    return params_module.digest(prepare, {name: train[name] for name in SETTINGS if name != "episode_steps"})


def known(params: Params) -> TunedRules | None:
    """Return the published rules that were tuned for this setting; None where there are none."""
    wanted = setting(params)
    for path in sorted(PUBLISHED.glob("*.json")):
        rules = read_rules(path)
        if rules.tuned_for == wanted:
            return rules
    return None


def published_for(family: str) -> TunedRules | None:
    """Return the rules that were tuned on the suite of this family's name, if there are any."""
    path = PUBLISHED / f"{family}.json"
    return read_rules(path) if path.exists() else None


def tuned_actor(env: GrowthEnv, tuned: TunedRules) -> ByLength:
    """Return what plays the rule that was tuned for the length of the episode, or for the length nearest to it."""
    names, openings, lifecycle = [item.name for item in env.blueprints], possible_openings(env), env.train.lifecycle
    return ByLength({each.epochs: HandRules(lifecycle, [rule_of(each, names, openings)]) for each in tuned.rules})
