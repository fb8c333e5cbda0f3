"""One episode of all hosts under one policy: the loop that validation, evaluation and growing on other data share.

An actor is started once per episode and then asked once per step, for all hosts together; it never sees the test data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from simic import rng
from simic.agent.spec import Observation
from simic.envs.growth_env import GrowthEnv
from simic.envs.records import StepInfo
from simic.envs.tracker import Tracker
from simic.errors import SimicError
from simic.growth.life.vocabulary import Action, Slots


@dataclass(frozen=True)
class Situation:
    """What an actor may look at when it decides step ``step`` (from 0) of an episode."""

    observation: Observation
    slots: Slots
    tracker: Tracker
    alive: Tensor  # bool [E]; the other hosts have ended: what is decided for them means nothing
    step: int


@dataclass(frozen=True)
class Episode:
    """Which episode begins, and how many decisions it has: ``env_ids [E]`` and ``iteration`` key every random draw."""

    env_ids: Tensor
    iteration: int
    rng_seed: int
    steps: int  # decisions of this episode

    def noise(self, step: int, heads: int) -> Tensor:
        """Draw uniforms ``[E, heads]`` of one decision."""
        stream = rng.key(
            self.rng_seed,
            rng.Purpose.BASELINE,
            self.iteration,
            self.env_ids,
            step,
            device=self.env_ids.device,
        )
        return rng.uniform(stream, (heads,))


class Actor(Protocol):
    """One growth policy; may keep state between ``start`` calls, one row per host."""

    def start(self, episode: Episode) -> None:
        """Forget everything; an episode of ``len(env_ids)`` hosts begins."""
        ...

    def act(self, situation: Situation) -> Action:
        """Decide for every host ``[E]``."""
        ...


def refuse_closed(env: GrowthEnv, actor: Actor) -> None:
    """Raise SimicError when an actor's plan needs a choice that ``train.actions`` closes.

    One that goes by a plan says what it may ask for in ``asks``, indices by head: masks do not choose others for it.
    ADVANCE need not be named: where seeds advance by themselves it is never legal.
    """
    # Before the episode: halfway through, WAIT would stand in without a word.
    asks: dict[str, tuple[int, ...]] = getattr(actor, "asks", {})
    for head, left_open in env.left_open.items():
        for index in asks.get(head, ()):
            if not left_open[index]:
                raise SimicError(
                    f"{type(actor).__name__} needs {head} {env.choices[head][index]}, which train.actions.{head} "
                    "closes: allow it, or leave this policy out"
                )


def play(
    env: GrowthEnv,
    actor: Actor,
    iteration: int,
    on_step: Callable[[Situation, Action, Tensor, StepInfo], None],
    tasks: Tensor | None = None,
    host_ids: Tensor | None = None,
    steps: int | None = None,
) -> None:
    """Play one episode.

    Args:
        env: The hosts.
        actor: Who decides.
        iteration: Number of the episode; it keys the random numbers.
        on_step: Called after every step with the situation before it, the action, the reward ``[E]``, what came of it.
        tasks: Task of each host ``[E]``; by default as drawn for training.
        host_ids: Names of the hosts ``[E]`` for the random numbers; by default those of the environments.
        steps: Length; by default that of the longest episode.
    """
    # A plan that cannot be followed is refused before hosts are trained.
    refuse_closed(env, actor)
    options = {
        "iteration": iteration,
        "tasks": tasks,
        "host_ids": host_ids,
        "steps": steps or env.train.longest_episode,
    }
    observation, _ = env.reset(options=options)
    actor.start(Episode(env.env_ids, iteration, env.rng_seed, env.steps))
    # What an actor sees is gathered before it decides.
    for step in range(env.steps):
        state = env.state
        situation = Situation(observation, state.slots, state.tracker, state.alive, step)
        action = actor.act(situation)
        observation, reward, _, _, info = env.step(action)
        on_step(situation, action, reward, info)
