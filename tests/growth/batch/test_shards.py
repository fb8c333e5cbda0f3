"""A population in several processes is the same population; the processes are real, and so are the signals."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from simic.envs.actions import random_legal
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch import shards
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Layout, ProcessLost, Shards, recovered
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.pretrained import train_host
from simic.params import Train
from simic.rng import Purpose, key, uniform
from tests import standard
from tests.standard import Host, HostOptimizer, Lifecycle, PPOParams

from ..worlds import DATA, make_data, make_host, make_order, make_table, mixed_slots

ROOT = Path(__file__).parents[3]
HOSTS, STEPS = 8, 6
TRAIN = standard.Train(
    host=Host(preset="baseline"), envs=HOSTS, episode_steps=STEPS, batches_per_epoch=1, batch_size=16,
    ppo=PPOParams(minibatches=1), lifecycle=Lifecycle(training_dwell=1, blending_dwell=1),
)  # fmt: skip


SOME = make_data(32, seed=1)
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
    for step in range(env.steps):
        noise = uniform(key(7, Purpose.BASELINE, iteration, env.env_ids, step), (len(env.action_spec.heads),))
        seen, reward, *_, info = env.step(random_legal(env.action_spec, seen, noise))
        numbers = {name: value for name, value in vars(info).items() if name != "components"}
        found.append(numbers | {"reward": reward, "features": seen.features})
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


@pytest.mark.slow
def test_a_trained_host_is_frozen_in_every_process(digits, single) -> None:
    weights = train_host(TRAIN.host, digits[0], 1, 1)
    data = [replace(split, host=weights) for split in digits]
    envs = [make(data, 4, processes) for processes in (1, 2)]
    try:
        runs = [episode(env) for env in envs]
        assert same(*runs) and envs[0].slots.stage.any()
        for row in (0, 7):
            found = envs[1].population.named_parameters(envs[1].slots, row)
            assert all(torch.equal(found[name], value) for name, value in weights.items())
    finally:
        for env in envs:
            env.close()


def test_the_same_groups_give_the_same_run_in_any_number_of_processes(digits, single) -> None:
    envs = [make(digits, 3, processes) for processes in (1, 2, 3)]
    try:
        runs = [episode(env) for env in envs]
        assert same(runs[0], runs[1]) and same(runs[0], runs[2])
        assert envs[0].slots.stage.any()
        for env in envs[1:]:
            assert same([vars(env.shapley())], [vars(envs[0].shapley())])
            for one, other in zip(env.committed(digits[1]), envs[0].committed(digits[1]), strict=True):
                assert torch.equal(one, other)
            for row in (0, 7):
                ours, theirs = (each.population.named_parameters(each.slots, row) for each in (env, envs[0]))
                assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    finally:
        for env in envs:
            env.close()


def test_hosts_for_tables_have_the_same_bits_in_any_number_of_processes(single) -> None:
    """Seeds are fitted where their host lives, to the task that it has; parts of like hosts are those of its group."""
    at_once = Lifecycle(training_dwell=0, min_prune_age=1, embargo_steps=0, reset_steps=0, max_seeds=1, param_budget=20)
    host = Host(family="tables", preset="baseline", widths=(8, 8))
    train = TRAIN.model_copy(update={"host": host, "lifecycle": at_once})
    data = make_table(tasks=4, seed=1), make_table(tasks=4, samples=40, seed=2)
    envs = [make(data, 3, processes, train) for processes in (1, 2)]
    try:
        runs = [episode(env) for env in envs]
        assert same(*runs) and any(step["replaced"].any() for step in runs[0])
        states = [env.population.state_dict() for env in envs]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert any(name.startswith("seed") for name in states[0])
    finally:
        for env in envs:
            env.close()


@pytest.mark.parametrize("changes", [{}, {"host_optimizer": HOT}])
def test_a_group_is_a_population_of_its_own(digits, single, changes) -> None:
    """Each host gets its own samples, actions, snapshots; some break in the second case."""
    train = TRAIN.model_copy(update=changes)
    together = episode(make(digits, 3, 1, train))
    apart = [episode(GrowthEnv(train, 1, *digits, env_ids=ids)) for ids in torch.arange(HOSTS).split(3)]
    joined = [{name: torch.cat([part[name] for part in step]) for name in step[0]} for step in zip(*apart, strict=True)]
    assert same(together, joined)


@pytest.mark.parametrize("family", ["mlp", "tables"])
def test_every_host_is_asked_about_itself_alone(family, single) -> None:
    """Other rows in every group: what all hosts do alike, they do also when groups are mixed up."""
    host, kinds, ids = make_host(family), blueprints_of(family), torch.arange(HOSTS)
    data, unseen = DATA[family], make_table(samples=32, seed=1) if family == "tables" else SOME
    whole = Shards(host, kinds, ids, 3, HostOptimizer(), layout=Layout(HOSTS, 3, 1), setup=one_thread)
    parts = [slice(0, 3), slice(3, 6), slice(6, 8)]
    populations = [Population(host, kinds, ids[part], 3, HostOptimizer()) for part in parts]
    for population in (whole, *populations):
        population.rng_seed = 4
        population.reset(2)
    slots = mixed_slots(whole)
    columns = [Slots(**{name: column[part] for name, column in vars(slots).items()}) for part in parts]
    rows = ([1, 0, 1, 1, 1, 0, 0, 1], [0, 1, 1, 0, 0, 0, 1, 1])
    saved, kept = torch.tensor(rows).bool()
    orders = [make_order(HOSTS, 2, 16, seed=seed) for seed in range(3)]
    off = torch.stack([torch.zeros_like(slots.stage), torch.eye(HOSTS, host.slots).long()]).bool()

    def play(population: Population | Shards, slots: Slots, part: slice) -> tuple[list[Tensor], list[Tensor]]:
        """What the hosts answer, host by host; and the parameters of each."""
        population.germinate(slots, slots.stage > 0, data)
        stats = [population.train_epoch(slots, data, orders[0][part])]
        snapshot = population.snapshot()
        stats.append(population.train_epoch(slots, data, orders[1][part]))
        population.refresh(snapshot, saved[part], slots)
        stats.append(population.train_epoch(slots, data, orders[2][part]))
        population.restore(snapshot, kept[part])
        answers = population.evaluate(slots, unseen, off[:, part])
        found = [value for each in stats for value in vars(each).values()]
        found += [answers.correct.transpose(0, 1), answers.loss.T]
        found += [population.seed_params(slots), population.seed_flops(slots)]
        weights = [population.named_parameters(slots, row).values() for row in range(len(population))]
        return found, [torch.cat([value.flatten() for value in each]) for each in weights]

    found, weights = play(whole, slots, slice(None))
    apart = [play(*each) for each in zip(populations, columns, parts, strict=True)]
    several = [torch.cat(each) for each in zip(*(part[0] for part in apart), strict=True)]
    whole.snapshot()
    assert all(len(group.snapshots) == 1 for group in whole._own.values()), "the one before is forgotten"
    for one, other in zip(found + weights, [*several, *chain(*(part[1] for part in apart))], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_hosts_that_broke_are_put_back_wherever_they_are(digits, single) -> None:
    """Rollbacks restore from snapshots, which stay in the other process."""
    hot = TRAIN.model_copy(update={"host_optimizer": HOT})
    one, two = make(digits, 4, 1, hot), make(digits, 4, 2, hot)
    try:
        runs = episode(one), episode(two)
        assert runs[0][-1]["valid"].logical_not().any()
        assert same(*runs)
    finally:
        two.close()


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
    host = build_host(Host(), (1, 8, 8), 10)
    population = Shards(
        host, blueprints_of("cnn"), torch.arange(8), 1, HostOptimizer(), layout=Layout(8, 4, 2), setup=time.time
    )
    population.reset(0)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
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
