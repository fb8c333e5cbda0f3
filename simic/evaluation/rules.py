"""Grow by hand rules: try some seeds one after the other, then decide. Rules that were tuned come with simic.

*In order*: keep the first seed that contributes more than a threshold. *Return to the best*: try some, each for as
long, then grow the one again that contributed most. At the end a seed that helps is kept, whatever the rule. The order
is one for all hosts, or is made for each host, by the alignment of blueprints with its task.

A seed is judged after so many epochs in HOLDING, where its contribution is measured. All hosts are decided at once;
their rules may differ. What happens before the last decisions does not depend on the length of the episode.
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
from simic.envs.patient import PLAIN_SEED, plain_action, steps_to_clear, steps_to_finish
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.evaluation.endpoints import SETTINGS
from simic.evaluation.result import TunedRule, TunedRules, read_rules
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.params import Lifecycle, Params

# A slot, and the index of a blueprint.
Opening = tuple[int, int]

# NAME.json for each setting that was tuned for.
PUBLISHED = Path(__file__).parents[1] / "published" / "rules"
NONE = -1


def last_decisions(lifecycle: Lifecycle) -> int:
    """Count the decisions at the end of an episode that can no longer replace a seed: the next could not be kept."""
    free_at_once = lifecycle.embargo_steps == lifecycle.reset_steps == 0
    return steps_to_finish(lifecycle) + (0 if free_at_once else steps_to_clear(lifecycle))


def possible_openings(env: GrowthEnv) -> list[Opening]:
    """List every slot and blueprint that a bare host of the environment may begin with."""
    return [(slot, kind) for slot, kind in env.openings.nonzero().tolist()]


@dataclass(frozen=True)
class HandRule:
    """Try openings in an order. One that contributes more than the threshold is kept at once, else the last stays;
    without a threshold the best of them is grown again.

    With ``priorities`` every host has its order: by slope times the alignment of the blueprint with its task, plus
    offset, the largest first.
    """

    order: tuple[Opening, ...]
    # Epochs in HOLDING.
    patience: int
    threshold: float | None  # points
    # Slope and offset of each opening.
    priorities: tuple[tuple[float, float], ...] = ()
    # How many openings are tried; None: all.
    tries: int | None = None

    def padded(self, length: int) -> tuple[list[Opening], list[tuple[float, float]]]:
        """Lengthen the order and its priorities by the last opening over and over; it is never tried."""
        priorities = self.priorities or tuple(
            (0.0, -float(place)) for place in range(len(self.order))
        )
        missing = length - len(self.order)
        order = [*self.order, *[self.order[-1]] * missing]
        return order, [*priorities, *[(0.0, -torch.inf)] * missing]


@dataclass(frozen=True)
class Managed:
    """Hold the unfinished seed of every host ``[E]``."""

    # Whether there is such a seed, bool.
    busy: Tensor
    slot: Tensor
    # Whether it is in HOLDING, bool.
    holding: Tensor
    # Epochs in its stage.
    dwell: Tensor
    age: Tensor
    # Points, NaN where there is no seed.
    contribution: Tensor

    @classmethod
    def of(cls, slots: Slots) -> Self:
        """Find the first unfinished seed."""
        unfinished = in_stages(slots.stage, LIVE_STAGES - {Stage.FOSSILIZED})
        busy = unfinished.any(dim=1)
        slot = unfinished.int().argmax(dim=1)

        def of_seed(column: Tensor) -> Tensor:
            return column.gather(1, slot[:, None])[:, 0]

        return cls(
            busy=busy,
            slot=slot,
            holding=busy & (of_seed(slots.stage) == Stage.HOLDING),
            dwell=of_seed(slots.dwell),
            age=of_seed(slots.age),
            contribution=torch.where(busy, of_seed(slots.contribution), torch.nan),
        )


class HandRules:
    """Play one rule on all hosts, or one for each."""

    def __init__(self, lifecycle: Lifecycle, rules: Sequence[HandRule]) -> None:
        # A column of each setting, with a row for each rule: one rule serves all hosts by broadcasting.
        length = max(len(rule.order) for rule in rules)
        self.tail = last_decisions(lifecycle)
        orders, priorities = zip(*(rule.padded(length) for rule in rules), strict=True)
        self.columns = {
            "order": torch.tensor(orders),
            "priorities": torch.tensor(priorities),
            "tries": torch.tensor([rule.tries or len(rule.order) for rule in rules]),
            "patience": torch.tensor([rule.patience for rule in rules]),
            "threshold": torch.tensor(
                [torch.inf if rule.threshold is None else rule.threshold for rule in rules]
            ),
            "returns": torch.tensor([rule.threshold is None for rule in rules]),
        }
        # What it will choose, so that actions which are closed are refused before anything plays.
        openings = {opening for rule in rules for opening in rule.order}
        self.asks: dict[str, tuple[int, ...]] = {
            "op": (Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE),
            "slot": tuple(sorted({slot for slot, _ in openings})),
            "blueprint": tuple(sorted({kind for _, kind in openings})),
            **PLAIN_SEED,
            "alpha_speed": (0,),
            "alpha_curve": (0,),
        }

    def start(self, episode: Episode) -> None:
        hosts = len(episode.env_ids)
        device = episode.env_ids.device
        self.steps = episode.steps
        self.rows = torch.arange(hosts, device=device)

        # The rule of each host.
        columns = {
            name: column.to(device).expand(hosts, *column.shape[1:])
            for name, column in self.columns.items()
        }
        self.order = columns["order"]
        self.priorities = columns["priorities"]
        self.tries = columns["tries"]
        self.patience = columns["patience"]
        self.threshold = columns["threshold"]
        self.returns = columns["returns"]

        # How far it is.
        # Priorities with a slope need alignments, which the first decision sees.
        self.ordered = not bool(self.priorities[..., 0].any())
        self.tried = torch.zeros(hosts, dtype=torch.int64, device=device)
        self.most = torch.full((hosts,), -torch.inf, device=device)  # points
        self.best = torch.full_like(self.tried, NONE)  # place in the order of what contributed most
        self.chosen = torch.full_like(self.tried, NONE)  # place of what grows after the last try
        self.settled = torch.zeros(hosts, dtype=torch.bool, device=device)  # the chosen one grows

    def note(self, seed: Managed, judged: Tensor) -> None:
        """Remember which try contributed most; ``judged [E]``: this is the last epoch of a try."""
        better = judged & (seed.contribution > self.most)
        self.most = torch.where(better, seed.contribution, self.most)
        self.best = torch.where(better, self.tried - 1, self.best)

    def act(self, situation: Situation) -> Action:
        if not self.ordered:
            self._put_in_order(situation.observation)
        seed = Managed.of(situation.slots)
        remaining = self.steps - situation.step

        # Judge the seed that there is.
        judged = seed.holding & seed.contribution.isfinite() & (seed.dwell >= self.patience)
        # A gate that does not open must not end the search.
        late = seed.busy & ~seed.holding & (seed.age > self.tail + self.patience)
        over = judged | late
        self.note(seed, judged & ~self.settled)
        # In the last step any seed that helps is kept: there is no time for a better one.
        good = judged & (seed.contribution > self.threshold)
        if remaining == 1:
            good |= seed.holding & (seed.contribution > 0)

        # Choose what grows next.
        place = self._next_place(over)
        if remaining <= self.tail:
            place = torch.full_like(place, NONE)
        return self._action(situation, seed, place, good, over)

    def _put_in_order(self, observation: Observation) -> None:
        """Sort the openings of every host by priority; equal ones keep their places."""
        aligned = alignment(observation.features, observation.masks["blueprint"].shape[-1])
        aligned = aligned.gather(1, self.order[..., 1])
        slope, offset = self.priorities.unbind(dim=2)
        places = (slope * aligned + offset).argsort(dim=1, descending=True, stable=True)
        self.order = self.order.gather(1, places[..., None].expand_as(self.order))
        self.ordered = True

    def _next_place(self, over: Tensor) -> Tensor:
        """Choose the place in the order ``[E]`` of what grows next; NONE: nothing. ``over [E]``: a try ended."""
        ended = self.returns & (self.tried == self.tries) & over & (self.chosen == NONE)
        self.chosen = torch.where(ended, self.best, self.chosen)
        # Nothing contributed, or the best is the last one tried, which stands already.
        stays = (self.chosen == NONE) | (self.chosen == self.tries - 1)
        self.settled = self.settled | (ended & stays)
        following = torch.where(self.returns & ~self.settled, self.chosen, NONE)
        return torch.where(self.tried < self.tries, self.tried, following)

    def _action(
        self, situation: Situation, seed: Managed, place: Tensor, good: Tensor, over: Tensor
    ) -> Action:
        masks = situation.observation.masks
        rows = self.rows

        # Germinate into a free slot, or over the seed that was tried.
        slot, kind = self.order[rows, place.clamp(min=0)].unbind(dim=1)
        is_open = masks["slot"][rows, int(Op.GERMINATE), slot]
        fits = masks["blueprint"][rows, slot, kind]
        replaces = over & ~good & (slot == seed.slot)
        germinate = (place != NONE) & is_open & fits & (~seed.busy | replaces)

        # Else keep a good seed, remove one whose try is over, or let it go on.
        may_advance = masks["slot"][rows, int(Op.ADVANCE), seed.slot]
        op = torch.where(may_advance, int(Op.ADVANCE), int(Op.WAIT))
        op = torch.where(over & (place != NONE), int(Op.PRUNE), op)
        op = torch.where(good, int(Op.FOSSILIZE), op)
        op = torch.where(seed.busy & masks["slot"][rows, op, seed.slot], op, int(Op.WAIT))
        op = torch.where(germinate, int(Op.GERMINATE), op)

        # What grows after the last try is the one that stays.
        self.settled = self.settled | (germinate & (self.tried == self.tries))
        self.tried = self.tried + (germinate & (self.tried < self.tries))
        slot = torch.where(germinate, slot, seed.slot)
        return plain_action(op, slot, kind)


class ByLength:
    """Play the rules for the length of the episode, or for the length nearest to it; of two the shorter."""

    def __init__(self, by_epochs: Mapping[int, HandRules]) -> None:
        self.by_epochs = dict(by_epochs)
        choices = [actor.asks for actor in self.by_epochs.values()]
        self.asks = {
            head: tuple(sorted({index for of_actor in choices for index in of_actor[head]}))
            for head in choices[0]
        }

    def start(self, episode: Episode) -> None:
        nearest = min(self.by_epochs, key=lambda epochs: (abs(epochs - episode.steps), epochs))
        self.actor = self.by_epochs[nearest]
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        return self.actor.act(situation)


# --- tuned rules -----------------------------------------------------------------------------------------------------


def rule_of(tuned: TunedRule, blueprints: Sequence[str], openings: Sequence[Opening]) -> HandRule:
    """Translate a tuned rule for a host; openings that would be too large there are left out.

    Args:
        tuned: the rule.
        blueprints: names of the blueprints.
        openings: what the host can grow.

    Raises:
        SimicError: no opening of the rule is possible.
    """
    # By name, since slots and blueprints may be numbered otherwise where the rule was tuned.
    by_name = {opening_name(opening, blueprints): opening for opening in openings}
    places = [place for place, name in enumerate(tuned.order) if name in by_name]
    if not places:
        possible = ", ".join(by_name)
        raise SimicError(
            f"tuned rule: none of {', '.join(tuned.order)} can grow here: possible are {possible}"
        )
    return HandRule(
        order=tuple(by_name[tuned.order[place]] for place in places),
        patience=tuned.patience,
        threshold=tuned.threshold,
        priorities=tuple(tuned.priorities[place] for place in places) if tuned.priorities else (),
        tries=tuned.tries and min(tuned.tries, len(places)),
    )


def opening_name(opening: Opening, blueprints: Sequence[str]) -> str:
    """Name an opening as in schedules: ``BLUEPRINT at SLOT``."""
    slot, kind = opening
    return f"{blueprints[kind]} at {slot}"


def setting(params: Params) -> str:
    """Hash what rules are tuned for: the kinds of tasks, and how their hosts grow. How many tasks there are, and for
    how long hosts grow, does not count.
    """
    prepare = params.prepare.model_dump(mode="json")
    train = params.train.model_dump(mode="json")
    prepare["suite"] = {name: prepare["suite"][name] for name in ("name", "kinds")}
    del prepare["gym"]
    return params_module.digest(
        prepare, {name: train[name] for name in SETTINGS if name != "episode_steps"}
    )


def known(params: Params) -> TunedRules | None:
    """Look up the published rules that were tuned for this setting; None where there are none."""
    # By the hash of the setting: rules that were tuned for other hosts or prices would be no fair opponent.
    published = map(read_rules, sorted(PUBLISHED.glob("*.json")))
    tuned_for = setting(params)
    return next((rules for rules in published if rules.tuned_for == tuned_for), None)


def published_for(family: str) -> TunedRules | None:
    """Look up the rules that were tuned on the suite of this family's name; None where there are none."""
    path = PUBLISHED / f"{family}.json"
    return read_rules(path) if path.exists() else None


def tuned_actor(env: GrowthEnv, tuned: TunedRules) -> ByLength:
    """Make the player of tuned rules for the hosts of an environment."""
    names = [item.name for item in env.blueprints]
    openings = possible_openings(env)
    by_epochs: dict[int, HandRules] = {}
    for rule in tuned.rules:
        hand_rule = rule_of(rule, names, openings)
        by_epochs[rule.epochs] = HandRules(env.train.lifecycle, [hand_rule])
    return ByLength(by_epochs)
