"""Environments of the tests, which this module registers with Gymnasium."""

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from simic.agent.spec import ActionSpec, Head


class Wandering(gymnasium.Env):
    """Does not repeat itself: it counts the episodes of all its copies."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        Wandering.episodes += 1
        return np.array([float(Wandering.episodes)], dtype=np.float32), {}

    def step(self, action):
        return np.array([float(Wandering.episodes)], dtype=np.float32), 1.0, False, False, {}


class Drifting(gymnasium.ObservationWrapper):
    """Shows a number that grows with every observation of all copies, so that nothing repeats itself."""

    observations = 0

    def observation(self, observation):
        Drifting.observations += 1
        return observation + np.float32(0.001 * Drifting.observations)


class Counting(VectorEnv):
    """A vector environment on tensors: a count that ends an episode at 5, by truncation in the second row."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's own form

    def __init__(self, num_envs: int, **options: object) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 9, (1,))
        self.single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.count = torch.zeros(self.num_envs)
        return self.count[:, None], {}

    def step(self, actions):
        self.count = self.count + 1
        over = self.count == 5
        info = {"final_obs": self.count[:, None].clone()} if over.any() else {}
        self.count = torch.where(over, 0.0, self.count)
        cut = torch.arange(self.num_envs) == 1
        return self.count[:, None], actions.float(), over & ~cut, over & cut, info

    def state_dict(self):
        return {"count": self.count.clone()}

    def load_state_dict(self, state):
        self.count = state["count"]
        return self.count[:, None]


class Maze(gymnasium.Env):
    """A T-maze (Bakker 2001): a sign at the start says which turn at the end of the corridor pays."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(3)
    length = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        self.pays = int(self.np_random.integers(2))
        return self.seen(), {}

    def seen(self):
        sign = (2.0 * self.pays - 1.0) if self.place == 0 else 0.0
        return np.array([sign, self.place == self.length, 1.0], dtype=np.float32)

    def action_masks(self):
        # On, left, right.
        is_end = self.place == self.length
        return np.array([not is_end, is_end, is_end])

    def step(self, action):
        assert self.action_masks()[action]
        if self.place == self.length:
            return self.seen(), float(action - 1 == self.pays), True, False, {}
        self.place += 1
        return self.seen(), 0.0, False, False, {}


class Signs(gymnasium.Env):
    """Shows a picture, a number and a category; the button of their sum pays. Eight steps, then cut off."""

    observation_space = gymnasium.spaces.Dict(
        {
            "kind": gymnasium.spaces.Discrete(2),
            "number": gymnasium.spaces.Box(-9.0, 9.0, (1,)),
            "picture": gymnasium.spaces.Box(0, 255, (8, 8), np.uint8),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def seen(self):
        self.kind, self.lit = self.np_random.integers(2, size=2)
        picture = np.full((8, 8), 255 * self.lit, np.uint8)
        number = self.np_random.normal(size=1).clip(-9, 9).astype(np.float32)
        return {"kind": int(self.kind), "number": number, "picture": picture}

    def step(self, action):
        self.time += 1
        reward = float(action == (self.kind + self.lit) % 2)
        return self.seen(), reward, False, self.time == 8, {}


class Throw(gymnasium.Env):
    """Pays for a throw by how near it comes; at even times nothing can be thrown. Eight steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Dict(
        {
            "where": gymnasium.spaces.Box(np.array([-3.0, -1.0], np.float32), 2.0, (2,)),
            "throw": gymnasium.spaces.Discrete(2, start=1),
        }
    )
    action_spec = ActionSpec(
        (Head("throw", 2), Head("where", 2, continuous=True)), ((True, False), (True, True))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def seen(self):
        self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.target

    def action_masks(self):
        return {"throw": np.array([True, self.time % 2 == 1])}

    def step(self, action):
        assert self.action_space.contains(action)
        assert self.action_masks()["throw"][action["throw"] - 1]
        error = float(abs(action["where"] - self.target).sum())
        reward = 0.0 if action["throw"] == 1 else max(0.0, 1.0 - error)
        self.time += 1
        return self.seen(), reward, False, self.time == 8, {}


gymnasium.register("Maze-v0", entry_point=Maze)
gymnasium.register("Signs-v0", entry_point=Signs)
gymnasium.register("Throw-v0", entry_point=Throw)
gymnasium.register("Wandering-v0", entry_point=Wandering)
gymnasium.register("Counting-v0", vector_entry_point=Counting)
