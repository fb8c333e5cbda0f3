"""Derive recorded iterations from the state before each and the environments' outputs: actions, values, scales,
advantages, every optimiser step, counters and metrics.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from simic.params import Params
from tests.reference import agent, ppo, streams
from tests.reference.agent import MASKS, Interface, Network, Scale, Tensors
from tests.reference.comparison import ComparisonLog
from tests.reference.ppo import Learner, Update

BEFORE = "before/"
AFTER = "after/"
# Units of metrics that may be nearly 0: normalised advantages and shares are of the order of 1.
METRIC_UNITS = {"policy_loss": 1.0, "explained_variance": 1.0, "entropy": 1.0, "approx_kl": 1e-3}
# Ten times the rounding of float32 in clean runs (docs/history/experiments.md), as a share of the largest value; of
# weights and moments as a share of the norm of their change. Kinds that are not named must be equal.
ALLOWED = {
    "initial weights": 1.3e-5,
    "log-probabilities acting": 2e-5,
    "values acting": 2e-5,
    "values that follow": 2e-5,
    "actions sampled": 2e-6,
    "rewards kept": 1.7e-6,
    "running returns": 2e-6,
    "scale of observations": 1e-6,
    "scale of rewards": 1.5e-6,
    "advantages": 2e-5,
    "returns": 2e-5,
    "weights": 2e-3,
    "first moments": 2.5e-3,
    "second moments": 1e-3,
    "learning_rate": 1e-14,
    "entropy_coef": 1e-14,
    **dict.fromkeys(("policy_loss", "value_loss", "entropy", "grad_norm", "grad_norm_max"), 1e-4),
    **dict.fromkeys(("approx_kl", "explained_variance"), 1e-3),
    **{
        f"{name}_{what}": 2e-5
        for name in ("advantage", "return")
        for what in ("mean", "std", "max_abs")
    },
    "value_mean": 2e-5,
}
RATIO = 1e-4  # of a first ratio from 1
MOST_EDGES = 6  # rows on the edge of the clip that are tried from both sides


@dataclass(frozen=True)
class RecordedIteration:
    """All tensors of one iteration (``tests.reference.recorded_iterations.py``)."""

    number: int
    tensors: Tensors

    def state(self, when: str) -> dict[str, Tensor]:
        """Return the training state ``before/`` or ``after/`` it, by the names of a checkpoint."""
        return {
            name.removeprefix(when): x for name, x in self.tensors.items() if name.startswith(when)
        }

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        return {
            name.removeprefix(MASKS): x
            for name, x in self.tensors.items()
            if name.startswith(MASKS)
        }

    @cached_property
    def steps(self) -> dict[str, Tensor]:
        """Return what belongs to its T steps, ``[T, E, …]``; what was seen after the last is left out."""
        others = (BEFORE, AFTER, "env_ids", "finals")
        length = len(self.tensors["valid"])
        return {name: x[:length] for name, x in self.tensors.items() if not name.startswith(others)}

    @property
    def label(self) -> str:
        return f"iteration {self.number + 1}"

    @property
    def env_ids(self) -> list[int]:
        return self.tensors["env_ids"][0].tolist()


@dataclass(frozen=True)
class Known:
    """Hold the params and the policy's interface; ``clipped``: scaled rewards are (not where shaping telescopes)."""

    params: Params
    interface: Interface
    clipped: bool


def compare_iteration(
    known: Known, record: RecordedIteration, metrics: Mapping[str, float], log: ComparisonLog
) -> None:
    """Compare everything of one iteration; ``metrics`` is its row of telemetry's updates."""
    label = record.label
    before = record.state(BEFORE)
    after = record.state(AFTER)
    train = known.params.train
    x = record.tensors
    starts = _starts(x)
    valid = (
        torch.ones_like(x["valid"]) if "starts" in x else _valid(x["terminated"], x["truncated"])
    )
    if starts is not None:
        log.equal("starts kept", label, torch.equal(x["starts"][1:], starts[1:-1]))
    log.equal("valid steps kept", label, torch.equal(x["valid"], valid))
    if record.number == 0:
        weights = agent.policy_of(before)
        units = train.policy.core_units
        initial = agent.initial_weights(weights, known.interface, units, known.params.rng_seed)
        for name, expected in initial.items():
            log.tensors("initial weights", f"{label}, {name}", weights[name], expected)
    observation = Scale.read(before, "observation")
    reward = Scale.read(before, "reward")
    features = x["features"].double()
    features = features if observation is None else observation.see(features, known.interface.flags)
    learner = Learner.read(before)
    _compare_acting(known, record, learner, features, log)
    rewards = torch.where(valid, x["rewards"].double(), 0.0)
    going_on = () if starts is None else (starts, before.get("normalizers/reward.running"))
    reward, scaled, running = ppo.scaled(
        rewards, valid, reward, train.ppo.gamma, known.clipped, *going_on
    )
    if observation is not None:
        observation = observation.with_rows(x["features"][:-1][valid].double())
    _compare_scales(after, observation, reward, running, float(rewards.abs().max()), label, log)
    values, following = (
        torch.where(valid, x[name].double(), 0.0) for name in ("values", "next_values")
    )
    advantages, returns = ppo.advantages(
        scaled,
        values,
        following,
        x["terminated"],
        x["truncated"],
        valid,
        train.ppo.gamma,
        train.ppo.gae_lambda,
    )
    unit = float(scaled.abs().max())
    if (
        starts is not None
    ):  # returns of long episodes are far larger than a reward, and so is their rounding
        unit = max(unit, float(values.abs().max()))
    log.tensors("advantages", label, torch.where(valid, x["advantages"], 0.0), advantages, unit)
    log.tensors("returns", label, torch.where(valid, x["returns"], 0.0), returns, unit)
    chosen = torch.zeros_like(valid)
    chosen[valid] = known.interface.open(ppo.flat(record.steps)).any(dim=1)
    steps = record.steps | {
        "features": torch.where(valid[..., None], features[:-1], 0.0),
        "log_probs": x["log_probs"].double(),
        "advantages": ppo.standardized(advantages, chosen),
        "returns": returns,
    }
    minibatches = int(metrics["steps"] + metrics.get("stopped_early", 0.0))
    update = Update(
        steps, known.interface, train, known.params.rng_seed, record.number, minibatches
    )
    learned, derived = _followed(update, learner, Learner.read(after))
    derived |= ppo.summary(advantages[valid], returns[valid], values[valid])
    _compare_metrics(metrics, derived, unit, label, log)
    _compare_learned(learner, learned, Learner.read(after), label, log)


def _followed(
    update: Update, before: Learner, recorded: Learner
) -> tuple[Learner, dict[str, float]]:
    """Derive an update. The gradient jumps where a row begins to be clipped, so where rounding decides that, the side
    counts from which the recorded weights are reached.
    """
    learned, metrics, edges = update.run(before)
    distance = _distance(before, learned, recorded)
    for edge in edges[:MOST_EDGES]:
        if distance < ALLOWED["weights"] / 10:  # rounding alone
            break
        crossed = replace(update, crossed=update.crossed | {edge})
        other, told, _ = crossed.run(before)
        if (nearer := _distance(before, other, recorded)) < distance:
            update = crossed
            learned = other
            metrics = told
            distance = nearer
    return learned, metrics


def _distance(before: Learner, learned: Learner, recorded: Learner) -> float:
    """Return how far two learners are apart, as a share of the change."""

    def norm(one: Learner, other: Learner) -> float:
        return math.sqrt(
            math.fsum(
                float((x - other.weights[name]).square().sum()) for name, x in one.weights.items()
            )
        )

    return norm(learned, recorded) / (norm(learned, before) or 1.0)


def compare_states(record: RecordedIteration, hashes: tuple[str, str], log: ComparisonLog) -> None:
    """Compare the hashes of the states before and after an iteration with those of telemetry."""
    for when, expected in zip((BEFORE, AFTER), hashes, strict=True):
        log.equal(
            "state that was recorded",
            f"{when}{record.label}",
            hashed({}, record.state(when)) == expected,
        )


def compare_taken_up(begun: Sequence[str], ended: Sequence[str], log: ComparisonLog) -> None:
    """Compare the hash of the state that each iteration began with to that of the state the one before ended with: a
    resume or a validation in between must not change it.
    """
    for number, (before, after) in enumerate(zip(ended, begun[1:], strict=False), start=2):
        if before:  # an earlier version recorded none
            log.equal("state taken up", f"iteration {number}", after == before)


def hashed(scalars: Mapping[str, object], tensors: Tensors) -> str:
    """Return sha256 over counters as JSON with sorted keys, then by name every tensor's name, type, shape and bytes. A
    link of the hash chain is that hash after an iteration; its counters hold the link before.
    """
    content = hashlib.sha256(json.dumps(scalars, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.numpy().tobytes())
    return content.hexdigest()


def _valid(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return the steps ``[T, E]`` up to the end of each episode."""
    over = (terminated | truncated).cumsum(dim=0) > 0
    return ~torch.cat((torch.zeros_like(over[:1]), over[:-1]))


def _starts(x: Tensors) -> Tensor | None:
    """Return where episodes start ``[T+1, E]``, derived from where they end; None of episodes that are rollouts."""
    return torch.cat((x["starts"][:1], x["terminated"] | x["truncated"])) if "starts" in x else None


def _compare_acting(
    known: Known, record: RecordedIteration, learner: Learner, features: Tensor, log: ComparisonLog
) -> None:
    x = record.tensors
    label = record.label
    valid = record.tensors["valid"]
    steps, _, factors = x["actions"].shape
    network = Network(learner.weights, known.interface, known.params.train.policy)
    noise = agent.noise(
        known.params.rng_seed, streams.ACTIONS, record.number, record.env_ids, steps, factors
    )
    starts = _starts(x)
    sizes = known.params.train.policy
    with torch.no_grad():
        z, values = network.read(
            features, x["categories"], x["privileged"], starts, ppo.memories(x, sizes)
        )
        judged = network.judge(z[:-1][valid], ppo.flat(record.steps), noise[valid])
    log.tensors("log-probabilities acting", label, x["log_probs"][valid], judged.log_probs, 1.0)
    log.tensors("values acting", label, x["values"][valid], values[:-1][valid])
    on = valid & ~x["terminated"]
    if starts is not None:
        ended = on & x["truncated"]
        _compare_last(known, record, network, ended, log)
        on = on & ~ended
    log.tensors("values that follow", label, x["next_values"][on], values[1:][on])
    worst = judged.misplaced.max(dim=1).values
    at = valid.nonzero()[int(worst.argmax())].tolist()
    log.note("actions sampled", f"{label}, step {at[0] + 1}, host {at[1]}", float(worst.max()))


def _compare_last(
    known: Known, record: RecordedIteration, network: Network, ended: Tensor, log: ComparisonLog
) -> None:
    """Compare the values of the last observations of truncated episodes, under the memory of that moment."""
    if not ended.any():
        return
    x = record.tensors
    scale = Scale.read(record.state(BEFORE), "observation")
    last = x["finals"][ended].double()
    last = last if scale is None else scale.see(last, known.interface.flags)
    steps = len(ended)
    then = {
        trunk: (h[:steps][ended], c[:steps][ended]) for trunk, (h, c) in network.memories.items()
    }
    with torch.no_grad():
        categories, privileged = (
            x[name][:steps][ended][None] for name in ("categories", "privileged")
        )
        _, values = network.read(last[None], categories, privileged, None, then)
    log.tensors(
        "values that follow", f"{record.label}, at a truncation", x["next_values"][ended], values[0]
    )


def _compare_scales(
    after: Tensors, observation: Scale | None, reward: Scale | None, running: Tensor, rewards: float, label: str,
    log: ComparisonLog,
) -> None:  # fmt: skip
    for part, scale in (("observation", observation), ("reward", reward)):
        recorded = Scale.read(after, part)
        log.equal(f"scale of {part}s is kept", label, (recorded is None) == (scale is None))
        if scale is not None and recorded is not None:
            log.number(f"rows of the scale of {part}s", label, recorded.count, scale.count)
            unit = rewards if part == "reward" else 0.0
            log.tensors(f"scale of {part}s", f"{label}, mean", recorded.mean, scale.mean, unit)
            log.tensors(f"scale of {part}s", f"{label}, m2", recorded.squares, scale.squares, unit)
    if "normalizers/reward.running" in after:
        log.tensors("running returns", label, after["normalizers/reward.running"], running, rewards)


def _compare_metrics(
    metrics: Mapping[str, float],
    derived: Mapping[str, float],
    unit: float,
    label: str,
    log: ComparisonLog,
) -> None:
    log.note("first ratio", label, max(0.0, metrics["first_ratio_deviation"] - RATIO))
    for name, value in derived.items():
        if name in metrics:
            least = (
                unit
                if name.startswith(("return", "advantage", "value_mean"))
                else METRIC_UNITS.get(name, 0.0)
            )
            scale = 1.0 if math.isnan(value) else max(least, abs(value))
            log.number(name, label, metrics[name], value, scale)


def _compare_learned(
    before: Learner, learned: Learner, after: Learner, label: str, log: ComparisonLog
) -> None:
    for what in ("weights", "first", "second"):
        kind = what if what == "weights" else f"{what} moments"
        log.changes(kind, label, *(getattr(learner, what) for learner in (before, after, learned)))
    for name in ("steps", "updates", "skipped"):
        log.number("counters", f"{label}, {name}", getattr(after, name), getattr(learned, name))
