"""The shipped suites as they are meant to be used: with the params they bring along."""

from pathlib import Path

import torch

from simic import params
from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.data.suites.kinds import Draws, Sources
from simic.envs.growth_env import GrowthEnv
from simic.growth.life.vocabulary import Action
from tests.helpers import ROOT
from tests.standard import Prepare

FEW = {"train": 4, "val": 2, "held_out": 1, "held_out_kinds": 2}


def test_the_shipped_suites_host_trains_on_every_one_of_its_tasks_under_the_shipped_params(
    tmp_path,
):
    train = params.load(ROOT / "params.yaml").train
    assert train.lifecycle.max_seeds == 1
    suite = {"name": "tables", "instances": FEW}
    prepare(Prepare(task="suite", samples=640, suite=suite), 1, tmp_path / "out", tmp_path)
    data = [load_split(tmp_path / "out", split) for split in ("train", "val")]
    meta = read_meta(tmp_path / "out")
    assert meta.source.startswith("suite tables") and meta.licence
    hosts = torch.arange(6)
    env = GrowthEnv(train, 1, *data, env_ids=hosts)
    env.reset(options={"tasks": hosts})
    _, reward, *_ = env.step(Action.wait(6))
    assert reward.isfinite().all()
    accuracy, loss = env.committed(data[1])
    assert loss.isfinite().all() and ((accuracy >= 0) & (accuracy <= 100)).all()


def test_streams_are_those_that_banks_were_drawn_from():
    """Integers alone, so equal on any machine: a change here makes other tasks of every recorded result."""
    draws = Draws(1, "digits", "val", 3, Sources(Path()))
    assert draws.integers(1000, 4).tolist() == [457, 215, 928, 526]
    assert draws.of_split("test").permutation(6).tolist() == [0, 5, 2, 3, 1, 4]
    labels = torch.arange(60) % 2
    assert draws.of_split("train").of_pool("digits", labels, torch.tensor([0, 1, 1])).tolist() == [
        12,
        59,
        11,
    ]
