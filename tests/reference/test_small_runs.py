"""Small trainings are derived again down to the weights, their episodes host by host."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from simic import params
from simic.data.prepare import prepare
from simic.envs import gym_env
from simic.params import Params
from tests import standard
from tests.helpers import ROOT
from tests.reference.finished_run import FinishedRun, part
from tests.reference.small_run import Size, recorded_run, small_run

KINDS = {
    # No memory, a ratio per head, SGD: on images.
    "images": (
        "prepare.task=digits", "train.reward.mode=shaped", "train.episode_end=truncate", "train.policy.core=none",
        "train.ppo.ratio=per_head", "train.ppo.entropy_scale={op: 2.0}", "train.host_optimizer.name=sgd",
        "train.ppo.minibatches=2", "train.ppo.target_kl=0.02",
    ),
    # The default policy on tables, with episodes that are cut short.
    "tables": ("train.episode_end=truncate", "train.ppo.normalize_observations=false"),
    "tables, slots": ("train.host.preset=double", "train.lifecycle.max_seeds=2"),
    "tables, lstm": ("train.policy.core=lstm", "train.policy.critic=own", "train.ppo.learning_rate_schedule=linear"),
    "environment": (
        "prepare.task=gym", "prepare.gym.id=CartPole-v1", "train.envs=8", "train.episode_steps=96",
        "train.policy={core: lstm, encoder_units: 16, core_units: 16, head_units: 16, critic: own}",
        "train.ppo.normalize_rewards=true", "train.ppo.gamma=0.95", "train.ppo.gae_lambda=0.8",
        "train.ppo.max_grad_norm=0.1", "evaluate.epochs=null",
    ),
    # Of cheap updates, for what begins late or needs many.
    "late": (
    "prepare.task=gym", "prepare.gym.id=CartPole-v1", "train.episode_steps=8", "train.ppo.epochs=1",
    "train.policy={core: none, encoder_units: 8, head_units: 8}", "evaluate.epochs=null", "train.ppo.minibatches=2",
    ),
    "many": (
        "train.ppo.epochs=1", "train.ppo.minibatches=2", "train.policy.encoder_units=8", "train.policy.head_units=8",
    ),
}  # fmt: skip

SMALL = Size()
SOME_HOSTS = (0, 259, 260, 420, 450, 500, 519)  # the first of each process, and many of the last


def prepared_data(tree: Params, folder: Path) -> Path:
    """Prepare few tasks of the suite, or few samples of the data set."""
    target = folder / "prepared"
    if tree.prepare.is_gym:
        gym_env.prepare(tree.prepare.gym, tree.rng_seed, target)
        return target
    instances = standard.Instances(train=6, val=3, held_out=1, held_out_kinds=1)
    suite = tree.prepare.suite.model_copy(update={"instances": instances})
    prepare(tree.prepare.model_copy(update={"suite": suite}), tree.rng_seed, target, folder)
    return target


def trained(kind: str, folder: Path, size: Size = SMALL) -> FinishedRun:
    """Train a small run of that kind."""
    tree = params.load(ROOT / "params.yaml", [*KINDS[kind], "prepare.samples=160"])
    return small_run(tree, prepared_data(tree, folder), folder, size)


def differences(run: FinishedRun, hosts: Sequence[int] | None = None) -> set[str]:
    """Compare iterations and the episodes of some hosts; name the kinds of comparisons that differ."""
    compared = part(run.iterations), part(lambda: run.episodes(hosts))
    assert all(one.lines for one in compared), [one.reason for one in compared]
    return {line.kind for one in compared for line in one.differences}


@pytest.mark.parametrize(
    "kind", ["images", "tables", "tables, slots", "tables, lstm", "environment"]
)
def test_a_small_training_is_what_the_reference_computes(kind: str, tmp_path: Path) -> None:
    assert differences(trained(kind, tmp_path)) == set()


def test_a_late_iteration_is_what_the_reference_computes(tmp_path: Path) -> None:
    """Nothing changes with the number of an iteration or of an update but what the settings say."""
    assert differences(trained("late", tmp_path, Size(iterations=14, envs=4))) == set()


def test_many_hosts_on_two_cores_are_what_the_reference_computes(tmp_path: Path) -> None:
    """Nothing changes with the number of a host, with its thread, or with the count of rows."""
    assert (
        differences(trained("many", tmp_path, Size(iterations=2, envs=520, cores=2)), SOME_HOSTS)
        == set()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [(), ("prepare.task=digits", "evaluate.epochs=null")], ids=["tables", "images"]
)
def test_training_at_its_real_size_is_what_the_reference_computes(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    few = (
        "train.iterations=2",
        "train.validate_every=2",
        "train.horizon=null",
        "runtime.progress=none",
    )
    tree = params.load(ROOT / "params.yaml", [*overrides, *few])
    prepared = tmp_path / "prepared"
    prepare(tree.prepare, tree.rng_seed, prepared, tmp_path)
    run = recorded_run(tree, prepared, tmp_path)
    compared = part(run.iterations), part(lambda: run.episodes(SOME_HOSTS))
    assert [line for one in compared for line in one.differences] == []
