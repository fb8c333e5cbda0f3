"""The policy in float64 from a checkpoint's tensors: scaling, network, action probabilities, first weights.

Rows form batches; no code is shared with ``simic.agent``.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simic import params
from tests.reference import streams

Tensors = Mapping[str, Tensor]
Rows = Mapping[str, Tensor]  # N decisions: ``actions [N, K]`` and ``masks.`` of heads

Memory = tuple[Tensor, Tensor]  # hidden state and cell, which a GRU leaves as it was
MASKS = "masks."  # of each head, by name, among the tensors of decisions
POLICY = "ppo/policy."  # of each weight, by name, among the tensors of a checkpoint
NORM_EPSILON = 1e-5
CLIP = 10.0
VARIANCE_FLOOR = 1e-4
REWARD_SCALE_FLOOR = 1e-2
# Gains of first weights by prefix and suffix of the name, the first match counts: √2 before a tanh, 0.01 for logits,
# 1 for the value and for embeddings, 0 for what a head reads of earlier choices.
GAINS = (
    ("choice_embeddings", "", 0.0),
    ("heads", "out.weight", 0.01),
    ("heads", "query.weight", 0.01),
    ("value_head", "out.weight", 1.0),
    ("privileged", "", 1.0),
    ("", "category.weight", 1.0),
    ("", "", math.sqrt(2.0)),
)


@dataclass(frozen=True)
class Factor:
    """Describe one head of an action: its number of choices, what its mask depends on (nothing, the op or the slot),
    the first bias of its logits, and how many of the last features describe each choice.
    """

    name: str
    size: int
    mask_given: str
    lean: tuple[float, ...] = ()
    described: int = 0


@dataclass(frozen=True)
class Interface:
    """Describe observations and actions. ``matters [O, K]``: whether factor k is part of the action under each op;
    ``flags``: features that are never scaled; ``privileged``: how many numbers the critic alone reads.
    """

    factors: tuple[Factor, ...]
    matters: Tensor
    flags: Tensor
    categories: int
    privileged: int

    @classmethod
    def of(cls, specs: Mapping[str, Any]) -> "Interface":
        action = specs["action"]
        seen = specs["observation"]
        factors = tuple(
            Factor(
                each["name"],
                each["size"],
                each["mask_given"],
                tuple(each["lean"]),
                each["described"],
            )
            for each in action["heads"]
        )
        flags = seen["raw"] or [False] * seen["features"]
        relevance = torch.tensor(action["relevance"])
        return cls(factors, relevance, torch.tensor(flags), seen["categories"], seen["privileged"])

    def legal(self, rows: Rows, factor: int) -> Tensor:
        """Return which choices the masks of each row allow, bool ``[N, size]``, given its op and slot."""
        described = self.factors[factor]
        actions = rows["actions"]
        mask = rows.get(f"{MASKS}{described.name}")
        if mask is None:
            return torch.ones(len(actions), described.size, dtype=torch.bool)
        given = {"op": actions[:, 0], "slot": slots_of(actions)}.get(described.mask_given)
        return mask if given is None else mask[torch.arange(len(actions)), given]

    def open(self, rows: Rows) -> Tensor:
        """Return where a factor is part of the action and had more than one legal choice, bool ``[N, K]``."""
        several = [self.legal(rows, k).sum(dim=1) > 1 for k in range(len(self.factors))]
        return torch.stack(several, dim=1) & self.matters[rows["actions"][:, 0]]


def slots_of(actions: Tensor) -> Tensor:
    """Return the slot of each action ``[N, K]``; 0 where an action has none."""
    return actions[:, 1] if actions.shape[1] > 1 else torch.zeros_like(actions[:, 0])


@dataclass(frozen=True)
class Scale:
    """Hold running moments: count of rows, their mean and the sum of their squared deviations ``[D]``."""

    count: float
    mean: Tensor
    squares: Tensor

    @classmethod
    def read(cls, tensors: Tensors, part: str) -> "Scale | None":
        """Read the scale of ``observation`` or ``reward`` from a checkpoint; None where nothing is scaled."""
        moments = {
            name: tensors.get(f"normalizers/{part}.{name}") for name in ("count", "mean", "m2")
        }
        count = moments["count"]
        mean = moments["mean"]
        squares = moments["m2"]
        return (
            None
            if count is None or mean is None or squares is None
            else cls(float(count), mean, squares)
        )

    def with_rows(self, rows: Tensor) -> "Scale":
        """Add rows ``[N, D]``; those with a NaN or an infinity are left out."""
        rows = rows[rows.isfinite().all(dim=1)]
        if not len(rows):
            return self
        count = self.count + len(rows)
        own = rows.mean(dim=0)
        apart = own - self.mean.double()
        within = (rows - own).square().sum(dim=0)
        between = apart.square() * self.count * len(rows) / count
        return Scale(count, self.mean + apart * len(rows) / count, self.squares + within + between)

    @property
    def variance(self) -> Tensor:
        """Return the population variance; 1 before the first row."""
        return self.squares / self.count if self.count else torch.ones_like(self.squares)

    @property
    def deviation(self) -> float:
        """Return the scale of rewards: the floored deviation of discounted returns."""
        return max(math.sqrt(float(self.variance.flatten()[0])), REWARD_SCALE_FLOOR)

    def see(self, features: Tensor, flags: Tensor) -> Tensor:
        """Return features ``[…, F]`` standardised within ±10; flags as they are."""
        scaled = (
            (features - self.mean) / torch.sqrt(self.variance + VARIANCE_FLOOR)
            if self.count
            else features
        )
        return torch.where(flags, features, torch.clip(scaled, -CLIP, CLIP))


@dataclass(frozen=True)
class Judged:
    """Hold by row and factor ``[N, K]``: ln π and entropy / ln(#legal), 0 where the op does not use the factor; and
    ``misplaced``: how far, as a probability, the action is from the one that was to be chosen.
    """

    log_probs: Tensor
    entropy: Tensor
    misplaced: Tensor


class Network:
    """Compute the policy from weights by the names of a checkpoint."""

    def __init__(self, weights: Tensors, interface: Interface, sizes: params.Policy) -> None:
        self.weights = weights
        self.interface = interface
        self.sizes = sizes
        self.memories: dict[
            str, Memory
        ] = {}  # of each trunk after every step that was read last, ``[T, E, H]``

    def read(
        self, features: Tensor, categories: Tensor, privileged: Tensor, starts: Tensor | None = None,
        memories: Mapping[str, Memory] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the heads' input ``[T, E, H]`` and values ``[T, E]`` from scaled features ``[T, E, F]``, categories
        ``[T, E, C]`` and what the critic alone reads ``[T, E, n]``. Episodes begin where ``starts [T, E]`` says, else
        with the first step, before which each trunk's memory is ``memories``, else empty.
        """
        self._starts = starts
        self._first = memories or {}
        z = self._trunk("actor", features, categories)
        about = sum(factor.size * factor.described for factor in self.interface.factors)
        z = torch.cat((z, features[..., features.shape[-1] - about :]), dim=-1)
        if self.sizes.critic == "own":
            of_value = [self._trunk("critic", features, categories)]
        else:  # the gradient of the value loss does not reach the actor's trunk
            of_value = [z.detach(), features]
        if self.interface.privileged:
            of_value.append(
                self.weights["privileged.weight"][privileged + 1].flatten(-2)
            )  # the first row is "nothing"
        return z, self._head("value_head", torch.cat(of_value, dim=-1))[..., 0]

    def _trunk(self, trunk: str, features: Tensor, categories: Tensor) -> Tensor:
        x = features
        if self.interface.categories:
            x = torch.cat(
                (x, self.weights[f"{trunk}.category.weight"][categories + 1].flatten(-2)), dim=-1
            )
        encoded = torch.tanh(self._linear(f"{trunk}.encoder", x))
        if self.sizes.core == "none":
            return encoded
        remembered = self._layer_norm(f"{trunk}.core_norm", self._remembered(trunk, encoded))
        return torch.cat((encoded, remembered), dim=-1)

    def _remembered(self, trunk: str, encoded: Tensor) -> Tensor:
        """Return the hidden states of an LSTM or GRU in torch's order of gates."""
        core = f"{trunk}.core.rnn"
        of_input = (
            encoded @ self.weights[f"{core}.weight_ih_l0"].T + self.weights[f"{core}.bias_ih_l0"]
        )
        recurrent = self.weights[f"{core}.weight_hh_l0"]
        bias = self.weights[f"{core}.bias_hh_l0"]
        empty = torch.zeros(*encoded.shape[1:-1], self.sizes.core_units, dtype=torch.float64)
        hidden, cell = self._first.get(trunk, (empty, empty))
        outputs = []
        cells = []
        for t, own in enumerate(of_input):
            if self._starts is not None:
                hidden, cell = (
                    torch.where(self._starts[t][:, None], 0.0, x) for x in (hidden, cell)
                )
            of_hidden = hidden @ recurrent.T + bias
            if self.sizes.core == "lstm":
                let_in, forget, candidate, out = (own + of_hidden).chunk(4, dim=-1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(let_in) * torch.tanh(candidate)
                hidden = torch.sigmoid(out) * torch.tanh(cell)
            else:
                (reset, update, new), (reset_h, update_h, new_h) = (
                    own.chunk(3, dim=-1),
                    of_hidden.chunk(3, dim=-1),
                )
                kept = torch.sigmoid(update + update_h)
                new = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
                hidden = (1.0 - kept) * new + kept * hidden
            outputs.append(hidden)
            cells.append(cell)
        self.memories[trunk] = torch.stack(outputs), torch.stack(cells)
        return self.memories[trunk][0]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise the last dimension (Ba et al. 2016, arXiv 1607.06450)."""
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred / torch.sqrt((centred * centred).mean(dim=-1, keepdim=True) + NORM_EPSILON)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _head(self, name: str, x: Tensor) -> Tensor:
        return self._linear(f"{name}.out", torch.tanh(self._linear(f"{name}.hidden", x)))

    def judge(self, z: Tensor, rows: Rows, noise: Tensor | None = None) -> Judged:
        """Judge the actions of rows ``z [N, H]``: drawn by ``noise [N, K]``, or else the likeliest."""
        actions = rows["actions"]
        matters = self.interface.matters[actions[:, 0]]
        parts = []
        for k in range(actions.shape[1]):
            used = matters[:, k]
            chosen = actions[:, k]
            legal = self.interface.legal(rows, k)
            allowed = legal.gather(1, chosen[:, None])[:, 0]
            # Without a choice the one legal action is certain, whatever the weights.
            log_prob = torch.where(
                used & ~allowed, -math.inf, torch.zeros(len(actions), dtype=torch.float64)
            )
            entropy = torch.zeros_like(log_prob)
            off = torch.where(used, ~allowed, chosen != 0).double()
            at = (used & (legal.sum(dim=1) > 1)).nonzero()[:, 0]
            if len(at):
                logits = self._logits(z[at], k, actions[at]).masked_fill(~legal[at], -math.inf)
                log_probs = torch.log_softmax(logits, dim=1)
                shares = log_probs.exp()
                spread = -(shares * torch.where(legal[at], log_probs, 0.0)).sum(dim=1)
                log_prob = log_prob.index_copy(0, at, log_probs.gather(1, chosen[at, None])[:, 0])
                entropy = entropy.index_copy(0, at, spread / legal[at].sum(dim=1).log())
                off[at] = _misplaced(
                    shares.detach(), chosen[at], None if noise is None else noise[at, k]
                )
            parts.append((log_prob, entropy, off))
        return Judged(*(torch.stack(part, dim=1) for part in zip(*parts, strict=True)))

    def _logits(self, z: Tensor, k: int, actions: Tensor) -> Tensor:
        """Return the logits of factor k, given the op and, after the slot's head, the slot where the op uses one."""
        own = z
        op = actions[:, 0]
        slot = slots_of(actions)
        if k >= 1:
            z = z + self.weights["choice_embeddings.0"][op]
        if k >= 2:
            z = z + torch.where(
                self.interface.matters[op][:, 1:2], self.weights["choice_embeddings.1"][slot], 0.0
            )
        logits = self._head(f"heads.{k}", z)
        factor = self.interface.factors[k]
        if not factor.described:
            return logits
        about = own[:, own.shape[1] - factor.size * factor.described :].unflatten(
            1, (factor.size, factor.described)
        )
        query = self._linear(f"heads.{k}.query", torch.tanh(self._linear(f"heads.{k}.hidden", z)))
        return logits + (about * query[:, None]).sum(dim=2)


def _misplaced(shares: Tensor, chosen: Tensor, noise: Tensor | None) -> Tensor:
    """Return how far the noise lies outside the choice's share, or how much likelier another choice is."""
    own = shares.gather(1, chosen[:, None])[:, 0]
    if noise is None:
        return torch.where(own > 0, shares.max(dim=1).values - own, 1.0)
    upto = shares.cumsum(dim=1).gather(1, chosen[:, None])[:, 0]
    outside = torch.maximum(upto - own - noise, noise - upto).clamp(min=0.0)
    return torch.where(own > 0, outside, 1.0)


def policy_of(tensors: Tensors) -> dict[str, Tensor]:
    return {
        name.removeprefix(POLICY): x.double()
        for name, x in tensors.items()
        if name.startswith(POLICY)
    }


def misplaced(
    tensors: Tensors, interface: Interface, sizes: params.Policy, features: Tensor, categories: Tensor, rows: Rows,
    noise: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return how far each decision of one episode is from that of a checkpoint's weights ``[T]``, which see features
    ``[T, F]`` and categories ``[T, C]``.
    """
    scale = Scale.read(tensors, "observation")
    network = Network(policy_of(tensors), interface, sizes)
    seen = features if scale is None else scale.see(features, interface.flags)
    with torch.no_grad():
        z, _ = network.read(
            seen[:, None], categories[:, None], torch.full((len(seen), 1, interface.privileged), -1)
        )
        return network.judge(z[:, 0], rows, noise).misplaced.max(dim=1).values


def noise(
    rng_seed: int, draw: int, iteration: int, env_ids: Sequence[int], steps: int, factors: int
) -> Tensor:
    """Return the uniform numbers ``[T, E, K]`` by which actions are drawn."""
    time = torch.arange(steps)[:, None].numpy()
    envs = torch.tensor([list(env_ids)]).numpy()
    return torch.from_numpy(
        streams.uniforms(streams.key(rng_seed, draw, iteration, envs, time), factors)
    )


def initial_weights(
    tensors: Tensors, interface: Interface, core_units: int, rng_seed: int
) -> dict[str, Tensor]:
    """Return the first weights of a policy with parameters of these names and shapes: orthogonal matrices (Saxe et al.
    2014) as a hash of the seed and the name.
    """
    weights = {
        name: _initial(name, tuple(x.shape), core_units, rng_seed) for name, x in tensors.items()
    }
    for place, factor in enumerate(interface.factors):
        if factor.lean:
            weights[f"heads.{place}.out.bias"] = torch.tensor(factor.lean, dtype=torch.float64)
    return weights


def _initial(name: str, shape: tuple[int, ...], core_units: int, rng_seed: int) -> Tensor:
    stream_name = (
        "told.weight" if name == "privileged.weight" else name
    )  # its name when results were recorded
    stream = streams.key(rng_seed, streams.INITIAL_WEIGHTS, zlib.crc32(stream_name.encode()))
    if ".core.rnn." in name:
        drawn = torch.from_numpy(streams.uniforms(stream, math.prod(shape)))
        return ((2.0 * drawn - 1.0) / math.sqrt(core_units)).reshape(shape)
    if name.endswith("core_norm.weight"):
        return torch.ones(shape, dtype=torch.float64)
    gain = next(
        gain for first, last, gain in GAINS if name.startswith(first) and name.endswith(last)
    )
    if len(shape) < 2 or gain == 0.0:
        return torch.zeros(shape, dtype=torch.float64)
    tall = (max(shape), min(shape))
    matrix, triangle = torch.linalg.qr(
        torch.from_numpy(streams.normals(stream, math.prod(shape))).reshape(tall)
    )
    matrix = gain * matrix * triangle.diagonal().sign()  # the signs of Gram and Schmidt
    return matrix if shape == tall else matrix.T
