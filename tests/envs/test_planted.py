"""The planted decision beats its nearest rivals in the real environment.

A decision: germinate one blueprint in one slot at one step, fossilize it as soon as it is in HOLDING, leave everything
else alone. One population plays them all, full episodes, all other heads fixed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from simic import params
from simic.data.batches import Dataset, load_split
from simic.data.prepare import prepare
from simic.data.synthetic import PLANTED, Planted
from simic.envs.growth_env import GrowthEnv
from simic.growth.life.vocabulary import ALPHA_TARGETS, TEMPO_STEPS, Action, Op, Stage
from simic.params import Params
from tests import standard
from tests.helpers import some

ROOT = Path(__file__).parents[2]
MARGIN_PCT = 5.0
Decision = tuple[int, str, int]  # slot, blueprint, step
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


def play(material: Material, decisions: list[Decision], replicates: int) -> dict[Decision, float]:
    """Mean committed validation accuracy (points) of each decision over replicates, the same hosts for all."""
    tree, train, val = material
    env = GrowthEnv(tree.train, tree.rng_seed, train, val, torch.arange(replicates).repeat(len(decisions)))
    kinds = {item.name: index for index, item in enumerate(env.blueprints)} | {"": 0}
    rows = [(slot, kinds[name], step) for slot, name, step in decisions]
    slot, kind, step = (torch.tensor(column).repeat_interleave(replicates) for column in zip(*rows, strict=True))
    target, hosts, zero = slot.clamp(min=0), torch.arange(len(slot)), torch.zeros_like(slot)
    observation, info = env.reset(options={"iteration": 0})
    for now in range(env.steps):
        stage = env.slots.stage[hosts, target]
        op = torch.where(stage == Stage.HOLDING, int(Op.FOSSILIZE), int(Op.WAIT))
        op = torch.where((stage == Stage.DORMANT) & (slot >= 0) & (now >= step), int(Op.GERMINATE), op)
        op = torch.where(observation.masks["slot"][hosts, op, target], op, int(Op.WAIT))
        ramp = (zero + TEMPO_STEPS.index(3), zero + ALPHA_TARGETS.index(1.0))
        observation, *_, info = env.step(Action(op, target, kind, zero, *ramp, zero, zero))
    accuracy = info.committed_accuracy.view(len(decisions), replicates).double().mean(1)
    return dict(zip(decisions, accuracy.tolist(), strict=True))


def margin(found: dict[Decision, float], planted: Planted, step: int) -> float:
    """Points between the plant at this step and the best other decision of the same step."""
    plant = (planted.slot, planted.blueprint)
    others = [value for (slot, name, at), value in found.items() if at == step and (slot, name) != plant]
    return found[*plant, step] - max(others)


# The rivals that come nearest in the whole grid of steps, slots and blueprints.
RIVALS = {
    "orientation": [(0, "conv_small"), (0, "norm"), (0, "attention"), (1, "attention"), (1, "norm")],
    "recall": [(1, "attention")],
}


@pytest.mark.parametrize("name", some([*PLANTED], "orientation"))
def test_the_plant_beats_its_nearest_rivals(name, material):
    planted, made = PLANTED[name], material(name)
    decisions = [(planted.slot, planted.blueprint, 0), *((*rival, 0) for rival in RIVALS[name])]
    found = play(made, decisions, replicates=1)
    assert margin(found, planted, 0) >= MARGIN_PCT, found
