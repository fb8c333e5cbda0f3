"""The params that tests mean where they name no others: a small convolutional host on digits, whose seeds take their
time. Each name makes the section of that name in ``simic.params`` with these values.
"""

from functools import partial
from pathlib import Path
from typing import Any

from simic import params
from tests.patches import GRADUAL

OVERRIDES = (
    *GRADUAL,
    "prepare.task=digits",
    "prepare.suite={name: patches, instances: {train: 64, val: 16, held_out: 12, held_out_kinds: 4, outside: 0}}",
    "headroom.search_tasks=8",
    "evaluate.epochs=null",
)
TREE = params.load(Path(__file__).parents[1] / "params.yaml", list(OVERRIDES))

Params = partial(params.Params, **dict(TREE))
Prepare = partial(params.Prepare, **dict(TREE.prepare))
Suite = partial(params.Suite, **dict(TREE.prepare.suite))
Instances = partial(params.Instances, **dict(TREE.prepare.suite.instances))
Headroom = partial(params.Headroom, **dict(TREE.headroom))
Train = partial(params.Train, **dict(TREE.train))
Host = partial(params.Host, **dict(TREE.train.host))
HostOptimizer = partial(params.HostOptimizer, **dict(TREE.train.host_optimizer))
Lifecycle = partial(params.Lifecycle, **dict(TREE.train.lifecycle))
Reward = partial(params.Reward, **dict(TREE.train.reward))
Policy = partial(params.Policy, **dict(TREE.train.policy))
PPOParams = partial(params.PPOParams, **dict(TREE.train.ppo))
Evaluate = partial(params.Evaluate, **dict(TREE.evaluate))


def merged(changes: dict[str, Any]) -> params.Params:
    """Return these params with the values of a partial tree in their place."""
    tree = TREE.model_dump(mode="json")
    _merge(tree, changes)
    return params.validate(tree, "tests")


def _merge(tree: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and key != "actions":
            _merge(tree[key], value)
        else:
            tree[key] = value
