"""Watches a training without taking part: what the environments gave and were told, what updates were given, and the
state on disk after every iteration.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simic.agent.rollout import Rollout
from simic.agent.spec import Observation
from simic.audit.reference.agent.adam import Optimized
from simic.audit.reference.agent.transcript import Transcript
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training import checkpoint
from simic.training.checkpoint import Checkpoint
from simic.training.observers import Observer
from simic.training.session import Session


@dataclass
class Tape:
    """One episode as it goes on, at the door of the environments."""

    iteration: int
    env_ids: tuple[int, ...]
    seen: list[Observation]
    actions: list[Tensor] = field(default_factory=list)
    rewards: list[Tensor] = field(default_factory=list)
    terminated: list[Tensor] = field(default_factory=list)
    truncated: list[Tensor] = field(default_factory=list)

    def transcript(self) -> Transcript:
        """All of it, in float64."""
        masks = {name: torch.stack([each.masks[name] for each in self.seen]) for name in self.seen[0].masks}
        return Transcript(
            iteration=self.iteration,
            env_ids=self.env_ids,
            features=torch.stack([each.features for each in self.seen]).double(),
            categories=torch.stack([each.categories for each in self.seen]),
            told=torch.stack([_told(each) for each in self.seen]),
            masks=masks,
            actions=torch.stack(self.actions),
            rewards=torch.stack(self.rewards).double(),
            terminated=torch.stack(self.terminated),
            truncated=torch.stack(self.truncated),
        )


@dataclass(frozen=True)
class Lived:
    """One iteration: its episodes (that of training first, then, if there was one, that of validation), the rollout
    that the update was given, the optimizer after each of its minibatches, what was reported, and the
    checkpoints around it.
    """

    number: int
    episodes: tuple[Transcript, ...]
    rollout: Rollout
    trail: tuple[Optimized, ...]
    update: UpdateRow
    before: Mapping[str, Tensor]
    chain_before: str
    after: Checkpoint


class Witness(Observer):
    """Of one life of a run, from the ``earlier`` checkpoint, if there is one, to that after ``until`` iterations, at
    which it asks training to stop.
    """

    def __init__(self, session: Session, until: int, earlier: Checkpoint | None) -> None:
        self.until, self.stop = until, threading.Event()
        self.lived: list[Lived] = []
        self.begun = session.state.tensors()
        self._before = self.begun if earlier is None else earlier.tensors
        self._chain = "" if earlier is None else str(earlier.manifest.scalars["chain"])
        self._session = session
        self._forget()
        self._listen()

    def _forget(self) -> None:
        self._tapes: list[Tape] = []
        self._trail: list[Optimized] = []
        self._rollout: Rollout | None = None
        self._update: UpdateRow | None = None

    def _listen(self) -> None:
        """Around the methods of this session's objects; what they do and return stays the same."""
        env, state = self._session.env, self._session.state
        _around(env, "reset", self._on_reset)
        _around(env, "step", self._on_env_step)
        _around(state.ppo.adam, "step", self._on_optimized)
        _around(state.ppo, "update", self._on_update)

    def _on_reset(self, found: Any, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        assert options is not None
        self._tapes.append(Tape(options["iteration"], tuple(self._session.env.env_ids.tolist()), [_copied(found[0])]))

    def _on_env_step(self, found: Any, actions: Any) -> None:
        tape = self._tapes[-1]
        told = actions if isinstance(actions, Tensor) else torch.stack(tuple(actions), dim=1)
        observation, reward, terminated, truncated, _ = found
        tape.actions.append(told.clone())
        tape.seen.append(_copied(observation))
        tape.rewards.append(reward.clone())
        tape.terminated.append(terminated.clone())
        tape.truncated.append(truncated.clone())

    def _on_optimized(self, _: Any) -> None:
        adam = self._session.state.ppo.adam
        moments = {name: adam.state[weight] for name, weight in adam.named.items()}
        weights = {name: weight.detach().double() for name, weight in adam.named.items()}
        first, second = (
            {name: own[kind].double() for name, own in moments.items()} for kind in ("exp_avg", "exp_avg_sq")
        )
        self._trail.append(Optimized(weights, first, second, 0))

    def _on_update(self, _: Any, rollout: Rollout, *rest: Any, **named: Any) -> None:
        self._rollout = rollout

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self._update = update

    def on_checkpoint(self, path: Path, iteration: int) -> None:
        assert self._rollout is not None
        assert self._update is not None
        after = checkpoint.read(path)
        episodes = tuple(tape.transcript() for tape in self._tapes)
        self.lived.append(
            Lived(
                number=iteration - 1,
                episodes=episodes,
                rollout=self._rollout,
                trail=tuple(self._trail),
                update=self._update,
                before=self._before,
                chain_before=self._chain,
                after=after,
            )
        )
        self._before, self._chain = after.tensors, str(after.manifest.scalars["chain"])
        self._forget()
        if iteration >= self.until:
            self.stop.set()


def _around(owner: Any, name: str, listen: Callable[..., None]) -> None:
    method = getattr(owner, name)

    def listened(*arguments: Any, **named: Any) -> Any:
        found = method(*arguments, **named)
        listen(found, *arguments, **named)
        return found

    setattr(owner, name, listened)


def _told(seen: Observation) -> Tensor:
    """What the critic alone is told, ``[E, n]``; n may be 0."""
    return seen.categories[:, :0] if seen.told is None else seen.told


def _copied(seen: Observation) -> Observation:
    masks = {name: mask.clone() for name, mask in seen.masks.items()}
    told = None if seen.told is None else seen.told.clone()
    return replace(seen, features=seen.features.clone(), categories=seen.categories.clone(), masks=masks, told=told)
