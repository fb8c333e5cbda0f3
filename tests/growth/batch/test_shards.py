"""A population in several processes is the same population; the processes are real, and so are the signals."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch import shards
from simic.growth.batch.shards import Layout, ProcessLost, Shards, recovered
from simic.growth.pretrained import train_host
from tests.envs.transitions import random_step
from tests.helpers import some
from tests.standard import Host, Lifecycle, PPOParams, Train

from ..worlds import make_table

ROOT = Path(__file__).parents[3]
HOSTS, STEPS = 8, 6
TRAIN = Train(
    host=Host(preset="baseline"), envs=HOSTS, episode_steps=STEPS, batches_per_epoch=1, batch_size=16,
    ppo=PPOParams(minibatches=1), lifecycle=Lifecycle(training_dwell=1, blending_dwell=1),
)  # fmt: skip


HOT = TRAIN.host_optimizer.model_copy(update={"learning_rate": 1e30})


def one_thread() -> None:
    torch.set_num_threads(1)


def make(digits, group: int, processes: int, train: Train = TRAIN) -> GrowthEnv:
    layout = Layout(HOSTS, group, processes)
    return GrowthEnv(train, 1, *digits, compose=partial(Shards, layout=layout, setup=one_thread))


def episode(env: GrowthEnv, iteration: int = 0) -> list[dict[str, torch.Tensor]]:
    """Everything that random legal actions come to."""
    seen, _ = env.reset(options={"iteration": iteration})
    found = []
    for _ in range(env.steps):
        seen, told = random_step(env, seen)
        found.append(told)
    return found


def same(one: list[dict], other: list[dict]) -> bool:
    pairs = [(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a]
    return all(torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) for a, b in pairs)


def workers_of(process: int) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-P", str(process), "-f", "spawn_main"], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


@pytest.fixture(scope="module")
def digits():
    from envs.conftest import digits

    return digits.__wrapped__()


@pytest.fixture
def single():
    """One thread: with another number the last bits would be others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


AT_ONCE = Lifecycle(training_dwell=0, min_prune_age=1, embargo_steps=0, reset_steps=0, max_seeds=1, param_budget=20)
TABLES = Host(family="tables", preset="baseline", widths=(8, 8))


def case(what: str, digits):
    """Params and data of a case."""
    changes = {"hot": {"host_optimizer": HOT}, "tables": {"host": TABLES, "lifecycle": AT_ONCE}}.get(what, {})
    train, data = TRAIN.model_copy(update=changes), digits
    if what == "tables":
        data = make_table(tasks=4, seed=1), make_table(tasks=4, samples=40, seed=2)
    if what == "frozen":
        data = [replace(split, host=train_host(train.host, digits[0], 1, 1)) for split in digits]
    return train, data


@pytest.mark.parametrize("what", some(["tables", "hot", "frozen"], "tables"))
def test_the_same_groups_give_the_same_run_in_any_number_of_processes(digits, single, what: str) -> None:
    """Of tables, seeds are fitted where their host lives, to its task; hot hosts break, and are put back wherever they
    are; a trained host is frozen in every process.
    """
    train, data = case(what, digits)
    envs = [make(data, 3, processes, train) for processes in (1, 2)]
    try:
        first, *others = [episode(env) for env in envs]
        assert all(same(first, other) for other in others)
        assert any(step["replaced"].any() for step in first) or what != "tables"
        assert not first[-1]["valid"].all() or what != "hot"
        states = [env.population.state_dict() for env in envs]
        assert any(name.startswith("seed") for name in states[0])
        for env, state in zip(envs[1:], states[1:], strict=True):
            assert same([state], [states[0]])
            assert torch.equal(env.shapley().nan_to_num(-7.0), envs[0].shapley().nan_to_num(-7.0))
            assert all(map(torch.equal, env.committed(data[1]), envs[0].committed(data[1])))
            for row in (0, 7):
                ours, theirs = (each.population.named_parameters(each.slots, row) for each in (env, envs[0]))
                assert same([ours], [theirs])
                assert what != "frozen" or same([ours], [{**ours, **(data[0].host or {})}])
    finally:
        for env in envs:
            env.close()


@pytest.mark.parametrize("what", ["plain", "hot", "tables"])
def test_a_group_is_a_population_of_its_own(digits, single, what: str) -> None:
    """Each host gets its own samples, actions, snapshots, also where some break."""
    train, data = case(what, digits)
    env = make(data, 3, 1, train)
    together = episode(env)
    assert all(len(group.snapshots) == 1 for group in env.population._own.values()), "the one before is forgotten"
    apart = [episode(GrowthEnv(train, 1, *data, env_ids=ids)) for ids in torch.arange(HOSTS).split(3)]
    joined = [{name: torch.cat([part[name] for part in step]) for name in step[0]} for step in zip(*apart, strict=True)]
    assert same(together, joined)


def test_a_lost_process_is_replaced_and_the_episode_is_played_again(digits, single) -> None:
    env, told, killed = make(digits, 4, 2), [], []
    step = env.step

    def stepping(actions):
        if not killed and env._step == 2:
            killed.extend(workers_of(os.getpid())[-1:])
            os.kill(killed[0], signal.SIGKILL)
        return step(actions)

    env.step = stepping
    try:
        found = recovered(env.population, lambda: episode(env), told.append)
        assert len(told) == 1 and isinstance(told[0], ProcessLost)
        assert same(found, episode(make(digits, 4, 1)))
        assert not Path(f"/proc/{killed[0]}").exists()
    finally:
        env.close()


def test_processes_that_are_lost_again_and_again_end_it(digits, monkeypatch) -> None:
    env, restarts = make(digits, 8, 1), []
    monkeypatch.setattr(env.population, "restart", lambda: restarts.append(1))

    def lose() -> None:
        raise ProcessLost("gone")

    with pytest.raises(ProcessLost):
        recovered(env.population, lose, lambda lost: None)
    assert len(restarts) == shards.RESTARTS


def fail() -> None:
    raise SimicError("of the other process")


def test_an_error_of_another_process_is_told_as_it_is(digits) -> None:
    layout = Layout(HOSTS, 4, 2)
    with pytest.raises(SimicError, match="of the other process"):
        GrowthEnv(TRAIN, 1, *digits, compose=partial(Shards, layout=layout, setup=fail))
    assert not workers_of(os.getpid())


ENDLESS = """
import time
from functools import partial
import torch
from simic.growth.batch.shards import Layout, Shards
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host, HostOptimizer
if __name__ == "__main__":
    host = build_host(Host(family="cnn"), (1, 8, 8), 10)
    population = Shards(
        host, blueprints_of("cnn"), torch.arange(8), 1, HostOptimizer(), layout=Layout(8, 4, 2), setup=time.time
    )
    population.reset(0)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_no_process_outlives_the_first(tmp_path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    first = subprocess.Popen(
        [sys.executable, tmp_path / "endless.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        (worker,) = workers_of(first.pid)
    finally:
        first.kill()
        first.communicate()
    give_up = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
