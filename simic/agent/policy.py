"""The recurrent actor-critic: encoder → memory → LayerNorm → one head per factor of the action, and V(s).

Beside the memory the encoder's own output is read, so that the present observation need not pass through it. The value
reads a trunk of its own (``critic: own``), or the actor's latent and the observation, without a gradient to that trunk
(``critic: detached``). Privileged columns, which only the critic sees, are embedded beside that. The value never
depends on the action.

``head_k(z + e_op + e_slot)``: later heads know what earlier ones chose through learned embeddings that start at zero.
Where the observation describes each choice of a head, its logits are out(u) + d · query(u) with the description d and
the head's hidden units u: what is learned of one choice holds for all (as in pointer networks, Vinyals et al. 2015,
arXiv 1506.03134).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic import params
from simic.agent.core import Core, RecurrentState
from simic.agent.distributions import Choice, HeadDecision, head_mask, refuse_faults
from simic.agent.gaussian import FIRST_LOG_SIGMA, Numbers
from simic.agent.image_encoder import ImageEncoder
from simic.agent.initialization import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    THREE_LAYERS_GAIN,
    VALUE_GAIN,
    initialize,
)
from simic.agent.leaf_encoder import EncodedLeaf, LeafEncoder, Place, make_encoders
from simic.agent.spec import ActionSpec, Head, Observation, ObservationSpec
from simic.errors import SimicError

PRIVILEGED_UNITS = 16


def linear_of_parts(layer: nn.Linear, parts: Sequence[Tensor]) -> Tensor:
    """Apply a layer to parts ``[..., ·]`` as if they stood side by side.

    Put together, they would be copied; and a part that is constant would get a gradient where another one needs it.
    """
    if len(parts) == 1:
        return functional.linear(parts[0], layer.weight, layer.bias)
    first, *weights = layer.weight.split([part.shape[-1] for part in parts], dim=1)
    product = torch.addmm(layer.bias, parts[0].flatten(0, -2), first.t())
    for part, weight in zip(parts[1:], weights, strict=True):
        product = product.addmm_(part.flatten(0, -2), weight.t())
    return product.view(*parts[0].shape[:-1], layer.out_features)


# Trunk: encoder and memory.


class Latent(NamedTuple):
    """What a trunk makes of observations ``[..., ·]``: the core's output, and z, which is read from it, in parts."""

    hidden: Tensor
    parts: list[Tensor]

    @property
    def z(self) -> Tensor:
        return torch.cat(self.parts, dim=-1)


def _embedding(choices: int, units: int) -> nn.Embedding:
    """Make an embedding with weights that are there: to draw some for an outline, torch imports its compiler, which
    takes three seconds.
    """
    return nn.Embedding.from_pretrained(torch.zeros(choices, units), freeze=False)


class Trunk(nn.Module):
    """A linear encoder with a tanh, over the features and an embedding of each category, and a core.

    Pictures have an encoder of their own; ``encoders`` are the user's, for them and for other leaves. The last
    ``passed`` features are read as they are, too.
    """

    def __init__(
        self,
        spec: ObservationSpec,
        sizes: params.Policy,
        encoders: Mapping[Place, LeafEncoder],
        passed: int = 0,
    ) -> None:
        super().__init__()
        if spec.categories:
            self.category = _embedding(spec.cardinality + 1, sizes.embedding_units)
        self.pixels = [image.pixels for image in spec.images]
        images = [
            encoders.get(number) or ImageEncoder(image, sizes.encoder_units)
            for number, image in enumerate(spec.images)
        ]
        # Leaves that are encoded apart lie between features that are not.
        columns = [place for place in encoders if isinstance(place, tuple)]
        leaves = [encoders[place] for place in columns]
        self.cuts = [edge for place in columns for edge in place]
        self.images = nn.ModuleList(images)
        self.leaves = nn.ModuleList(leaves)
        self.encoder = nn.Linear(
            spec.features
            - sum(end - begin for begin, end in columns)
            + spec.categories * sizes.embedding_units
            + sum(part.units for part in (*images, *leaves)),
            sizes.encoder_units,
        )
        self.core = Core(
            sizes.core,
            sizes.encoder_units,
            sizes.core_units,
            sizes.window,
        )
        self.passed = passed
        self.width = self.core.width + (0 if sizes.core == "none" else sizes.encoder_units) + passed
        # What enters the core is bounded by the encoder's tanh. A LayerNorm there would keep the direction of a short
        # observation and lose its length (docs/history/experiments.md); as would one behind it without a core.
        self.core_norm = nn.Identity() if sizes.core == "none" else nn.LayerNorm(self.core.width)

    def step(
        self, observation: Observation, state: RecurrentState
    ) -> tuple[Latent, RecurrentState]:
        """Take in one more observation ``[E, ·]``."""
        encoded = self._encode(observation)
        hidden, state = self.core.step(encoded, state)
        return self._latent(encoded, hidden, observation), state

    def unroll(
        self, observation: Observation, state: RecurrentState, starts: Tensor | None
    ) -> Latent:
        """Take in whole rows.

        Args:
            observation: ``[T, N, ·]``.
            state: The memory before the first step, ``[N, H]``.
            starts: First steps of episodes, bool ``[T, N]``; None: no episode starts inside.
        """
        encoded = self._encode(observation)
        return self._latent(encoded, self.core.unroll(encoded, state, starts), observation)

    def _encode(self, observation: Observation) -> Tensor:
        features = observation.features.to(self.encoder.weight.dtype)
        # Every second piece is a leaf.
        pieces = features.tensor_split(self.cuts, dim=-1) if self.cuts else (features,)
        parts = list(pieces[::2])
        if observation.categories.shape[-1]:
            # Row 0 of the embedding is -1, none.
            parts.append(self.category(observation.categories + 1).flatten(-2))
        if observation.pixels is not None:
            pictures = observation.pixels.split(self.pixels, dim=-1)
            parts += [encode(pixels) for encode, pixels in zip(self.images, pictures, strict=True)]
        parts += [encode(leaf) for encode, leaf in zip(self.leaves, pieces[1::2], strict=True)]
        return linear_of_parts(self.encoder, parts).tanh()

    def _latent(self, encoded: Tensor, hidden: Tensor, observation: Observation) -> Latent:
        # Normalised where it is read and not where it is fed back: the memory itself stays that of torch's cells.
        parts = [hidden] if self.core.kind == "none" else [encoded, self.core_norm(hidden)]
        if self.passed:
            parts.append(observation.features[..., -self.passed :].to(encoded.dtype))
        return Latent(hidden, parts)


# Actor and critic.


@dataclass(frozen=True)
class Decision:
    """One decision of E environments: ``actions [E, width]`` (0 where the op does not use the head), log-probabilities
    per head and of the whole action, the value of the state, and the memory after it.
    """

    actions: Tensor
    log_probs: Tensor  # [E, heads], exactly 0 where irrelevant
    value: Tensor  # [E]
    state: RecurrentState

    @property
    def joint(self) -> Tensor:
        """The log-probability of the whole action, ``[E]``."""
        return self.log_probs.sum(dim=-1)


@dataclass(frozen=True)
class Rescoring:
    """Recorded decisions ``[T, N]`` scored by the present weights."""

    log_probs: Tensor  # [T, N, heads], exactly 0 where irrelevant
    entropy: Tensor  # [T, N, heads], H / ln(#legal)
    values: Tensor  # [T, N]
    hidden: Tensor  # [T, N, H], output of the actor's core


class Readings(NamedTuple):
    """What the actor's heads read, and what the value reads, ``[..., ·]``."""

    actor: Latent
    value: list[Tensor]  # side by side


class HeadNetwork(nn.Module):
    """Linear → tanh → Linear; with ``described`` choices another last layer, the query; of a continuous head ln σ."""

    def __init__(self, inputs: int, units: int, head: Head) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, units)
        self.out = nn.Linear(units, head.size)
        if head.continuous:
            self.log_sigma = nn.Parameter(torch.zeros(head.size))
            self.register_buffer("bounded", torch.tensor(head.bounded), persistent=False)
        if head.described:
            self.query = nn.Linear(units, head.described)

    def forward(self, *parts: Tensor) -> Tensor:
        return self.out(linear_of_parts(self.hidden, parts).tanh())


class ActorCritic(nn.Module):
    """The policy and its value function.

    Args:
        action_spec: Heads, and which op uses which head.
        observation_spec: Widths of observations.
        sizes: Kind and width of the layers.
        rng_seed: Weights are a hash of it; torch's global generator is left as it was. None: weights come from a file.
        encoders: Leaves for which the user has modules; they keep the weights they come with.

    Raises:
        SimicError: More features describe choices than there are.
    """

    relevance: Tensor

    def __init__(
        self,
        action_spec: ActionSpec,
        observation_spec: ObservationSpec,
        sizes: params.Policy,
        rng_seed: int | None = 0,
        encoders: Sequence[EncodedLeaf] = (),
    ) -> None:
        super().__init__()
        self.action_spec = action_spec
        self.observation_spec = observation_spec
        # torch's constructors draw weights, which are replaced below.
        with torch.random.fork_rng(devices=[]):
            self._build(sizes, encoders, rng_seed)
        # Whatever torch's default type is in the caller's program.
        self.float()
        self.register_buffer("relevance", action_spec.relevance_table(), persistent=False)
        if rng_seed is None:
            return
        initialize(self, self._gains(), rng_seed)
        # A bias of the last layer is what an untrained head says whatever it reads.
        with torch.no_grad():
            for head, network in zip(action_spec.heads, self.heads, strict=True):
                if head.lean:
                    bias = network.get_submodule("out").get_parameter("bias")
                    bias.copy_(torch.tensor(head.lean))
                if head.continuous:
                    network.get_parameter("log_sigma").fill_(FIRST_LOG_SIGMA)

    @classmethod
    def outline(
        cls, action_spec: ActionSpec, observation_spec: ObservationSpec, sizes: params.Policy
    ) -> Self:
        """Make a policy whose weights have shapes and no memory, to compare a file with before anything is allocated.

        Args:
            action_spec: Heads, and which op uses which head.
            observation_spec: Widths of observations.
            sizes: Kind and width of the layers.
        """
        with torch.device("meta"):
            return cls(action_spec, observation_spec, sizes, None)

    def _build(
        self, sizes: params.Policy, encoders: Sequence[EncodedLeaf], rng_seed: int | None
    ) -> None:
        # Descriptions of choices are the last features: they pass the trunk by, and a head's query meets them as they
        # are.
        spec = self.observation_spec
        heads = self.action_spec.heads
        passed = sum(head.size * head.described for head in heads)
        if passed > spec.features:
            raise SimicError(
                f"choices are described by {passed} features: there are {spec.features}"
            )
        self.actor = Trunk(spec, sizes, make_encoders(encoders, "actor", rng_seed), passed)
        self.critic = None
        if sizes.critic == "own":
            self.critic = Trunk(spec, sizes, make_encoders(encoders, "critic", rng_seed))
        width = self.actor.width
        self.heads = nn.ModuleList(HeadNetwork(width, sizes.head_units, head) for head in heads)
        self.are_squashed = sizes.box == "squashed"
        # e_op and e_slot, zero at first: an untrained head does not depend on earlier choices. The last head has no
        # embedding: no head after it would read it.
        self.choice_embeddings = nn.ParameterList(
            torch.zeros(head.size, width) for head in heads[:-1][: self.action_spec.leading]
        )
        # The value reads a trunk of its own, or the actor's and the features.
        if spec.privileged:
            self.privileged = _embedding(spec.privileged_cardinality + 1, PRIVILEGED_UNITS)
        value_width = width + spec.features if self.critic is None else self.critic.width
        value_width += spec.privileged * PRIVILEGED_UNITS
        self.value_head = HeadNetwork(value_width, sizes.head_units, Head("value", 1))

    def _gains(self) -> dict[str, float | None]:
        """Map prefixes of parameters' names to the gains with which weights are initialised; None: not at all."""
        # The longest prefix counts, so a head's last layer may differ from its first.
        gains: dict[str, float | None] = {
            f"{name}.": None for name, part in self.named_modules() if isinstance(part, LeafEncoder)
        }
        gains |= {"heads": HIDDEN_GAIN, "choice_embeddings": 0.0, "privileged": 1.0}
        for trunk in ("actor", "critic"):
            gains |= {
                f"{trunk}.category": 1.0,
                f"{trunk}.images": HIDDEN_GAIN,
                f"{trunk}.encoder": HIDDEN_GAIN,
                f"{trunk}.core": 1.0,
                f"{trunk}.core.transformer.projection": THREE_LAYERS_GAIN,
                f"{trunk}.core.transformer.network.": HIDDEN_GAIN,
                f"{trunk}.core.transformer.distance": 0.0,
                f"{trunk}.core_norm": 0.0,
            }
        for k in range(len(self.heads)):
            gains |= {f"heads.{k}.out": POLICY_GAIN, f"heads.{k}.query": POLICY_GAIN}
        return gains | {"value_head": HIDDEN_GAIN, "value_head.out": VALUE_GAIN}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """List parameters by the part whose gradient is watched: encoder, core, value (with a trunk of its own, if it
        has one) and each head by its name.
        """
        # Embeddings of choices count to the core: they are added to what is read from it.
        prefixes = {
            "encoder": ("actor.category", "actor.images", "actor.leaves", "actor.encoder"),
            "core": ("actor.core", "choice_embeddings"),
            "value": ("critic", "value_head", "privileged"),
        }
        prefixes |= {
            f"head_{head.name}": (f"heads.{k}.",) for k, head in enumerate(self.action_spec.heads)
        }
        return {
            part: [
                parameter for name, parameter in self.named_parameters() if name.startswith(prefix)
            ]
            for part, prefix in prefixes.items()
        }

    @property
    def like(self) -> Tensor:
        """A weight, which has device and type of all others."""
        return self.actor.encoder.weight.detach()

    @property
    def has_memory(self) -> bool:
        """Whether a decision depends on earlier observations."""
        return self.actor.core.kind != "none"

    def _trunks(self) -> list[Trunk]:
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    def _memories(self, state: RecurrentState) -> Iterable[tuple[Trunk, RecurrentState]]:
        """Give each trunk its part of the memory."""
        # Without memory all states are alike, of width 0.
        trunks = self._trunks()
        states = state.split(len(trunks)) if self.has_memory else [state] * len(trunks)
        return zip(trunks, states, strict=True)

    def initial_state(self, envs: int) -> RecurrentState:
        """Make empty memories of all trunks."""
        return RecurrentState.joined(
            [trunk.core.initial_state(envs, self.like) for trunk in self._trunks()]
        )

    @torch.no_grad()
    def act(
        self,
        observation: Observation,
        state: RecurrentState,
        noise: Tensor | None,
        valid: Tensor | None = None,
        actions: Tensor | None = None,
    ) -> Decision:
        """Decide for E environments, or score actions decided elsewhere.

        Args:
            observation: Normalised, ``[E, ·]``.
            state: The memory ``[E, H]``.
            noise: Uniform in [0, 1), ``[E, width]``, to sample with; None: the likeliest action of each head is taken.
            valid: Rows ``[E]`` that are not over; of others the action means nothing. None: all.
            actions: ``[E, width]`` to score.

        Raises:
            SimicError: A head has no legal choice or no finite outputs.
        """
        # One step of the memory serves the heads and the value.
        readings, state = self.step(observation, state)
        decisions = self.choose(
            readings.actor.z,
            observation.masks,
            noise=noise,
            actions=actions,
            valid=valid,
            forced=self._forced_heads(observation.masks),
        )
        # Looked at last, in one transfer: on a GPU it waits for all that was queued.
        value = self.state_value(readings.value)
        refuse_faults(self.action_spec, decisions)
        log_probs = torch.stack([head.log_prob() for head in decisions], dim=-1)
        actions = torch.cat([head.columns for head in decisions], dim=-1)
        return Decision(actions, log_probs, value, state)

    @torch.no_grad()
    def value(self, observation: Observation, state: RecurrentState) -> Tensor:
        """Estimate V(s) ``[E]`` of the observation that follows the remembered ones."""
        return self.state_value(self.step(observation, state)[0].value)

    def rescore(
        self,
        observation: Observation,
        actions: Tensor,
        state: RecurrentState,
        valid: Tensor,
        starts: Tensor | None,
        choice: Tensor | None = None,
    ) -> Rescoring:
        """Score recorded rows under the present weights.

        Args:
            observation: As the policy saw it, ``[T, N, ·]``.
            actions: ``[T, N, width]``.
            state: The memory before the first step, ``[N, H]``.
            valid: Bool ``[T, N]``; other rows contribute exactly nothing.
            starts: First steps of episodes, bool ``[T, N]``; None: no episode starts inside.
            choice: Where a head had a choice, bool ``[T, N, heads]``: it is computed there alone. None: it is computed
                everywhere, so that the CPU need not know the rows.
        """
        # Whole rows at once, from the memory that acting began with; then the walk of acting, with recorded indices.
        latents = [
            trunk.unroll(observation, memory, starts) for trunk, memory in self._memories(state)
        ]
        readings = self._readings(latents, observation)
        values = self.state_value(readings.value)
        if choice is None:
            walk = self.choose(readings.actor.z, observation.masks, actions=actions, valid=valid)
            log_probs = torch.stack([step.log_prob() for step in walk], dim=-1)
            entropy = torch.stack([step.normalized_entropy() for step in walk], dim=-1)
        else:
            log_probs, entropy = self._score(
                readings.actor.parts, observation.masks, actions, choice
            )
        return Rescoring(log_probs, entropy, values, readings.actor.hidden)

    def _score(
        self,
        parts: Sequence[Tensor],
        masks: dict[str, Tensor],
        actions: Tensor,
        choice: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute ln π and the normalised entropy ``[..., heads]`` of recorded choices.

        Elsewhere than in the rows of ``choice`` both are exactly 0, and so are their gradients.

        Args:
            parts: z, which the heads read, ``[..., ·]``.
            masks: By head name, as ``Observation`` says.
            actions: Recorded ``[..., width]``.
            choice: Bool ``[..., heads]``.
        """
        nothing = parts[0].new_zeros(choice.shape[:-1].numel())
        log_probs: list[Tensor] = []
        entropies: list[Tensor] = []
        for k, is_choice in enumerate(choice.flatten(0, -2).unbind(dim=-1)):
            rows = is_choice.nonzero().flatten()
            scores = (nothing, nothing)
            if len(rows):
                scored = self._score_rows(k, rows, parts, masks, actions)
                scores = (scored.log_prob(), scored.normalized_entropy())
            if 0 < len(rows) < len(nothing):
                scores = tuple(nothing.index_copy(0, rows, values) for values in scores)
            log_probs.append(scores[0])
            entropies.append(scores[1])
        return (
            torch.stack(log_probs, dim=-1).view(choice.shape),
            torch.stack(entropies, dim=-1).view(choice.shape),
        )

    def _score_rows(
        self,
        head: int,
        rows: Tensor,
        parts: Sequence[Tensor],
        masks: dict[str, Tensor],
        actions: Tensor,
    ) -> HeadDecision:
        """Compute the distribution of one head in some rows, by their places among all; the rest as ``_score``."""
        axes = actions.dim() - 1

        # Where these are all rows, nothing is copied.
        def pick(x: Tensor) -> Tensor:
            x = x.flatten(0, axes - 1)
            return x if len(rows) == len(x) else x.index_select(0, rows)

        name = self.action_spec.heads[head].name
        legal = {name: pick(masks[name])} if name in masks else {}
        recorded = pick(actions)
        leading = min(head, self.action_spec.leading)
        chosen = recorded[..., :leading].long().unbind(dim=-1)
        mask = head_mask(self.action_spec, legal, head, chosen)
        parts = [pick(part) for part in parts]
        layer = self.heads[head].get_submodule("hidden")
        assert isinstance(layer, nn.Linear)
        hidden = linear_of_parts(layer, parts)
        if chosen:
            hidden = hidden + self._embedded(chosen, layer.weight)
        outputs = self._outputs(head, hidden.tanh(), parts[-1])
        recorded = recorded[..., self.action_spec.columns[head]]
        return self._decide(head, outputs, mask, None, None, recorded)

    def step(
        self, observation: Observation, state: RecurrentState
    ) -> tuple[Readings, RecurrentState]:
        """Take in one more observation ``[E, ·]``; return the inputs of heads and value, and the memory."""
        steps = [trunk.step(observation, memory) for trunk, memory in self._memories(state)]
        readings = self._readings([latent for latent, _ in steps], observation)
        if not self.has_memory:
            return readings, state
        return readings, RecurrentState.joined([memory for _, memory in steps])

    def _readings(self, latents: Sequence[Latent], observation: Observation) -> Readings:
        # Detached, the value learns to read the actor's trunk without pulling on it: its errors are large at first, and
        # would shape what the heads read.
        actor = latents[0]
        parts = [part for latent in latents[1:] for part in latent.parts]
        if self.critic is None:
            parts = [part.detach() for part in actor.parts]
            parts.append(observation.features.to(actor.hidden.dtype))
        if self.observation_spec.privileged:
            privileged = observation.privileged
            # Outside training nothing is known of the task: -1, none.
            if privileged is None:
                shape = (*actor.hidden.shape[:-1], self.observation_spec.privileged)
                privileged = torch.full(shape, -1, device=actor.hidden.device)
            parts.append(self.privileged(privileged + 1).flatten(-2))
        return Readings(actor, parts)

    def state_value(self, reading: Sequence[Tensor]) -> Tensor:
        """Compute V ``[...]`` from what the value reads."""
        return self.value_head(*reading).squeeze(-1)

    def choose(
        self,
        z: Tensor,
        masks: dict[str, Tensor],
        *,
        noise: Tensor | None = None,
        actions: Tensor | None = None,
        valid: Tensor | None = None,
        forced: Collection[int] = (),
    ) -> list[HeadDecision]:
        """Walk down the heads; the same walk acts and rescores.

        Args:
            z: What the heads read, ``[..., H]``.
            masks: By head name, as ``Observation`` says.
            noise: Uniform in [0, 1), ``[..., width]``, to sample with; None: the likeliest action is taken.
            actions: Recorded ``[..., width]``, which are taken as they are.
            valid: Bool ``[...]``; in other rows no head is relevant.
            forced: Heads with one legal choice at most in every row: nothing is computed of them, and logits are 0.
        """
        spec = self.action_spec
        decisions: list[HeadDecision] = []
        for group in self._head_groups(z, forced):
            # Earlier choices, of op and slot, add their embeddings and say which heads matter.
            leading = decisions[: spec.leading]
            chosen = [head.index for head in leading if isinstance(head, Choice)]
            hidden = group.hidden
            relevance = None
            if chosen:
                hidden = hidden + self._embedded(chosen, group.weight)
                relevance = self.relevance[chosen[0]]
            units = iter(hidden.tanh().chunk(len(group.open) or 1, dim=-1))
            for head in group.heads:
                # Where the head matters, and its distribution.
                relevant = None if relevance is None else relevance[..., head]
                if valid is not None:
                    relevant = valid if relevant is None else relevant & valid
                mask = head_mask(spec, masks, head, chosen)
                if head in group.open:
                    outputs = self._outputs(head, next(units), z)
                else:
                    outputs = z.new_zeros(*z.shape[:-1], spec.heads[head].size)
                columns = spec.columns[head]
                decision = self._decide(
                    head,
                    outputs,
                    mask,
                    relevant,
                    None if noise is None else noise[..., columns],
                    None if actions is None else actions[..., columns],
                )
                decisions.append(decision)
        return decisions

    def _decide(
        self,
        head: int,
        outputs: Tensor,
        mask: Tensor | None,
        relevant: Tensor | None,
        noise: Tensor | None,
        recorded: Tensor | None,
    ) -> HeadDecision:
        """Decide in one head by what its network said; the rest as ``choose``, of this head."""
        # What a network says of a continuous head are means; how far draws scatter is a parameter of the head.
        if self.action_spec.heads[head].continuous:
            network = self.heads[head]
            log_sigma = network.get_parameter("log_sigma")
            squashed = network.get_buffer("bounded") if self.are_squashed else None
            return Numbers.decide(outputs, log_sigma, relevant, noise, recorded, squashed)
        return Choice.decide(outputs, mask, relevant, noise, recorded)

    def _forced_heads(self, masks: dict[str, Tensor]) -> set[int]:
        """Find the heads after the first in which no row has a choice; none where the CPU would wait for the answer."""
        forced: set[int] = set()
        for k, head in enumerate(self.action_spec.heads[1:], 1):
            mask = masks.get(head.name)
            if mask is None or mask.device.type != "cpu":
                continue
            if not (mask.sum(dim=-1) > 1).any():
                forced.add(k)
        return forced

    def _head_groups(self, z: Tensor, forced: Collection[int]) -> list["HeadGroup"]:
        """Compute the first layers of all heads in one product, then split them: op, slot, all others."""
        # The op, the slot, all others: each group is computed once what it depends on was chosen.
        count = len(self.heads)
        groups = [group for group in (range(1), range(1, min(2, count)), range(2, count)) if group]
        open_heads = [[head for head in group if head not in forced] for group in groups]
        # Heads are small: one product of all costs hardly more than that of a single head.
        # They are put together at each call, as heads have names of their own in checkpoints and in the gradient norms.
        layers = [
            self.heads[head].get_submodule("hidden") for heads in open_heads for head in heads
        ]
        weight = torch.cat([layer.get_parameter("weight") for layer in layers])
        bias = torch.cat([layer.get_parameter("bias") for layer in layers])
        units = [len(heads) * len(weight) // len(layers) for heads in open_heads]
        hidden = functional.linear(z, weight, bias).split(units, dim=-1)
        parts = (groups, open_heads, weight.split(units), hidden)
        return [HeadGroup(*group) for group in zip(*parts, strict=True)]

    def _embedded(self, chosen: Sequence[Tensor], weight: Tensor) -> Tensor:
        """Compute what e_op, and after the slot e_op + e_slot, add to first layers before their tanh; e_slot is left
        out if the op uses no slot. Layers are linear, so each embedding is multiplied once.
        """
        table = functional.linear(self.choice_embeddings[0], weight)
        if len(chosen) == 1:
            return functional.embedding(chosen[0], table)
        of_slot = functional.linear(self.choice_embeddings[1], weight)
        table = table[:, None] + self.relevance[:, 1, None, None] * of_slot  # [ops, slots, units]
        return functional.embedding(chosen[0] * len(of_slot) + chosen[1], table.flatten(0, -2))

    def _outputs(self, head: int, units: Tensor, z: Tensor) -> Tensor:
        """Compute logits, or means, from a head's hidden units, and from the descriptions of its choices, which are
        last in z.
        """
        network = self.heads[head]
        logits = network.get_submodule("out")(units)
        described = self.action_spec.heads[head].described
        if not described:
            return logits
        # [..., choices, described] times the query, [..., 1, described].
        descriptions = z[..., -self.actor.passed :].unflatten(-1, (-1, described))
        query = network.get_submodule("query")(units)[..., None, :]
        return logits + (descriptions * query).sum(dim=-1)


class HeadGroup(NamedTuple):
    """Heads that know of no choice, of the op alone, or of op and slot: their numbers, those that are computed, the
    weights of their first layers one under the other, and what these make of z, side by side.
    """

    heads: range
    open: list[int]
    weight: Tensor
    hidden: Tensor


# Named tensors.


def refuse_mismatch(owner: str, expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Compare the tensors of a file with those that a policy needs.

    Args:
        owner: What they belong to, for the message.
        expected: Tensors of the right names and shapes.
        tensors: Those of the file.

    Raises:
        SimicError: Names the first tensor that is missing, unknown, of another shape or not finite.
    """
    # Names first: a missing tensor has no shape to compare.
    for name in sorted(expected.keys() ^ tensors.keys()):
        raise SimicError(
            f"{owner}: tensor {name!r} is {'missing' if name in expected else 'unknown'}"
        )
    for name, tensor in expected.items():
        if tensor.shape != tensors[name].shape:
            shape = tuple(tensors[name].shape)
            raise SimicError(
                f"{owner}: tensor {name!r} has shape {shape}; this policy needs {tuple(tensor.shape)}"
            )
        # Every decision would be NaN, or an error far from its cause.
        if not tensors[name].isfinite().all():
            raise SimicError(f"{owner}: tensor {name!r} holds numbers that are not finite")


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin so, under the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
