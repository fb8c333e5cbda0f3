"""Settings of the tests that train on patches."""

from pathlib import Path

import simic.data.suites.patches  # noqa: F401 - registers itself
from simic import params
from simic.data.suites.suites import SUITES

# All that the project's own params say otherwise for their own suite.
PATCHES = (
    "prepare.suite.name=patches",
    *SUITES["patches"].overrides,
    "headroom.search_tasks=8",
    "evaluate.epochs=null",
)
# Seeds live their whole lives.
SMALL = (
    "prepare.suite.instances={train: 8, val: 2, held_out: 3, held_out_kinds: 1}",
    "prepare.samples=160",
    "train.envs=8",
    "train.episode_steps=20",
    "train.batches_per_epoch=1",
    "train.iterations=4",
    "train.validate_every=2",
    "train.stop_on=never",
    "headroom.policies=[static, patient]",
    "headroom.schedules=4",
    "headroom.search_tasks=2",
    "evaluate.eval_seeds=4",
    "evaluate.policies=[learned, learned_sampled]",
    "audit.certify=false",
    "runtime.threads=1",
    "runtime.processes=1",
    "runtime.progress=none",
)


def small(*overrides):
    """Return the params of the small real run."""
    return params.load(Path(__file__).parents[2] / "params.yaml", [*PATCHES, *SMALL, *overrides])
