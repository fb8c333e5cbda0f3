"""A population in several processes is the same population; the processes are real, and so are the signals."""

import os
import signal
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch import shards
from simic.growth.batch.shards import Layout, ProcessLost, Shards, recovered
from tests.envs.conftest import AT_ONCE
from tests.envs.transitions import random_step
from tests.helpers import ROOT, some
from tests.standard import Host, Lifecycle, PPOParams, Train

from ..worlds import DATA, make_data, make_table

pytestmark = pytest.mark.usefixtures("real_starts")
HOSTS = 8
TRAIN = Train(
    host=Host(preset="baseline"), envs=HOSTS, episode_steps=6, batches_per_epoch=2, batch_size=16,
    ppo=PPOParams(minibatches=1), lifecycle=Lifecycle(training_dwell=1, blending_dwell=1),
)  # fmt: skip
CHANGES = {
    "hot": {"host_optimizer": TRAIN.host_optimizer.model_copy(update={"learning_rate": 1e30})},
    "tables": {
        "host": Host(family="tables", preset="baseline", widths=(8, 8)),
        "lifecycle": AT_ONCE,
    },
}


def make(data, group: int, processes: int, train: Train = TRAIN, setup=list) -> GrowthEnv:
    """``setup`` does nothing: OMP_NUM_THREADS is 1 in every process, and with more the last bits would be others."""
    layout = Layout(HOSTS, group, processes)
    return GrowthEnv(train, 1, *data, compose=partial(Shards, layout=layout, setup=setup))


def episode(env: GrowthEnv) -> list[dict[str, torch.Tensor]]:
    """Everything that random legal actions come to."""
    observation, _ = env.reset(options={"iteration": 0})
    steps = []
    for _ in range(env.steps):
        observation, columns = random_step(env, observation)
        steps.append(columns)
    return steps


def same(first: list[dict], second: list[dict]) -> bool:
    pairs = [(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a]
    return all(torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) for a, b in pairs)


def workers_of(process: int) -> list[int]:
    listing = subprocess.run(
        ["pgrep", "-P", str(process), "-f", "spawn_main"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in listing.stdout.split()]


@cache
def alone(case: str):
    """Params and data of a case, its hosts in one process and what they come to; these are left as they are then."""
    train = TRAIN.model_copy(update=CHANGES.get(case, {}))
    data = (DATA["cnn"], make_data(seed=1))
    if case == "tables":
        data = make_table(tasks=4, seed=1), make_table(tasks=4, samples=40, seed=2)
    env = make(data, 3, 1, train)
    return train, data, env, episode(env)


@pytest.mark.parametrize("case", some(["tables", "hot"], "tables"))
def test_the_same_groups_give_the_same_run_in_any_number_of_processes_also_where_one_is_lost(
    case: str,
) -> None:
    """Of tables, seeds are fitted where their host lives, to its task; hot hosts break, and are put back wherever they
    are. The episode of a process that is lost is played again.
    """
    train, data, single, first = alone(case)
    two = make(data, 3, 2, train)
    losses = []
    killed = []
    step = two.step

    def killing(actions):
        if not killed and two._step == 2:
            killed.extend(workers_of(os.getpid())[-1:])
            os.kill(killed[0], signal.SIGKILL)
        return step(actions)

    try:
        assert same(first, episode(two))
        assert any(step_columns["replaced"].any() for step_columns in first) or case != "tables"
        assert not first[-1]["valid"].all() or case != "hot"
        assert all(map(torch.equal, two.committed(data[1]), single.committed(data[1])))
        parameters = [
            [env.population.named_parameters(env.slots, row) for row in range(HOSTS)]
            for env in (single, two)
        ]
        assert same(*parameters)
        assert any("seed" in name for row in parameters[0] for name in row)
        two.step = killing
        assert same(first, recovered(two.population, lambda: episode(two), losses.append))
        assert len(losses) == 1 and isinstance(losses[0], ProcessLost)
        assert not Path(f"/proc/{killed[0]}").exists()
    finally:
        two.close()


@pytest.mark.parametrize("case", ["hot", "tables"])
def test_a_group_is_a_population_of_its_own(case: str) -> None:
    """Each host gets its own samples, actions, snapshots, also where some break."""
    train, data, _, together = alone(case)
    apart = [
        episode(GrowthEnv(train, 1, *data, env_ids=ids)) for ids in torch.arange(HOSTS).split(3)
    ]
    joined = [
        {name: torch.cat([part[name] for part in step]) for name in step[0]}
        for step in zip(*apart, strict=True)
    ]
    assert same(together, joined)


def test_processes_that_are_lost_again_and_again_end_it(monkeypatch) -> None:
    population = alone("tables")[2].population
    restarts = []
    monkeypatch.setattr(population, "restart", lambda: restarts.append(1))

    def lose() -> None:
        raise ProcessLost("gone")

    with pytest.raises(ProcessLost):
        recovered(population, lose, lambda lost: None)
    assert len(restarts) == shards.RESTARTS


def fail() -> None:
    raise SimicError("of the other process")


def test_an_error_of_another_process_is_told_as_it_is() -> None:
    train, data, *_ = alone("tables")
    with pytest.raises(SimicError, match="of the other process"):
        make(data, 4, 2, train, fail)
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
