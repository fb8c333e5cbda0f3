"""Run `grow`: a policy grows networks on a task or the user's own data; the best is exported."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError

from simic import durable, registry, seals
from simic.data import prepare
from simic.data.batches import Meta, read_meta
from simic.data.own.own_data import OwnData, own_data
from simic.data.own.readers import UserData, read
from simic.data.raw_inputs import RawInputs
from simic.errors import SimicError
from simic.evaluation import controllers
from simic.evaluation import grow_networks as growing
from simic.evaluation.controllers import MOST_COLUMNS, Controller, Rule, choose
from simic.evaluation.export_best import Grown
from simic.evaluation.grow_networks import GrowSetup
from simic.evaluation.policies import BASELINES
from simic.growth.networks.hosts import build_host
from simic.params import Host, Params, Prepare, Train
from simic.pipeline.display import shown
from simic.pipeline.paths import Workspace
from simic.training import machine

USUAL_HOSTS = {1: "transformer/baseline", 3: "cnn/baseline"}  # by the dimensions of a sample
MOST_BATCHES = 100  # of an epoch, unless params say more
HOST_OF_VECTORS = "tables/baseline"
HOST_OF_ANY_COLUMNS = "mlp/baseline"


@dataclass(frozen=True)
class Growth:
    """Say what `grow` grows; null = as the policy was trained, or as params.yaml says.

    ``data`` is the user's own, a file or folder or what was read of it, or with ``task`` the file of that task, if it
    takes one.
    """

    data: str | UserData | None
    out: Path
    task: str | None = None
    # Or a baseline's name, a published controller's suite, a policy's directory
    policy: str = "learned"
    host: str | None = None  # family/preset
    hosts: int = 8
    # Of every host, and decisions about it; null: the middle of what training has
    epochs: int | None = None
    target: str | None = None  # the column to predict
    layout: str | None = None  # where channels of images are: nchw, nhwc
    words: tuple[str, ...] = ()  # columns that are words, whatever they look like
    reference: bool = True  # rows of the table are kept beside the network
    fit: bool = False  # no test split, and as few samples as there are: who fits scores elsewhere


def grow(
    params: Params,
    workspace: Workspace,
    request: Growth,
    say: Callable[[str], None] = lambda line: None,
) -> Grown:
    """Let a policy grow networks on a task or the user's own data; export the best to ``request.out``. ``say`` hears
    what was done to the data.

    A controller's hosts are trained as those that it was trained on: budget, actions and lifecycle are its.

    Args:
        params: Those of the project.
        workspace: Of the project, in which a trained controller may lie.
        request: What to grow, on which data, by which policy, and where it is exported.
        say: Called with lines for the user.

    Raises:
        SimicError: The folder is there already, the data cannot be read, or no policy fits them.
    """
    if request.out.exists():
        raise SimicError(f"{request.out}: already exists; choose another folder or remove it")
    # The data are in a temporary folder for as long as networks are trained on them.
    with growth(params, workspace, request) as (setup, policy):
        for note in setup.data.notes if setup.data is not None else ():
            say(note)
        # Two that write to one folder would delete each other's half-written network.
        lock = durable.locked(
            request.out.with_name(f".{request.out.name}.lock"), f"grows {request.out}"
        )
        with lock, shown(params.runtime.progress, "grow", "") as progress:
            return growing.grow(setup, policy, request.hosts, request.out, progress)


@contextmanager
def growth(
    params: Params, workspace: Workspace, request: Growth
) -> Iterator[tuple[GrowSetup, Rule | Controller]]:
    """Prepare the data in a temporary folder; yield the setup in which networks grow on them, and the policy.

    Args:
        params: Those of the project; a controller's training settings replace ``train``.
        workspace: Of the project, in which a trained controller may lie.
        request: What to grow, on which data, by which policy.
    """
    device = machine.configure(params.runtime)
    host = None if request.host is None else _as_host(request.host)
    with tempfile.TemporaryDirectory(prefix="simic-grow-") as scratch:
        # Data.
        prepared = Path(scratch) / "prepared"
        data = _prepare_data(request, params, workspace, prepared)
        meta = read_meta(prepared)

        # A controller decides about hosts that are trained as those that it learned from.
        policy = _find_policy(request.policy, host, params, workspace, meta, device)
        if isinstance(policy, Controller):
            train = policy.learned.train
        else:
            train = params.train
            host = host or _usual_host(params, workspace, meta)

        # Changes that the request and the number of samples ask for.
        changes = {
            "host": host or _usable(train.host),
            "episode_steps": request.epochs or train.middle_episode,
        }
        train = batches_of(meta.samples["train"], train.model_copy(update=changes))
        inputs = data.inputs if data is not None else _raw_images(meta)
        yield (
            GrowSetup(params.model_copy(update={"train": train}), prepared, device, data, inputs),
            policy,
        )


def _prepare_data(
    request: Growth, params: Params, workspace: Workspace, prepared: Path
) -> OwnData | None:
    """Write the splits of a task, or of the user's own data, which are returned."""
    if request.task is not None:
        # The user's file may lie anywhere; a task without one reads the project's data.
        file = Path(request.data).resolve() if isinstance(request.data, str) else None
        folder = seals.raw_data(workspace.root) if file is None else file.parent
        settings = _task_params(request, params, file)
        prepare.prepare(settings, params.rng_seed, prepared, folder)
        return None
    if request.data is None:
        raise SimicError("grow: needs data, a file or a folder, or --task NAME")
    table = (
        read(Path(request.data), request.target, request.words)
        if isinstance(request.data, str)
        else request.data
    )
    split = params.prepare.split
    # A user who fits scores elsewhere: every sample is then needed for training, and no test split is set aside.
    shares = {"val": split.val} if request.fit else {"val": split.val, "test": split.test}
    data = own_data(table, shares, params.rng_seed, request.layout, few=request.fit)
    if not request.reference:
        data = replace(data, reference=None)
    prepare.write_bank(data.bank, "own", split.model_dump(), params.rng_seed, prepared)
    return data


def _task_params(request: Growth, params: Params, file: Path | None) -> Prepare:
    if request.task in ("suite", registry.GYM):
        raise SimicError(
            f"--task {request.task}: grow takes one data set; name another task or give a file"
        )
    # Options that would be ignored are refused: nobody should believe that they had an effect.
    options = {"target": request.target, "layout": request.layout, "words": " ".join(request.words)}
    for name, value in options.items():
        if value:
            raise SimicError(
                f"--{name} {value}: is for a file or folder of your own; leave it out with --task"
            )
    changes = {"task": request.task, "source": None if file is None else file.name}
    try:
        return Prepare.model_validate(params.prepare.model_dump() | changes)
    except ValidationError as error:
        raise SimicError(
            f"--task {request.task}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None


def _raw_images(meta: Meta) -> RawInputs | None:
    """Describe what a network does to take a task's images as they are; None of anything else."""
    task = meta.tasks[0]
    if len(meta.shape) != 3 or len(task.mean) != meta.shape[0] or meta.shape[:-1] == (1, 1):
        return None
    classes = tuple(map(str, range(meta.classes)))
    return RawInputs(
        layout="nchw", shape=meta.shape, mean=tuple(task.mean), std=tuple(task.std), classes=classes
    )


def _find_policy(
    name: str,
    host: Host | None,
    params: Params,
    workspace: Workspace,
    meta: Meta,
    device: torch.device,
) -> Rule | Controller:
    """Find a baseline or a controller: "learned" is the project's own or the published one that fits."""
    # Names of baselines come first, and none is a path: a folder of the same name is given as ./NAME.
    if name in BASELINES:
        return Rule(name)
    if name != "learned":
        shipped = controllers.PUBLISHED / name
        return Controller.load(shipped if shipped.is_dir() else Path(name), device)
    seals.refuse_changed(
        workspace.root, workspace.models.name
    )  # no other takes the place of one that is lost
    trained = Controller.own(workspace.models, device) if workspace.models.exists() else None
    return choose(trained, host, params.train.host, meta, device)


# --- on what hosts, and how they train ---


def _as_host(name: str) -> Host:
    """Parse a host ``family/preset``; SimicError naming what is known."""
    family, _, preset = name.partition("/")
    try:
        return Host.model_validate({"family": family, "preset": preset})
    except ValidationError:
        families, presets = registry.known(registry.FAMILY), registry.known(registry.PRESET)
        raise SimicError(
            f"host {name!r}: must be FAMILY/PRESET, {' or '.join(families)} / {' or '.join(presets)}"
        ) from None


def _usual_host(params: Params, workspace: Workspace, meta: Meta) -> Host:
    """Choose the host of params.yaml where it takes such samples, else the usual one for their shape. Images never get
    a host for tables: it would compare every pixel, as a column, with every other; nor does a single column.
    """
    # The host of params.yaml was chosen by somebody, and is kept where it can take the samples.
    host = params.train.host
    vectors = meta.shape[:-1] == (1, 1)
    if vectors and not 1 < meta.shape[-1] <= MOST_COLUMNS:
        return _as_host(HOST_OF_ANY_COLUMNS)
    if workspace.params.exists() and (vectors or host.family != "tables"):
        try:
            build_host(host, meta.shape, meta.classes)
        except SimicError:
            pass
        else:
            return _usable(host)
    return _as_host(HOST_OF_VECTORS if vectors else USUAL_HOSTS[len(meta.shape)])


def _usable(host: Host) -> Host:
    """Replace an impaired host by the baseline of its family: the impaired one only serves to train controllers."""
    return Host(family=host.family, preset="baseline") if host.preset == "impaired" else host


def batches_of(samples: int, train: Train) -> Train:
    """Shrink batches until an epoch has as many as it should. With many samples raise their number to a whole pass, up
    to MOST_BATCHES, so that a user's network learns from all of them.
    """
    # No batch may be larger than the data: a host takes whole batches alone, and would train on none.
    if train.batches_per_epoch == "all":
        return train.model_copy(update={"batch_size": min(train.batch_size, samples)})
    whole_pass = min(MOST_BATCHES, samples // train.batch_size)
    count = max(min(train.batches_per_epoch, samples), whole_pass)
    return train.model_copy(
        update={"batches_per_epoch": count, "batch_size": min(train.batch_size, samples // count)}
    )
