"""What an update reports. Each field carries the sentence that explains it in docs/metrics.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from simic import params
from simic.agent.losses import Terms


@dataclass(frozen=True)
class UpdateMetrics:
    """One PPO update; plain Python numbers, NaN where nothing was measured. ``…_by_head`` maps names of heads."""

    policy_loss: Annotated[float, "Negative clipped objective, mean over minibatches."]
    value_loss: Annotated[float, "½ mean squared error of V against the returns, in units of scaled reward."]
    entropy: Annotated[float, "Mean over heads of the normalised entropy H / ln(#legal); 1 is uniform."]
    entropy_by_head: Annotated[dict[str, float], "Normalised entropy where the head mattered and had a choice."]
    joint_entropy: Annotated[float, "Exact entropy in nats of whole actions before the update, first minibatch."]
    first_entropy: Annotated[
        float, "`entropy` of the first minibatch, before any step; without heads that begin with a lean."
    ]
    entropy_coef: Annotated[float, "Weight of the entropy bonus in this update."]
    entropy_bonus: Annotated[float, "What it took off the loss, mean over minibatches."]
    approx_kl: Annotated[float, "k3 estimate of KL(old ‖ new) of whole actions at the last minibatch looked at."]
    approx_kl_max: Annotated[float, "Largest such estimate of any minibatch of the update."]
    kl_by_head: Annotated[dict[str, float], "k3 estimate where the head was relevant, at the last minibatch."]
    kl_k1: Annotated[float, "k1 estimate (mean −ln r) at the last minibatch; if it is far from k3, trust neither."]
    exact_kl: Annotated[float, "Exact KL(before ‖ after the update) of whole actions on the first minibatch."]
    clip_fraction: Annotated[float, "Share of rows whose ratio of the whole action left the clip range."]
    clip_fraction_by_head: Annotated[dict[str, float], "The same for the ratio of each head where relevant."]
    ratio_mean: Annotated[float, "Mean ratio of whole actions over the minibatches stepped on."]
    ratio_min: Annotated[float, "Smallest ratio of a whole action."]
    ratio_max: Annotated[float, "Largest ratio of a whole action."]
    first_ratio_deviation: Annotated[float, "Largest |ratio − 1|, per head and whole, before the first step."]
    first_ratio_ok: Annotated[bool, "Whether that deviation is within rounding: replay equals what acted."]
    max_abs_log_prob: Annotated[float, "Largest |ln π| of a relevant head's choice."]
    grad_norm: Annotated[float, "Global gradient norm before clipping, mean over steps."]
    grad_norm_max: Annotated[float, "Largest such norm."]
    grad_norm_by_part: Annotated[dict[str, float], "Mean norm before clipping of encoder, core, value, each head."]
    grad_norm_by_layer: Annotated[dict[str, float], "The same of each layer of the policy."]
    non_finite_by_layer: Annotated[dict[str, int], "Minibatches in which a layer's gradient was not finite."]
    grad_share_by_head: Annotated[dict[str, float], "Share of each head in the sum of the heads' gradient norms."]
    grad_clipped_fraction: Annotated[float, "Share of steps whose gradient was clipped."]
    learning_rate: Annotated[float, "Learning rate after the update; constant unless the schedule is adaptive."]
    adam_eps: Annotated[float, "Adam's ε."]
    update_ratio: Annotated[float, "‖change of the weights‖ / ‖weights‖ over the whole update."]
    max_second_moment: Annotated[float, "Largest second moment that Adam holds."]
    explained_variance: Annotated[float, "1 − Var(R − V) / Var(R) of the values when acting."]
    advantage_mean: Annotated[float, "Mean advantage before normalisation."]
    advantage_std: Annotated[float, "Standard deviation of the advantages before normalisation."]
    advantage_max_abs: Annotated[float, "Largest |advantage| before normalisation."]
    return_mean: Annotated[float, "Mean return, the target of V."]
    return_std: Annotated[float, "Standard deviation of the returns."]
    return_max_abs: Annotated[float, "Largest |return|."]
    value_mean: Annotated[float, "Mean V when acting."]
    samples: Annotated[int, "Valid rows of the rollout."]
    samples_by_head: Annotated[dict[str, int], "Rows where the head mattered and had more than one legal choice."]
    observation_clipped: Annotated[float, "Share of normalised observation values that lie on the clip of ±10."]
    normalizer_deviation: Annotated[float, "Largest |stored − recomputed| observation, by the scales of acting."]
    start_state: Annotated[float, "Largest |value| of a memory in which an episode of the rollout began."]
    cell_norm: Annotated[float, "Root mean square of the LSTM's cell at the end of the rollout."]
    cell_saturated: Annotated[float, "Share of those cells with |tanh| beyond 0.99."]
    hidden_norm: Annotated[float, "Root mean square of the core's output."]
    hidden_growth: Annotated[float, "Root mean square of the core's output at the last step over the first."]
    hidden_saturated: Annotated[float, "Share of the core's outputs beyond ±0.99."]
    dormant_units: Annotated[float, "Share of encoder units at or below 2.5 % of the mean activation."]
    feature_rank: Annotated[float, "Singular values of z that make up 99 % of their sum."]
    epochs: Annotated[int, "Epochs begun."]
    steps: Annotated[int, "Optimiser steps taken in this update."]
    skipped_steps: Annotated[int, "Steps not taken because loss or gradient was not finite."]
    stopped_early: Annotated[bool, "Whether the divergence ended the update before its last minibatch."]
    updates: Annotated[int, "Updates with at least one step so far, this one included."]


RANK_SHARE = 0.99
HEALTH = ("hidden_norm", "hidden_growth", "hidden_saturated", "dormant_units", "feature_gram")
ACTING = ("normalizer_deviation", "start_state", "cell_norm", "cell_saturated")
SCALES = ("advantage_mean", "advantage_std", "advantage_max_abs", "return_mean", "return_std", "return_max_abs")
# Measured once in an update and reported as they are.
ONCE = (
    *SCALES,
    *ACTING,
    *HEALTH[:-1],
    "feature_rank",
    "value_mean",
    "observation_clipped",
    "explained_variance",
    "joint_entropy",
    "exact_kl",
    "update_ratio",
    "max_second_moment",
    "learning_rate",
)


def explanations() -> dict[str, str]:
    """Sentence by name of metric."""
    hints = get_type_hints(UpdateMetrics, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def numbers(metrics: dict, prefix: str = "") -> dict[str, float]:
    """Nested metrics by one name each: ``entropy_by_head/op``."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= numbers(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: float(value)}
    return flat


def feature_rank(gram: Tensor) -> float:
    """Smallest k whose largest singular values hold 99 % of the sum (Kumar et al. 2021, arXiv 2010.14498), of the
    matrix whose Gram matrix is given, on the host; NaN of one that was not measured.
    """
    if math.isnan(math.fsum(gram.diagonal().tolist())):
        return math.nan
    singular = [math.sqrt(max(value, 0.0)) for value in reversed(torch.linalg.eigvalsh(gram).tolist())]
    enough = RANK_SHARE * math.fsum(singular)
    return 1 + sum(share < enough for share in accumulate(singular))


class Course(NamedTuple):
    """How an update went, on the host: which of the minibatches looked at were stepped on, and why not."""

    stepped: list[bool]
    stopped: bool
    skipped: int
    epochs: int


@dataclass
class Log:
    """What happened in one update, by minibatch, on the device until it ends."""

    sums: list[dict[str, Tensor]] = field(default_factory=list)
    peaks: list[dict[str, Tensor]] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)  # by part of the policy, the total last
    by_layer: list[Tensor] = field(default_factory=list)
    verdicts: list[Tensor] = field(default_factory=list)  # [2]: too far from the old policy; loss and gradient finite
    epochs: list[int] = field(default_factory=list)
    once: dict[str, Tensor] = field(default_factory=dict)

    def add(self, epoch: int, found: Terms, norms: Tensor, by_layer: Tensor, verdict: Tensor) -> None:
        """One minibatch."""
        self.sums.append(found.sums)
        self.peaks.append(found.peaks)
        self.norms.append(norms)
        self.by_layer.append(by_layer)
        self.verdicts.append(verdict)
        self.epochs.append(epoch + 1)

    def to_host(self) -> tuple[dict[str, Any], Course]:
        """Everything as nested lists by name, in one transfer. Minibatches after the one that ended the update are left
        out: where nothing waits for the device they were computed in vain.
        """
        tensors = dict(self.once)
        for rows in (self.sums, self.peaks):
            tensors |= {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        tensors |= {"norms": torch.stack(self.norms), "by_layer": torch.stack(self.by_layer)}
        tensors |= {"verdicts": torch.stack(self.verdicts)}
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        named = {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
        gram = named.pop("feature_gram", None)
        host: dict[str, Any] = {name: part.tolist() for name, part in named.items()}
        host["feature_rank"] = math.nan if gram is None else feature_rank(gram)
        verdicts = [(bool(diverged), bool(finite)) for diverged, finite in host.pop("verdicts")]
        ends = [index for index, (diverged, finite) in enumerate(verdicts) if diverged and finite]
        looked = ends[0] + 1 if ends else len(verdicts)
        host |= {name: host[name][:looked] for name in (*self.sums[0], *self.peaks[0], "norms", "by_layer")}
        stepped = [finite and not diverged for diverged, finite in verdicts[:looked]]
        skipped = sum(not finite for _, finite in verdicts[:looked])
        return host, Course(stepped, bool(ends), skipped, self.epochs[looked - 1])


class Names(NamedTuple):
    """Of what an update is told of: heads, parts of the policy, layers."""

    heads: Sequence[str]
    leaning: Sequence[bool]  # heads whose untrained logits differ
    parts: Sequence[str]
    layers: Sequence[str]


def summarize(
    host: dict[str, Any],
    course: Course,
    names: Names,
    settings: params.PPOParams,
    ratio_tolerance: float,
    **known: Any,
) -> UpdateMetrics:
    """A log's numbers; ``known`` are metrics that need no log."""
    heads = names.heads
    taken = [index for index, stepped in enumerate(course.stepped) if stepped]

    def stepped(name: str) -> list[Any]:
        return [host[name][index] for index in taken]

    def ratio_of(name: str, count: str) -> float:
        return _share(sum(stepped(name)), sum(stepped(count)))

    def by_head(name: str, count: str) -> dict[str, float]:
        columns = zip(_columns(stepped(name), heads), _columns(stepped(count), heads), strict=True)
        return {head: _share(sum(a), sum(b)) for head, (a, b) in zip(heads, columns, strict=True)}

    kl = [_share(sum(heads_kl), rows) for heads_kl, rows in zip(host["kl"], host["rows"], strict=True)]
    deviation = host["deviation"][0]
    samples = dict(zip(heads, map(int, host["samples_by_head"]), strict=True))
    entropy = by_head("entropy", "open")
    first = zip(host["entropy"][0], host["open"][0], names.leaning, strict=True)
    last_kl = zip(heads, host["kl"][-1], host["relevant"][-1], strict=True)
    once = {name: host.get(name, math.nan) for name in ONCE}
    return UpdateMetrics(
        policy_loss=_mean(stepped("policy_loss")),
        value_loss=_mean(stepped("value_loss")),
        entropy=_mean([value for value in entropy.values() if not math.isnan(value)]),
        entropy_by_head=entropy,
        first_entropy=_mean([_share(a, b) for a, b, leans in first if b and not leans]),
        entropy_bonus=_mean(stepped("bonus")),
        approx_kl=kl[-1],
        approx_kl_max=_peak(kl),
        kl_by_head={head: _share(total, count) for head, total, count in last_kl},
        kl_k1=_share(host["kl_k1"][-1], host["rows"][-1]),
        clip_fraction=ratio_of("clipped", "rows"),
        clip_fraction_by_head=by_head("head_clipped", "relevant"),
        ratio_mean=ratio_of("ratio", "rows"),
        ratio_min=-_peak(host["minus_ratio_min"]),
        ratio_max=_peak(host["ratio_max"]),
        first_ratio_deviation=deviation,
        first_ratio_ok=deviation < ratio_tolerance,
        max_abs_log_prob=_peak(host["log_prob"]),
        samples=int(host["samples"]),
        samples_by_head=samples,
        epochs=course.epochs,
        steps=len(taken),
        skipped_steps=course.skipped,
        stopped_early=course.stopped,
        **_gradients(stepped("norms"), heads, names.parts, settings.max_grad_norm),
        **_by_layer(stepped("by_layer"), host["by_layer"], names.layers),
        **once,
        **known,
    )


def _gradients(
    norms: Sequence[Sequence[float]], heads: Sequence[str], parts: Sequence[str], max_norm: float
) -> dict[str, Any]:
    """What is reported of the norms before clipping: a row per step, by part of the policy, the total last."""
    totals = [row[-1] for row in norms]
    by_part = {part: _mean([row[k] for row in norms]) for k, part in enumerate(parts)}
    of_heads = {head: by_part[f"head_{head}"] for head in heads}
    return {
        "grad_norm": _mean(totals),
        "grad_norm_max": _peak(totals),
        "grad_norm_by_part": by_part,
        "grad_share_by_head": {head: _share(norm, math.fsum(of_heads.values())) for head, norm in of_heads.items()},
        "grad_clipped_fraction": _mean([float(total > max_norm) for total in totals]),
    }


def _by_layer(stepped: list[list[float]], looked: list[list[float]], layers: Sequence[str]) -> dict[str, Any]:
    """Mean norms over the steps taken; in how many of the minibatches looked at each was not finite."""
    lost = [sum(not math.isfinite(norm) for norm in column) for column in _columns(looked, layers)]
    return {
        "grad_norm_by_layer": dict(zip(layers, map(_mean, _columns(stepped, layers)), strict=True)),
        "non_finite_by_layer": dict(zip(layers, lost, strict=True)),
    }


def _columns(rows: list[list[float]], names: Sequence[str]) -> list[list[float]]:
    """By head or layer rather than by minibatch; there may be no minibatch."""
    return [[row[k] for row in rows] for k in range(len(names))]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _mean(values: Sequence[float]) -> float:
    return _share(math.fsum(values), len(values))


def _peak(values: Sequence[float]) -> float:
    """NaN of nothing, and of anything that holds a NaN."""
    return math.nan if not values or any(math.isnan(value) for value in values) else max(values)
