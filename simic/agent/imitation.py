"""Behaviour cloning (Pomerleau 1991, "Efficient training of artificial neural networks for autonomous navigation"):
the policy learns to give recorded actions a high probability. The value learns nothing.
"""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from simic import params, rng
from simic.agent.action_space import columns_of
from simic.agent.distributions import head_mask
from simic.agent.gym_adapter import GymAdapter
from simic.agent.policy import ActorCritic, part_of
from simic.agent.ppo import Adam
from simic.agent.spec import Observation
from simic.errors import SimicError

IMITATION = 1 << 43  # a namespace of its own: other orders than those of PPO
MINIBATCH_STEPS = 256  # about so many; with memory they are of whole episodes
EPISODE = "(observations, actions) or (observations, actions, masks), each with a value per step"
MASK = "mask."  # of the names of masks among the tensors of a step


class RecordedEpisode(NamedTuple):
    """What was observed, done and legal in each step, as the environment has it; None: it says nothing of masks."""

    observations: Sequence[Any]
    actions: Sequence[Any]
    masks: Sequence[Any] | None = None


@dataclass(frozen=True)
class Demonstrations:
    """Recorded steps ``[T, N]``, an episode in each column; behind its end they are not valid and mean nothing."""

    observation: Observation
    actions: Tensor  # [T, N, width]
    valid: Tensor  # [T, N] bool

    @classmethod
    def of(cls, env: GymAdapter, episodes: Iterable[Sequence[Any]]) -> "Demonstrations":
        """Put episodes side by side.

        Args:
            env: Whose observations and actions they are.
            episodes: Each with the fields of ``RecordedEpisode``.

        Raises:
            SimicError: Names the step that is not of this environment.
        """
        if not isinstance(episodes, Iterable):
            raise SimicError(f"episodes is {type(episodes).__name__}: must be a list of {EPISODE}")
        columns = [list(_steps(env, number, episode)) for number, episode in enumerate(episodes)]
        if not columns:
            raise SimicError("there are no episodes: must be at least one")
        # Short ones are filled up with zeros.
        tensors: dict[str, Tensor] = {}
        for name in columns[0][0]:
            parts = [torch.cat([step[name] for step in column]) for column in columns]
            tensors[name] = pad_sequence(parts)
        masks = part_of(tensors, MASK)
        observation = Observation(
            tensors["features"], tensors["categories"], masks, pixels=tensors.get("pixels")
        )
        return cls(observation, tensors["actions"], tensors["valid"])

    def single_steps(self) -> "Demonstrations":
        """Make every valid step an episode, ``[1, steps]``, for a policy without memory."""
        return self._map(lambda x: x[self.valid][None])

    def select(self, episodes: Tensor) -> "Demonstrations":
        """Select whole episodes by their numbers."""
        return self._map(lambda x: x[:, episodes])

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Demonstrations":
        return Demonstrations(
            self.observation.map(function),
            function(self.actions),
            function(self.valid),
        )

    def log_probs(self, policy: ActorCritic) -> Tensor:
        """Compute ln π of the actions ``[T, N, heads]``; 0 where not valid, or where the op does not use the head."""
        # Each begins at a reset, where nothing is remembered, and none starts inside.
        state = policy.initial_state(self.valid.shape[1])
        scored = policy.rescore(self.observation, self.actions, state, self.valid, starts=None)
        return scored.log_probs


def _steps(env: GymAdapter, number: int, recorded: Sequence[Any]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors ``[1, ·]`` of each step of an episode, by name."""
    try:
        episode = RecordedEpisode(*recorded)
        masks = [None] * len(episode.actions) if episode.masks is None else episode.masks
        lengths = [len(episode.observations), len(episode.actions), len(masks)]
    except TypeError:
        raise SimicError(
            f"episode {number} is {reprlib.repr(recorded)}: must be {EPISODE}"
        ) from None
    # A recording often has one observation more, which nothing was done in.
    if len(set(lengths)) > 1 or 0 in lengths:
        counts = "{} observations, {} actions, {} masks".format(*lengths)
        raise SimicError(f"episode {number} has {counts}: must have one of each for every step")
    steps = zip(
        episode.observations,
        episode.actions,
        masks,
        strict=True,
    )
    for step, (observation, action, mask) in enumerate(steps):
        try:
            row = env.rows([observation], None if mask is None else [mask])
            columns = columns_of(env.action_layout, env.action_spec, action)
        except SimicError as error:
            raise SimicError(f"episode {number}, step {step}: {error}") from None
        yield {
            "features": row.features,
            "categories": row.categories,
            "actions": columns[None],
            "valid": torch.ones(1, dtype=torch.bool),
            **({} if row.pixels is None else {"pixels": row.pixels}),
            **{f"{MASK}{name}": tensor for name, tensor in row.masks.items()},
        }


def refuse_illegal(policy: ActorCritic, demonstrations: Demonstrations) -> None:
    """Raise SimicError naming the first action that its mask forbids."""
    actions = demonstrations.actions
    spec = policy.action_spec
    chosen = actions[..., : spec.leading].long().unbind(dim=-1)
    masks = demonstrations.observation.masks
    for k, head in enumerate(spec.discrete_heads):
        mask = head_mask(spec, masks, k, chosen)
        if mask is None:
            continue
        # A head that the op does not use may be masked in any way.
        relevant = policy.relevance[chosen[0]] & demonstrations.valid[..., None]
        is_legal = mask.gather(-1, actions[..., k : k + 1].long()).squeeze(-1)
        # Episode by episode, as they are read.
        forbidden = (relevant[..., k] & ~is_legal).t().nonzero().tolist()
        for number, step in forbidden:
            raise SimicError(
                f"episode {number}, step {step}: the mask of head {head.name!r} forbids what was done; must be legal"
            )


def imitate(
    policy: ActorCritic,
    demonstrations: Demonstrations,
    settings: params.PPOParams,
    epochs: int,
    rng_seed: int,
) -> list[float]:
    """Raise the probability of recorded actions.

    Args:
        policy: Learns in place.
        demonstrations: Normalised.
        settings: Learning rate and the limit of the gradient's norm.
        epochs: Passes over all steps.
        rng_seed: Keys the order of minibatches.

    Returns:
        The mean log-probability of an action in each epoch, in nats.
    """
    # PPO's moments stay as they are: its gradients are of another loss.
    adam = Adam(policy, settings.adam_eps)
    rows = demonstrations if policy.has_memory else demonstrations.single_steps()
    steps = int(rows.valid.sum())
    count = rows.valid.shape[1]
    minibatches = min(count, -(-steps // MINIBATCH_STEPS))

    # Maximise the likelihood, which over whole rows is that of acting.
    means: list[float] = []
    for epoch in range(epochs):
        order = rng.permutation(rng.key(rng_seed, rng.Purpose.MINIBATCH, IMITATION, epoch), count)
        total = 0.0
        for episodes in order.tensor_split(minibatches):
            # The mean over the minibatch's own steps: episodes differ in length.
            batch = rows.select(episodes)
            log_prob = batch.log_probs(policy).sum()
            _step(adam, -log_prob / batch.valid.sum(), settings)
            total += float(log_prob.detach())
        means.append(total / steps)
    return means


def _step(adam: Adam, loss: Tensor, settings: params.PPOParams) -> None:
    # Parameters of the value have gradient 0, and do not move.
    gradients = torch.autograd.grad(
        loss,
        adam.parameters,
        allow_unused=True,
        materialize_grads=True,
    )
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    clipping = (torch.stack(norms).norm() / settings.max_grad_norm).clamp(min=1.0)
    for parameter, gradient in zip(adam.parameters, gradients, strict=True):
        parameter.grad = gradient
    adam.step_unless_skipped(settings.learning_rate, clipping, loss.detach().isfinite())
