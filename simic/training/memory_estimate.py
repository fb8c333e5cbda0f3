"""Estimate the least memory that hosts, decisions, data and policy take, before any of it is allocated."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from simic.agent.spec import ObservationSpec
from simic.data.batches import HOST_FILE, Meta, read_meta
from simic.envs.observations import observation_spec
from simic.growth.batch.arena import MOMENTS
from simic.growth.batch.forward import runs_apart
from simic.growth.batch.population import EVALUATION_POSITIONS
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.memory import Need, machine_bytes, refuse_too_much
from simic.params import Params, Train

FLOAT, INTEGER = 4, 8  # bytes
FEATURE_COPIES = 4  # in and out of a layer, before and after pooling
ADAM_COPIES = 4  # of the policy: weights, gradients, two moments
GATES = {"lstm": 4, "gru": 3, "none": 0}
PROCESS_BYTES = 200 * 2**20  # of another process before it has hosts; measured: 235 MiB


def refuse_training(params: Params, prepared: Path, hosts: int, processes: int, device: torch.device) -> None:
    """SimicError where a process with so many hosts, and its other processes, would not fit."""
    train, meta = params.train, read_meta(prepared)
    spec = _spec(train, meta)
    needs = [
        *_of_hosts(train, meta, hosts),
        _of_features(params, meta, hosts, device),
        _of_decisions(train, spec, hosts, 2),
        _of_policy(train, spec),
        _of_data(prepared),
        _of_saving(params, meta, hosts),
        Need(f"{processes} processes", (processes - 1) * PROCESS_BYTES, "runtime.processes"),
    ]
    _refuse(needs, device)


def refuse_playing(params: Params, prepared: Path, rows: int, device: torch.device) -> None:
    """SimicError where the hosts of an evaluation, in so many rows of an environment, would not fit."""
    train, meta = params.train, read_meta(prepared)
    decisions = _of_decisions(train, _spec(train, meta), rows, 1)
    features = _of_features(params, meta, rows, device)
    _refuse([*_of_hosts(train, meta, rows), features, decisions, _of_data(prepared)], device)


def _refuse(needs: Sequence[Need], device: torch.device) -> None:
    cuda = device.type == "cuda"
    refuse_too_much(needs, torch.cuda.mem_get_info(device)[1] if cuda else machine_bytes())


def _spec(train: Train, meta: Meta) -> ObservationSpec:
    slots = build_host(train.host, meta.shape, meta.classes).slots
    return observation_spec(slots, len(blueprints_of(train.host.family)))


def _of_hosts(train: Train, meta: Meta, hosts: int) -> list[Need]:
    """Count parameters, optimizer moments, a snapshot of both, gradients, and the order of samples of an epoch."""
    trained, samples = HOST_FILE not in meta.sha256, meta.samples["train"]
    params = build_host(train.host, meta.shape, meta.classes).params if trained else 0
    copies = 2 * (1 + len(MOMENTS[train.host_optimizer.name])) + 1
    return [
        Need(f"{hosts} hosts of {params} parameters", hosts * params * copies * FLOAT, "train.envs or train.host"),
        Need(f"the order of {samples} samples for {hosts} hosts", hosts * samples * INTEGER, "train.envs"),
        Need("the watchdog's windows", hosts * train.governor.window * INTEGER, "train.governor.window"),
    ]


def _of_saving(params: Params, meta: Meta, hosts: int) -> Need:
    """Count a copy of hosts and snapshots, and the bytes of its file, where steps are saved too."""
    trained = params.runtime.checkpoint_steps and HOST_FILE not in meta.sha256
    size = build_host(params.train.host, meta.shape, meta.classes).params if trained else 0
    copies = 2 * 2 * (1 + len(MOMENTS[params.train.host_optimizer.name]))
    return Need(f"saving {hosts} hosts", hosts * size * copies * FLOAT, "runtime.checkpoint_steps")


def _of_features(params: Params, meta: Meta, hosts: int, device: torch.device) -> Need:
    """Count a validation pass of all hosts at once; nothing where they run one by one, or in groups that fit a GPU."""
    tokens = meta.shape[0] if len(meta.shape) == 1 else 1
    shapes = build_host(params.train.host, meta.shape, meta.classes).slot_shapes
    entries = max(1, EVALUATION_POSITIONS // tokens) * max(math.prod(shape) for shape in shapes)
    apart = runs_apart(params.runtime.backend, entries, device)
    size = 0 if apart or device.type != "cpu" else hosts * entries * FEATURE_COPIES * FLOAT
    return Need(f"the features of {hosts} hosts", size, "train.envs or train.host")


def _of_decisions(train: Train, spec: ObservationSpec, hosts: int, copies: int) -> Need:
    rows = hosts * train.longest_episode
    what = f"what is seen in {train.longest_episode} steps of {hosts} hosts"
    return Need(what, rows * spec.features * FLOAT * copies, "train.envs or train.episode_steps")


def _of_policy(train: Train, spec: ObservationSpec) -> Need:
    """Count encoders and cores alone."""
    sizes, trunks = train.policy, 2 if train.policy.critic == "own" else 1
    core = GATES[sizes.core] * sizes.core_units * (sizes.encoder_units + sizes.core_units)
    count = trunks * (spec.features * sizes.encoder_units + core)
    return Need(f"a policy of {count} parameters", count * FLOAT * ADAM_COPIES, "train.policy")


def _of_data(prepared: Path) -> Need:
    files = [path.stat().st_size for path in prepared.glob("*.safetensors")]
    return Need("the prepared data", sum(files), "prepare.samples or prepare.suite.instances")
