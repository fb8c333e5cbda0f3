"""One PPO update in float64: reward scale, advantages (GAE), losses, gradient steps, metrics."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from simic import params
from tests.reference import streams
from tests.reference.agent import CLIP, Interface, Memory, Network, Rows, Scale, Tensors, policy_of

MEMORY = "memory/h", "memory/c"  # at the first step, ``[1, E, …]``
DECAY = 0.9, 0.999  # of Adam's moments (Kingma, Ba 2015, arXiv 1412.6980)
SIGMA_FLOOR = 0.1  # of advantages, in units of scaled reward
FLAT = 1e-8  # variance of returns below which there is nothing to explain
STOP_FACTOR = 1.5  # times target_kl
IN_DOUBT = 1e-3  # relative distance of a divergence from its limit within which rounding decides: then as recorded
LOG_RATIO_LIMIT = 20.0
JOINT_LOG_RATIO_LIMIT = 30.0
RATE_END = 0.2  # what the linear schedule leaves
EDGE = 1e-5  # distance of a ratio from the clip's bound within which rounding decides whether the row is clipped


Place = tuple[int, int]  # a minibatch of an update, and a row of it


@dataclass(frozen=True)
class Learner:
    """Hold what an update changes: weights and Adam's moments by name, and counters."""

    weights: Tensors
    first: Tensors
    second: Tensors
    steps: int
    updates: int
    skipped: int

    @classmethod
    def read(cls, tensors: Tensors) -> "Learner":
        weights = policy_of(tensors)
        counters = ("adam.step", "counter.updates", "counter.skipped_steps")
        first, second = (
            {name: tensors[f"ppo/adam.{moment}.{name}"].double() for name in weights}
            for moment in ("exp_avg", "exp_avg_sq")
        )
        return cls(weights, first, second, *(int(tensors[f"ppo/{name}"]) for name in counters))


@dataclass(frozen=True)
class Minibatch:
    """Hold the statistics of one minibatch before its step; ``entropy`` and ``open``, the rows where the factor had
    choices, are sums by factor ``[K]``. ``margins [N]``: how far each row is from being clipped or not.
    """

    policy_loss: float
    value_loss: float
    divergence: float
    entropy: Tensor
    open: Tensor
    margins: Tensor
    gradient_norm: float = math.nan
    stepped: bool = False


# --- before the update -----------------------------------------------------------------------------------------------


def scaled(
    rewards: Tensor, valid: Tensor, scale: Scale | None, gamma: float, clipped: bool, starts: Tensor | None = None,
    before: Tensor | None = None,
) -> tuple[Scale | None, Tensor, Tensor]:  # fmt: skip
    """Return the updated scale, the scaled rewards ``[T, E]`` and the discounted returns at the end ``[E]``, which were
    ``before`` and begin anew where ``starts [T, E]`` says.
    """
    running = torch.zeros(rewards.shape[1], dtype=torch.float64) if before is None else before
    sums = []
    for t, paid in enumerate(rewards):
        running = running if starts is None else torch.where(starts[t], 0.0, running)
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
    advantages_of_rows = torch.zeros_like(values)
    later = torch.zeros(values.shape[1], dtype=values.dtype)
    for t in reversed(range(len(values))):
        delta = rewards[t] + torch.where(terminated[t], 0.0, gamma * following[t]) - values[t]
        goes_on = ~(terminated[t] | truncated[t])
        later = torch.where(valid[t], delta + torch.where(goes_on, gamma * decay * later, 0.0), 0.0)
        advantages_of_rows[t] = later
    return advantages_of_rows, torch.where(valid, advantages_of_rows + values, 0.0)


def standardized(values: Tensor, chosen: Tensor) -> Tensor:
    """Return (A − mean) / max(σ, 0.1) over the ``chosen``; 0 elsewhere."""
    if not chosen.any():
        return torch.zeros_like(values)
    own = values[chosen]
    return torch.where(
        chosen, (values - own.mean()) / max(float(own.std(correction=0)), SIGMA_FLOOR), 0.0
    )


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
    """Run one update of PPO (Schulman et al. 2017, arXiv 1707.06347).

    ``steps`` are T steps of E environments, ``[T, E, …]`` by name: scaled features, categories, told, masks, actions,
    log_probs, advantages, returns, and valid. ``looked`` is the recorded number of minibatches; it decides when to stop
    only where rounding would.
    """

    steps: Tensors
    interface: Interface
    train: params.Train
    rng_seed: int
    iteration: int
    minibatches_recorded: int
    crossed: frozenset[Place] = (
        frozenset()
    )  # rows that are clipped where float64 does not clip, or the other way

    def run(self, learner: Learner) -> tuple[Learner, dict[str, float], list[Place]]:
        """Return the learner after all minibatches before one whose divergence is too large, the metrics, and the rows
        of which rounding decides whether they are clipped, the nearest first.
        """
        steps = self.steps
        before = learner
        if (
            self.train.policy.core == "none"
        ):  # every step is an environment of its own, one environment after another
            steps = {name: x for name, x in steps.items() if name not in (*MEMORY, "starts")}
            steps = {name: x.transpose(0, 1).flatten(0, 1)[None] for name, x in steps.items()}
        rows = flat(steps)
        envs = steps["valid"].shape[1]
        parts = min(self.train.ppo.minibatches, envs)
        samples = len(rows["actions"])
        coefficient, rate = self._scheduled(before.updates)
        share = parts / max(1, samples)
        worth = coefficient * parts * self._entropy_weights(rows)
        minibatches = list[Minibatch]()
        epochs = 0
        for epoch, chosen in self._minibatches(envs, parts):
            epochs = epoch + 1
            own = {name: x[:, chosen] for name, x in steps.items()}
            is_last = len(minibatches) + 1 == self.minibatches_recorded
            step = len(minibatches)
            crossed = torch.tensor(
                [row for place, row in self.crossed if place == step], dtype=torch.int64
            )
            learner, minibatch = self._step(learner, own, share, worth, rate, is_last, crossed)
            minibatches.append(minibatch)
            if not minibatch.stepped and math.isfinite(
                minibatch.divergence + minibatch.gradient_norm
            ):
                break
        learner = replace(
            learner, updates=before.updates + any(minibatch.stepped for minibatch in minibatches)
        )
        update_metrics = {
            "epochs": epochs,
            "entropy_coef": coefficient,
            "samples": samples,
            "learning_rate": rate,
        }
        return learner, update_metrics | _metrics(minibatches), _edges(minibatches)

    def _scheduled(self, updates: int) -> tuple[float, float]:
        """Return the coefficient of entropy and the learning rate after so many updates."""
        ppo = self.train.ppo
        total = self.train.horizon or self.train.iterations
        done = min(1.0, updates / max(1, total - 1))
        left = (1.0 - done) + done * RATE_END if ppo.learning_rate_schedule == "linear" else 1.0
        return (
            1.0 - done
        ) * ppo.entropy_coef + done * ppo.entropy_coef_final, left * ppo.learning_rate

    def _entropy_weights(self, rows: Rows) -> Tensor:
        """Return the scale of each factor's entropy, over the number of rows where it has choices."""
        scales = [
            self.train.ppo.entropy_scale.get(factor.name, 1.0) for factor in self.interface.factors
        ]
        return torch.tensor(scales, dtype=torch.float64) / self.interface.open(rows).sum(
            dim=0
        ).clamp(min=1)

    def _minibatches(self, count: int, parts: int) -> Iterator[tuple[int, Tensor]]:
        """Yield each epoch with the environments in an order drawn for it, in parts of nearly equal size."""
        for epoch in range(self.train.ppo.epochs):
            stream = streams.key(self.rng_seed, streams.MINIBATCHES, self.iteration, epoch)
            order = torch.from_numpy(streams.permutation(stream, count))
            yield from ((epoch, part.sort().values) for part in order.tensor_split(parts))

    def _step(
        self,
        learner: Learner,
        steps: Tensors,
        share: float,
        worth: Tensor,
        rate: float,
        is_last: bool,
        crossed: Tensor,
    ) -> tuple[Learner, Minibatch]:
        weights = {
            name: weight.clone().requires_grad_() for name, weight in learner.weights.items()
        }
        loss, minibatch = self._loss(
            Network(weights, self.interface, self.train.policy), steps, share, worth, crossed
        )
        gradients = torch.autograd.grad(
            loss, list(weights.values()), allow_unused=True, materialize_grads=True
        )
        minibatch = replace(
            minibatch,
            gradient_norm=math.sqrt(math.fsum(float(each.square().sum()) for each in gradients)),
        )
        if not math.isfinite(
            minibatch.gradient_norm
            + minibatch.divergence
            + minibatch.policy_loss
            + minibatch.value_loss
        ):
            return replace(learner, skipped=learner.skipped + 1), minibatch
        if self._too_far(minibatch.divergence, is_last):
            return learner, minibatch
        shrink = max(1.0, minibatch.gradient_norm / self.train.ppo.max_grad_norm)
        clipped = {
            name: gradient / shrink for name, gradient in zip(weights, gradients, strict=True)
        }
        return _stepped(learner, clipped, rate, self.train.ppo.adam_eps), replace(
            minibatch, stepped=True
        )

    def _too_far(self, divergence: float, is_last: bool) -> bool:
        target = self.train.ppo.target_kl
        if target is None:
            return False
        limit = STOP_FACTOR * target
        return is_last if abs(divergence - limit) < IN_DOUBT * limit else divergence > limit

    def _loss(
        self, network: Network, steps: Tensors, share: float, worth: Tensor, crossed: Tensor
    ) -> tuple[Tensor, Minibatch]:
        """Return −objective + c_v · value loss − Σ worth · entropy of each factor, each a sum over the minibatch times
        the number of minibatches over the counts of the whole rollout.
        """
        of_rows = steps["features"], steps["categories"], steps["privileged"], steps.get("starts")
        z, values = network.read(*of_rows, memories(steps, self.train.policy))
        rows = flat(steps)
        valid = steps["valid"]
        judged = network.judge(z[valid], rows)
        logs = (judged.log_probs - rows["log_probs"]).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        advantages_of_rows, margins = self._objective(
            logs, rows["advantages"], rows["actions"][:, 0], crossed
        )
        policy = -advantages_of_rows.sum() * share
        value = (values[valid] - rows["returns"]).square().sum() * share / 2
        entropy = judged.entropy.sum(dim=0)
        drift = logs.detach()
        minibatch = Minibatch(
            policy_loss=float(policy.detach()),
            value_loss=float(value.detach()),
            divergence=float((torch.expm1(drift) - drift).sum()) / max(1, len(drift)),
            entropy=entropy.detach(),
            open=self.interface.open(rows).sum(dim=0),
            margins=margins,
        )
        return policy + self.train.ppo.value_coef * value - (worth * entropy).sum(), minibatch

    def _objective(
        self, logs: Tensor, advantages_of_rows: Tensor, op: Tensor, crossed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the objective of each row, min(r A, clip(r, 1 − ε, 1 + ε) A), and its margin, ``[N]``. Rows that are
        ``crossed`` have about the same value with the gradient of the other side.
        """
        ppo = self.train.ppo
        if ppo.ratio == "joint":
            logs = logs.sum(dim=1, keepdim=True).clip(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
            weight = 1.0
        else:
            weight = self.interface.matters[op]
        ratio = logs.exp()
        gain = advantages_of_rows[:, None]
        beyond = (
            ratio - 1.0
        ).detach() * gain.sign() - ppo.clip_range  # positive where it is clipped
        other = torch.zeros(len(advantages_of_rows), 1, dtype=torch.bool).index_fill(
            0, crossed, True
        ) & (beyond.abs() < EDGE)
        clipped = ratio.detach().clip(1.0 - ppo.clip_range, 1.0 + ppo.clip_range)
        objective = torch.where((beyond > 0) ^ other, clipped * gain, ratio * gain)
        return (weight * objective).sum(dim=1), torch.where(
            gain == 0.0, torch.inf, beyond.abs()
        ).amin(dim=1)


def _edges(minibatches: Sequence[Minibatch]) -> list[Place]:
    near = [
        (float(minibatch.margins[row]), (step, row))
        for step, minibatch in enumerate(minibatches)
        for row in (minibatch.margins < EDGE).nonzero().flatten().tolist()
    ]
    return [place for _, place in sorted(near)]


def flat(steps: Tensors) -> dict[str, Tensor]:
    """Return the valid ones of steps ``[T, E, …]`` one after the other."""
    return {name: x[steps["valid"]] for name, x in steps.items() if name not in MEMORY}


def memories(steps: Tensors, sizes: params.Policy) -> dict[str, Memory]:
    """Return the memory of each trunk before the first step, where steps have one: ``[1, E, units]``, the actor's
    first.
    """
    if sizes.core == "none" or MEMORY[0] not in steps:
        return {}
    hidden, cell = (steps[name][0].double() for name in MEMORY)
    trunks = ("actor", "critic") if sizes.critic == "own" else ("actor",)
    units = sizes.core_units
    cell = cell if cell.shape[1] else torch.zeros_like(hidden)
    return {
        trunk: (hidden[:, k * units : (k + 1) * units], cell[:, k * units : (k + 1) * units])
        for k, trunk in enumerate(trunks)
    }


def _stepped(learner: Learner, gradients: Tensors, rate: float, eps: float) -> Learner:
    steps = learner.steps + 1
    weights = {}
    first = {}
    second = {}
    for name, gradient in gradients.items():
        first[name] = DECAY[0] * learner.first[name] + (1.0 - DECAY[0]) * gradient
        second[name] = DECAY[1] * learner.second[name] + (1.0 - DECAY[1]) * gradient**2
        spread = torch.sqrt(second[name] / (1.0 - DECAY[1] ** steps)) + eps
        weights[name] = (
            learner.weights[name] - rate * first[name] / (1.0 - DECAY[0] ** steps) / spread
        )
    return replace(learner, weights=weights, first=first, second=second, steps=steps)


def _metrics(minibatches: Sequence[Minibatch]) -> dict[str, float]:
    """Return the metrics of an update by name; NaN for means over no step."""
    steps_taken = [minibatch for minibatch in minibatches if minibatch.stepped]
    metrics = dict.fromkeys(
        ("policy_loss", "value_loss", "entropy", "grad_norm", "grad_norm_max"), math.nan
    )
    if steps_taken:
        norms = [minibatch.gradient_norm for minibatch in steps_taken]
        choices = torch.stack([minibatch.open for minibatch in steps_taken]).sum(dim=0)
        entropy = (
            torch.stack([minibatch.entropy for minibatch in steps_taken]).sum(dim=0)[choices > 0]
            / choices[choices > 0]
        )
        metrics |= {
            "policy_loss": fmean(minibatch.policy_loss for minibatch in steps_taken),
            "value_loss": fmean(minibatch.value_loss for minibatch in steps_taken),
            "entropy": float(entropy.mean()),
            "grad_norm": fmean(norms),
            "grad_norm_max": max(norms),
        }
    return metrics | {
        "steps": len(steps_taken),
        "approx_kl": minibatches[-1].divergence,
    }
