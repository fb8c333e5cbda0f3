"""What evaluation measured, as one frozen tree; evaluation.json is its canonical JSON."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from simic.errors import SimicError
from simic.evaluation.statistics import Interval

SCHEMA_VERSION = 1
LEARNED = "learned"  # the name of the trained policy among those evaluated
PRIMARY_ENDPOINT = "committed test accuracy, learned greedy, paired mean difference at equal host epochs"


class Frozen(BaseModel):
    """Immutable; unknown keys are errors; a missing measurement is null, never NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PerSeed(Frozen):
    """One value per evaluation seed, in the order of the seeds; of the committed network at the end of the episode."""

    test_accuracy_pct: tuple[float, ...]
    val_accuracy_pct: tuple[float, ...]
    params: tuple[int, ...]
    flops_per_sample: tuple[int, ...]
    training_flops: tuple[int, ...]
    germinated: tuple[int, ...]
    fossilized: tuple[int, ...]
    pruned: tuple[int, ...]
    rollbacks: tuple[int, ...]


class PolicyResult(Frozen):
    """One growth policy on all evaluation seeds; means over seeds where no interval is given."""

    test_accuracy_pct: Interval
    test_accuracy_iqm_pct: Interval | None  # from 10 seeds on
    val_accuracy_pct: float
    params: float
    flops_per_sample: float
    training_flops: float  # host epochs with forward and backward, validation with every ablation
    accuracy_per_kparam: float  # points per 1,000 parameters
    growth_ratio: float  # parameters of the committed network over those of the bare host
    germinated: float
    fossilized: float
    pruned: float
    rollbacks: float
    per_seed: PerSeed


class Comparison(Frozen):
    """First policy minus second, paired by evaluation seed."""

    first: str
    second: str
    endpoint: Literal["primary", "secondary"]
    difference_pct: Interval
    p_value: float
    probability_of_improvement: float
    minimum_detectable_pct: float
    seeds: int


class Decision(Frozen):
    """One op that took effect, or was refused by a gate, in the timeline's episode."""

    step: int
    op: str
    slot: int
    blueprint: str | None  # of the seed it was done to
    refused_by_gate: int | None
    reward: float


class Timeline(Frozen):
    """How one host grew: evaluation seed 0 under one policy. Stages ``[step][slot]`` are ``Stage`` values after the
    step, accuracies are points on the validation split, null where not measured.
    """

    stages: tuple[tuple[int, ...], ...]
    blueprints: tuple[tuple[str | None, ...], ...]
    alphas: tuple[tuple[float, ...], ...]
    decisions: tuple[Decision, ...]
    live_accuracy_pct: tuple[float | None, ...]
    committed_accuracy_pct: tuple[float | None, ...]
    rollback_steps: tuple[int, ...]


class HostDescription(Frozen):
    """The bare network that is grown."""

    family: str
    preset: str
    slots: int
    params: int
    flops_per_sample: int


class Evaluation(Frozen):
    """All of evaluation.json."""

    schema_version: Literal[1] = SCHEMA_VERSION
    primary_endpoint: str = PRIMARY_ENDPOINT
    checkpoint: str | None  # null: baselines alone
    checkpoint_iteration: int | None
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    episode_steps: int
    test_samples: int
    host: HostDescription
    policies: dict[str, PolicyResult]
    comparisons: tuple[Comparison, ...]
    timelines: dict[str, Timeline]

    def to_json(self) -> str:
        """Canonical: sorted keys, so equal results are equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1) + "\n"

    def comparison(self, first: str, second: str) -> Comparison | None:
        """The recorded comparison of two policies, if there is one."""
        return next((c for c in self.comparisons if (c.first, c.second) == (first, second)), None)


def read(path: Path) -> Evaluation:
    """The evaluation in a file; SimicError when it is missing, damaged or of another schema."""
    try:
        return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run simic evaluate first") from None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first_line = str(error).splitlines()[0]
        raise SimicError(f"{path}: not an evaluation of schema {SCHEMA_VERSION}: {first_line}") from None
