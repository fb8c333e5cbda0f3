"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

from dataclasses import dataclass
from pathlib import Path

import torch

from simic.data.batches import load_split, load_test
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.baselines import Actor, Episode, Situation
from simic.evaluation.history import Histories
from simic.evaluation.policies import BASELINES, LearnedActor, refuse_other_task
from simic.evaluation.take_home import Grown, export_best
from simic.params import Train
from simic.training.learned import Learned

GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Where networks grow: how hosts are trained, on which prepared data, on what."""

    train: Train
    rng_seed: int
    prepared: Path
    device: torch.device
    backend: str


def grow(setup: GrowSetup, policy: str | Learned, hosts: int, out: Path) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy.

    ``policy`` is a trained one or the name of a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    training = load_split(setup.prepared, "train", setup.device)
    validation = load_split(setup.prepared, "val", setup.device)
    env_ids = torch.arange(hosts)
    env = GrowthEnv(setup.train, setup.rng_seed, training, validation, env_ids, setup.device, setup.backend)
    histories = _play(env, _actor(policy, env))
    name = f"the policy {policy}" if isinstance(policy, str) else f"a policy trained for {policy.iteration} iterations"
    return export_best(env, histories, load_test(setup.prepared, setup.device), setup.prepared, name, out)


def _actor(policy: str | Learned, env: GrowthEnv) -> Actor:
    if isinstance(policy, Learned):
        refuse_other_task(policy, env)
        return LearnedActor(policy, greedy=True)
    if policy not in BASELINES:
        raise SimicError(f"policy {policy!r}: must be learned, a policy's directory, or one of {', '.join(BASELINES)}")
    return BASELINES[policy](env)


def _play(env: GrowthEnv, actor: Actor) -> Histories:
    """One episode, and the account of it."""
    observation, _ = env.reset(options={"iteration": GROW_ITERATION})
    actor.start(Episode(env.env_ids, GROW_ITERATION, env.rng_seed))
    histories = Histories(env)
    for step in range(env.steps):
        action = actor.act(Situation(observation, env.slots, env.state.tracker, step))
        observation, _, _, _, info = env.step(action)
        histories.add(step, action, info)
    return histories
