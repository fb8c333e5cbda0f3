"""Params of a suite so small that all five stages take seconds."""

import pytest

from simic import params
from simic.agent import export
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.helpers import ROOT

TINY = [
    "rng_seed=3",  # one whose controller germinates, and keeps, so that there is something to explain
    "prepare.suite.instances={train: 3, val: 1, held_out: 3, held_out_kinds: 1, outside: 2}", "prepare.samples=160",
    "headroom.policies=[static, patient]", "headroom.search_tasks=2", "train.validate_every=1",
    "train.episode_steps=10",
    "train.batches_per_epoch=2", "train.envs=4", "train.iterations=3", "train.policy.core_units=16",
    "train.policy.head_units=16", "train.lifecycle.min_prune_age=2",  # so that it waits sometimes, not always
    "train.ppo.epochs=1", "train.price=2.0",
    "evaluate.epochs=[10, 6]", "evaluate.eval_seeds=4",
    "runtime.cores=1", "runtime.threads=1", "runtime.progress=none",
    "audit.replay=false",  # which tests/audit tries
]  # fmt: skip


def tree(*overrides: str) -> params.Params:
    return params.load(
        ROOT / "params.yaml", [*TINY, "train.actions.blueprint=[norm, sort]", *overrides]
    )


def train(tree: params.Params, workspace: Workspace, *observers: Observer) -> None:
    """Train and publish without the exported program, which takes longer than all of this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "export_policy", lambda *_: None)
        stages.train(tree, workspace, observers)
