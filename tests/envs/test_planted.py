"""The planted decision beats its nearest rivals in the real environment."""

import torch

from simic import params
from simic.data.batches import load_split
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from tests import planted, standard
from tests.helpers import ROOT

MARGIN_PCT = 5.0
# Slot and blueprint of those that come nearest in the whole grid of steps, slots and blueprints.
RIVALS = [(0, "conv_small"), (0, "norm"), (0, "attention"), (1, "attention"), (1, "norm")]


def test_the_plant_beats_its_nearest_rivals(tmp_path):
    """A decision: germinate one blueprint in one slot at the first step, fossilize it as soon as it is in HOLDING.

    One population of equal hosts plays them all.
    """
    decisions = [(planted.SLOT, planted.BLUEPRINT), *RIVALS]
    tree = params.load(ROOT / "params.yaml", [*standard.OVERRIDES, *planted.OVERRIDES])
    prepare(tree.prepare, tree.rng_seed, tmp_path / "prepared", tmp_path)
    splits = (load_split(tmp_path / "prepared", name) for name in ("train", "val"))
    env = GrowthEnv(
        tree.train, tree.rng_seed, *splits, torch.zeros(len(decisions), dtype=torch.int64)
    )
    kinds = [item.name for item in env.blueprints]
    schedules = [
        Schedule(
            tuple(kinds.index(name) if place == slot else NONE for place in range(env.host.slots))
        )
        for slot, name in decisions
    ]
    play(env, OpenLoop(schedules), 0, lambda *step: None)
    plant, *rivals = env.state.measured.committed_accuracy.tolist()
    assert plant >= max(rivals) + MARGIN_PCT, (plant, rivals)
