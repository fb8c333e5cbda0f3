"""A suite of few samples, and environments on it."""

from pathlib import Path

import torch

from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.policy import ActorCritic
from simic.data.batches import load_split
from simic.data.prepare import prepare
from simic.envs.actions import action_spec
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import observation_spec
from simic.growth.batch.population import Population
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Train
from simic.training.learned import Learned, LearnedActor, describe_specs
from tests import standard
from tests.standard import Instances, Lifecycle, Policy, PPOParams, Prepare, Suite

SMALL = Policy(encoder_units=4, core_units=4, head_units=4)
KINDS = ("pairs_near", "brightness", "digits")
TASKS, STEPS = 6, 20  # tasks of training: two of each kind
LIFECYCLE = Lifecycle(training_dwell=1, min_prune_age=4, embargo_steps=0, max_seeds=1)


def tiny_suite(folder: Path, held_out: int = 3) -> Path:
    instances = Instances(train=TASKS, val=3, held_out=held_out, held_out_kinds=0)
    suite = Suite(name="patches", kinds=KINDS, held_out_kinds=(), instances=instances)
    prepare(Prepare(task="suite", suite=suite, samples=160), 1, folder / "prepared", folder / "raw")
    return folder / "prepared"


def tiny_train(**changes) -> Train:
    settings = {
        "episode_steps": STEPS,
        "batch_size": 32,
        "lifecycle": LIFECYCLE,
        "ppo": PPOParams(minibatches=1),
    }
    return standard.Train(**(settings | changes))


def small_learned(train: Train, slots: int = 3, kind: type[Learned] = Learned) -> Learned:
    """A policy of few units that has learned nothing."""
    kinds = len(blueprints_of(train.host.family))
    specs = action_spec(slots, kinds), observation_spec(slots, kinds)
    policy = ActorCritic(*specs, SMALL).eval()
    return kind(policy, Normalizers(None), describe_specs(*specs), train, 3)


def untrained(env: GrowthEnv, greedy: bool = True) -> LearnedActor:
    """A policy that has learned nothing, with the scales of a first observation."""
    policy = (
        ActorCritic(env.action_spec, env.observation_spec, env.train.policy, 5)
        .eval()
        .requires_grad_(False)
    )
    normalizer = ObservationNormalizer(env.observation_spec)
    observation, _ = env.reset(options={"iteration": 9})
    normalizer.update(observation.features, torch.ones(env.num_envs, dtype=torch.bool))
    return LearnedActor(policy, Normalizers(normalizer), greedy=greedy)


def tiny_env(bank: Path, hosts: int = TASKS, compose=Population, **changes) -> GrowthEnv:
    data = (load_split(bank, split) for split in ("train", "val"))
    return GrowthEnv(tiny_train(**changes), 1, *data, env_ids=torch.arange(hosts), compose=compose)
