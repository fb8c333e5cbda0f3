"""Play episodes of plain environments to their end: the one player of Agent.evaluate, validation and evaluation."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Environment
from simic.agent.spec import Observation
from simic.errors import SimicError

LONGEST_EPISODE = 1_000_000  # steps
PATIENCE = 60.0  # seconds without the end of an episode, after which that is said
_log = logging.getLogger(__name__)

# Decides from the raw observation, the rows bool [E] that start an episode, and the step: actions [E, width].
Decide = Callable[[Observation, Tensor, int], Tensor]


@dataclass(frozen=True)
class PlayedEpisodes:
    """Undiscounted return, length and actions ``[T, width]`` of episodes, environment by environment."""

    returns: list[float]
    lengths: list[int]
    actions: list[np.ndarray]


def play(
    env: Environment[Any],
    decide: Decide,
    episodes: int = 1,
    on_step: Callable[[], None] = lambda: None,
    options: dict[str, Any] | None = None,
) -> PlayedEpisodes:
    """Play equally many episodes of every environment from its reset; else short ones would count more.

    Args:
        env: E environments that start anew at once when an episode ends.
        decide: Who acts.
        episodes: How many of each environment.
        on_step: Is called after each step, and may raise.
        options: Of the reset.

    Raises:
        SimicError: An episode does not end.
    """
    # Environments go on until the slowest has played its episodes; what the others play meanwhile is left out.
    observation, _ = env.reset(options=options)
    starts = torch.ones(env.num_envs, dtype=torch.bool, device=observation.features.device)
    total = torch.zeros(env.num_envs, dtype=torch.float64, device=starts.device)
    steps: list[Tensor] = []
    ends: list[list[int]] = [[] for _ in range(env.num_envs)]  # steps taken when each episode ended
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    quiet_since = time.monotonic()
    while min(map(len, ends)) < episodes:
        # Said and not refused: a simulator may be slow.
        if time.monotonic() > quiet_since + PATIENCE:
            quiet_since = time.monotonic()
            begin = min(row[-1] if row else 0 for row in ends if len(row) < episodes)
            _log.warning(
                "evaluation waits %.0f seconds for the end of an episode, now at step %d; one without"
                " end needs gymnasium.wrappers:TimeLimit",
                PATIENCE,
                len(steps) - begin,
            )
        # The observation of a row that ended belongs to the next episode already.
        actions = decide(observation, starts, len(steps))
        observation, reward, terminated, truncated, _ = env.step(actions)
        steps.append(actions)
        total = total + reward
        starts = terminated | truncated
        # Episodes that ended in this step.
        if bool(starts.any()):
            for row in starts.nonzero().flatten().tolist():
                ends[row].append(len(steps))
                returns[row].append(float(total[row]))
                # One more than is needed ends nothing.
                if len(ends[row]) <= episodes:
                    quiet_since = time.monotonic()
            total = total.masked_fill(starts, 0.0)
        on_step()
        if len(steps) > episodes * LONGEST_EPISODE:
            raise SimicError(
                f"an episode goes on for {LONGEST_EPISODE} steps: wrap the environment in gymnasium.wrappers:TimeLimit"
            )

    # What was done in each episode lies between its ends.
    all_actions = torch.stack(steps).cpu().numpy()
    played = PlayedEpisodes([], [], [])
    for row in range(env.num_envs):
        first = 0
        for episode in range(episodes):
            end = ends[row][episode]
            played.returns.append(returns[row][episode])
            played.lengths.append(end - first)
            played.actions.append(all_actions[first:end, row])
            first = end
    return played


def policy_decides(
    policy: ActorCritic,
    normalizers: Normalizers,
    envs: int,
    noise: Callable[[int], Tensor] | None = None,
    blind: bool = False,
) -> Decide:
    """Let a policy decide.

    Args:
        policy: Who decides; its memory is emptied where episodes start.
        normalizers: Its scales of observations.
        envs: How many environments it plays.
        noise: ``noise(step) [E, width]`` to sample with; None: greedily.
        blind: It sees the mean observation alone.
    """
    # Held in the closure: whoever plays need not know whether there is a memory.
    state = policy.initial_state(envs)

    def decide(observation: Observation, starts: Tensor, step: int) -> Tensor:
        nonlocal state
        observation = normalizers.see(observation)
        # 0 is the mean of a normalised feature. Masks stay, or what it chooses might be illegal.
        if blind:
            pixels = observation.pixels
            observation = replace(
                observation,
                features=torch.zeros_like(observation.features),
                pixels=None if pixels is None else torch.zeros_like(pixels),
            )
        step_noise = None if noise is None else noise(step)
        decision = policy.act(observation, state.zeroed(starts), step_noise)
        state = decision.state
        return decision.actions

    return decide
