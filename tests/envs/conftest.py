"""Builders shared by the tests of the environment."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from growth.worlds import make_table, make_tokens, small
from sklearn.datasets import load_digits
from torch import Tensor

from simic import rng
from simic.data.batches import Dataset
from simic.envs import growth_env, rewards
from simic.envs.actions import random_legal
from simic.envs.growth_env import GrowthEnv
from simic.growth.life.vocabulary import Op, Slots, Stage
from tests.standard import Lifecycle, PPOParams, Train

SlotBuilder = Callable[..., Slots]
# Short dwells, so that a random walk of a dozen steps meets every stage.
QUICK = Lifecycle(
    training_dwell=1,
    blending_dwell=1,
    min_prune_age=4,
    embargo_steps=1,
    auto_advance=False,
    sequential_development=False,
)


# Nothing takes time that need not: a seed germinated at tempo 0 acts in the same step and may be replaced in the next.
AT_ONCE = Lifecycle(
    training_dwell=0,
    blending_dwell=0,
    min_prune_age=1,
    embargo_steps=0,
    reset_steps=0,
    max_seeds=1,
    param_budget=20.0,
)
TABLE = make_table(samples=320, seed=5), make_table(samples=160, seed=6)


@pytest.fixture(scope="session")
def make_slots() -> SlotBuilder:
    """``make_slots([[Stage.HOLDING]], dwell=[[2]])``: slots in these stages, columns given as nested lists."""

    def build(stage: list[list[int]], **columns: list | Tensor) -> Slots:
        empty = Slots.empty(len(stage), len(stage[0]))
        stages = torch.tensor(stage)
        live = (stages >= Stage.GERMINATED) & (stages <= Stage.FOSSILIZED)
        values_by_name = {
            name: torch.as_tensor(values, dtype=getattr(empty, name).dtype)
            for name, values in columns.items()
        }
        values_by_name.setdefault("blueprint", torch.where(live, 0, -1))
        return replace(empty, stage=stages, **values_by_name)

    return build


@pytest.fixture(scope="session")
def digits() -> tuple[Dataset, Dataset]:
    """A small real task: 320 training and 160 validation images of 8×8 digits, cut in a fixed order."""
    source = load_digits()
    x = torch.tensor(source.images, dtype=torch.float32)[:, None] / 16.0 - 0.3
    y = torch.tensor(source.target, dtype=torch.int64)
    return Dataset(x[:320], y[:320], 10), Dataset(x[320:480], y[320:480], 10)


@pytest.fixture(scope="session")
def tokens() -> tuple[Dataset, Dataset]:
    """Sequences of 11 tokens whose next one is the sum of the last two; the same sizes as the digits."""
    data = make_tokens(480, seed=5)
    return Dataset(data.x[:320], data.y[:320], 11), Dataset(data.x[320:], data.y[320:], 11)


@pytest.fixture
def transitions(monkeypatch) -> list[tuple[rewards.Transition, rewards.Setting]]:
    """Every transition that an environment pays for, as it pays, with what each mode would remember there."""
    recorded = []
    ledgers = {}
    start = rewards.start
    pay = rewards.components

    def begin(mode, slots, loss, setting):
        for name in rewards.MODES:
            ledgers.update(start(name, slots, loss, setting))
        return start(mode, slots, loss, setting)

    def remember(mode, transition, setting):
        recorded.append((replace(transition, ledgers=dict(ledgers)), setting))
        for name in rewards.MODES:
            ledgers.update(rewards.advance(name, recorded[-1][0], setting))
        return pay(mode, transition, setting)

    monkeypatch.setattr(growth_env.rewards, "start", begin)
    monkeypatch.setattr(growth_env.rewards, "components", remember)
    return recorded


@pytest.fixture(scope="session")
def make_env(digits, tokens) -> Callable[..., GrowthEnv]:
    """``make_env(envs=8, family="mlp", lifecycle=Lifecycle(…))``: a short quick environment on the digits (of the
    transformer: on tokens, of tables: on rows), or on ``data``; keywords of the environment may be among them."""

    def build(
        envs: int = 6,
        family: str = "cnn",
        steps: int = 12,
        backend: str = "loop",
        rng_seed: int = 7,
        **changes,
    ) -> GrowthEnv:
        host = changes.pop("host", small(family))
        data = changes.pop(
            "data", {"transformer": tokens, "tables": TABLE}.get(host.family, digits)
        )
        keywords = {
            name: changes.pop(name)
            for name in {"compose", "kinds", "env_ids", "train_tasks"} & changes.keys()
        }
        usual = {
            "lifecycle": QUICK,
            "batches_per_epoch": 2,
            "batch_size": 32,
            "ppo": PPOParams(minibatches=1),
        }
        train = Train(envs=envs, episode_steps=steps, host=host, **usual | changes)
        return GrowthEnv(train, rng_seed, *data, backend=backend, **keywords)

    return build


@pytest.fixture(scope="session")
def play() -> Callable[..., list]:
    """``play(env, iteration)``: one random-legal episode; (observation, actions, result of step) of every step.

    ``never`` names ops that the player leaves alone, ``prefer`` those that it takes whenever one of them is legal.
    """

    def episode(
        env: GrowthEnv, iteration: int = 0, never: tuple[Op, ...] = (), prefer: tuple[Op, ...] = ()
    ) -> list:
        observation, _ = env.reset(options={"iteration": iteration})
        steps = []
        for step in range(env.steps):
            stream = rng.key(1, rng.Purpose.BASELINE, iteration, env.env_ids, step)
            noise = rng.uniform(stream, (len(env.action_spec.heads),))
            masks = {name: mask.clone() for name, mask in observation.masks.items()}
            masks["op"][:, list(never)] = False
            preferred = masks["op"] & torch.isin(
                torch.arange(len(Op)), torch.tensor(prefer, dtype=torch.int64)
            )
            masks["op"] = torch.where(preferred.any(dim=1, keepdim=True), preferred, masks["op"])
            actions = random_legal(env.action_spec, replace(observation, masks=masks), noise)
            result = env.step(actions)
            steps.append((observation, actions, result))
            observation = result[0]
        return steps

    return episode
