"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

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


def grow(train: Train, rng_seed: int, prepared: Path, policy: str | Learned, hosts: int, out: Path) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy.

    ``policy`` is a trained one or the name of a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: exists already; choose another --out or remove it")
    training, validation = load_split(prepared, "train"), load_split(prepared, "val")
    env = GrowthEnv(train, rng_seed, training, validation, torch.arange(hosts))
    histories = _play(env, _actor(policy, env))
    name = f"the policy {policy}" if isinstance(policy, str) else f"a policy trained for {policy.iteration} iterations"
    return export_best(env, histories, load_test(prepared), prepared, name, out)


def _actor(policy: str | Learned, env: GrowthEnv) -> Actor:
    if isinstance(policy, Learned):
        refuse_other_task(policy, env)
        return LearnedActor(policy, greedy=True)
    if policy not in BASELINES:
        raise SimicError(f"policy {policy!r}: must be learned, a policy's directory, or one of {', '.join(BASELINES)}")
    return BASELINES[policy](env)


def _play(env: GrowthEnv, actor: Actor) -> Histories:
    """One episode, and the account of it."""
    observation, _ = env.reset(options={"iteration": 0})
    actor.start(Episode(env.env_ids, 0, env.rng_seed))
    histories = Histories(env)
    for step in range(env.steps):
        action = actor.act(Situation(observation, env.slots, env.state.tracker, step))
        observation, _, _, _, info = env.step(action)
        histories.add(step, action, info)
    return histories
