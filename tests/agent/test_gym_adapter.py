"""Gymnasium's vector environments as the agent wants them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from simic.agent.action_space import columns_of
from simic.agent.checked_env import CheckedEnv
from simic.agent.gym_adapter import GymAdapter
from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError


class Counter(gymnasium.Env):
    """Observes its step and its start; ends itself (terminated) at ``end``, is cut off (truncated) at ``limit``."""

    def __init__(
        self, end: int = 100, limit: int = 100, space: gymnasium.Space | None = None
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = space or Discrete(3)
        self.end = end
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.start = self.np_random.random()
        return np.array([self.time, self.start]), {}

    def step(self, action):
        self.time += 1
        self.action = action
        observation = np.array([self.time, self.start])
        return observation, float(self.time), self.time == self.end, self.time == self.limit, {}


class Masked(Counter):
    """Says of its actions what ``answer`` says of its step."""

    def __init__(self, answer, space: gymnasium.Space | None = None) -> None:
        super().__init__(space=space)
        self.answer = answer

    def action_masks(self):
        return self.answer(self.time)


def vector(*envs: Counter, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda env=env: CheckedEnv(env) for env in envs], autoreset_mode=mode)


def test_final_observations_are_those_before_the_reset_and_only_of_truncated_rows() -> None:
    adapter = GymAdapter(vector(Counter(end=2, limit=2), Counter(limit=3), Counter()), rng_seed=1)
    adapter.reset()
    finals = []
    for _ in range(3):
        observation, reward, terminated, truncated, info = adapter.step(
            torch.zeros(3, 1, dtype=torch.int64)
        )
        finals.append(info.final)
    assert finals[:2] == [None, None]  # a terminated row needs none, truncated or not
    assert finals[2].features[:, 0].tolist() == [1.0, 3.0, 3.0]
    assert observation.features[:, 0].tolist() == [1.0, 0.0, 3.0]
    assert reward.tolist() == [1.0, 3.0, 3.0]
    assert terminated.tolist() == [False, False, False]
    assert truncated.tolist() == [False, True, False]
    assert observation.features.dtype == torch.float64


def test_starts_are_a_function_of_seed_iteration_and_global_env() -> None:
    def starts(rng_seed: int, iteration: int, env_ids: list[int]) -> list[float]:
        adapter = GymAdapter(vector(*(Counter() for _ in env_ids)), rng_seed, torch.tensor(env_ids))
        return adapter.reset(options={"iteration": iteration})[0].features[:, 1].tolist()

    assert starts(1, 0, [0, 1, 2])[1:] == starts(1, 0, [1, 2])
    assert len({*starts(1, 0, [0, 1]), *starts(1, 1, [0, 1]), *starts(2, 0, [0, 1])}) == 6


@pytest.mark.parametrize(
    ("space", "sizes", "action", "received"),
    [
        (Discrete(3, start=5), [3], [2], 7),
        (Discrete(3, dtype=np.int8), [3], [2], 2),
        (MultiDiscrete([2, 4]), [2, 4], [1, 3], [1, 3]),
        (MultiDiscrete([2, 4], dtype=np.uint8, start=[7, 1]), [2, 4], [1, 3], [8, 4]),
    ],
)
def test_actions_reach_the_environment_in_its_own_numbers(space, sizes, action, received) -> None:
    env = Counter(space=space)
    adapter = GymAdapter(vector(env), 1)
    assert [head.size for head in adapter.action_spec.heads] == sizes
    adapter.reset()
    adapter.step(torch.tensor([action]))
    assert np.array(env.action).tolist() == received
    assert space.contains(env.action) and space.contains(adapter.to_env(torch.tensor(action)))
    columns = columns_of(adapter.action_layout, adapter.action_spec, env.action)
    assert columns.tolist() == action


def test_masks_of_several_heads_come_one_after_the_other() -> None:
    space = MultiDiscrete([2, 4])
    env = Masked(lambda time: np.array([True, time > 0, False, True, True, True]), space)
    adapter = GymAdapter(vector(env), 1)
    masks = adapter.reset()[0].masks
    assert {name: mask.tolist() for name, mask in masks.items()} == {
        "action_0": [[True, False]],
        "action_1": [[False, True, True, True]],
    }
    short = GymAdapter(vector(Masked(lambda time: np.ones(3, bool), space)), 1)
    with pytest.raises(
        SimicError, match=r"action_masks\(\) returns an array of shape \[3\]: must be \[6\]"
    ):
        short.reset()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (([0.0, -1e9, -1e9],), r"action_masks\(\) returns -1000000000.0: must be True where legal"),
        (([2, 0, 1],), r"action_masks\(\) returns 2: must be True"),
        (
            ({"action_0": [True] * 3}, {"king": [True] * 3}),
            r"action_masks\(\) masks king: before it was action_0",
        ),
        (({"action_0": [True]},), r"mask 'action_0' is bool \[1, 1\]: must be bool \[1, 3\]"),
    ],
)
def test_masks_that_may_mean_something_else_are_refused(answers: tuple, message: str) -> None:
    adapter = GymAdapter(vector(Masked(answers.__getitem__)), 1)

    def play() -> None:
        adapter.reset()
        adapter.step(torch.zeros(1, 1, dtype=torch.int64))

    with pytest.raises(SimicError, match=message):
        play()


def test_a_spec_of_ones_own_brings_names_relevance_and_masks_by_name() -> None:
    spec = ActionSpec(
        (Head("op", 2), Head("button", 4, mask_given="op")), ((True, False), (True, True))
    )
    space = MultiDiscrete([2, 4])

    def by_name(time: int) -> dict:
        return {"button": np.array([[True, False, False, False], [True, True, True, time > 0]])}

    adapter = GymAdapter(
        vector(Masked(by_name, space), Masked(by_name, space)), 1, action_spec=spec
    )
    assert adapter.action_spec == spec
    assert adapter.reset()[0].masks["button"].shape == (2, 2, 4)
    with pytest.raises(
        SimicError, match=r"action_spec has heads of sizes \[2, 4\]: must be .*\[3\]"
    ):
        GymAdapter(vector(Counter()), 1, action_spec=spec)
    with pytest.raises(SimicError, match="action_spec is function: must be"):
        GymAdapter(vector(Counter()), 1, action_spec=lambda: spec)  # pyright: ignore[reportArgumentType]


def test_another_autoreset_is_refused() -> None:
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        with pytest.raises(SimicError, match="only SAME_STEP"):
            GymAdapter(vector(Counter(), mode=mode), 1)
