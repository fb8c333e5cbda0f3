"""``simic/Growth-v0`` for Gymnasium: ``make`` gives one host, ``make_vec`` the vector environment of the controller.

``gymnasium.make("simic.envs:simic/Growth-v0")`` is an ordinary single numpy environment with a Discrete action and
``action_masks()``. Masks of a MultiDiscrete space are independent per dimension, those of growth are not; so this view
enumerates the legal grammar: one index per distinct factored action.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from simic.agent.spec import Observation
from simic.data.batches import Dataset, load_split, read_meta
from simic.envs.actions import grammar, grammar_mask
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import columns
from simic.params import Train


class SingleGrowthEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One host; the observation is the feature vector with each slot's blueprint appended as one-hot.

    Data are ``dataset_train`` and ``dataset_val``, or the ``prepared`` files. An action that the masks forbid
    is played as WAIT and marked in ``info["illegal"]``; an agent that uses ``action_masks()`` plays none.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form

    def __init__(
        self,
        train: Train | None = None,
        dataset_train: Dataset | None = None,
        dataset_val: Dataset | None = None,
        prepared: str | Path = "data/prepared",
        rng_seed: int = 1,
    ) -> None:
        self._env = vector_growth_env(1, train, dataset_train, dataset_val, prepared, rng_seed)
        self._actions = grammar(self._env.action_spec)
        self._blueprints = len(self._env.blueprints)
        self.action_space = spaces.Discrete(len(self._actions))
        # Other agents know no embedding: each slot's blueprint is appended as flags.
        rows = [row for _, row in columns(self._env.host.slots, len(self._env.blueprints))]
        extra = self._env.host.slots * self._blueprints
        low = np.array([row.low for row in rows] + [0.0] * extra, np.float32)
        high = np.array([row.high for row in rows] + [1.0] * extra, np.float32)
        self.observation_space = spaces.Box(low, high)
        self._observation: Observation | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode with a fresh host: with ``seed`` the first of another series of episodes, else the next one.

        ``options["tasks"]`` is the number of a task of the bank (default: one of training, drawn by hash);
        ``info["task"]`` says which is played.
        """
        super().reset(seed=seed)
        # An int, a list or an array: a single environment has one host and so one task.
        if options and options.get("tasks") is not None:
            options = options | {"tasks": torch.as_tensor(options["tasks"]).reshape(-1)}
        self._observation, _ = self._env.reset(seed=seed, options=options)
        return self._flat(), {"action_mask": self.action_masks(), "task": int(self._env.tasks)}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        # A forbidden action is played as WAIT, which is row 0 of the grammar, and said: agents without masks can learn.
        legal = bool(self.action_masks()[int(action)])
        factored = self._actions[int(action) if legal else 0][None]
        self._observation, reward, terminated, truncated, step = self._env.step(factored)
        info = {
            "action_mask": self.action_masks(),
            "task": int(self._env.tasks),
            "illegal": not legal,
            "effective_op": int(step.effective_op),
            "live_accuracy": float(step.live_accuracy),
            "committed_accuracy": float(step.committed_accuracy),
            "score": float(step.score),
            "params": int(step.params),
        }
        return self._flat(), float(reward), bool(terminated), bool(truncated), info

    def action_masks(self) -> NDArray[np.bool_]:
        """Tell which of the ``n`` actions are legal now (the convention of sb3-contrib's MaskablePPO)."""
        return grammar_mask(self._env.action_spec, self._current, self._actions)[0].numpy()

    @property
    def _current(self) -> Observation:
        if self._observation is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        return self._observation

    def _flat(self) -> NDArray[np.float32]:
        observation = self._current
        one_hot = (
            (observation.categories[0][:, None] == torch.arange(self._blueprints)).float().flatten()
        )
        return torch.cat((observation.features[0], one_hot)).numpy()


def vector_growth_env(
    num_envs: int,
    train: Train | None = None,
    dataset_train: Dataset | None = None,
    dataset_val: Dataset | None = None,
    prepared: str | Path = "data/prepared",
    rng_seed: int = 1,
    device: str = "cpu",
) -> GrowthEnv:
    """Make a vector environment, whose actions, observations, masks and rewards are tensors on the device.

    Args:
        num_envs: How many hosts.
        train: Settings; by default those of params.py.
        dataset_train: Samples that hosts learn from; by default those of ``prepared``.
        dataset_val: Samples that hosts are measured on; likewise.
        prepared: Folder of prepared data, of which the tasks of training are drawn.
        rng_seed: Every draw is a hash of it.
        device: Where everything is.
    """
    # Without data of the caller's, held-out tasks are in the bank too: only its first ones are for training.
    of_training = None if dataset_train else len(read_meta(Path(prepared)).of_group("train"))
    dataset_train = dataset_train or load_split(Path(prepared), "train", device)
    dataset_val = dataset_val or load_split(Path(prepared), "val", device)
    ids = torch.arange(num_envs)
    return GrowthEnv(
        train or Train(), rng_seed, dataset_train, dataset_val, ids, device, train_tasks=of_training
    )
