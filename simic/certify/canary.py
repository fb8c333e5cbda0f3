"""The canary: a controller trained by this code on a generated task whose best growth decision is known.

Settings, task and seed are fixed, so only code and machine can change the result.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from simic import params
from simic.data.prepare import prepare
from simic.data.suites.suites import GRADUAL
from simic.data.synthetic import PLANTED
from simic.evaluation import planted
from simic.growth.pretrained import train_host
from simic.training import trainer
from simic.training.learned import Learned
from simic.training.session import open_session

TASK = PLANTED["orientation"]
RNG_SEED = 1
LEAST_WON_PCT = 9.03  # points above chance: the least of 30 seeds of clean code / 1.5 (benchmarks/canary.py)
CHANCE_PCT = 100.0 / TASK.classes  # where hosts without the planted seed stay
SETTINGS = (
    *GRADUAL,
    *TASK.overrides,
    "train.batches_per_epoch=4",
    "train.episode_steps=12",
    "train.iterations=14",
    "train.envs=32",
    "train.stop_on=never",
    "train.lifecycle.training_dwell=1",
    "train.lifecycle.blending_dwell=1",
    "train.lifecycle.min_prune_age=2",
    "train.lifecycle.embargo_steps=0",
    "train.lifecycle.max_seeds=1",
    "train.actions={style: [linear_add], alpha_target: [1.0]}",
    "train.reward.mode=score",
    *(f"train.policy.{part}_units=32" for part in ("encoder", "core", "head")),
    "train.ppo.minibatches=2",
    "train.ppo.learning_rate=0.003",
    "train.ppo.target_kl=0.03",
    "runtime={device: cpu, processes: 1, progress: none}",
)


@dataclass(frozen=True)
class Canary:
    """Hold the points won above chance on the validation split, and the shares of hosts in which the controller
    germinated the planted seed first, and kept it.
    """

    won_pct: float
    first: float
    kept: float

    @property
    def sound(self) -> bool:
        """Tell whether the controller won what clean code wins."""
        return self.won_pct >= LEAST_WON_PCT


def canary(rng_seed: int = RNG_SEED) -> Canary:
    """Train a controller, and grade its last checkpoint on hosts that it was not trained on."""
    threads = torch.get_num_threads()  # as many as there are, since a session sets those of the whole process
    with tempfile.TemporaryDirectory(prefix="simic-canary-") as folder:
        scratch, prepared = Path(folder), Path(folder) / "prepared"
        (scratch / "params.yaml").write_text("{}\n")
        own = [*SETTINGS, f"rng_seed={rng_seed}", f"runtime.threads={threads}"]
        tree = params.load(scratch / "params.yaml", own, whole=False)
        prepare(tree.prepare, tree.rng_seed, prepared, scratch, train_host)
        with open_session(tree, scratch / "work", prepared) as session:
            counters = trainer.train(session)
            kept = session.checkpoints.read(counters.iteration)
    first, kept_share, accuracy = planted.grade(TASK, Learned.of(kept), rng_seed, torch.device("cpu"))
    return Canary(accuracy - CHANCE_PCT, first, kept_share)
