"""Hand rules of two families, and those that were tuned as an actor.

*In order*: try one seed after the other, keep the first that contributes more than a threshold. *Return to the best*:
try some, each for as long, then grow the one again that contributed most. What there is at the end is kept if it helps.
The order is one for all hosts, or each host's own, by the alignment of blueprints with its task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from simic import params as params_module
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.evaluation.endpoints import SETTINGS
from simic.evaluation.result import TunedRule, TunedRules, read_rules
from simic.evaluation.trials import NONE, ByLength, Managed, Opening, TrialActor, TrialPlan, possible_openings
from simic.params import Lifecycle, Params

PUBLISHED = Path(__file__).parents[1] / "published" / "rules"  # NAME.json for each setting that was tuned for


@dataclass(frozen=True)
class HandRule:
    """Try ``order``, each for ``patience`` epochs; ``threshold`` in points, or None: return to the best of them.
    With ``priorities`` (``TrialPlan``) every host has its own order, and ``tries`` are tried at most.
    """

    order: tuple[Opening, ...]
    patience: int
    threshold: float | None
    priorities: tuple[tuple[float, float], ...] = ()
    tries: int | None = None

    @property
    def plan(self) -> TrialPlan:
        returns = self.threshold is None
        threshold = float("inf") if self.threshold is None else self.threshold
        tries = self.tries or len(self.order)
        return TrialPlan(self.order, tries, self.patience, threshold, returns, self.priorities)


class HandRules(TrialActor):
    """Plays a rule of its own on each host, or one on all."""

    def __init__(self, lifecycle: Lifecycle, rules: Sequence[HandRule]) -> None:
        super().__init__(lifecycle, [rule.plan for rule in rules])

    def start(self, episode: Episode) -> None:
        """Forget all seeds."""
        super().start(episode)
        self.most = torch.full((len(self.rows),), -torch.inf, device=self.rows.device)  # points
        self.best = torch.full_like(self.tried, NONE)  # place in the order

    def note(self, situation: Situation, seed: Managed, judged: Tensor) -> None:
        """Remember which try contributed most."""
        better = judged & (seed.contribution > self.most)
        self.most = torch.where(better, seed.contribution, self.most)
        self.best = torch.where(better, self.tried - 1, self.best)

    def choose(self, situation: Situation) -> Tensor:
        """Return the place of the try that contributed most."""
        return self.best


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
    return params_module.digest(prepare, {name: train[name] for name in SETTINGS if name != "episode_steps"})


def known(params: Params, folder: Path = PUBLISHED) -> TunedRules | None:
    """Return the rules in ``folder`` that were tuned for this setting; None where there are none."""
    wanted = setting(params)
    for path in sorted(folder.glob("*.json")):
        rules = read_rules(path)
        if rules.tuned_for == wanted:
            return rules
    return None


def published_for(family: str, folder: Path = PUBLISHED) -> TunedRules | None:
    """Return the rules that were tuned on the suite of this family's name, if there are any."""
    path = folder / f"{family}.json"
    return read_rules(path) if path.exists() else None


def tuned_actor(env: GrowthEnv, tuned: TunedRules) -> ByLength:
    """Return what plays the rule that was tuned for the length of the episode, or for the length nearest to it."""
    names, openings, lifecycle = [item.name for item in env.blueprints], possible_openings(env), env.train.lifecycle
    return ByLength({each.epochs: HandRules(lifecycle, [rule_of(each, names, openings)]) for each in tuned.rules})
