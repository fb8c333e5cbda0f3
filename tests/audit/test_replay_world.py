"""Recorded episodes of a real training follow from the files alone, and what is edited in them is noticed."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from simic import params as params_module
from simic.audit.record import RunRecord
from simic.audit.replay_world import replay_episode
from simic.data.prepare import prepare
from simic.params import Params
from simic.telemetry.columns import Array
from simic.telemetry.publish import publish
from simic.training import trainer
from simic.training.session import open_session

from .settings import PATCHES

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "prepare.suite.instances={train: 6, val: 1, held_out: 1, held_out_kinds: 1}",
    "prepare.suite.kinds=[pairs_near, same, digits]",
    "train.host={family: mlp, preset: baseline, widths: [16, 16, 16]}",
    "train.actions={}",
    "train.envs=6",
    "train.ppo.minibatches=1",
    "train.iterations=2",
    "train.episode_steps=8",
    "train.lifecycle={training_dwell: 1, blending_dwell: 1, min_prune_age: 2, embargo_steps: 0}",
    "runtime.progress=none",
    "runtime.processes=1",
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Params, Path, RunRecord]:
    params = params_module.load(ROOT / "params.yaml", [*PATCHES, *SETTINGS])
    folder = tmp_path_factory.mktemp("run")
    prepare(params.prepare, params.rng_seed, folder / "prepared", folder)
    threads = torch.get_num_threads()
    with open_session(params, folder / "work", folder / "prepared") as session:
        trainer.train(session, (), threading.Event())
        publish(folder / "work", session.recorder.flush(), folder / "telemetry")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    return params, folder / "prepared", RunRecord.from_published(params, folder / "telemetry")


def columns(record: RunRecord, iteration: int, place: int) -> dict[str, Array]:
    table = record.steps.where(record.steps.column("iteration") == iteration)
    return {name: values[:, place].copy() for name, values in table.columns.items() if values.ndim > 1}


def iterations(record: RunRecord) -> list[int]:
    return np.unique(record.steps.column("iteration")).tolist()


def test_recorded_episodes_follow_from_the_files(recorded: tuple[Params, Path, RunRecord]) -> None:
    params, prepared, record = recorded
    for number, iteration in enumerate(iterations(record)):
        for place in (1, 4):
            found = replay_episode(params, prepared, columns(record, iteration, place), number, place)
            assert [comparison for comparison in found if not comparison.ok] == []
    assert (columns(record, iterations(record)[0], 1)["op"] != 0).any()  # something was done


@pytest.mark.parametrize(
    "column", ["stage", "alpha", "params", "effective_op", "val_loss", "host_grad_norm", "components.shaping"]
)
def test_what_is_edited_is_noticed(recorded: tuple[Params, Path, RunRecord], column: str) -> None:
    params, prepared, record = recorded
    steps = columns(record, iterations(record)[0], 1)
    steps[column][2] = steps[column][2] + 1
    found = replay_episode(params, prepared, steps, 0, 1)
    assert f"replayed {column}" in [comparison.what for comparison in found if not comparison.ok]


def test_an_episode_of_another_host_is_noticed(recorded: tuple[Params, Path, RunRecord]) -> None:
    params, prepared, record = recorded
    found = replay_episode(params, prepared, columns(record, iterations(record)[0], 1), 0, 2)
    assert "replayed val_loss" in [comparison.what for comparison in found if not comparison.ok]


def test_a_seed_that_params_forbid_is_noticed(recorded: tuple[Params, Path, RunRecord]) -> None:
    _, prepared, record = recorded
    narrow = params_module.load(ROOT / "params.yaml", [*PATCHES, *SETTINGS, "train.actions.blueprint=[mlp]"])
    found = [
        comparison.what
        for number, iteration in enumerate(iterations(record))
        for place in range(narrow.train.envs)
        for comparison in replay_episode(narrow, prepared, columns(record, iteration, place), number, place)
        if not comparison.ok
    ]
    assert "replayed choice of a blueprint" in found
