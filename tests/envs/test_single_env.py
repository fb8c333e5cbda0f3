"""The single-environment view keeps gymnasium's contract and the legal grammar."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.single_env import SingleGrowthEnv
from simic.errors import SimicError
from simic.growth.life.vocabulary import Action, Op
from tests.standard import Instances, Lifecycle, PPOParams, Prepare, Suite, Train

ENV_ID = "simic/Growth-v0"
TRAIN = Train(
    envs=1,
    episode_steps=6,
    batches_per_epoch=1,
    batch_size=16,
    ppo=PPOParams(minibatches=1),
    lifecycle=Lifecycle(
        training_dwell=1, min_prune_age=1, embargo_steps=1, auto_advance=False, param_budget=100.0
    ),
)


@pytest.fixture
def env(digits):
    return SingleGrowthEnv(TRAIN, *digits)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """Three tasks of training, one of validation."""
    folder = tmp_path_factory.mktemp("bank")
    instances = Instances(train=3, val=1, held_out=1, held_out_kinds=1)
    suite = Suite(kinds=("brightness", "digits", "pairs_near"), instances=instances)
    prepare(Prepare(task="suite", samples=60, suite=suite), 1, folder / "out", folder)
    return folder / "out"


def test_passes_gymnasiums_checker(digits):
    env = gymnasium.make(ENV_ID, train=TRAIN, dataset_train=digits[0], dataset_val=digits[1])
    check_env(env.unwrapped, skip_render_check=True)


def test_the_single_view_is_one_host_on_the_same_data(env, digits):
    host = GrowthEnv(TRAIN, 1, *digits, env_ids=torch.zeros(1, dtype=torch.int64))
    features, _ = env.reset(seed=5, options={"iteration": 3})
    observation, _ = host.reset(seed=5, options={"iteration": 3})
    for _ in range(2):
        expected = observation.features[0].numpy()
        assert np.array_equal(features[: len(expected)], expected)
        features, reward, *_ = env.step(0)
        observation, rewards, *_ = host.step(Action.wait(1))
        assert reward == float(rewards)


def test_a_task_of_the_bank_is_drawn_from_those_of_training_or_chosen(bank):
    env = gymnasium.make(ENV_ID, train=TRAIN, prepared=bank).unwrapped
    # Never that of validation.
    assert {env.reset(seed=seed)[1]["task"] for seed in range(12)} == {0, 1, 2}
    first, info = env.reset(seed=1, options={"tasks": 3})
    assert info["task"] == 3
    *_, info = env.step(0)
    assert info["task"] == 3
    second, _ = env.reset(seed=1, options={"tasks": 0})
    assert not np.array_equal(first, second)
    with pytest.raises(
        SimicError, match=r"tasks \[4\]: must be 1, one for each host, each of 0 to 3"
    ):
        env.reset(options={"tasks": 4})


def test_make_vec_gives_the_vector_environment_of_the_controller(digits):
    env = gymnasium.make_vec(
        ENV_ID, num_envs=3, train=TRAIN, dataset_train=digits[0], dataset_val=digits[1]
    )
    assert isinstance(env, GrowthEnv) and env.spec.id == ENV_ID
    assert env.observation_space.shape == (3, *env.single_observation_space.shape)
    assert env.action_space.shape == (3, *env.single_action_space.shape)
    plain = GrowthEnv(TRAIN, 1, *digits, env_ids=torch.arange(3))
    assert torch.equal(env.reset()[0].features, plain.reset()[0].features)


def test_the_id_is_found_by_the_module_before_it():
    program = (
        "import gymnasium; gymnasium.make_vec('simic.envs:simic/Growth-v0', prepared='nowhere')"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.stderr.endswith("nowhere/meta.json: no such file; run simic prepare first\n")


def test_a_forbidden_action_is_played_as_wait_and_marked(env):
    env.reset(seed=5)
    forbidden = int(np.flatnonzero(~env.action_masks())[0])
    *_, info = env.step(forbidden)
    assert info["illegal"] and info["effective_op"] == Op.WAIT


def test_what_its_masks_allow_is_never_illegal(digits):
    lifecycle = Lifecycle(training_dwell=1, min_prune_age=3, embargo_steps=1)
    train = TRAIN.model_copy(update={"episode_steps": 16, "lifecycle": lifecycle})
    env = SingleGrowthEnv(train, *digits)
    _, info = env.reset(seed=1)
    draw = np.random.default_rng(1)
    ops = set()
    for _ in range(train.longest_episode):
        *_, info = env.step(int(draw.choice(np.flatnonzero(info["action_mask"]))))
        assert not info["illegal"]
        ops.add(info["effective_op"])
    assert len(ops) >= 3
