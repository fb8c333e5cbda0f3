"""Certifies the learner: a small training by the code of the run, and every number of it derived again.

The reference (``simic.audit.reference.agent``) shares no code with what it checks, works in float64 with one
environment after the other, and starts every iteration from the checkpoint before it. What the environments gave is
taken as it was.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from simic.audit.comparison import Comparison
from simic.audit.reference.agent import chain, iteration
from simic.audit.reference.agent.acting import Acted
from simic.audit.reference.agent.initial import initial_weights
from simic.audit.reference.agent.interface import Interface
from simic.audit.reference.agent.iteration import FIRST, POLICY, SECOND, AgentState, Givens, Rescaled, Updated64
from simic.audit.reference.agent.scales import Tally64
from simic.audit.reference.agent.trail import Stray
from simic.audit.reference.agent.transcript import Transcript
from simic.audit.reference.agent.update import Learned64
from simic.audit.small_training import composed, thinned
from simic.audit.witness import Lived, Witness
from simic.envs.rewards import MODES
from simic.errors import SimicError
from simic.params import Params
from simic.training.checkpoint import Checkpoint
from simic.training.interrupts import Interrupted
from simic.training.learned import describe_specs
from simic.training.session import Session, open_session
from simic.training.trainer import train

DATA, TRAINING = "data", "training"  # folders
RESUMED_AFTER = 1  # iterations: by then there is something of everything that can be lost
# What a metric that may be nearly 0 is measured by: normalised advantages and shares are of the order of 1.
METRIC_UNITS = {"policy_loss": 1.0, "explained_variance": 1.0, "entropy": 1.0, "approx_kl": 1e-3, "approx_kl_max": 1e-3}

# The largest deviation of clean runs (docs/history/experiments.md), by what is compared:
# as a share of the largest expected value, of weights and moments of the largest change of their tensor. It is the
# rounding of float32; scales and coefficients are float64.
MEASURED = {
    "initial weights": 1.3e-6,
    "features seen": 5.5e-7,
    "log-probabilities acting": 7.6e-7,
    "values acting": 1.6e-6,
    "values that follow": 1.6e-6,
    "rewards kept": 1.7e-7,
    "running returns": 2.0e-7,
    "scale of observations": 1.4e-15,
    "scale of rewards": 1.5e-7,
    "advantages": 8.2e-7,
    "returns": 3.4e-7,
    "weights": 1.6e-7,
    "first moments": 2.4e-4,
    "second moments": 4.2e-5,
    "first ratio": 3.6e-7,
    "policy_loss": 2.3e-6,
    "value_loss": 4.8e-7,
    "entropy": 4.4e-8,
    "entropy_coef": 8.7e-16,
    "grad_norm": 4.7e-7,
    "grad_norm_max": 3.9e-7,
    "approx_kl": 2.5e-6,
    "approx_kl_max": 2.5e-6,
    "explained_variance": 1.2e-6,
    "advantage_mean": 1.2e-7,
    "advantage_std": 8.5e-8,
    "advantage_max_abs": 2.8e-7,
    "return_mean": 1.7e-7,
    "return_std": 7.0e-8,
    "return_max_abs": 2.7e-7,
    "value_mean": 1.8e-7,
}
# Where none of those runs deviated: a probability as log-probabilities do, the rest as float64 does.
UNMEASURED = {"actions sampled": 2.0e-7, "actions greedy": 2.0e-7, "learning rate": 1e-15}
ROOM = 10.0  # times what was measured; what is in neither table must be equal
ALLOWED = {what: ROOM * deviation for what, deviation in (MEASURED | UNMEASURED).items()}


def certify_agent(params: Params, prepared: Path, scratch: Path) -> tuple[Comparison, ...]:
    """Trains a few small iterations with the run's own settings, resumed in between, in ``scratch``; what was compared.

    ``prepared`` is the folder of prepared data. A training that ends with an error is a comparison that failed.
    """
    data = thinned(prepared, scratch / DATA)
    small = composed(params, data)
    found: list[Comparison] = []
    certifier: Certifier | None = None
    try:
        for until in (RESUMED_AFTER, small.train.iterations):
            with open_session(small, scratch / TRAINING, data, fresh=certifier is None) as session:
                certifier = certifier or Certifier(session)
                witness = Witness(session, until, certifier.earlier)
                found += certifier.begun(witness)
                with suppress(Interrupted):
                    train(session, [witness], witness.stop)
            for lived in witness.lived:
                found += certifier.compared(lived)
            found.append(_equal("iterations", f"up to {until}", certifier.iterations == until))
    except SimicError as error:
        found.append(Comparison("training", f"it ended: {error}", math.inf, 0.0))
    return tuple(found)


class Certifier:
    """Compares one iteration after another; remembers what has to live through a resume."""

    def __init__(self, session: Session) -> None:
        env, tree = session.env, session.params
        specs = describe_specs(env.action_spec, env.observation_spec)
        clipped = "shaping" not in MODES[tree.train.reward.mode]
        self.known = Givens(Interface.of(specs), tree.train, tree.rng_seed, clipped)
        self.earlier: Checkpoint | None = None
        self.iterations, self.env_steps = 0, 0

    def begun(self, witness: Witness) -> Iterator[Comparison]:
        """What a life begins with: drawn weights, or the state of the last checkpoint."""
        if self.earlier is not None:
            yield from _same("state restored", "after a resume", witness.begun, self.earlier.tensors)
            return
        weights = {name.removeprefix(POLICY): x for name, x in witness.begun.items() if name.startswith(POLICY)}
        shapes = {name: tuple(x.shape) for name, x in weights.items()}
        expected = initial_weights(
            shapes, self.known.interface.factors, self.known.train.policy.core_units, self.known.rng_seed
        )
        yield _largest("initial weights", "before training", weights, expected)

    def compared(self, lived: Lived) -> Iterator[Comparison]:
        """Everything of one iteration."""
        self.earlier = lived.after
        where = f"iteration {lived.number + 1}"
        transcript, state = lived.episodes[0], AgentState.of(lived.before, self.known.train)
        yield from _kept(where, lived, transcript)
        acted = iteration.act(self.known, state, transcript, "sampled")
        yield from _acted(where, lived, transcript, acted, "actions sampled")
        moved = iteration.rescale(self.known, state, transcript)
        yield from _scales(where, lived, moved)
        learned = iteration.reinforce(self.known, state, transcript, acted, moved, lived.trail)
        yield from _given(where, lived, learned, moved.unit(transcript))
        yield from _reported(where, lived, learned, moved.unit(transcript))
        yield from _left(where, lived, learned.learned)
        yield from self._told(where, lived, transcript)
        for played in lived.episodes[1:]:
            yield self._greedy(f"validation after {where}", lived, played)

    def _told(self, where: str, lived: Lived, transcript: Transcript) -> Iterator[Comparison]:
        """Counters and the hash chain."""
        self.iterations += 1
        self.env_steps += int(transcript.valid().sum())
        scalars = lived.after.manifest.scalars
        counted = (scalars["iteration"], scalars["env_steps"]) == (lived.number + 1, self.env_steps)
        yield _equal("counters", where, counted)
        link = chain.link(scalars, lived.chain_before, lived.after.tensors)
        yield _equal("state chain", where, link == scalars["chain"] == lived.update.state_chain)

    def _greedy(self, where: str, lived: Lived, played: Transcript) -> Comparison:
        state = AgentState.of(lived.after.tensors, self.known.train)
        acted = iteration.act(self.known, state, played, "greedy")
        return _within("actions greedy", where, float(acted.misplaced.max()))


def _kept(where: str, lived: Lived, transcript: Transcript) -> Iterator[Comparison]:
    """What was recorded of the episode against what went through the door."""
    rollout, valid = lived.rollout, transcript.valid()
    rows = valid[..., None]
    yield _equal("valid steps kept", where, torch.equal(rollout.valid, valid))
    yield _equal("ends kept", where, torch.equal(rollout.terminated, transcript.terminated & valid))
    yield _equal("ends kept", where, torch.equal(rollout.truncated, transcript.truncated & valid))
    yield _equal("actions kept", where, torch.equal(rollout.actions * rows, transcript.actions * rows))
    same = all(torch.equal(mask[valid], transcript.masks[name][:-1][valid]) for name, mask in rollout.masks.items())
    yield _equal("masks kept", where, same and rollout.masks.keys() == transcript.masks.keys())
    categories, told = transcript.categories[:-1], transcript.told[:-1]
    yield _equal("categories kept", where, torch.equal(rollout.categories[valid], categories[valid]))
    yield _equal("what the critic was told kept", where, torch.equal(rollout.told[valid], told[valid]))


def _acted(where: str, lived: Lived, transcript: Transcript, acted: Acted, sampled: str) -> Iterator[Comparison]:
    rollout, valid = lived.rollout, transcript.valid()
    yield _close("features seen", where, rollout.features, acted.features)
    yield _close("log-probabilities acting", where, rollout.log_probs, acted.log_probs, 1.0)
    yield _close("values acting", where, rollout.values[valid], acted.values[valid])
    yield _close("values that follow", where, rollout.next_values[valid], acted.next_values[valid])
    yield _within(sampled, where, float(acted.misplaced.max()))


def _scales(where: str, lived: Lived, moved: Rescaled) -> Iterator[Comparison]:
    after = lived.after.tensors
    paid = float(lived.episodes[0].rewards.abs().max())
    yield _close("rewards kept", where, lived.rollout.rewards, moved.rewards, paid)
    for part, tally in (("observation", moved.observation), ("reward", moved.reward)):
        if tally is not None:
            found = {name: after[f"normalizers/{part}.{name}"] for name in ("count", "mean", "m2")}
            yield _largest(f"scale of {part}s", where, found, _named(tally), paid if part == "reward" else 0.0)
    if moved.reward is not None:
        running = torch.tensor(moved.running, dtype=torch.float64)
        yield _close("running returns", where, after["normalizers/reward.running"], running, paid)


def _named(tally: Tally64) -> dict[str, Tensor]:
    return {"count": torch.tensor(tally.count, dtype=torch.float64), "mean": tally.mean, "m2": tally.squares}


def _given(where: str, lived: Lived, updated: Updated64, unit: float) -> Iterator[Comparison]:
    """What an update learned from; ``unit`` is the largest reward."""
    rollout = lived.rollout
    assert rollout.advantages is not None
    assert rollout.returns is not None
    yield _close("advantages", where, rollout.advantages, updated.advantages, unit)
    yield _close("returns", where, rollout.returns, updated.returns, unit)


def _reported(where: str, lived: Lived, updated: Updated64, unit: float) -> Iterator[Comparison]:
    """Metrics: NaN where the reference has none."""
    metrics = lived.update.metrics
    yield _within("first ratio", where, metrics["first_ratio_deviation"])
    for name, value in updated.learned.metrics.items():
        least = unit if name.startswith(("return", "advantage", "value_mean")) else METRIC_UNITS.get(name, 0.0)
        both = math.isnan(value) and math.isnan(metrics[name])
        found, expected = (0.0, 0.0) if both else (metrics[name], value)
        exact = torch.tensor([found, expected], dtype=torch.float64)
        yield _close(name, where, exact[0], exact[1], least)


def _left(where: str, lived: Lived, learned: Learned64) -> Iterator[Comparison]:
    """Every step of an update, and what it left behind."""
    for what in ("weights", "first", "second"):
        strays = [getattr(strayed, what) for strayed in learned.strayed]
        worst = Stray.worst(strays)
        step = strays.index(worst) if strays else 0
        kind = what if what == "weights" else f"{what} moments"
        yield _within(kind, f"{where}, step {step}, {worst.name}", worst.deviation)
    learner, after = learned.learner, lived.after.tensors
    rate = torch.tensor([lived.update.metrics["learning_rate"], learner.rate], dtype=torch.float64)
    yield _close("learning rate", where, rate[0], rate[1])
    optimized = learner.optimized
    for prefix, kept in ((POLICY, optimized.weights), (FIRST, optimized.first), (SECOND, optimized.second)):
        found = {name.removeprefix(prefix): x.double() for name, x in after.items() if name.startswith(prefix)}
        yield from _same("weights kept", where, found, kept)
    counts = {
        "adam.step": optimized.steps,
        "counter.updates": learner.updates,
        "counter.skipped_steps": learner.skipped,
    }
    for name, count in counts.items():
        yield _equal("counters", where, int(after[f"ppo/{name}"]) == count)
    if "ppo/counter.learning_rate" in after:
        yield _close("learning rate", where, after["ppo/counter.learning_rate"], rate[1])


def _within(what: str, where: str, deviation: float) -> Comparison:
    return Comparison(what, where, deviation, ALLOWED.get(what, 0.0))


def _equal(what: str, where: str, same: bool) -> Comparison:
    return Comparison(what, where, 0.0 if same else 1.0, 0.0)


def _close(what: str, where: str, found: Tensor, expected: Tensor, least: float = 0.0) -> Comparison:
    """By the largest difference as a share of the largest expected value, or of ``least`` if that is smaller."""
    return _within(what, where, _deviation(found, expected, max(least, float(expected.abs().max()))))


def _deviation(found: Tensor, expected: Tensor, scale: float) -> float:
    """Of tensors of one shape; infinite of others."""
    if found.shape != expected.shape:
        return math.inf
    return float((found.double() - expected.double()).abs().max()) / (scale or 1.0)


def _largest(
    what: str, where: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], least: float = 0.0
) -> Comparison:
    """Of several tensors the one that is furthest off."""
    by_name = {name: _close(what, where, found[name], x, least).deviation for name, x in expected.items()}
    return _worst(what, where, by_name)


def _worst(what: str, where: str, by_name: Mapping[str, float]) -> Comparison:
    name = max(by_name, key=lambda name: math.inf if math.isnan(by_name[name]) else by_name[name])
    return _within(what, f"{where}, {name}", by_name[name])


def _same(what: str, where: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[Comparison]:
    """Byte for byte."""
    yield _equal(what, where, found.keys() == expected.keys())
    for name in sorted(found.keys() & expected.keys()):
        if not torch.equal(found[name], expected[name]):
            yield _equal(what, f"{where}, {name}", False)
