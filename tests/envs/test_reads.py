"""How often an environment step waits for the device: once for the slots, once to know whether a host is broken."""

import traceback
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import simic

PACKAGE = Path(simic.__file__).parent
READS = {"cpu", "item", "tolist", "nonzero", "unique", "masked_select", "__bool__", "__int__", "__float__"}


class Reads(TorchFunctionMode):
    """Counts, by where it happens, what would have to wait for a device, with the CPU in the device's place: values
    that Python asks of a tensor. What is known on the host's side is numpy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        by_mask = name == "__getitem__" and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1:])
        )
        if name in READS or by_mask:
            *_, last = (frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE))
            self.found[f"{Path(last.filename).relative_to(PACKAGE)}:{last.name}"] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_reads_the_slots_and_whether_a_host_is_broken(make_env, play):
    kind = {"envs": 12, "steps": 12, "backend": "auto"}
    actions = [played[1] for played in play(make_env(**kind))]
    env = make_env(**kind)
    env.reset()
    with Reads() as reads:
        for action in actions:
            env.step(action)
    assert reads.found == {"growth/batch/groups.py:read": 12, "envs/growth_env.py:_measure": 12}
