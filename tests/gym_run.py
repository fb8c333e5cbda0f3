"""All five stages of a small run on CartPole, made once for several tests; read only."""

from pathlib import Path

import pytest

from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.faults.test_gym_faults import SMALL
from tests.helpers import ROOT, made_once

TREE = params.load(ROOT / "params.yaml", SMALL)


def gym_run(factory: pytest.TempPathFactory) -> Workspace:
    def make(folder: Path) -> None:
        for stage in stages.STAGES.values():
            stage(TREE, Workspace(folder))

    return Workspace(made_once(factory, "cartpole", make))
