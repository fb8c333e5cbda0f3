"""An update on a device is read once, at its end; what it decides on the way it decides there."""

from dataclasses import asdict, replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simic import params
from simic.agent.metrics import UpdateMetrics
from simic.agent.ppo import PPO

from .worlds import episodes, make_policy, make_rollout

READS = {
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.__array__,
}


class CountReads(TorchFunctionMode):
    """What would wait for the device if tensors were on one: everything that turns tensors into Python's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in READS and not getattr(args[0], "on_host", False):
            self.reads.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.cpu:
            result = result.clone()
        if func is torch.Tensor.cpu or any(getattr(arg, "on_host", False) for arg in args):
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, torch.Tensor):
                    part.on_host = True  # and so is all that is made of it
        return result


class CountScalars(TorchDispatchMode):
    """The operator under ``item`` and ``bool``, also where torch calls it for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is torch.ops.aten._local_scalar_dense.default and not getattr(args[0], "on_host", False)
        return func(*args, **(kwargs or {}))


def make_ppo(deferred: bool, **changes) -> PPO:
    settings = params.PPOParams(**({"learning_rate": 1e-2, "epochs": 3, "minibatches": 2, "target_kl": None} | changes))
    return PPO(make_policy(), settings, rng_seed=1, total_updates=5, deferred=deferred)


def rollout_of(ppo: PPO, iteration: int = 0):
    return make_rollout(ppo.policy, episodes(6, 8), 8, iteration)


@pytest.mark.parametrize(
    "changes", [{}, {"target_kl": 1e-3}, {"entropy_floor": {"op": 0.9}, "gradient_accumulation": 2}]
)
def test_an_update_reads_the_device_once(changes: dict) -> None:
    ppo = make_ppo(deferred=True, **changes)
    env_ids = rollout_of(ppo).env_ids
    ppo.update(replace(rollout_of(ppo), env_ids=env_ids), 0)  # fetches the env ids, once in a run
    rollout = replace(rollout_of(ppo, 1), env_ids=env_ids)
    with CountReads() as reads, CountScalars() as scalars:
        ppo.update(rollout, 1)
    assert reads.reads.count("cpu") == 1
    assert set(reads.reads) == {"cpu"}
    assert scalars.calls == 0


def test_the_counter_sees_what_it_should() -> None:
    ppo = make_ppo(deferred=False)
    rollout = rollout_of(ppo)
    with CountReads() as reads:
        ppo.update(rollout, 0)
    assert reads.reads.count("tolist") == 6  # a verdict for each minibatch
    with CountScalars() as scalars:
        torch.ones(1).item()
    assert scalars.calls == 1
    with CountReads() as reads:
        assert torch.ones(1).cpu().tolist() == [1.0]
        assert bool(torch.ones(1))
    assert reads.reads == ["cpu", "__bool__"]


def broken(rollout, iteration: int):
    """Returns of one environment are not finite in the second iteration."""
    returns = rollout.returns.clone()
    returns[3, 1] = torch.nan if iteration == 1 else returns[3, 1]
    return replace(rollout, returns=returns)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_kl": 2e-3},
        {"target_kl": 2e-3, "learning_rate_schedule": "adaptive"},
        {"minibatches": 6, "target_kl": 0.05},
    ],
)
def test_decisions_on_the_device_are_those_of_the_host(changes: dict) -> None:
    here, there = make_ppo(deferred=False, **changes), make_ppo(deferred=True, **changes)
    stops = skips = 0
    close = 1e-4 if "learning_rate_schedule" in changes else 1e-6  # a device has its learning rate in float32
    for iteration in range(4):
        found: list[UpdateMetrics] = []
        for ppo in (here, there):
            found.append(ppo.update(broken(rollout_of(ppo, iteration), iteration), iteration))
        one, other = (asdict(metrics) for metrics in found)
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=close, abs=close / 100, nan_ok=True), name
        stops, skips = stops + found[0].stopped_early, skips + found[0].skipped_steps
    assert skips > 0
    assert stops > 0 or changes.get("target_kl") != 2e-3
    assert here.updates == there.updates
    for name, tensor in here.state_dict().items():
        assert torch.allclose(tensor, there.state_dict()[name], rtol=1e-5, atol=1e-7), name
