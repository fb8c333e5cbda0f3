"""Settings of the tests that train on patches."""

from simic import params
from tests import patches
from tests.helpers import ROOT

# Seeds live their whole lives.
SMALL = (
    *patches.OVERRIDES,
    "evaluate.epochs=null",  # which params.yaml has for its own suite
    "prepare.suite.instances={train: 8, val: 2, held_out: 3, held_out_kinds: 1}",
    "prepare.samples=160",
    "train.envs=8",
    "train.episode_steps=20",
    "train.batches_per_epoch=1",
    "train.iterations=4",
    "train.validate_every=2",
    "train.stop_on=never",
    "headroom.policies=[static]",
    "headroom.floors=false",
    "headroom.schedules=4",
    "headroom.search_tasks=2",
    "evaluate.eval_seeds=4",
    "evaluate.policies=[learned, learned_sampled]",
    "runtime.threads=1",
    "runtime.cores=2",
    "runtime.progress=none",
)  # fmt: skip


def small(*overrides):
    """Return the params of the small real run."""
    return params.load(ROOT / "params.yaml", [*SMALL, *overrides])
