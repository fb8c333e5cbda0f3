"""The policy's network written out in float64, of one environment: encoder, memory cell by cell, norm, heads, value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simic import params
from simic.audit.reference.agent.interface import Interface, Mask

NORM_EPSILON = 1e-5
Weights = Mapping[str, Tensor]
Memory = tuple[Tensor, Tensor]  # hidden and cell


@dataclass(frozen=True)
class Judged:
    """What the network makes of an action at one moment: by factor ln π and entropy / ln(#legal), both 0 where the op
    does not use it, and how many choices were legal there (0).
    """

    log_probs: Tensor
    entropy: Tensor
    options: tuple[int, ...]


@dataclass(frozen=True)
class Offer:
    """The legal choices of one factor and their log-probabilities."""

    legal: list[int]
    log_probs: Tensor

    def of(self, choice: int) -> Tensor:
        """ln π of a legal choice; NaN of another, which is equal to nothing."""
        if choice not in self.legal:
            return torch.full((), math.nan, dtype=torch.float64)
        return self.log_probs[self.legal.index(choice)]

    def entropy(self) -> Tensor:
        """In units of that of a uniform choice; 0 of one choice."""
        if len(self.legal) <= 1:
            return torch.zeros((), dtype=torch.float64)
        return -(torch.exp(self.log_probs) * self.log_probs).sum() / math.log(len(self.legal))


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x Wᵀ + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Ba et al. 2016, arXiv 1607.06450."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + NORM_EPSILON) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def lstm(of_input: Tensor, of_hidden: Tensor, memory: Memory) -> Memory:
    """Hochreiter, Schmidhuber 1997 with a forget gate; torch's order of gates: input, forget, candidate, output."""
    both = of_input + of_hidden
    let_in, forget, _, out = torch.sigmoid(both).chunk(4)
    cell = forget * memory[1] + let_in * torch.tanh(both.chunk(4)[2])
    return out * torch.tanh(cell), cell


def gru(of_input: Tensor, of_hidden: Tensor, memory: Memory) -> Memory:
    """Cho et al. 2014 in torch's form: reset, update, new."""
    input_reset, input_update, input_new = of_input.chunk(3)
    hidden_reset, hidden_update, hidden_new = of_hidden.chunk(3)
    reset, update = torch.sigmoid(input_reset + hidden_reset), torch.sigmoid(input_update + hidden_update)
    new = torch.tanh(input_new + reset * hidden_new)
    return (1.0 - update) * new + update * memory[0], memory[1]


class Network64:
    """Weights by the names of a checkpoint, and what is made of them."""

    def __init__(self, weights: Weights, interface: Interface, sizes: params.Policy) -> None:
        self.weights, self.interface, self.sizes = weights, interface, sizes

    def read(self, features: Tensor, categories: Tensor, told: Tensor, starts: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """What the heads read ``[T, H]`` and the values ``[T]`` of one environment from scaled features ``[T, F]``,
        categories ``[T, C]`` and what the critic is told ``[T, n]``; memory is empty at every start and before the
        first step.
        """
        z = self._trunk("actor", features, categories, starts)
        about = sum(factor.size * factor.described for factor in self.interface.factors)
        z = torch.cat((z, features[:, features.shape[1] - about :]), dim=-1)
        if self.sizes.critic == "own":
            of_value = [self._trunk("critic", features, categories, starts)]
        else:  # no gradient of the value's reaches the actor's trunk
            of_value = [z.detach(), features]
        if self.interface.told:
            of_value.append(self.weights["told.weight"][told + 1].flatten(-2))  # the first row is "nothing"
        return z, self._head("value_head", torch.cat(of_value, dim=-1))[:, 0]

    def _trunk(self, trunk: str, features: Tensor, categories: Tensor, starts: Sequence[bool]) -> Tensor:
        x = features
        if self.interface.categories:
            rows = self.weights[f"{trunk}.category.weight"][categories + 1]  # the first is "none"
            x = torch.cat((x, rows.flatten(-2)), dim=-1)
        encoded = torch.tanh(linear(self.weights, f"{trunk}.encoder", x))
        if self.sizes.core == "none":
            return encoded
        remembered = layer_norm(self.weights, f"{trunk}.core_norm", self._remembered(trunk, encoded, starts))
        return torch.cat((encoded, remembered), dim=-1)

    def _remembered(self, trunk: str, encoded: Tensor, starts: Sequence[bool]) -> Tensor:
        cell = lstm if self.sizes.core == "lstm" else gru
        core = f"{trunk}.core.rnn"
        of_inputs = encoded @ self.weights[f"{core}.weight_ih_l0"].T + self.weights[f"{core}.bias_ih_l0"]
        recurrent, bias = self.weights[f"{core}.weight_hh_l0"], self.weights[f"{core}.bias_hh_l0"]
        nothing = torch.zeros(self.sizes.core_units, dtype=torch.float64)
        memory = (nothing, nothing)
        found: list[Tensor] = []
        for of_input, start in zip(of_inputs, starts, strict=True):
            memory = (nothing, nothing) if start else memory
            memory = cell(of_input, torch.addmv(bias, recurrent, memory[0]), memory)
            found.append(memory[0])
        return torch.stack(found)

    def _head(self, name: str, x: Tensor) -> Tensor:
        return linear(self.weights, f"{name}.out", torch.tanh(linear(self.weights, f"{name}.hidden", x)))

    def offer(self, z: Tensor, masks: Mapping[str, Mask], factor: int, op: int, slot: int) -> Offer:
        """A factor's legal choices at one moment, given the op and the slot."""
        legal = self.interface.legal(masks, factor, op, slot)
        told, described = self._told(z, factor, op, slot), self.interface.factors[factor].described
        logits = self._head(f"heads.{factor}", told)
        if described:
            units = torch.tanh(linear(self.weights, f"heads.{factor}.hidden", told))
            about = z[-len(logits) * described :].reshape(len(logits), described)
            logits = logits + about @ linear(self.weights, f"heads.{factor}.query", units)
        logits = logits[legal]
        return Offer(legal, logits - torch.logsumexp(logits, dim=0))

    def _told(self, z: Tensor, factor: int, op: int, slot: int) -> Tensor:
        """z with what was chosen before: the op, and behind the slot the slot, if the op uses one."""
        if factor >= 1:
            z = z + self.weights["given.0"][op]
        if factor >= 2 and self.interface.matters[op][1]:
            z = z + self.weights["given.1"][slot]
        return z

    def judge(self, z: Tensor, masks: Mapping[str, Mask], action: Sequence[int]) -> Judged:
        """An action at one moment, z ``[H]``."""
        nothing = torch.zeros((), dtype=torch.float64)
        op, slot = action[0], action[1] if len(action) > 1 else 0
        log_probs, entropy, options = [nothing] * len(action), [nothing] * len(action), [0] * len(action)
        for factor, matters in enumerate(self.interface.matters[op]):
            if matters:
                offer = self.offer(z, masks, factor, op, slot)
                log_probs[factor], entropy[factor] = offer.of(action[factor]), offer.entropy()
                options[factor] = len(offer.legal)
        return Judged(torch.stack(log_probs), torch.stack(entropy), tuple(options))


def unjudged(factors: int) -> Judged:
    """Of a step behind the end of its episode."""
    return Judged(torch.zeros(factors, dtype=torch.float64), torch.zeros(factors, dtype=torch.float64), (0,) * factors)
