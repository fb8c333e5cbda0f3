"""A Gymnasium environment as a task of the training loop: episodes go on from rollout to rollout."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from simic import durable
from simic.agent.core import RecurrentState
from simic.agent.normalization import Normalizers
from simic.agent.play import PlayedEpisodes, play, policy_decides
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Position, Rollout
from simic.data.batches import ENVIRONMENT_FILE
from simic.envs.gym_env import VALIDATION, AnyGym, describe, open_gym
from simic.errors import SimicError
from simic.params import Params
from simic.safe_read import read_file
from simic.telemetry.columns import (
    ACTIONS,
    DECIDED,
    EVENTS,
    GYM,
    NUMBERS,
    Array,
    Columns,
    EventColumns,
)
from simic.telemetry.rows import FindingRow
from simic.training.task import RolloutColumns, RolloutRecorder, Task

# A multiplier of MCG 64 (Steele, Vigna 2022); odd, so that a multiplication loses no bit.
_ODD = np.int64(0x2545F4914F6CDD1D)
BYTES_OF_WORD = 4


def hashed(features: Tensor) -> Tensor:
    """Hash each row of uint8, float32 or int64 ``[…, D]`` to an int64, on its device; 0 where D is 0."""
    # Bits and not values: nothing is rounded, and 0 is told from -0.
    if features.dtype == torch.uint8:
        features = functional.pad(features, (0, -features.shape[-1] % BYTES_OF_WORD))
    words = features.contiguous().view(torch.int32).long()
    total = words.new_zeros(words.shape[:-1])
    for column in words.unbind(dim=-1):  # multiplication wraps
        total = (total ^ column) * int(_ODD)
    return total


class GymTask(Task):
    """E environments, and where their episodes are between two rollouts."""

    layout = GYM
    score_column = "return"

    def __init__(self, params: Params, policy: ActorCritic, env: AnyGym) -> None:
        self.params = params
        self.policy = policy
        self.env = env
        self._begin()

    def _begin(self) -> None:
        observation, _ = self.env.reset()
        self.keep_position(Position.first(self.env, self.policy, observation))

    def steps_of(self, iteration: int) -> int:
        return self.params.train.longest_episode

    def position(self) -> Position:
        return self._position

    def keep_position(self, end: Position) -> None:
        """Note where a rollout ended; the state is of that moment."""
        # Copied now: a run that is stopped inside the next rollout saves the state of this moment.
        memory = {"h": end.state.h.clone(), "c": end.state.c.clone(), "starts": end.starts.clone()}
        self._position = end
        self._state = {**self.env.state_dict(), **memory}

    def state_dict(self) -> dict[str, Tensor]:
        return self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> FindingRow | None:
        # The type and place are those of the running position, which is replaced below.
        like = self._position.starts.device
        memory = {name: state[name].to(like) for name in ("h", "c", "starts")}
        try:
            observation = self.env.load_state_dict(state)
        except SimicError as error:
            # An environment that does not repeat itself must not end the run: it goes on, and the record says so.
            self._begin()
            text = f"not resumed bit for bit: {error}; every episode begins anew"
            return FindingRow(iteration=0, check="inexact_resume", severity="medium", message=text)
        self.keep_position(
            Position(observation, RecurrentState(memory["h"], memory["c"]), memory["starts"])
        )
        return None

    def recorder(self) -> "GymRecorder":
        return GymRecorder(self)

    def events(self, steps: Columns) -> EventColumns:
        return EventColumns({name: np.zeros(0, dtype=np.int64) for name in EVENTS})

    def validate(
        self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]
    ) -> Columns:
        # Environments of their own: those of training are in the middle of their episodes.
        env = open_gym(self.params.prepare.gym, self.params.rng_seed, self.env.env_ids, VALIDATION)
        try:
            episodes = play(env, policy_decides(policy, normalizers, env.num_envs), on_step=on_step)
        finally:
            env.close()
        return {
            "env_id": self.env.env_ids.cpu().numpy(),
            "episodes": np.ones(env.num_envs, dtype=np.int64),
            "return": np.array(episodes.returns),
            "length": np.array(episodes.lengths, dtype=np.float64),
            DECIDED: padded(episodes),
        }


def padded(episodes: PlayedEpisodes) -> np.ndarray:
    """Stack the actions to ``[E, T, width]``; behind the end of an episode NaN, of discrete ones −1."""
    # Neither is an action of any environment: a reader of the log sees where an episode ended.
    longest = max(episodes.lengths)
    is_discrete = episodes.actions[0].dtype.kind == "i"
    fill = -1 if is_discrete else np.nan
    rows = [
        np.pad(actions, ((0, longest - len(actions)), (0, 0)), constant_values=fill)
        for actions in episodes.actions
    ]
    return np.stack(rows).astype(np.int16 if is_discrete else np.float32)


class GymRecorder(RolloutRecorder):
    """Reads the telemetry of a rollout off the rollout itself, once it is played."""

    def __init__(self, task: GymTask) -> None:
        self.env = task.env
        self.state_before = task.state_dict()

    def columns(self, rollout: Rollout) -> RolloutColumns:
        # What an action consists of depends on the environment.
        spec = self.env.action_spec
        count = len(spec.discrete_heads)
        columns = dict(zip(spec.column_names, rollout.actions.unbind(dim=-1), strict=True))
        names = spec.column_names
        tensors = {f"{ACTIONS}/{name}": columns[name].long() for name in names[:count]}
        tensors |= {f"{NUMBERS}/{name}": columns[name] for name in names[count:]}
        tensors |= {
            "log_prob": rollout.log_probs.sum(dim=-1),
            "value": rollout.values,
            "next_value": rollout.next_values,
            "reward": rollout.rewards,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
            "starts": rollout.starts,
            "seen": hashed(rollout.raw_features)
            ^ hashed(rollout.pixels)
            ^ hashed(rollout.categories),
            "valid": rollout.valid,
        }
        # Fetched together, once the rollout is played.
        steps = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        # Episodes run on from rollout to rollout, so the first of each environment began before this one.
        before = [self.state_before[name].cpu().numpy() for name in ("returns", "running_steps")]
        episodes = tally_episodes(steps, np.stack(before).astype(np.float64))
        return RolloutColumns(steps, {"env_id": self.env.env_ids.cpu().numpy(), **episodes})


def tally_episodes(steps: Mapping[str, Array], running: Array) -> Columns:
    """Average the episodes that ended in a rollout, by environment; NaN where none did.

    ``running [2, E]`` are the returns and lengths of the running episodes, float64; they are brought up to date.
    """
    # Step by step, as the environments add up: sums in another order would have other last bits.
    totals = np.zeros_like(running)
    episodes = np.zeros(running.shape[1], np.int64)
    for reward, terminated, truncated in zip(
        steps["reward"], steps["terminated"], steps["truncated"], strict=True
    ):
        ended = terminated | truncated
        running += np.stack((reward, np.ones_like(reward)))
        totals += np.where(ended, running, 0.0)
        episodes += ended
        running[:, ended] = 0.0
    means = np.divide(totals, episodes, out=np.full_like(totals, np.nan), where=episodes > 0)
    return {"episodes": episodes, "return": means[0], "length": means[1]}


def opened(params: Params, prepared: Path, env_ids: Tensor) -> AnyGym:
    """Open the environments of training.

    Args:
        params: The whole of params.yaml.
        prepared: Folder of prepared data, with the description of the environment.
        env_ids: Numbers of the environments of this process, int64 ``[E]``.

    Raises:
        SimicError: They are not those that were prepared.
    """
    # Another version of a library may be another environment: the description holds versions and hashes of files.
    text = read_file(prepared / ENVIRONMENT_FILE, 1_000_000, "run simic prepare first")
    if durable.checked(text) != describe(params.prepare.gym):
        raise SimicError(
            f"{prepared / ENVIRONMENT_FILE}: the environment has changed since; run simic prepare again"
        )
    return open_gym(params.prepare.gym, params.rng_seed, env_ids)
