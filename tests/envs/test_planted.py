"""The planted decision beats its nearest rivals in the real environment.

A decision: germinate one blueprint in one slot at the first step, fossilize it as soon as it is in HOLDING, leave
everything else alone. One population plays them all, full episodes.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from simic import params
from simic.data.batches import Dataset, load_split
from simic.data.prepare import prepare
from simic.data.synthetic import PLANTED
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.params import Params
from tests import standard

ROOT = Path(__file__).parents[2]
MARGIN_PCT = 5.0
Decision = tuple[int, str]  # slot, blueprint
Material = tuple[Params, Dataset, Dataset]


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Callable[[str], Material]:
    """Params and prepared data of a planted task."""

    def make(name: str) -> Material:
        tree = params.load(ROOT / "params.yaml", [*standard.OVERRIDES, *PLANTED[name].overrides])
        folder = tmp_path_factory.mktemp(name)
        prepare(tree.prepare, tree.rng_seed, folder / "prepared", folder)
        return tree, load_split(folder / "prepared", "train"), load_split(folder / "prepared", "val")

    return make


def committed(material: Material, decisions: list[Decision]) -> list[float]:
    """Committed validation accuracy (points) that each decision ends with, the same host for all."""
    tree, train, val = material
    env = GrowthEnv(tree.train, tree.rng_seed, train, val, torch.zeros(len(decisions), dtype=torch.int64))
    kinds = [item.name for item in env.blueprints]
    schedules = [
        Schedule(tuple(kinds.index(name) if place == slot else NONE for place in range(env.host.slots)))
        for slot, name in decisions
    ]
    play(env, OpenLoop(schedules), 0, lambda *step: None)
    return env.state.measured.committed_accuracy.tolist()


# The rivals that come nearest in the whole grid of steps, slots and blueprints.
RIVALS = {
    "orientation": [(0, "conv_small"), (0, "norm"), (0, "attention"), (1, "attention"), (1, "norm")],
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_plant_beats_its_nearest_rivals(name, material):
    planted = PLANTED[name]
    plant, *rivals = committed(material(name), [(planted.slot, planted.blueprint), *RIVALS[name]])
    assert plant >= max(rivals) + MARGIN_PCT, (plant, rivals)
