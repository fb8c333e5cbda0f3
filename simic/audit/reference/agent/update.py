"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), down to the weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic import params
from simic.audit.reference.agent.adam import Optimized, Rule, norm
from simic.audit.reference.agent.batch import Lessons, Strand
from simic.audit.reference.agent.network import Judged, Network64
from simic.audit.reference.agent.trail import Strayed

STOP_FACTOR = 1.5  # times target_kl
IN_DOUBT = 1e-3  # relative distance of a divergence from its limit at which rounding decides: then as it was done
LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT = 20.0, 30.0
RATE_END = 0.2  # of the linear one: what is left in the last update


@dataclass(frozen=True)
class Learner:
    """What an update changes; ``rate`` is the learning rate."""

    optimized: Optimized
    updates: int
    skipped: int
    rate: float


@dataclass(frozen=True)
class Course64:
    """How an update goes over its strands. ``done`` is how many minibatches production looked at, which decides only
    where the divergence is as good as the limit.
    """

    epochs: int
    minibatches: int
    limit: float
    entropy_coef: float
    done: int | None = None


Trail = Sequence[Optimized]  # what production had after each minibatch that it looked at


@dataclass(frozen=True)
class Looked:
    """One minibatch: its losses and divergence before a step, the norm of its gradient, and whether it was stepped on.

    ``entropy`` and ``open`` are sums over steps by factor.
    """

    policy_loss: float
    value_loss: float
    divergence: float
    entropy: list[float]
    open: list[int]
    gradient_norm: float
    stepped: bool


@dataclass(frozen=True)
class Relived:
    """One step under the present weights; ``divergence`` is e^Δ − 1 − Δ summed over factors (Schulman's k3)."""

    objective: Tensor
    squared_error: Tensor
    divergence: float
    judged: Judged


@dataclass(frozen=True)
class Learned64:
    """The learner after an update, how that went, and how far production's steps strayed."""

    learner: Learner
    metrics: dict[str, float]
    strayed: tuple[Strayed, ...]


def entropy_coef(settings: params.PPOParams, updates: int, total: int) -> float:
    """From the first to the last of all updates, linearly over those that were executed."""
    share = min(1.0, updates / max(1, total - 1))
    return (1.0 - share) * settings.entropy_coef + share * settings.entropy_coef_final


def learning_rate(settings: params.PPOParams, learner: Learner, total: int) -> float:
    """Of the next update: what is left of a linear one, any other as it is."""
    if settings.learning_rate_schedule != "linear":
        return learner.rate
    share = min(1.0, learner.updates / max(1, total - 1))
    return ((1.0 - share) + share * RATE_END) * settings.learning_rate


def reinforcing(settings: params.PPOParams, coefficient: float, done: int | None) -> Course64:
    """The plan of PPO."""
    limit = math.inf if settings.target_kl is None else STOP_FACTOR * settings.target_kl
    return Course64(settings.epochs, settings.minibatches, limit, coefficient, done)


@dataclass(frozen=True)
class Updating:
    """What stays the same in an update."""

    lessons: Lessons
    train: params.Train
    rng_seed: int
    iteration: int
    plan: Course64

    @property
    def parts(self) -> int:
        """Minibatches of an epoch: never more than there are strands."""
        return min(self.plan.minibatches, len(self.lessons.strands))

    def run(self, learner: Learner, trail: Trail = ()) -> Learned64:
        """All minibatches, up to the one whose divergence is too large, each from where production was, as long as
        there is a trail.
        """
        looked: list[Looked] = []
        strayed: list[Strayed] = []
        epochs = 0
        while epochs < self.plan.epochs and not self._stopped(looked):
            epochs += 1
            for strands in self.lessons.minibatches(self.rng_seed, self.iteration, epochs - 1, self.parts):
                derived, one = self._minibatch(learner, strands, len(looked))
                if len(looked) < len(trail):
                    done = replace(trail[len(looked)], steps=derived.optimized.steps)
                    rule = self._rule(learner)
                    strayed.append(Strayed.of(learner.optimized, derived.optimized, done, rule))
                    derived = replace(derived, optimized=done)
                learner = derived
                looked.append(one)
                if self._stopped(looked):
                    break
        learner = replace(learner, updates=learner.updates + any(one.stepped for one in looked))
        return Learned64(learner, self._metrics(looked, epochs), tuple(strayed))

    def _rule(self, learner: Learner) -> Rule:
        return Rule(learner.rate, self.train.ppo.adam_eps, self.train.ppo.max_grad_norm)

    def _minibatch(self, learner: Learner, strands: Sequence[Strand], number: int) -> tuple[Learner, Looked]:
        weights = {name: weight.clone().requires_grad_() for name, weight in learner.optimized.weights.items()}
        loss, looked = self._loss(Network64(weights, self.lessons.interface, self.train.policy), strands)
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(weights, found, strict=True))
        looked = replace(looked, gradient_norm=norm(gradients))
        if not math.isfinite(looked.gradient_norm + looked.divergence + looked.policy_loss + looked.value_loss):
            return replace(learner, skipped=learner.skipped + 1), looked
        if self._too_far(looked, number):
            return learner, looked
        optimized = learner.optimized.stepped(gradients, looked.gradient_norm, self._rule(learner))
        return replace(learner, optimized=optimized), replace(looked, stepped=True)

    def _too_far(self, looked: Looked, number: int) -> bool:
        limit = self.plan.limit
        if self.plan.done is not None and abs(looked.divergence - limit) < IN_DOUBT * limit:
            return number + 1 == self.plan.done
        return looked.divergence > limit

    def _stopped(self, looked: Sequence[Looked]) -> bool:
        return (
            bool(looked) and not looked[-1].stepped and math.isfinite(looked[-1].divergence + looked[-1].gradient_norm)
        )

    def _loss(self, network: Network64, strands: Sequence[Strand]) -> tuple[Tensor, Looked]:
        """−objective + c_v · value loss − Σ c_k · entropy of factor k: sums over the minibatch times the number of
        minibatches, over the counts of the whole rollout.
        """
        usage, parts = self.lessons.usage, self.parts
        steps = [step for strand in strands for step in self._steps(network, strand)]
        policy = -_total([step.objective for step in steps]) * parts / max(1, usage.steps)
        value = _total([step.squared_error for step in steps]) * parts / (2 * max(1, usage.steps))
        several = [[step.judged for step in steps if step.judged.options[k] > 1] for k in range(len(usage.open))]
        entropy = [_total([judged.entropy[k] for judged in open_]) for k, open_ in enumerate(several)]
        bonus = torch.zeros((), dtype=torch.float64)
        for factor, total in enumerate(entropy):
            mean = total * parts / max(1, usage.open[factor])
            worth = self._entropy_coef(factor, float(mean.detach()))
            bonus = bonus + worth * mean if worth else bonus
        divergence = math.fsum(step.divergence for step in steps) / max(1, len(steps))
        sums, counts = [float(total.detach()) for total in entropy], [len(open_) for open_ in several]
        found = Looked(float(policy.detach()), float(value.detach()), divergence, sums, counts, math.nan, False)
        return policy + self.train.ppo.value_coef * value - bonus, found

    def _steps(self, network: Network64, strand: Strand) -> Iterator[Relived]:
        """Those that count."""
        judged, values = strand.judged(network)
        for t, real in enumerate(strand.valid):
            if real:
                logs = torch.clip(judged[t].log_probs - strand.log_probs[t], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
                objective = self._objective(strand, t, judged[t], logs)
                divergence = math.fsum(math.expm1(x) - x for x in logs.detach().tolist())
                yield Relived(objective, (values[t] - strand.returns[t]) ** 2, divergence, judged[t])

    def _objective(self, strand: Strand, t: int, judged: Judged, logs: Tensor) -> Tensor:
        """What one step adds to what is maximised."""
        if self.train.ppo.ratio == "joint":
            joint = torch.clip(logs.sum(), -JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
            return self._clipped(joint, strand.advantages[t])
        total = torch.zeros((), dtype=torch.float64)
        for factor, matters in enumerate(self.lessons.interface.matters[strand.actions[t][0]]):
            if matters:
                total = total + self._factor_weight(factor) * self._clipped(logs[factor], strand.advantages[t])
        return total

    def _clipped(self, log_ratio: Tensor, advantage: float) -> Tensor:
        """min(r A, clip(r, 1 − ε, 1 + ε) A)."""
        ratio, clip = torch.exp(log_ratio), self.train.ppo.clip_range
        return torch.minimum(ratio * advantage, torch.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)

    def _factor_weight(self, factor: int) -> float:
        """``head_weight: mean``: over the steps in which the factor mattered."""
        usage = self.lessons.usage
        return usage.steps / max(1, usage.relevant[factor]) if self.train.ppo.head_weight == "mean" else 1.0

    def _entropy_coef(self, factor: int, mean: float) -> float:
        """What the entropy of a factor is worth; more where it is below its floor: c (f − H)² has slope 2 c (f − H)."""
        ppo, name = self.train.ppo, self.lessons.interface.factors[factor].name
        coefficient = self.plan.entropy_coef * ppo.entropy_scale.get(name, 1.0)
        if ppo.entropy_floor and self.lessons.usage.open[factor]:
            coefficient += 2.0 * ppo.entropy_floor_coef * max(0.0, ppo.entropy_floor.get(name, 0.0) - mean)
        return coefficient

    def _metrics(self, looked: Sequence[Looked], epochs: int) -> dict[str, float]:
        """By the names of metrics."""
        taken = [one for one in looked if one.stepped]
        several = [sum(one.open[k] for one in taken) for k in range(len(self.lessons.usage.open))]
        entropies = [sum(one.entropy[k] for one in taken) / n for k, n in enumerate(several) if n]
        kl = [one.divergence for one in looked]
        return {
            "policy_loss": _mean([one.policy_loss for one in taken]),
            "value_loss": _mean([one.value_loss for one in taken]),
            "entropy": _mean(entropies),
            "grad_norm": _mean([one.gradient_norm for one in taken]),
            "grad_norm_max": max((one.gradient_norm for one in taken), default=math.nan),
            "entropy_coef": self.plan.entropy_coef,
            "samples": float(self.lessons.usage.steps),
            "epochs": float(epochs),
            "steps": float(len(taken)),
            "approx_kl": kl[-1],
            "approx_kl_max": max(kl),
        }


def _total(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(values)).sum() if values else torch.zeros((), dtype=torch.float64)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
