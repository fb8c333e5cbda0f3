"""What the policy sees, as one table of name, index, unit, range, source; run this module to print the table.

Every column is bounded by construction (ratios, symlog over its largest value, x/(1+x)), so the running normaliser is
a light touch. A missing value is 0 with its own flag beside it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from simic.agent.spec import ObservationSpec
from simic.envs.records import EpisodeState
from simic.growth.life.lifecycle import in_stages
from simic.growth.life.vocabulary import TEMPO_STEPS, Blend, Op, Ramp, Stage

VERSION = 5  # of the table below; a checkpoint of another version is refused
EPOCHS_UNIT = 8.0
HISTORY = 5  # validation results shown, the newest first


@dataclass(frozen=True)
class View:
    """All an observation is computed from, measured at the same moment."""

    state: EpisodeState
    step: int
    episode_steps: int
    chance_loss: Tensor  # [E] nats
    host_params: int
    param_budget: float
    alignment: Tensor  # [E, P] of each blueprint with the host's task, -1…1; 0 where seeds do not read the row

    @property
    def left(self) -> int:
        """The steps of the episode that are still to come."""
        return self.episode_steps - self.step


@dataclass(frozen=True)
class Feature:
    """One column (per slot: one for each slot). ``flag`` columns are 0 or 1 and left alone by the normaliser."""

    name: str
    unit: str
    low: float
    high: float
    source: str
    values: Callable[[View], Tensor]

    @property
    def flag(self) -> bool:
        return self.unit == "flag"


def ratio(x: Tensor) -> Tensor:
    """Map x ≥ 0 to x/(1+x), in [0, 1]; infinity is 1 and missing is 0."""
    return torch.nan_to_num(1.0 - 1.0 / (1.0 + x), nan=0.0)


def points(x: Tensor) -> Tensor:
    """Map a difference of accuracies in points to symlog(x)/symlog(100), in [-1, 1]; missing is 0."""
    return torch.nan_to_num(x.sign() * x.abs().log1p() / math.log1p(100.0), nan=0.0).clamp(
        -1.0, 1.0
    )


def fraction(x: Tensor) -> Tensor:
    """Map an accuracy in points to a fraction, in [0, 1]; missing is 0."""
    return torch.nan_to_num(x / 100.0, nan=0.0)


def epochs(steps: Tensor) -> Tensor:
    """Map a number of steps to x/(8+x), in [0, 1]: the same in episodes of any length."""
    return ratio(steps / EPOCHS_UNIT)


def _lags() -> list[Feature]:
    """List the columns of the last validation results; index -1 of the tracker's windows is the newest."""
    table = []
    for lag in range(HISTORY):
        # Bound as a default of each lambda below: a free name would be the loop's last one.
        at = -1 - lag
        table += [
            Feature(
                f"loss_lag_{lag}", "loss / chance, x/(1+x)", 0, 1, "tracker.losses",
                lambda v, at=at: ratio(v.state.tracker.losses[:, at] / v.chance_loss),
            ),
            Feature(
                f"accuracy_lag_{lag}", "fraction", 0, 1, "tracker.accuracies",
                lambda v, at=at: fraction(v.state.tracker.accuracies[:, at]),
            ),
            Feature(
                f"missing_lag_{lag}", "flag", 0, 1, "tracker",
                lambda v, at=at: v.state.tracker.losses[:, at].isnan() | v.state.tracker.accuracies[:, at].isnan(),
            ),
        ]  # fmt: skip
    return table


def _share(*stages: Stage) -> Callable[[View], Tensor]:
    return lambda v: in_stages(v.state.slots.stage, frozenset(stages)).float().mean(dim=1)


def _is(column: str, member: int) -> Callable[[View], Tensor]:
    return lambda v: getattr(v.state.slots, column) == member


def _missing(column: str) -> Callable[[View], Tensor]:
    return lambda v: getattr(v.state.slots, column).isnan()


BASE: tuple[Feature, ...] = (
    Feature("time", "step / episode", 0, 1, "step",
            lambda v: torch.full_like(v.state.trained.loss, v.step / v.episode_steps)),
    Feature("left", "steps, x/(8+x)", 0, 1, "step", lambda v: epochs(torch.full_like(v.state.trained.loss, v.left))),
    *_lags(),
    Feature("accuracy_gain", "points, symlog", -1, 1, "tracker", lambda v: points(v.state.tracker.accuracy_delta)),
    Feature("below_best", "points, symlog", -1, 1, "tracker",
            lambda v: points(v.state.tracker.accuracy - v.state.tracker.best_accuracy)),
    Feature("plateau", "steps, x/(8+x)", 0, 1, "tracker.plateau", lambda v: epochs(v.state.tracker.plateau)),
    Feature("stabilised", "flag", 0, 1, "tracker.stabilised", lambda v: v.state.tracker.stabilised),
    Feature("train_loss", "loss / chance, x/(1+x)", 0, 1, "train epoch",
            lambda v: ratio(v.state.trained.loss / v.chance_loss)),
    Feature("train_accuracy", "fraction", 0, 1, "train epoch", lambda v: fraction(v.state.trained.accuracy)),
    Feature("train_missing", "flag", 0, 1, "train epoch", lambda v: v.state.trained.loss.isnan()),
    Feature("training_share", "share of slots", 0, 1, "slots.stage", _share(Stage.TRAINING)),
    Feature("blending_share", "share of slots", 0, 1, "slots.stage", _share(Stage.BLENDING)),
    Feature("joined_share", "share of slots", 0, 1, "slots.stage", _share(Stage.HOLDING, Stage.FOSSILIZED)),
    Feature("growth", "seed / host parameters, x/(1+x)", 0, 1, "population",
            lambda v: ratio(v.state.seed_params.sum(dim=1) / v.host_params)),
    Feature("budget_used", "share of budget", 0, 1, "population",
            lambda v: (v.state.seed_params.sum(dim=1) / (v.param_budget * v.host_params)).clamp(max=1.0)),
    Feature("last_op_succeeded", "flag", 0, 1, "gate events", lambda v: v.state.succeeded),
    *(Feature(f"last_op_{op.name.lower()}", "flag", 0, 1, "effective op",
              lambda v, op=op: v.state.effective_op == op) for op in Op),
)  # fmt: skip

SLOT: tuple[Feature, ...] = (
    Feature("occupied", "flag", 0, 1, "slots.blueprint", lambda v: v.state.slots.blueprint >= 0),
    *(Feature(f"stage_{s.name.lower()}", "flag", 0, 1, "slots.stage", _is("stage", s)) for s in Stage),
    *(Feature(f"ramp_{r.name.lower()}", "flag", 0, 1, "slots.ramp", _is("ramp", r)) for r in Ramp),
    *(Feature(f"operator_{b.name.lower()}", "flag", 0, 1, "slots.operator",
              lambda v, b=b: (v.state.slots.operator == b) & (v.state.slots.blueprint >= 0)) for b in Blend),
    Feature("prune_scheduled", "flag", 0, 1, "slots", lambda v: v.state.slots.prune_scheduled),
    Feature("alpha", "1", 0, 1, "slots.alpha", lambda v: v.state.slots.alpha),
    Feature("alpha_target", "1", 0, 1, "slots.alpha_target", lambda v: v.state.slots.alpha_target),
    Feature("first_target", "1", 0, 1, "slots.first_target", lambda v: v.state.slots.first_target),
    Feature("tempo", "steps / longest", 0, 1, "slots.tempo_steps",
            lambda v: (v.state.slots.tempo_steps / max(TEMPO_STEPS)).clamp(0.0, 1.0)),
    Feature("ramp_left", "steps, x/(8+x)", 0, 1, "slots.ramp_*",
            lambda v: epochs((v.state.slots.ramp_steps - v.state.slots.ramp_done).clamp(min=0))),
    Feature("age", "steps, x/(8+x)", 0, 1, "slots.age", lambda v: epochs(v.state.slots.age)),
    Feature("dwell", "steps, x/(8+x)", 0, 1, "slots.dwell", lambda v: epochs(v.state.slots.dwell)),
    Feature("germinations", "count, x/(1+x)", 0, 1, "slots.germinations", lambda v: ratio(v.state.slots.germinations)),
    Feature("contribution", "points, symlog", -1, 1, "attribution", lambda v: points(v.state.slots.contribution)),
    Feature("contribution_se", "points, symlog", 0, 1, "attribution", lambda v: points(v.state.slots.contribution_se)),
    Feature("contribution_missing", "flag", 0, 1, "attribution", _missing("contribution")),
    Feature("velocity", "points, symlog", -1, 1, "attribution", lambda v: points(v.state.slots.contribution_velocity)),
    Feature("velocity_missing", "flag", 0, 1, "attribution", _missing("contribution_velocity")),
    Feature("interaction", "points, symlog", -1, 1, "attribution", lambda v: points(v.state.measured.interaction)),
    Feature("boost", "points, symlog", 0, 1, "attribution", lambda v: points(v.state.measured.boost)),
    Feature("interaction_missing", "flag", 0, 1, "attribution", lambda v: v.state.measured.interaction.isnan()),
    Feature("freshness", "1 / (1 + steps since measured)", 0, 1, "attribution",
            lambda v: torch.where(v.state.slots.contribution.isnan(), 0.0,
                                  1.0 / (1.0 + v.state.slots.steps_since_measured))),
    Feature("progress", "points, symlog", -1, 1, "slots.accuracy",
            lambda v: points(v.state.slots.accuracy - v.state.slots.germination_accuracy)),
    Feature("stage_progress", "points, symlog", -1, 1, "slots.accuracy",
            lambda v: points(v.state.slots.accuracy - v.state.slots.stage_accuracy)),
    Feature("progress_missing", "flag", 0, 1, "slots.accuracy",
            lambda v: (v.state.slots.accuracy - v.state.slots.germination_accuracy).isnan()),
    Feature("gradient_ratio", "1, x/(1+x)", 0, 1, "gradients", lambda v: ratio(v.state.slots.gradient_ratio)),
    Feature("gradient_missing", "flag", 0, 1, "gradients", _missing("gradient_ratio")),
    Feature("params", "seed / host parameters, x/(1+x)", 0, 1, "population",
            lambda v: ratio(v.state.seed_params / v.host_params)),
)  # fmt: skip

# What is known of each blueprint in this episode, in whichever slot. It describes the choices of the head blueprint;
# the normaliser leaves it alone, so that it means the same of each.
KIND: tuple[Feature, ...] = (
    Feature("tried", "flag", 0, 1, "trials", lambda v: v.state.trials.tried > 0),
    Feature("gained", "points, symlog", -1, 1, "trials", lambda v: points(v.state.trials.gained)),
    Feature("gained_missing", "flag", 0, 1, "trials", lambda v: v.state.trials.gained.isnan()),
    Feature(
        "alignment", "share of the task's largest", -1, 1, "training data", lambda v: v.alignment
    ),
)


def columns(slots: int, blueprints: int) -> list[tuple[str, Feature]]:
    """List name and row of the table for every column, in order: the base, each slot's, each blueprint's."""
    table = [(row.name, row) for row in BASE]
    table += [(f"slot{k}_{row.name}", row) for k in range(slots) for row in SLOT]
    return table + [(f"blueprint{k}_{row.name}", row) for k in range(blueprints) for row in KIND]


def observation_spec(slots: int, blueprints: int, task_kinds: int = 0) -> ObservationSpec:
    """Describe the layout for the policy.

    Args:
        slots: Of a host; each has a category, its blueprint.
        blueprints: How many can be grown.
        task_kinds: Kinds of tasks, of which the critic sees that of the host's; 0: it sees none.
    """
    # The critic may know what acting may not: it is not asked once training is over.
    table = columns(slots, blueprints)
    raw = tuple(row.flag or row in KIND for _, row in table)
    privileged = 1 if task_kinds else 0
    return ObservationSpec(len(table), raw, slots, blueprints, VERSION, privileged, task_kinds)


def observe(view: View) -> Tensor:
    """Compute features float32 ``[E, D]`` in the order of ``columns``."""
    # Slots side by side, each with all of its columns: [E, K, n] before it is flattened.
    base = torch.stack([row.values(view).float() for row in BASE], dim=1)
    per_slot = torch.stack([row.values(view).float() for row in SLOT], dim=2)
    per_kind = torch.stack([row.values(view).float() for row in KIND], dim=2)
    return torch.cat((base, per_slot.flatten(1), per_kind.flatten(1)), dim=1)


def alignment(features: Tensor, blueprints: int) -> Tensor:
    """Read the alignment of each blueprint ``[E, P]`` out of observations ``[E, D]``."""
    place = [row.name for row in KIND].index("alignment")
    return features[:, -blueprints * len(KIND) :].unflatten(1, (blueprints, len(KIND)))[..., place]


def _kind(row: Feature) -> tuple[str, str, float, str]:
    """Group rows of the page: neighbours that agree in this key, such as the flags of a choice, share a line."""
    return row.name.partition("_")[0], row.unit, row.low, row.source


def document() -> str:
    """Write docs/observations.md."""
    lines = [
        "# Observations",
        "",
        f"Version {VERSION}. Generated by `python -m simic.envs.observations`; do not edit.",
        f"A host with K slots and P blueprints gives {len(BASE)} + {len(SLOT)} K + {len(KIND)} P columns: the base,",
        "then the block of each slot, then that of each blueprint.",
        "Beside them the policy gets one category per slot, the index of its blueprint (-1 = empty).",
        "Flags are 0 or 1; they and what is known of blueprints are not normalised. A missing value is 0, its flag 1.",
        "Values lie in 0…1, those marked ± in -1…1.",
        "",
    ]
    parts = (
        ("Base", BASE),
        (f"Slot k, from column {len(BASE)} + {len(SLOT)} k", SLOT),
        (f"Blueprint p, from column {len(BASE)} + {len(SLOT)} K + {len(KIND)} p", KIND),
    )
    for title, rows in parts:
        lines += [f"## {title}", "", "| index | name | unit | source |", "|---|---|---|---|"]
        # Neighbours that differ by their name alone share a line.
        for (_, unit, low, source), alike in groupby(
            enumerate(rows), key=lambda numbered: _kind(numbered[1])
        ):
            places, names = zip(*((str(index), row.name) for index, row in alike), strict=True)
            index = "–".join(dict.fromkeys((places[0], places[-1])))
            lines.append(
                f"| {index} | {', '.join(names)} | {unit}{', ±' if low < 0 else ''} | {source} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")
