"""Gymnasium environments played again from seeds and recorded actions, without simic's own adapter."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.reference import streams
from tests.reference.agent import MASKS, Interface

SEEDS = 11  # the purpose of the stream of seeds
TRAINING = 0
EVALUATION = 1 << 40
VALIDATION = 1 << 41
ODD = np.int64(0x2545F4914F6CDD1D)
_SEED_BITS = 0x7FFFFFFF


class EnvStep(NamedTuple):
    """One step: what was seen before it, what was allowed, and what it brought."""

    seen: NDArray[np.float32]
    masks: dict[str, NDArray[np.bool_]]
    reward: np.float32
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Replayer:
    """Play episodes of the environment of a description (environment.json)."""

    described: Mapping[str, Any]
    rng_seed: int
    interface: Interface
    firsts: Sequence[int]  # what the environment calls the first choice of each head

    def play(
        self, namespace: int, env_id: int, actions: Sequence[Sequence[int]]
    ) -> Iterator[EnvStep]:
        """Yield the steps of one environment; a new episode begins after each end."""
        with closing(self._made()) as env:
            episode = 0
            seen = self._reset(env, namespace, env_id, 0)
            for choices in actions:
                masks = self._masks(env)
                taken = np.array(choices) + np.array(self.firsts)
                single = not env.action_space.shape
                after, reward, terminated, truncated, _ = env.step(
                    int(taken[0]) if single else taken
                )
                yield EnvStep(seen, masks, np.float32(reward), bool(terminated), bool(truncated))
                seen = np.asarray(after).reshape(-1).astype(np.float32)
                if terminated or truncated:
                    episode += 1
                    seen = self._reset(env, namespace, env_id, episode)

    def _made(self) -> gymnasium.Env:
        env = gymnasium.make(self.described["id"], **self.described["options"])
        for wrapper in self.described["wrappers"]:
            module, _, name = wrapper["name"].partition(":")
            env = getattr(importlib.import_module(module), name)(env, **wrapper["options"])
        return env

    def _reset(
        self, env: gymnasium.Env, namespace: int, env_id: int, episode: int
    ) -> NDArray[np.float32]:
        word = streams.words(streams.key(self.rng_seed, SEEDS, namespace, env_id, episode), 1)[0]
        seen, _ = env.reset(seed=int(word) & _SEED_BITS)
        return np.array(seen).reshape(-1).astype(np.float32)

    def _masks(self, env: gymnasium.Env) -> dict[str, NDArray[np.bool_]]:
        if not env.has_wrapper_attr("action_masks"):
            return {}
        given = env.get_wrapper_attr("action_masks")()
        if isinstance(given, Mapping):
            return {name: np.array(mask, dtype=bool) for name, mask in given.items()}
        ends = np.cumsum([factor.size for factor in self.interface.factors])[:-1]
        parts = np.split(np.array(given, dtype=bool), ends)
        return {
            factor.name: part for factor, part in zip(self.interface.factors, parts, strict=True)
        }


def hashed(seen: NDArray[np.float32]) -> int:
    total = np.int64(0)
    with np.errstate(over="ignore"):
        for word in seen.view(np.int32).astype(np.int64):
            total = (total ^ word) * ODD
    return int(total)


def rows(
    steps: Sequence[EnvStep], actions: Sequence[Sequence[int]]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the features ``[T, F]`` in float64, and actions and masks as the reference's network reads them."""
    features = torch.from_numpy(np.stack([step.seen for step in steps])).double()
    masks = {
        f"{MASKS}{name}": torch.from_numpy(np.stack([s.masks[name] for s in steps]))
        for name in steps[0].masks
    }
    return features, {"actions": torch.tensor(actions), **masks}
