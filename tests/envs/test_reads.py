"""How often an environment step waits for the device: once for the slots, once to know whether a host is broken."""

import traceback
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import simic
from simic.growth.batch import arena

PACKAGE = Path(simic.__file__).parent
READS = {"cpu", "item", "tolist", "nonzero", "unique", "masked_select", "__bool__", "__int__", "__float__"}
# Where the program asks for the device because on the CPU a read is free: they are told of another one.
ASKING = {"growth/batch/rows.py:copy_where", "growth/batch/scoring.py:forward"}
ELSEWHERE = torch.device("meta")


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
            self.found[caller()] += 1
        if func == Tensor.device.__get__ and caller() in ASKING:
            return ELSEWHERE
        return func(*args, **(kwargs or {}))


def caller() -> str:
    """The innermost function of the package."""
    *_, last = (frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE))
    return f"{Path(last.filename).relative_to(PACKAGE)}:{last.name}"


def test_a_step_reads_the_slots_and_whether_a_host_is_broken(make_env, play, monkeypatch):
    kind = {"envs": 12, "steps": 12, "backend": "auto"}
    actions = [played[1] for played in play(make_env(**kind))]
    env = make_env(**kind)
    env.reset()
    monkeypatch.setattr(arena, "CPU", ELSEWHERE)
    with Reads() as reads:
        for action in actions:
            env.step(action)
    assert reads.found == {"growth/batch/groups.py:read": 12, "envs/growth_env.py:_measure": 12}
