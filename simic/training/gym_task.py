"""A Gymnasium environment as a task of the training loop: episodes go on from rollout to rollout."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic import durable
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, RecurrentState, part_of
from simic.agent.rollout import PartialRollout, Position, Rollout, StepRecord
from simic.agent.spec import Observation
from simic.data.batches import ENVIRONMENT_FILE
from simic.envs.gym_env import VALIDATION, AnyGym, Decide, PlayedEpisodes, describe, open_gym, play
from simic.errors import SimicError
from simic.params import Params
from simic.safe_read import read_file
from simic.telemetry.columns import ACTIONS, DECIDED, EVENTS, GYM, Columns, EventColumns
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import Damaged, PartialCheckpoint, cpu_copies
from simic.training.task import Recorded, Recording, Task

_ODD = np.int64(0x2545F4914F6CDD1D)  # a multiplier of MCG 64 (Steele, Vigna 2022)


def hashed(features: Tensor) -> Tensor:
    """Return an int64 hash of each row of float32 ``[…, D]``, on its device."""
    words = features.contiguous().view(torch.int32).long()
    total = torch.zeros_like(words[..., 0])
    for column in words.unbind(dim=-1):  # multiplication wraps
        total = (total ^ column) * int(_ODD)
    return total


class GymTask(Task):
    """E environments, and where their episodes are between two rollouts."""

    layout, scored = GYM, "return"

    def __init__(self, params: Params, policy: ActorCritic, env: AnyGym) -> None:
        self.params, self.policy, self.env = params, policy, env
        self._begin()

    def _begin(self) -> None:
        observation, _ = self.env.reset()
        self.moved(Position.first(self.env, self.policy, observation))

    def length_of(self, iteration: int) -> int:
        return self.params.train.longest_episode

    def position(self) -> Position:
        return self._position

    def moved(self, end: Position) -> None:
        """Note where a rollout ended; the state is of that moment."""
        memory = {"h": end.state.h.clone(), "c": end.state.c.clone(), "starts": end.starts.clone()}
        self._position, self._state = end, {**self.env.state_dict(), **memory}

    def state_dict(self) -> dict[str, Tensor]:
        return self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> FindingRow | None:
        like = self._position.starts.device
        memory = {name: state[name].to(like) for name in ("h", "c", "starts")}
        try:
            observation = self.env.load_state_dict(state)
        except SimicError as error:
            self._begin()
            text = f"not resumed bit for bit: {error}; every episode begins anew"
            return FindingRow(iteration=0, check="inexact_resume", severity="medium", message=text)
        self.moved(Position(observation, RecurrentState(memory["h"], memory["c"]), memory["starts"]))
        return None

    def recording(self) -> "GymRecording":
        return GymRecording(self)

    def events(self, steps: Columns) -> EventColumns:
        return EventColumns({name: np.zeros(0, dtype=np.int64) for name in EVENTS})

    def validate(self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
        env = open_gym(self.params.prepare.gym, self.params.rng_seed, self.env.env_ids, VALIDATION)
        try:
            played = play(env, decided_by(policy, normalizers, env), on_step)
        finally:
            env.close()
        return {
            "env_id": self.env.env_ids.cpu().numpy(),
            "episodes": np.ones(env.num_envs, dtype=np.int64),
            "return": np.array(played.returns),
            "length": np.array(played.lengths, dtype=np.float64),
            DECIDED: padded(played),
        }


def decided_by(
    policy: ActorCritic, normalizers: Normalizers, env: AnyGym, noise: Callable[[int], Tensor] | None = None,
    blind: bool = False,
) -> Decide:  # fmt: skip
    """Return a policy as who decides, greedily or by ``noise(step) [E, heads]``; ``blind``: it sees the mean alone."""
    memory = policy.initial_state(env.num_envs)

    def decide(observation: Observation, starts: Tensor, step: int) -> Tensor:
        nonlocal memory
        seen = normalizers.see(observation)
        if blind:
            seen = Observation(torch.zeros_like(seen.features), seen.categories, seen.masks)
        given = None if noise is None else noise(step)
        done = policy.act(seen, memory.zeroed(starts), given, greedy=noise is None)
        memory = done.state
        return done.actions

    return decide


def padded(played: PlayedEpisodes) -> np.ndarray:
    """Return the actions ``[E, T, heads]``, −1 behind the end of an episode."""
    longest = max(played.lengths)
    rows = [np.pad(x, ((0, longest - len(x)), (0, 0)), constant_values=-1) for x in played.actions]
    return np.stack(rows).astype(np.int16)


class GymRecording(Recording):
    """The telemetry of a rollout follows from it; beside it are the last observations of truncated episodes."""

    def __init__(self, task: GymTask) -> None:
        self.task, self.env = task, task.env
        self.before = task.state_dict()
        self.finals: dict[int, Tensor] = {}  # by step

    def add(self, transition: StepRecord) -> None:
        if transition.info.final is not None:
            self.finals[transition.step] = transition.info.final.features

    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        at = {"at": torch.tensor([*self.finals], dtype=torch.int64)}
        at |= {str(step): features for step, features in self.finals.items()}
        return cpu_copies({"rollout": reached.state_dict(), "env": self.env.state_dict(), "final": at})

    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        rollout, env, final = (part_of(saved.tensors, part) for part in ("rollout/", "env/", "final/"))
        position, steps = self.task.position(), self.task.length_of(iteration)
        begun = PartialRollout.begun(position, steps, self.env.env_ids, policy, normalizers)
        try:
            reached = begun.resumed(rollout, saved.manifest.step, self.env.load_state_dict(env))
            self.finals = {step: final[str(step)].to(position.starts.device) for step in final["at"].tolist()}
        except (SimicError, ValueError, KeyError, IndexError) as error:
            self.task.load_state_dict(self.before)
            raise Damaged(f"{saved.path}: does not fit this run: {error}") from None
        return reached

    def recorded(self, rollout: Rollout) -> Recorded:
        names = [head.name for head in self.env.action_spec.heads]
        actions = dict(zip((f"{ACTIONS}/{name}" for name in names), rollout.actions.unbind(dim=-1), strict=True))
        tensors = actions | {
            "log_prob": rollout.log_probs.sum(dim=-1),
            "value": rollout.values,
            "next_value": rollout.next_values,
            "reward": rollout.rewards,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
            "starts": rollout.starts,
            "seen": hashed(rollout.raw_features),
            "valid": rollout.valid,
        }
        steps = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return Recorded(steps, self._episodes(steps))

    def _episodes(self, steps: Columns) -> Columns:
        """Return the episodes that ended, by environment."""
        running, lengths = self.before["returns"].cpu().numpy().copy(), self.before["running_steps"].cpu().numpy()
        total, steps_total, count = np.zeros_like(running), np.zeros(len(running)), np.zeros(len(running), np.int64)
        for reward, terminated, truncated in zip(
            *(steps[name] for name in ("reward", "terminated", "truncated")), strict=True
        ):
            running, lengths, ended = running + reward, lengths + 1, terminated | truncated
            total, steps_total = total + np.where(ended, running, 0.0), steps_total + np.where(ended, lengths, 0)
            count = count + ended
            running, lengths = np.where(ended, 0.0, running), np.where(ended, 0, lengths)
        nan = np.full(len(count), np.nan)
        means = {
            name: np.divide(sums, count, out=nan.copy(), where=count > 0)
            for name, sums in (("return", total), ("length", steps_total))
        }
        return {"env_id": self.env.env_ids.cpu().numpy(), "episodes": count, **means}

    def kept(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return where episodes start, the memory at the first step, and the last observations of truncated ones."""
        finals = torch.zeros_like(rollout.raw_features)
        for step, features in self.finals.items():
            finals[step] = torch.where(rollout.truncated[step][:, None], features, 0.0)
        memory = {"memory/h": rollout.state.h[None], "memory/c": rollout.state.c[None]}
        return {"starts": rollout.starts, "finals": finals, **memory}


def opened(params: Params, prepared: Path, env_ids: Tensor) -> AnyGym:
    """Open the environments of training; SimicError where they are not those that were prepared."""
    text = read_file(prepared / ENVIRONMENT_FILE, 1_000_000, "run simic prepare first")
    if durable.checked(text) != describe(params.prepare.gym):
        raise SimicError(f"{prepared / ENVIRONMENT_FILE}: the environment has changed since; run simic prepare again")
    return open_gym(params.prepare.gym, params.rng_seed, env_ids)
