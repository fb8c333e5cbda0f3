"""A device that does not exist: a GPU as seen from the program, where none can be had.

It computes on the CPU, refuses operations between tensors that are not on one device, and notes whatever would make the
program wait for a GPU: values that Python asks of a tensor, and copies to the device that are not made in the
background. It has no kernels of its own, no streams and no speed, so tests/growth/batch/test_devices.py is still to be
run on a real one.

    python -m tests.envs.simulated_device [FAMILY ...]

plays and learns on both devices and prints what was waited for, a line of JSON for each family.
"""

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import simic
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import collect
from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from tests import standard
from tests.growth.worlds import DATA, FAMILIES, small

aten = torch.ops.aten
NAME = "simulated"
CPU = torch.device("cpu")
DEVICE = torch.device("privateuseone", 0)
PACKAGE = Path(simic.__file__).parent
READS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
}
COPIES = {aten._to_copy.default, aten.copy_.default}
ENVS = 8
STEPS = 3
SIZES = standard.Policy(core="none", encoder_units=8, core_units=8, head_units=8)


class OnDevice(Tensor):
    """A tensor there; ``near`` holds its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
        )
        tensor.near = near
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return perform(func, args, kwargs or {})


waited: Counter[str] = Counter()


def wait(kind: str) -> None:
    """Notes what is waited for, and where."""
    frames = [frame for frame in traceback.extract_stack() if str(PACKAGE) in frame.filename]
    place = f" {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    waited[kind + place] += 1


def is_there(device) -> bool:
    return device is not None and torch.device(device).type in (NAME, "privateuseone")


def perform(func, args, kwargs):
    """One operation, on the CPU."""
    tensors: list[Tensor] = []
    each(
        lambda value: isinstance(value, Tensor) and tensors.append(value), [args, *kwargs.values()]
    )
    remote = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    if func in COPIES:
        goes = (
            isinstance(args[0], OnDevice) if func is aten.copy_.default else _target(remote, kwargs)
        )
        note_copy(bool(remote), goes, tensors[-1], kwargs)
    else:
        goes = _target(remote, kwargs)
        mixed = [
            tensor
            for tensor in tensors
            if remote and tensor.dim() and not isinstance(tensor, OnDevice)
        ]
        assert not mixed, (
            f"{func}: shapes {[tuple(tensor.shape) for tensor in mixed]} are on the CPU, others are not"
        )
    if func in READS and remote:
        wait("read")
    moved = {"device": CPU} if is_there(kwargs.get("device")) else {}
    result = func(
        *each(nearby, args), **({key: each(nearby, value) for key, value in kwargs.items()} | moved)
    )
    remote_by_id = {id(tensor.near): tensor for tensor in remote}
    return each(lambda value: wrapped(value, remote_by_id), result) if goes else result


def each(change: Callable, value):
    """Applied to whatever is in lists and tuples; torch's own tree_map takes several times as long."""
    if isinstance(value, list | tuple):
        return type(value)(each(change, part) for part in value)
    return change(value)


def _target(remote: list, kwargs) -> bool:
    device = kwargs.get("device")
    return bool(remote) if device is None else is_there(device)


def note_copy(from_there: bool, goes: bool, source: Tensor, kwargs) -> None:
    if from_there and not goes:
        wait("read")
    elif (
        goes
        and not isinstance(source, OnDevice)
        and source.dim()
        and not kwargs.get("non_blocking")
    ):
        wait("upload")


def nearby(value):
    return value.near if isinstance(value, OnDevice) else value


def wrapped(value, remote_by_id: dict[int, OnDevice]):
    """An operation in place gives back the tensor that it was given."""
    if not isinstance(value, Tensor):
        return value
    return remote_by_id[id(value)] if id(value) in remote_by_id else OnDevice(value)


class Operations(TorchDispatchMode):
    """Also those that make a tensor of nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return perform(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """What torch does below the reach of Python, done above it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and is_there(kwargs.get("device")):
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(*args[1:], **kwargs).to(DEVICE)
        if func is Tensor.pin_memory:
            return args[0]
        if func in (Tensor.tolist, Tensor.numpy) and isinstance(args[0], OnDevice):
            wait("read")
            return func(args[0].near)
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Course:
    """Rewards and losses of what was played and learned, and what was waited for by iteration."""

    values: list[Tensor]
    collecting: list[Counter[str]]
    learning: list[Counter[str]]


def course(family: str, device: torch.device) -> Course:
    """A policy plays and learns twice; it has no memory, whose cells have no kernel here."""
    near = DATA[family]
    data = Dataset(near.x.to(device), near.y.to(device), near.classes)
    train = standard.Train(
        envs=ENVS, episode_steps=STEPS, batch_size=32, host=small(family), batches_per_epoch=2
    )
    env = GrowthEnv(train, 7, data, data, device=device)
    policy = ActorCritic(env.action_spec, env.observation_spec, SIZES, 1).to(device)
    ppo = PPO(policy, standard.PPOParams(epochs=1, minibatches=2), 1, total_updates=2)
    course_of_run = Course([], [], [])
    for iteration in range(2):
        waited.clear()
        normalizers = Normalizers()
        rollout, _ = collect(env, policy, normalizers, iteration, 1, STEPS)
        course_of_run.collecting.append(Counter(waited))
        course_of_run.values.append(nearby(rollout.rewards))
        rewards = normalizers.update(
            rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        )
        waited.clear()
        learnt = with_advantages(rollout, rewards, 0.99, 0.95)
        metrics = ppo.update(learnt, iteration)
        course_of_run.learning.append(Counter(waited))
        course_of_run.values.append(torch.tensor([metrics.policy_loss, metrics.value_loss]))
    return course_of_run


def main(families: Sequence[str]) -> None:
    """Both devices, compared."""
    _setup_privateuseone_for_python_backend(NAME)
    for family in families:
        near = course(family, CPU)
        with Operations(), Functions():
            far = course(family, DEVICE)
        equal = all(torch.equal(a, b) for a, b in zip(near.values, far.values, strict=True))
        counts = {"collecting": far.collecting, "learning": far.learning}
        print(json.dumps({"family": family, "same": equal, **counts}))


if __name__ == "__main__":
    main(sys.argv[1:] or FAMILIES)
