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
    """Raise SimicError where so many hosts of this process, and its other processes, would not fit."""
    train, meta = params.train, read_meta(prepared)
    spec = _spec(train, meta)
    # Encoders and cores alone.
    sizes, trunks = train.policy, 2 if train.policy.critic == "own" else 1
    core = GATES[sizes.core] * sizes.core_units * (sizes.encoder_units + sizes.core_units)
    weights = trunks * (spec.features * sizes.encoder_units + core)
    needs = [
        *_of_playing(params, meta, prepared, hosts, device, kept=2),
        Need(f"a policy of {weights} parameters", weights * FLOAT * ADAM_COPIES, "train.policy"),
        Need(f"{processes} processes", (processes - 1) * PROCESS_BYTES, "runtime.processes"),
    ]
    _refuse(needs, device)


def refuse_playing(params: Params, prepared: Path, rows: int, device: torch.device) -> None:
    """Raise SimicError where the hosts of an evaluation, in so many rows of an environment, would not fit."""
    _refuse(_of_playing(params, read_meta(prepared), prepared, rows, device, kept=1), device)


def _refuse(needs: Sequence[Need], device: torch.device) -> None:
    cuda = device.type == "cuda"
    refuse_too_much(needs, torch.cuda.mem_get_info(device)[1] if cuda else machine_bytes())


def _spec(train: Train, meta: Meta) -> ObservationSpec:
    slots = build_host(train.host, meta.shape, meta.classes).slots
    return observation_spec(slots, len(blueprints_of(train.host.family)))


def _host_params(train: Train, meta: Meta) -> int:
    """Count the parameters that each host has for itself: none of a trained network."""
    return 0 if HOST_FILE in meta.sha256 else build_host(train.host, meta.shape, meta.classes).params


def _of_playing(params: Params, meta: Meta, prepared: Path, hosts: int, device: torch.device, kept: int) -> list[Need]:
    """Count hosts, data, and ``kept`` copies of all that the policy sees."""
    train, samples, size = params.train, meta.samples["train"], _host_params(params.train, meta)
    copies = 2 * (1 + len(MOMENTS[train.host_optimizer.name])) + 1  # with moments, a snapshot of both, gradients
    rows = hosts * train.longest_episode
    seen = f"what is seen in {train.longest_episode} steps of {hosts} hosts"
    seen_bytes = rows * _spec(train, meta).features * FLOAT * kept
    features = hosts * _features(params, meta, device) * FEATURE_COPIES * FLOAT
    files = [path.stat().st_size for path in prepared.glob("*.safetensors")]
    return [
        Need(f"{hosts} hosts of {size} parameters", hosts * size * copies * FLOAT, "train.envs or train.host"),
        Need(f"the order of {samples} samples for {hosts} hosts", hosts * samples * INTEGER, "train.envs"),
        Need("the watchdog's windows", hosts * train.governor.window * INTEGER, "train.governor.window"),
        Need(f"the features of {hosts} hosts", features, "train.envs or train.host"),
        Need(seen, seen_bytes, "train.envs or train.episode_steps"),
        Need("the prepared data", sum(files), "prepare.samples or prepare.suite.instances"),
    ]


def _features(params: Params, meta: Meta, device: torch.device) -> int:
    """Count what a host's validation pass holds at once; 0 where hosts run one by one, or in groups that fit a GPU."""
    tokens = meta.shape[0] if len(meta.shape) == 1 else 1
    shapes = build_host(params.train.host, meta.shape, meta.classes).slot_shapes
    entries = max(1, EVALUATION_POSITIONS // tokens) * max(math.prod(shape) for shape in shapes)
    return 0 if device.type != "cpu" or runs_apart(params.runtime.backend, entries, device) else entries
