"""An update on a device is read once, at its end; what it decides on the way it decides there."""

from dataclasses import asdict, replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simic.agent import ppo as ppo_module
from simic.agent.losses import head_usage
from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.normalization import Normalizers
from simic.agent.ppo import PPO, gae
from simic.agent.rollout import collect
from tests import standard

from .worlds import TensorWorld, episodes, make_policy, make_rollout

NAMES = (
    "tolist",
    "item",
    "cpu",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
)
READS = {getattr(torch.Tensor, name) for name in NAMES}


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


class Operations(TorchDispatchMode):
    """Counts operators, and that under ``item`` and ``bool``, also where torch calls it for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.scalars = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        self.scalars += func is torch.ops.aten._local_scalar_dense.default and not getattr(
            args[0], "on_host", False
        )
        return func(*args, **(kwargs or {}))


@pytest.fixture
def sent(monkeypatch) -> None:
    """What is uploaded is no longer on the host; what is drawn there is."""

    def upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return values.clone()

    monkeypatch.setattr(ppo_module, "upload", upload)

    # The order of minibatches is drawn on the host, by NumPy.
    drawn = ppo_module.rng.permutation

    def permutation(stream: torch.Tensor, n: int) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            order = drawn(stream, n)
        order.on_host = True
        return order

    monkeypatch.setattr(ppo_module.rng, "permutation", permutation)


def make_ppo(reads_are_free: bool, **changes) -> PPO:
    settings = standard.PPOParams(
        **({"learning_rate": 1e-2, "epochs": 3, "minibatches": 2, "target_kl": None} | changes)
    )
    ppo = PPO(make_policy(), settings, rng_seed=1, total_updates=5)
    ppo.reads_are_free = reads_are_free  # True on a CPU
    return ppo


def rollout_of(ppo: PPO, iteration: int = 0):
    return make_rollout(ppo.policy, episodes(6, 8), 8, iteration)


def test_an_update_reads_the_device_once(sent) -> None:
    """Not once per tensor, per head or per environment: statistics are stacked and fetched together."""
    ppo = make_ppo(reads_are_free=False, target_kl=1e-3, entropy_scale={"op": 2.0})
    ppo.rows_are_known = False
    first = rollout_of(ppo)
    ppo.update(first, 0)  # fetches the env ids, once in a run
    rollout = replace(rollout_of(ppo, 1), env_ids=first.env_ids)
    with CountReads() as reads, Operations() as operations:
        ppo.update(rollout, 1)
    assert reads.reads.count("cpu") == 1
    assert set(reads.reads) == {"cpu"}
    assert operations.scalars == 0 < operations.count


def test_the_counter_sees_what_it_should(sent: None) -> None:
    ppo = make_ppo(reads_are_free=True)
    rollout = rollout_of(ppo)
    with CountReads() as reads:
        ppo.update(rollout, 0)
    assert reads.reads.count("__bool__") == 6  # whether to go on, after each minibatch
    with Operations() as operations:
        torch.ones(1).item()
    assert operations.scalars == 1


@pytest.mark.parametrize("changes", [{}, {"target_kl": 2e-3, "learning_rate_schedule": "linear"}])
def test_minibatches_after_the_end_of_an_update_change_nothing(changes: dict) -> None:
    """Of an update that stops early: left out where reading is free, computed and skipped where it is not."""
    free_ppo = make_ppo(reads_are_free=True, **changes)
    waiting_ppo = make_ppo(reads_are_free=False, **changes)
    stops = skips = 0
    for iteration in range(4):
        metrics_of_both: list[UpdateMetrics] = []
        for ppo in (free_ppo, waiting_ppo):
            rollout = rollout_of(ppo, iteration)
            if iteration == 1:
                rollout.returns[3, 1] = torch.nan
            metrics_of_both.append(ppo.update(rollout, iteration))
        expected, actual = (numbers(asdict(metrics)) for metrics in metrics_of_both)
        assert actual == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
        stops = stops + metrics_of_both[0].stopped_early
        skips = skips + metrics_of_both[0].skipped_steps
    assert skips > 0
    assert stops > 0 or not changes
    assert free_ppo.updates == waiting_ppo.updates
    for name, tensor in free_ppo.state_dict().items():
        assert torch.equal(tensor, waiting_ppo.state_dict()[name]), name


def test_advantages_are_one_scan_for_all_environments() -> None:
    counts = []
    for envs in (2, 50):
        numbers = torch.zeros(3, envs)
        flags = torch.zeros(3, envs, dtype=torch.bool)
        with Operations() as mode:
            gae(numbers, numbers, numbers, flags, flags, ~flags, 0.9, 0.9)
        counts.append(mode.count)
    assert counts[0] == counts[1] > 0


class Quiet(TensorWorld):
    """A world whose own flags cost the same for any number of environments."""

    def step(self, actions: torch.Tensor, /):
        flags = torch.zeros(self.num_envs, dtype=torch.bool)
        _ = actions
        self.time += 1
        return self.observation(), flags.float(), flags, flags, None


def test_acting_costs_as_many_operations_for_many_environments_as_for_few() -> None:
    policy = make_policy()
    counts = []
    reads = []
    for envs in (2, 40):
        world = Quiet(list(range(envs)), {})
        with CountReads() as counted_reads, Operations() as operations:
            collect(world, policy, Normalizers(), 0, rng_seed=1, steps=3)
        counts.append(operations.count)
        reads.append(counted_reads.reads)
    assert (counts[0], reads[0]) == (counts[1], reads[1])


def test_heads_scored_where_they_had_a_choice_are_those_scored_everywhere() -> None:
    """The CPU knows the rows; elsewhere the whole walk is computed."""
    rows_alone, everywhere = (make_ppo(reads_are_free=True) for _ in range(2))
    everywhere.rows_are_known = False
    rollout = rollout_of(rows_alone)
    usage = head_usage(rows_alone.policy, rollout, 1)
    assert 0 < usage.choice[..., 1].sum() < usage.choice[..., 1].numel()
    actual = rows_alone.rescore(rollout, usage)
    expected = everywhere.rescore(rollout, usage)
    for name in ("log_probs", "entropy", "values"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name))
    metrics = [numbers(asdict(ppo.update(rollout, 0))) for ppo in (rows_alone, everywhere)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-5, nan_ok=True)
    for actual, expected in zip(
        rows_alone.policy.parameters(), everywhere.policy.parameters(), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
