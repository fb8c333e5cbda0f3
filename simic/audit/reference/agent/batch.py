"""What an update learns from: rows of steps, and in which order they are taken."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from simic.audit.reference import rng
from simic.audit.reference.agent.interface import Interface, Mask
from simic.audit.reference.agent.network import Judged, Network64, unjudged
from simic.audit.reference.rng import Draw


@dataclass(frozen=True)
class Strand:
    """Consecutive steps of one environment, which a policy with memory needs as a whole.

    ``name`` is its number in the order of minibatches. Lists are by step; ``log_probs [T, factors]`` are those of
    acting, ``advantages`` as they weigh in the loss.
    """

    name: int
    features: Tensor
    categories: Tensor
    told: Tensor
    masks: Sequence[Mapping[str, Mask]]
    actions: Sequence[Sequence[int]]
    valid: Sequence[bool]
    starts: Sequence[bool]
    log_probs: Tensor
    advantages: Sequence[float]
    returns: Sequence[float]

    def single_steps(self, steps: int) -> "Iterator[Strand]":
        """Every step as a strand of its own, for a policy without memory."""
        for t in range(len(self.valid)):
            here = slice(t, t + 1)
            yield Strand(
                self.name * steps + t,
                self.features[here],
                self.categories[here],
                self.told[here],
                self.masks[here],
                self.actions[here],
                self.valid[here],
                [True],
                self.log_probs[here],
                self.advantages[here],
                self.returns[here],
            )

    def judged(self, network: Network64) -> tuple[list[Judged], Tensor]:
        """By step what the network makes of the actions, and the values ``[T]``."""
        z, values = network.read(self.features, self.categories, self.told, self.starts)
        factors = len(self.actions[0])
        found = [
            network.judge(z[t], self.masks[t], self.actions[t]) if real else unjudged(factors)
            for t, real in enumerate(self.valid)
        ]
        return found, values


@dataclass(frozen=True)
class Usage64:
    """Of the whole rollout: steps, and by factor in how many of them it mattered, and in how many it had a choice."""

    steps: int
    relevant: list[int]
    open: list[int]


@dataclass(frozen=True)
class Lessons:
    """All strands of an update."""

    strands: tuple[Strand, ...]
    interface: Interface

    @classmethod
    def of(cls, strands: Sequence[Strand], interface: Interface, remembers: bool) -> "Lessons":
        """A policy without memory learns from single steps."""
        if remembers:
            return cls(tuple(strands), interface)
        return cls(tuple(one for strand in strands for one in strand.single_steps(len(strand.valid))), interface)

    @cached_property
    def usage(self) -> Usage64:
        """Counted step by step."""
        factors = len(self.interface.factors)
        steps, relevant, several = 0, [0] * factors, [0] * factors
        for strand in self.strands:
            for t, real in enumerate(strand.valid):
                if real:
                    steps += 1
                    for factor, matters in enumerate(self.interface.matters[strand.actions[t][0]]):
                        relevant[factor] += matters
                        several[factor] += matters and self.options(strand, t, factor) > 1
        return Usage64(steps, relevant, several)

    def options(self, strand: Strand, t: int, factor: int) -> int:
        """How many choices were legal."""
        action = strand.actions[t]
        return len(self.interface.legal(strand.masks[t], factor, action[0], action[1] if len(action) > 1 else 0))

    def minibatches(self, rng_seed: int, iteration: int, epoch: int, parts: int) -> Iterator[list[Strand]]:
        """The strands by name in an order that is drawn for each epoch, cut into parts of nearly equal size; the first
        ones are larger.
        """
        by_name = sorted(self.strands, key=lambda strand: strand.name)
        drawn = rng.permutation(rng.stream(rng_seed, Draw.MINIBATCHES, iteration, epoch), len(by_name))
        small, larger = divmod(len(by_name), parts)
        first = 0
        for part in range(parts):
            size = small + (part < larger)
            chosen = drawn[first : first + size]
            yield [by_name[place] for place in sorted(chosen)]
            first += size
