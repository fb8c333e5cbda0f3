"""The runs that faults are planted in: a tiny one of seconds, in which every mechanism of the pipeline still acts, and
the default one with half of its hosts, fewer iterations and fewer held-out tasks.
"""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simic import params
from simic.params import Params
from tests import standard

# With this one the choices that faults turn differ: the best schedule by test and by search, and the best, worst and
# last validation.
RNG_SEED = 20
# Runs without a fault: what the audit finds in one of them is no proof of a fault.
CLEAN_SEEDS = (*range(1, 8), RNG_SEED)
# Iterations after which training is interrupted and resumed.
INTERRUPTED_AFTER = (2, 8)
ITERATIONS = 10  # several checks need as many

# Of two slots with two blueprints and four openings. Seeds germinate, blend, are pruned and are fossilized; the budget
# holds for one depthwise convolution and one norm, and one style is closed, so that every mask forbids something.
TREE: dict[str, Any] = {
    "prepare": {
        "task": "suite",
        "samples": 160,
        "suite": {"name": "patches", "instances": {"train": 4, "val": 2, "held_out": 3, "held_out_kinds": 1}},
    },
    "headroom": {"policies": ["static"], "schedules": 4, "search_tasks": 2, "floors": False},
    "train": {
        "host": {"family": "cnn", "preset": "impaired"},
        "iterations": ITERATIONS,
        "envs": 8,
        "episode_steps": 14,
        "batches_per_epoch": 4,
        "batch_size": 16,
        "validate_every": 3,
        "host_optimizer": {"name": "adamw", "learning_rate": 0.003},
        "lifecycle": {
            "training_dwell": 1,
            "min_prune_age": 4,
            "embargo_steps": 0,
            "sequential_development": False,
            "max_seeds": 2,
            "param_budget": 1.0,
        },
        "price": 2.0,
        "actions": {
            "slot": [0, 1],
            "blueprint": ["norm", "depthwise"],
            "style": ["linear_add", "sigmoid_add", "linear_gate"],
        },
        "reward": {"mode": "score"},
        "policy": {"encoder_units": 16, "core_units": 16, "head_units": 16},
        "ppo": {"epochs": 2, "minibatches": 2, "learning_rate": 0.003},
    },
    "evaluate": {"eval_seeds": 8},
    "runtime": {"device": "cpu", "processes": 1, "threads": 1, "progress": "none"},
}


def tiny(rng_seed: int = RNG_SEED) -> Params:
    """Return the params of such a run."""
    return standard.merged({"rng_seed": rng_seed, **TREE})


REAL_SEEDS = (1,)  # the findings that faults are compared with are those of the same seed
# What is left out is more of the same.
REAL = (
    "prepare.suite.instances={train: 1100, val: 24, held_out: 24, held_out_kinds: 24, outside: 0}",
    "headroom={policies: [static, tuned_rule], schedules: 12, search_tasks: 32}",
    "train.envs=512",
    "train.iterations=5",
    "train.validate_every=2",
    "evaluate.epochs=[12]",
    "runtime={device: cpu, processes: 2, threads: 1, progress: none}",
)


def real(rng_seed: int) -> Params:
    """Return the params of such a run."""
    return params.load(Path(__file__).parents[2] / "params.yaml", [*REAL, f"rng_seed={rng_seed}"])


def write(path: Path, tree: Params) -> None:
    """Write a params.yaml with every value."""
    YAML().dump(tree.model_dump(mode="json"), path)
