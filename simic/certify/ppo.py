"""One PPO update in float64: reward scale, advantages (GAE), losses, gradient steps, metrics."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic import params
from simic.certify import streams
from simic.certify.agent import CLIP, Interface, Network, Scale, Tensors

POLICY, FIRST, SECOND = "ppo/policy.", "ppo/adam.exp_avg.", "ppo/adam.exp_avg_sq."
DECAY = 0.9, 0.999  # of Adam's moments (Kingma, Ba 2015, arXiv 1412.6980)
SIGMA_FLOOR = 0.1  # of advantages, in units of scaled reward
FLAT = 1e-8  # variance of returns below which there is nothing to explain
STOP_FACTOR = 1.5  # times target_kl
IN_DOUBT = 1e-3  # relative distance of a divergence from its limit within which rounding decides: then as recorded
LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT = 20.0, 30.0
RATE_END = 0.2  # what the linear schedule leaves


@dataclass(frozen=True)
class Rows:
    """Hold T steps of E environments: scaled ``features [T, E, F]``, ``masks`` by name ``[T, E, …]``, ``actions`` and
    ``log_probs [T, E, K]`` of acting, the rest ``[T, E, …]``.
    """

    features: Tensor
    categories: Tensor
    told: Tensor
    masks: Tensors
    actions: Tensor
    valid: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def select(self, envs: Tensor) -> "Rows":
        """Return the rows of those environments."""
        masks = {name: mask[:, envs] for name, mask in self.masks.items()}
        return Rows(**{name: x[:, envs] for name, x in vars(self).items() if name != "masks"}, masks=masks)

    def single_steps(self) -> "Rows":
        """Return every step as an environment of its own, ``[1, E·T]``, one environment after another."""
        masks = {name: mask.transpose(0, 1).flatten(0, 1)[None] for name, mask in self.masks.items()}
        flat = {name: x.transpose(0, 1).flatten(0, 1)[None] for name, x in vars(self).items() if name != "masks"}
        return Rows(**flat, masks=masks)

    def flat(self, what: Tensor) -> Tensor:
        """Return the valid rows of ``[T, E, …]`` one after the other."""
        return what[self.valid]


@dataclass(frozen=True)
class Learner:
    """Hold what an update changes: weights and Adam's moments by name, counters and the learning rate."""

    weights: Tensors
    first: Tensors
    second: Tensors
    steps: int
    updates: int
    skipped: int
    rate: float

    @classmethod
    def read(cls, tensors: Tensors, ppo: params.PPOParams) -> "Learner":
        """Read the learner from a checkpoint's tensors."""
        weights, first, second = (
            {name.removeprefix(lead): x.double() for name, x in tensors.items() if name.startswith(lead)}
            for lead in (POLICY, FIRST, SECOND)
        )
        steps, updates, skipped = (
            int(tensors[f"ppo/{name}"]) for name in ("adam.step", "counter.updates", "counter.skipped_steps")
        )
        return cls(weights, first, second, steps, updates, skipped, ppo.learning_rate)


@dataclass(frozen=True)
class Usage:
    """Count the rollout's steps, and by factor ``[K]`` those where it had choices."""

    steps: int
    open: Tensor


@dataclass(frozen=True)
class Minibatch:
    """Hold the statistics of one minibatch before its step; ``entropy`` and ``open`` are sums by factor ``[K]``."""

    policy_loss: float
    value_loss: float
    divergence: float
    entropy: Tensor
    open: Tensor
    gradient_norm: float
    stepped: bool


# --- before the update -----------------------------------------------------------------------------------------------


def scaled(
    rewards: Tensor, valid: Tensor, scale: Scale | None, gamma: float, clipped: bool
) -> tuple[Scale | None, Tensor, Tensor]:
    """Return the updated scale, the scaled rewards ``[T, E]`` and the discounted returns at the end ``[E]``."""
    running, sums = torch.zeros(rewards.shape[1], dtype=torch.float64), []
    for paid in rewards:
        running = gamma * running + paid
        sums.append(running)
    if scale is None:
        return None, rewards, running
    scale = scale.with_rows(torch.stack(sums)[valid][:, None])
    own = rewards / scale.deviation
    return scale, torch.clip(own, -CLIP, CLIP) if clipped else own, running


def advantages(
    rewards: Tensor, values: Tensor, following: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor,
    gamma: float, decay: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return advantages and returns ``[T, E]`` (Schulman et al. 2016, arXiv 1506.02438), 0 where not valid."""
    gained, later = torch.zeros_like(values), torch.zeros(values.shape[1], dtype=values.dtype)
    for t in reversed(range(len(values))):
        delta = rewards[t] + torch.where(terminated[t], 0.0, gamma * following[t]) - values[t]
        goes_on = ~(terminated[t] | truncated[t])
        later = torch.where(valid[t], delta + torch.where(goes_on, gamma * decay * later, 0.0), 0.0)
        gained[t] = later
    return gained, torch.where(valid, gained + values, 0.0)


def standardized(values: Tensor, chosen: Tensor) -> Tensor:
    """Return (A − mean) / max(σ, 0.1) over the ``chosen``; 0 elsewhere."""
    if not chosen.any():
        return torch.zeros_like(values)
    own = values[chosen]
    return torch.where(chosen, (values - own.mean()) / max(float(own.std(correction=0)), SIGMA_FLOOR), 0.0)


def summary(advantage: Tensor, returns: Tensor, values: Tensor) -> dict[str, float]:
    """Return the metrics of valid rows by name; explained variance is NaN where returns do not vary."""
    metrics = {"value_mean": float(values.mean())}
    for name, x in (("advantage", advantage), ("return", returns)):
        metrics |= {f"{name}_mean": float(x.mean()), f"{name}_std": float(x.std(correction=0))}
        metrics[f"{name}_max_abs"] = float(x.abs().max())
    spread = float(returns.var(correction=0))
    left = float((returns - values).var(correction=0))
    return metrics | {"explained_variance": 1.0 - left / spread if spread > FLAT else math.nan}


# --- the update ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """Run one update of PPO (Schulman et al. 2017, arXiv 1707.06347) on these rows.

    ``looked`` is the recorded number of minibatches; it decides when to stop only where rounding would.
    """

    rows: Rows
    interface: Interface
    train: params.Train
    rng_seed: int
    iteration: int
    looked: int | None = None

    @property
    def total(self) -> int:
        """Return the updates of the whole run."""
        return self.train.horizon or self.train.iterations

    def run(self, learner: Learner) -> tuple[Learner, dict[str, float]]:
        """Return the learner after all minibatches before one whose divergence is too large, and the metrics."""
        ppo = self.train.ppo
        rows = self.rows if self.train.policy.core != "none" else self.rows.single_steps()
        done = min(1.0, learner.updates / max(1, self.total - 1))
        coefficient = (1.0 - done) * ppo.entropy_coef + done * ppo.entropy_coef_final
        if ppo.learning_rate_schedule == "linear":
            learner = replace(learner, rate=((1.0 - done) + done * RATE_END) * ppo.learning_rate)
        usage, parts = self._usage(rows), min(ppo.minibatches, rows.valid.shape[1])
        minibatches: list[Minibatch] = []
        epochs = 0
        while epochs < ppo.epochs and not _stopped(minibatches):
            epochs += 1
            for envs in self._minibatches(rows.valid.shape[1], epochs - 1, parts):
                learner, one = self._step(learner, rows.select(envs), usage, parts, coefficient, len(minibatches))
                minibatches.append(one)
                if _stopped(minibatches):
                    break
        learner = replace(learner, updates=learner.updates + any(one.stepped for one in minibatches))
        metrics = _metrics(minibatches, epochs) | {"entropy_coef": coefficient, "samples": float(usage.steps)}
        return learner, metrics

    def _minibatches(self, count: int, epoch: int, parts: int) -> Iterator[Tensor]:
        """Yield the environments in an order drawn for each epoch, in parts of nearly equal size."""
        stream = streams.key(self.rng_seed, streams.MINIBATCHES, self.iteration, epoch)
        order = torch.from_numpy(streams.permutation(stream, count))
        yield from (part.sort().values for part in order.tensor_split(parts))

    def _usage(self, rows: Rows) -> Usage:
        actions, masks = rows.flat(rows.actions), {name: rows.flat(mask) for name, mask in rows.masks.items()}
        return Usage(len(actions), self.interface.open(masks, actions).sum(dim=0))

    def _step(
        self, learner: Learner, rows: Rows, usage: Usage, parts: int, coefficient: float, number: int
    ) -> tuple[Learner, Minibatch]:
        weights = {name: weight.clone().requires_grad_() for name, weight in learner.weights.items()}
        loss, one = self._loss(Network(weights, self.interface, self.train.policy), rows, usage, parts, coefficient)
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
        norm = math.sqrt(math.fsum(float(gradient.square().sum()) for gradient in gradients))
        one = replace(one, gradient_norm=norm)
        if not math.isfinite(norm + one.divergence + one.policy_loss + one.value_loss):
            return replace(learner, skipped=learner.skipped + 1), one
        if self._too_far(one.divergence, number):
            return learner, one
        return self._stepped(learner, dict(zip(weights, gradients, strict=True)), norm), replace(one, stepped=True)

    def _stepped(self, learner: Learner, gradients: Tensors, norm: float) -> Learner:
        """Take one step of Adam on clipped gradients."""
        ppo, steps = self.train.ppo, learner.steps + 1
        shrink = max(1.0, norm / ppo.max_grad_norm)
        weights, first, second = {}, {}, {}
        for name, gradient in gradients.items():
            own = gradient / shrink
            first[name] = DECAY[0] * learner.first[name] + (1.0 - DECAY[0]) * own
            second[name] = DECAY[1] * learner.second[name] + (1.0 - DECAY[1]) * own**2
            spread = torch.sqrt(second[name] / (1.0 - DECAY[1] ** steps)) + ppo.adam_eps
            weights[name] = learner.weights[name] - learner.rate * first[name] / (1.0 - DECAY[0] ** steps) / spread
        return replace(learner, weights=weights, first=first, second=second, steps=steps)

    def _too_far(self, divergence: float, number: int) -> bool:
        target = self.train.ppo.target_kl
        if target is None:
            return False
        limit = STOP_FACTOR * target
        if self.looked is not None and abs(divergence - limit) < IN_DOUBT * limit:
            return number + 1 == self.looked
        return divergence > limit

    def _loss(
        self, network: Network, rows: Rows, usage: Usage, parts: int, coefficient: float
    ) -> tuple[Tensor, Minibatch]:
        """Return −objective + c_v · value loss − Σ c_k · entropy of factor k, each a sum over the minibatch times the
        number of minibatches over the counts of the whole rollout.
        """
        z, values = network.read(rows.features, rows.categories, rows.told)
        masks = {name: rows.flat(mask) for name, mask in rows.masks.items()}
        judged = network.judge(rows.flat(z), masks, rows.flat(rows.actions))
        logs = (judged.log_probs - rows.flat(rows.log_probs)).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        share = parts / max(1, usage.steps)
        policy = -self._objective(logs, rows.flat(rows.advantages), rows.flat(rows.actions)[:, 0]).sum() * share
        value = (rows.flat(values) - rows.flat(rows.returns)).square().sum() * share / 2
        several = judged.options > 1
        entropy = torch.where(several, judged.entropy, 0.0).sum(dim=0)
        mean = entropy * parts / usage.open.clamp(min=1)
        bonus = (self._worth(coefficient) * mean).sum()
        drift = logs.detach()
        divergence = float((torch.expm1(drift) - drift).sum()) / max(1, len(drift))
        losses = float(policy.detach()), float(value.detach())
        minibatch = Minibatch(*losses, divergence, entropy.detach(), several.sum(dim=0), math.nan, False)
        return policy + self.train.ppo.value_coef * value - bonus, minibatch

    def _objective(self, logs: Tensor, gained: Tensor, op: Tensor) -> Tensor:
        """Return the objective of each row, min(r A, clip(r, 1 − ε, 1 + ε) A), ``[N]``."""
        ppo = self.train.ppo
        if ppo.ratio == "joint":
            logs, weight = logs.sum(dim=1, keepdim=True).clip(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT), 1.0
        else:
            weight = self.interface.matters[op]
        ratio, gain = logs.exp(), gained[:, None]
        clipped = ratio.clip(1.0 - ppo.clip_range, 1.0 + ppo.clip_range)
        return (weight * torch.minimum(ratio * gain, clipped * gain)).sum(dim=1)

    def _worth(self, coefficient: float) -> Tensor:
        """Return the coefficient of each factor's entropy."""
        scale, names = self.train.ppo.entropy_scale, [factor.name for factor in self.interface.factors]
        return torch.tensor([coefficient * scale.get(name, 1.0) for name in names], dtype=torch.float64)


def _stopped(minibatches: Sequence[Minibatch]) -> bool:
    last = minibatches[-1] if minibatches else None
    return last is not None and not last.stepped and math.isfinite(last.divergence + last.gradient_norm)


def _metrics(minibatches: Sequence[Minibatch], epochs: int) -> dict[str, float]:
    """Return the metrics of an update by name."""
    taken = [one for one in minibatches if one.stepped]
    mean = lambda values: math.fsum(values) / len(values) if values else math.nan  # noqa: E731
    several = sum((one.open for one in taken), torch.zeros(()))
    entropy = sum((one.entropy for one in taken), torch.zeros(()))
    heads = (entropy[several > 0] / several[several > 0]).tolist() if taken else []
    return {
        "policy_loss": mean([one.policy_loss for one in taken]),
        "value_loss": mean([one.value_loss for one in taken]),
        "entropy": mean(heads),
        "grad_norm": mean([one.gradient_norm for one in taken]),
        "grad_norm_max": max((one.gradient_norm for one in taken), default=math.nan),
        "epochs": float(epochs),
        "steps": float(len(taken)),
        "approx_kl": minibatches[-1].divergence,
        "approx_kl_max": max(one.divergence for one in minibatches),
    }
