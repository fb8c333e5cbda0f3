"""What an update reports. Each field carries the sentence that explains it in docs/metrics.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from simic import params


@dataclass(frozen=True)
class UpdateMetrics:
    """One PPO update; plain Python numbers, NaN where nothing was measured. ``…_by_head`` maps names of heads."""

    policy_loss: Annotated[float, "Negative clipped objective, mean over minibatches."]
    value_loss: Annotated[float, "½ mean squared error of V against the returns, in units of scaled reward."]
    entropy: Annotated[float, "Mean over heads of the normalised entropy H / ln(#legal); 1 is uniform."]
    entropy_by_head: Annotated[dict[str, float], "Normalised entropy where the head mattered and had a choice."]
    first_entropy: Annotated[
        float, "`entropy` of the first minibatch, before any step; without heads that begin with a lean."
    ]
    entropy_coef: Annotated[float, "Weight of the entropy bonus in this update."]
    entropy_bonus: Annotated[float, "What it took off the loss, mean over minibatches."]
    approx_kl: Annotated[float, "k3 estimate of KL(old ‖ new) of whole actions at the last minibatch looked at."]
    approx_kl_max: Annotated[float, "Largest such estimate of any minibatch of the update."]
    kl_k1: Annotated[float, "k1 estimate (mean −ln r) at the last minibatch; if it is far from k3, trust neither."]
    exact_kl: Annotated[float, "Exact KL(before ‖ after the update) of whole actions on the first minibatch."]
    clip_fraction: Annotated[float, "Share of rows whose ratio of the whole action left the clip range."]
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
    grad_clipped_fraction: Annotated[float, "Share of steps whose gradient was clipped."]
    learning_rate: Annotated[float, "Learning rate of the update."]
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

    rows: list[dict[str, Tensor]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    once: dict[str, Tensor] = field(default_factory=dict)

    def add(self, epoch: int, row: dict[str, Tensor]) -> None:
        """Take in one minibatch: sums and peaks by name, ``norms`` by part of the policy with the total last, norms
        ``by_layer``, and ``verdicts [2]``: too far from the old policy; loss and gradient finite.
        """
        self.rows.append(row)
        self.epochs.append(epoch + 1)

    def to_host(self) -> tuple[dict[str, Any], Course]:
        """Return everything as nested lists by name, in one transfer. Minibatches after the one that ended the update
        are left out: where nothing waits for the device they were computed in vain.
        """
        tensors = self.once | {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        named = {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
        gram = named.pop("feature_gram", None)
        host: dict[str, Any] = {name: part.tolist() for name, part in named.items()}
        host["feature_rank"] = math.nan if gram is None else feature_rank(gram)
        verdicts = [(bool(diverged), bool(finite)) for diverged, finite in host["verdicts"]]
        ends = [index for index, (diverged, finite) in enumerate(verdicts) if diverged and finite]
        looked = ends[0] + 1 if ends else len(verdicts)
        host |= {name: host[name][:looked] for name in self.rows[0]}
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

    kl = [_share(sum(heads_kl), rows) for heads_kl, rows in zip(host["kl"], host["rows"], strict=True)]
    deviation = host["deviation"][0]
    by_head = zip(heads, _columns(stepped("entropy"), heads), _columns(stepped("open"), heads), strict=True)
    entropy = {head: _share(sum(values), sum(counts)) for head, values, counts in by_head}
    first = zip(host["entropy"][0], host["open"][0], names.leaning, strict=True)
    found: dict[str, Any] = dict(
        policy_loss=_mean(stepped("policy_loss")),
        value_loss=_mean(stepped("value_loss")),
        entropy=_mean([value for value in entropy.values() if not math.isnan(value)]),
        entropy_by_head=entropy,
        first_entropy=_mean([_share(a, b) for a, b, leans in first if b and not leans]),
        entropy_bonus=_mean(stepped("bonus")),
        approx_kl=kl[-1],
        approx_kl_max=_peak(kl),
        kl_k1=_share(host["kl_k1"][-1], host["rows"][-1]),
        clip_fraction=ratio_of("clipped", "rows"),
        ratio_mean=ratio_of("ratio", "rows"),
        ratio_min=-_peak(host["minus_ratio_min"]),
        ratio_max=_peak(host["ratio_max"]),
        first_ratio_deviation=deviation,
        first_ratio_ok=deviation < ratio_tolerance,
        max_abs_log_prob=_peak(host["log_prob"]),
        samples=int(host["samples"]),
        samples_by_head=dict(zip(heads, map(int, host["samples_by_head"]), strict=True)),
        epochs=course.epochs,
        steps=len(taken),
        skipped_steps=course.skipped,
        stopped_early=course.stopped,
        **_gradients(stepped("norms"), names.parts, settings.max_grad_norm),
        **_by_layer(stepped("by_layer"), host["by_layer"], names.layers),
        **known,
    )
    # What an observer measured once in the update; NaN without one.
    measured = {item.name: host.get(item.name, math.nan) for item in fields(UpdateMetrics) if item.name not in found}
    return UpdateMetrics(**found, **measured)


def _gradients(norms: Sequence[Sequence[float]], parts: Sequence[str], max_norm: float) -> dict[str, Any]:
    """What is reported of the norms before clipping: a row per step, by part of the policy, the total last."""
    totals = [row[-1] for row in norms]
    return {
        "grad_norm": _mean(totals),
        "grad_norm_max": _peak(totals),
        "grad_norm_by_part": {part: _mean([row[k] for row in norms]) for k, part in enumerate(parts)},
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
