"""The recurrent actor-critic: encoder → memory → LayerNorm → one head per factor of the action, and V(s).

Beside the memory the encoder's own output is read, so that what is seen now need not pass through it. The value reads
a trunk of its own, or (``critic: detached``) what the heads read and the observation, without a gradient to the trunk;
what only the critic is told is embedded beside that. It never depends on the action.

``head_k(z + e_op + e_slot)``: later heads know what earlier ones chose through learned embeddings that start at zero.
Where the observation describes each choice of a head, its logits are out(u) + d · query(u) with the description d and
the head's hidden units u: what is learned of one choice holds for all (as in pointer networks, Vinyals et al. 2015,
arXiv 1506.03134).
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic import params, rng
from simic.agent.distributions import Choice, JointDistribution, legal, masked_log_softmax, refuse_faults, sample
from simic.agent.spec import ActionSpec, Observation, ObservationSpec
from simic.errors import SimicError

TOLD_UNITS = 16
# Gains of first weights, after Huang et al. 2022 ("The 37 implementation details of PPO"): √2 where a tanh follows,
# 0.01 for the policy's last layers (the first policy is nearly uniform), 1 for the value's. The core starts as torch
# starts it, uniform in ±1/√H with its biases: orthogonal with gain 1 and an open forget gate, it learnt slower and fell
# back (docs/history/experiments.md).
HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0
CELL = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class RecurrentState(NamedTuple):
    """What is remembered between steps: ``h [E, H]`` and, of an LSTM, ``c [E, H]``; unused parts have width 0."""

    h: Tensor
    c: Tensor

    def zeroed(self, rows: Tensor) -> "RecurrentState":
        """Zero in the rows ``[E]`` where an episode starts."""
        return RecurrentState(*(part.masked_fill(rows[:, None], 0.0) for part in self))

    def select(self, rows: Tensor) -> "RecurrentState":
        return RecurrentState(self.h[rows], self.c[rows])

    def split(self, parts: int) -> "list[RecurrentState]":
        """Split into several memories of equal size; ``joined`` is the way back."""
        return [RecurrentState(h, c) for h, c in zip(*(part.tensor_split(parts, dim=-1) for part in self), strict=True)]

    @classmethod
    def joined(cls, states: "Sequence[RecurrentState]") -> Self:
        return cls(*(torch.cat(parts, dim=-1) for parts in zip(*states, strict=True)))


@dataclass(frozen=True)
class Cut:
    """Rows ``[T, N]`` cut where episodes start: step (t, n) is at ``position`` of sequence ``number``."""

    position: Tensor
    number: Tensor
    length: int
    count: int

    @classmethod
    def at(cls, starts: Tensor) -> Self:
        """Number sequences row by row; the first of a row may go on from before the rollout."""
        begins = starts.clone()
        begins[0] = True
        number = begins.t().flatten().cumsum(dim=0).view(begins.shape[1], -1).t() - 1
        time = torch.arange(len(starts), device=starts.device)[:, None].expand_as(starts)
        position = time - torch.where(begins, time, 0).cummax(dim=0).values
        return cls(position, number, int(position.max()) + 1, int(number.max()) + 1)

    def pad(self, x: Tensor) -> Tensor:
        """Return ``[T, N, D]`` as ``[length, count, D]``, zero after the end of each sequence."""
        padded = x.new_zeros(self.length * self.count, x.shape[-1])
        return padded.index_copy(0, self._flat(), x.flatten(0, 1)).view(self.length, self.count, -1)

    def unpad(self, x: Tensor) -> Tensor:
        """Return ``[length, count, D]`` as ``[T, N, D]``."""
        return x.flatten(0, 1).index_select(0, self._flat()).view(*self.position.shape, -1)

    def first(self, state: RecurrentState) -> RecurrentState:
        """Return the state each sequence begins with: zero, except for those that begin with their row."""
        return RecurrentState(
            *(part.new_zeros(self.count, part.shape[1]).index_copy(0, self.number[0], part) for part in state)
        )

    def _flat(self) -> Tensor:
        return (self.position * self.count + self.number).flatten()


class Core(nn.Module):
    """``inputs`` wide in, ``width`` wide out."""

    def __init__(self, kind: Literal["lstm", "gru", "none"], inputs: int, units: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = inputs if kind == "none" else units
        if kind != "none":
            self.rnn = nn.LSTM(inputs, units) if kind == "lstm" else nn.GRU(inputs, units)

    def initial_state(self, envs: int, like: Tensor) -> RecurrentState:
        """Return zeros, with the type and device of ``like``."""
        h = 0 if self.kind == "none" else self.width
        return RecurrentState(like.new_zeros(envs, h), like.new_zeros(envs, self.width if self.kind == "lstm" else 0))

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Take one step of N rows, ``[N, D]`` → ``[N, H]``, with the bare cell."""
        if self.kind == "none":
            return x, state
        weights = tuple(map(self.rnn.get_parameter, CELL))
        if self.kind == "gru":
            h = torch.gru_cell(x, state.h, *weights)
            return h, RecurrentState(h, state.c)
        h, c = torch.lstm_cell(x, list(state), *weights)
        return h, RecurrentState(h, c)

    def over(self, x: Tensor, state: RecurrentState, starts: Tensor | None) -> Tensor:
        """Go over whole rows, ``[T, N, D]`` → ``[T, N, H]``, in one fused call.

        ``starts [T, N]`` marks the first steps of episodes; None: there are none after the first step.
        """
        if self.kind == "none":
            return x
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], 0, self.width)
        if starts is None:
            return self._sequence(x, state)
        cut = Cut.at(starts)
        return cut.unpad(self._sequence(cut.pad(x), cut.first(state.zeroed(starts[0]))))

    def _sequence(self, x: Tensor, state: RecurrentState) -> Tensor:
        h, c = state.h[None].contiguous(), state.c[None].contiguous()
        return self.rnn(x, (h, c) if self.kind == "lstm" else h)[0]


class Trunk(nn.Module):
    """The encoder is linear with a tanh, over the features and an embedding of each category. The last ``passed``
    features are read as they are, too.
    """

    def __init__(self, seen: ObservationSpec, sizes: params.Policy, passed: int = 0) -> None:
        super().__init__()
        if seen.categories:
            self.category = nn.Embedding(seen.cardinality + 1, sizes.embedding_units)
        self.encoder = nn.Linear(seen.features + seen.categories * sizes.embedding_units, sizes.encoder_units)
        self.core = Core(sizes.core, sizes.encoder_units, sizes.core_units)
        self.passed = passed
        self.width = self.core.width + (0 if sizes.core == "none" else sizes.encoder_units) + passed
        # What enters the core is bounded by the encoder's tanh. A LayerNorm there would keep the direction of a short
        # observation and lose its length (docs/history/experiments.md); so would one right behind it without a core.
        self.core_norm = nn.Identity() if sizes.core == "none" else nn.LayerNorm(self.core.width)

    def initial_state(self, envs: int) -> RecurrentState:
        """Return an empty memory."""
        return self.core.initial_state(envs, self.encoder.weight)

    def step(self, observation: Observation, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return z ``[E, H]`` of one more observation, and the memory."""
        encoded = self._encode(observation)
        hidden, state = self.core.step(encoded, state)
        return self._read(encoded, hidden, observation), state

    def over(self, seen: Observation, state: RecurrentState, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the core's output and z ``[T, N, ·]`` of whole rows."""
        encoded = self._encode(seen)
        hidden = self.core.over(encoded, state, starts)
        return hidden, self._read(encoded, hidden, seen)

    def _read(self, encoded: Tensor, hidden: Tensor, seen: Observation) -> Tensor:
        """Return z, which heads and value read."""
        parts = [hidden] if self.core.kind == "none" else [encoded, self.core_norm(hidden)]
        if self.passed:
            parts.append(seen.features[..., -self.passed :].to(encoded.dtype))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else hidden

    def _encode(self, observation: Observation) -> Tensor:
        x = observation.features.to(self.encoder.weight.dtype)
        if observation.categories.shape[-1]:
            x = torch.cat((x, self.category(observation.categories + 1).flatten(-2)), dim=-1)  # -1, none, is row 0
        return self.encoder(x).tanh()


@dataclass(frozen=True)
class Step:
    """One decision of E environments: indices ``actions [E, heads]`` (0 where the op does not use the head), log-
    probabilities per head and of the whole action, the value of the state, and what is remembered.
    """

    actions: Tensor
    log_probs: Tensor  # [E, heads], exactly 0 where irrelevant
    joint: Tensor  # [E]
    value: Tensor  # [E]
    state: RecurrentState


@dataclass(frozen=True)
class Replayed:
    """Recorded decisions ``[T, N]`` scored by the present weights; of the trunks the actor's."""

    log_probs: Tensor  # [T, N, heads], exactly 0 where irrelevant
    entropy: Tensor  # [T, N, heads], H / ln(#legal)
    values: Tensor  # [T, N]
    hidden: Tensor  # [T, N, H], the core's output
    z: Tensor  # [T, N, H], what the heads read: encoded, the normalised memory, descriptions of choices


class HeadNetwork(nn.Module):
    """Linear → tanh → Linear, and with ``described`` choices another last layer, the query."""

    def __init__(self, inputs: int, units: int, outputs: int, described: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, units)
        self.out = nn.Linear(units, outputs)
        if described:
            self.query = nn.Linear(units, described)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).tanh())


class ActorCritic(nn.Module):
    """Weights are a hash of ``rng_seed``; torch's global generator is left as it was. SimicError on a bad spec."""

    relevance: Tensor

    def __init__(
        self, action_spec: ActionSpec, observation_spec: ObservationSpec, sizes: params.Policy, rng_seed: int = 0
    ) -> None:
        super().__init__()
        self.action_spec, self.observation_spec = action_spec, observation_spec
        with torch.random.fork_rng(devices=[]):  # torch's constructors draw weights, which the next line replaces
            self._build(sizes)
        initialize(self, self._gains(), rng_seed)
        with torch.no_grad():
            for head, network in zip(action_spec.heads, self.heads, strict=True):
                if head.lean:
                    network.get_submodule("out").get_parameter("bias").copy_(torch.tensor(head.lean))
        self.register_buffer("relevance", action_spec.relevance_table(), persistent=False)

    def _build(self, sizes: params.Policy) -> None:
        heads = self.action_spec.heads
        passed = sum(head.size * head.described for head in heads)
        if passed > self.observation_spec.features:
            raise SimicError(f"choices are described by {passed} features: there are {self.observation_spec.features}")
        self.actor = Trunk(self.observation_spec, sizes, passed)
        self.critic = Trunk(self.observation_spec, sizes) if sizes.critic == "own" else None
        width = self.actor.width
        self.heads = nn.ModuleList(HeadNetwork(width, sizes.head_units, head.size, head.described) for head in heads)
        given = heads[:2] if len(heads) > 1 else ()
        self.given = nn.ParameterList(torch.zeros(head.size, width) for head in given)  # e_op, e_slot
        seen = self.observation_spec
        if seen.told:
            self.told = nn.Embedding(seen.hidden + 1, TOLD_UNITS)
        reads = width + seen.features if self.critic is None else self.critic.width
        reads += seen.told * TOLD_UNITS
        self.value_head = HeadNetwork(reads, sizes.head_units, 1)

    def _gains(self) -> dict[str, float]:
        """Return the gain by prefix of the parameter's name."""
        last = [f"heads.{k}.{part}" for k in range(len(self.heads)) for part in ("out", "query")]
        heads = dict.fromkeys(last, POLICY_GAIN)
        value = {"value_head": HIDDEN_GAIN, "value_head.out": VALUE_GAIN}
        parts = {"category": 1.0, "encoder": HIDDEN_GAIN, "core_norm": 0.0}
        trunks = {f"{trunk}.{part}": gain for trunk in ("actor", "critic") for part, gain in parts.items()}
        return {"heads": HIDDEN_GAIN, "given": 0.0, "told": 1.0, **trunks, **heads, **value}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return parameters by the part whose gradient is watched: encoder, core, value (with a trunk of its own, if it
        has one) and each head by its name.
        """
        parts = {
            "encoder": ("actor.category", "actor.encoder"),
            "core": ("actor.core", "given"),
            "value": ("critic", "value_head", "told"),
        }
        parts |= {f"head_{head.name}": (f"heads.{k}.",) for k, head in enumerate(self.action_spec.heads)}
        named = list(self.named_parameters())
        return {part: [p for name, p in named if name.startswith(prefix)] for part, prefix in parts.items()}

    @property
    def like(self) -> Tensor:
        """Return a weight, which has device and type of all others."""
        return self.actor.encoder.weight.detach()

    @property
    def remembers(self) -> bool:
        """Tell whether a decision depends on earlier observations."""
        return self.actor.core.kind != "none"

    def _trunks(self) -> tuple[Trunk, ...]:
        return (self.actor,) if self.critic is None else (self.actor, self.critic)

    def initial_state(self, envs: int) -> RecurrentState:
        """Return the memories of all trunks, empty."""
        return RecurrentState.joined([trunk.initial_state(envs) for trunk in self._trunks()])

    @torch.no_grad()
    def act(
        self,
        observation: Observation,
        state: RecurrentState,
        noise: Tensor | None = None,
        greedy: bool = False,
        valid: Tensor | None = None,
        actions: Tensor | None = None,
    ) -> Step:
        """Decide for E environments from normalised observations, or score ``actions [E, heads]`` decided elsewhere.

        ``noise [E, heads]`` is uniform in [0, 1) (ignored and not needed when greedy). Rows where ``valid [E]`` is
        False are over: their action means nothing. SimicError when a head has no legal choice or no finite logits.
        """
        z, of_value, state = self.remember(observation, state)
        choices = self.choose(z, observation.masks, noise=None if greedy else noise, actions=actions, valid=valid)
        value = self.state_value(of_value)
        refuse_faults(self.action_spec, choices)
        log_probs = torch.stack([choice.log_prob() for choice in choices], dim=-1)
        actions = torch.stack([choice.index for choice in choices], dim=-1)
        return Step(actions, log_probs, log_probs.sum(dim=-1), value, state)

    @torch.no_grad()
    def value(self, observation: Observation, state: RecurrentState) -> Tensor:
        """Return V(s) ``[E]`` of the observation that follows the remembered ones."""
        return self.state_value(self.remember(observation, state)[1])

    def replay(
        self, seen: Observation, actions: Tensor, state: RecurrentState, valid: Tensor, starts: Tensor | None
    ) -> Replayed:
        """Score recorded rows ``[T, N]`` from their initial state; ``starts [T, N]`` None: no episode starts inside.

        Rows where ``valid`` is False contribute exactly nothing.
        """
        parts = zip(self._trunks(), state.split(len(self._trunks())), strict=True)
        outputs = [trunk.over(seen, own, starts) for trunk, own in parts]
        hidden, z = outputs[0]
        choices = self.choose(z, seen.masks, actions=actions, valid=valid)
        values = self.state_value(self._of_value(outputs[-1][-1], seen))
        log_probs = torch.stack([choice.log_prob() for choice in choices], dim=-1)
        entropy = torch.stack([choice.normalized_entropy() for choice in choices], dim=-1)
        return Replayed(log_probs, entropy, values, hidden, z)

    def read_by_heads(self, seen: Observation, state: RecurrentState, starts: Tensor | None) -> Tensor:
        """Return z ``[T, N, H]`` of whole rows as the heads read it: of the actor's trunk alone."""
        return self.actor.over(seen, state.split(len(self._trunks()))[0], starts)[-1]

    def remember(self, observation: Observation, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """Take in one more observation; return what the heads and what the value read, ``[E, H]``, and the memory."""
        parts = zip(self._trunks(), state.split(len(self._trunks())), strict=True)
        outputs = [trunk.step(observation, own) for trunk, own in parts]
        of_value = self._of_value(outputs[-1][0], observation)
        return outputs[0][0], of_value, RecurrentState.joined([own for _, own in outputs])

    def _of_value(self, z: Tensor, observation: Observation) -> Tensor:
        """Return what the value reads: ``z`` of the last trunk, the observation if that is the actor's, what it is
        told.
        """
        parts = [z] if self.critic is not None else [z.detach(), observation.features.to(z.dtype)]
        if self.observation_spec.told:
            told = observation.told
            if told is None:  # outside training nothing is told
                told = torch.full((*z.shape[:-1], self.observation_spec.told), -1, device=z.device)
            parts.append(self.told(told + 1).flatten(-2))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else z

    def choose(
        self,
        z: Tensor,
        masks: dict[str, Tensor],
        *,
        noise: Tensor | None = None,
        actions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> list[Choice]:
        """Walk down the heads at z ``[..., H]``: take the recorded ``actions``, else sample with ``noise``, else the
        likeliest choice. The same walk acts and replays.
        """
        choices: list[Choice] = []
        for group, weight, layers in self._first_layers(z):
            chosen = [choice.index for choice in choices[:2]]
            uses = self.relevance[chosen[0]] if chosen else None
            added = self._of_choices(group, weight)
            if added is not None:
                row = chosen[0] if added.ndim == 2 else chosen[0] * added.shape[1] + chosen[1]
                layers = layers + functional.embedding(row, added.flatten(0, -2))
            for head, first in zip(group, layers.chunk(len(group), dim=-1), strict=True):
                used = None if uses is None else uses[..., head]
                relevant = used if valid is None else (valid if used is None else used & valid)
                logits = self._logits(head, first, z)
                mask = legal(self.action_spec, masks, head, chosen)
                log_probs = masked_log_softmax(logits, mask)
                if actions is not None:
                    index = actions[..., head]
                elif noise is not None:
                    index = sample(log_probs, noise[..., head])
                else:
                    index = log_probs.argmax(dim=-1)
                index = index if relevant is None else torch.where(relevant, index, 0)
                choices.append(Choice(logits, log_probs, mask, relevant, index))
        return choices

    def joint(self, z: Tensor, masks: dict[str, Tensor]) -> JointDistribution:
        """Return the exact distribution over whole actions at N states z ``[N, H]``, every op and slot enumerated."""
        levels: list[Tensor] = []
        for group, weight, layers in self._first_layers(z):
            added = self._of_choices(group, weight)
            if added is not None:
                layers = layers.view(len(z), *(1 for _ in added.shape[1:]), added.shape[-1]) + added
            for head, first in zip(group, layers.chunk(len(group), dim=-1), strict=True):
                levels.append(self._level(head, first, z, masks))
        return JointDistribution(self.relevance, levels[0], levels[1] if self.given else None, tuple(levels[2:]))

    def _level(self, head: int, first: Tensor, z: Tensor, masks: dict[str, Tensor]) -> Tensor:
        """Return log-probabilities ``[N, (O, (K,)) n]`` from the head's first layer; combinations that cannot happen
        have weight 0.
        """
        logits = self._logits(head, first, z)
        given, mask = self.action_spec.heads[head].mask_given, masks.get(self.action_spec.heads[head].name)
        if mask is None:
            return masked_log_softmax(logits, None)
        if given == "slot":
            mask = mask[:, None]
        while mask.ndim < logits.ndim:
            mask = mask.unsqueeze(-2)
        return masked_log_softmax(logits, mask.expand_as(logits))

    def _first_layers(self, z: Tensor) -> list[tuple[range, Tensor, Tensor]]:
        """Return the heads that know of no choice, of the op alone, and of op and slot, each group with the weights of
        its first layers, one under the other, and what these make of z, side by side. For all it is one product.
        """
        hidden = [head.get_submodule("hidden") for head in self.heads]
        weight, bias = (torch.cat([layer.get_parameter(part) for layer in hidden]) for part in ("weight", "bias"))
        heads = len(hidden)
        groups = [group for group in (range(1), range(1, min(2, heads)), range(2, heads)) if group]
        units = [len(group) * len(weight) // heads for group in groups]
        of_z = functional.linear(z, weight, bias)
        return list(zip(groups, weight.split(units), of_z.split(units, dim=-1), strict=True))

    def _of_choices(self, group: range, weight: Tensor) -> Tensor | None:
        """Return what earlier choices add to first layers before their tanh: nothing, e_op ``[O, units]`` or e_op +
        e_slot ``[O, K, units]``; no e_slot if the op uses no slot. Layers are linear, so each embedding is multiplied
        once.
        """
        if group[0] == 0:
            return None
        after_op = functional.linear(self.given[0], weight)
        if group[0] == 1:
            return after_op
        return after_op[:, None] + self.relevance[:, 1, None, None] * functional.linear(self.given[1], weight)

    def _logits(self, head: int, first: Tensor, z: Tensor) -> Tensor:
        """Return logits from the first layer ``[..., units]`` before its tanh; ``z`` has fewer dimensions where op and
        slot are enumerated.
        """
        network, described = self.heads[head], self.action_spec.heads[head].described
        units = first.tanh()
        logits = network.get_submodule("out")(units)
        if not described:
            return logits
        about = z[..., -self.actor.passed :].unflatten(-1, (-1, described))  # [..., choices, described]
        about = about[(slice(None),) * (z.ndim - 1) + (None,) * (units.ndim - z.ndim)]
        return logits + (about * network.get_submodule("query")(units)[..., None, :]).sum(dim=-1)

    def state_value(self, z: Tensor) -> Tensor:
        """Return V ``[...]`` from what the value reads."""
        return self.value_head(z).squeeze(-1)


def orthogonal(shape: tuple[int, int], gain: float, stream: Tensor) -> Tensor:
    """Return a matrix with orthonormal rows or columns (whichever are fewer) times ``gain``; Saxe et al. 2014."""
    tall = (max(shape), min(shape))
    q, r = torch.linalg.qr(rng.normal(stream, tall).double())
    q = q * r.diagonal().sign()  # makes the decomposition unique, hence the draw uniform
    return (gain * (q if shape == tall else q.t())).float()


@torch.no_grad()
def initialize(module: nn.Module, gains: dict[str, float], rng_seed: int) -> None:
    """Set first weights as a hash of the parameter's name, equal on any machine and drawn from no generator.

    Matrices are orthogonal with the gain of the longest prefix of their name in ``gains``; gain 0 and vectors are 0,
    the scale of a LayerNorm is 1. Memories are uniform in ±1/√H.
    """
    cores = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    bounds = {id(parameter): layer.hidden_size**-0.5 for layer in cores for parameter in layer.parameters()}
    for name, parameter in module.named_parameters():
        stream = rng.key(rng_seed, rng.Purpose.POLICY_INIT, zlib.crc32(name.encode()))
        if id(parameter) in bounds:
            parameter.copy_(bounds[id(parameter)] * (2 * rng.uniform(stream, tuple(parameter.shape)) - 1))
            continue
        gain = gains[max((prefix for prefix in gains if name.startswith(prefix)), key=len)]
        if parameter.ndim == 2 and gain:
            parameter.copy_(orthogonal((parameter.shape[0], parameter.shape[1]), gain, stream))
        else:
            parameter.zero_()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.weight.fill_(1.0)


def refuse_mismatch(what: str, expected: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Raise SimicError naming the first tensor that is missing, unknown or of another shape."""
    for name in sorted(expected.keys() ^ given.keys()):
        raise SimicError(f"{what}: tensor {name!r} is {'missing' if name in expected else 'unknown'}")
    for name, tensor in expected.items():
        if tensor.shape != given[name].shape:
            have, want = tuple(given[name].shape), tuple(tensor.shape)
            raise SimicError(f"{what}: tensor {name!r} has shape {have}; this policy needs {want}")


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
