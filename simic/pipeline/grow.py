"""Run `grow`: a policy grows networks on a task or the user's own data; the best is exported."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    """Ask `grow` for networks; null = as the policy was trained, or as params.yaml says.

    ``data`` is the user's own, a file or folder or what was read of it, or with ``task`` the source of that task, if it
    takes one.
    """

    data: str | UserData | None
    out: Path
    task: str | None = None
    policy: str = "learned"  # or a baseline's name, a published controller's suite, a policy's directory
    host: str | None = None  # family/preset
    hosts: int = 8
    epochs: int | None = None  # of every host, and decisions about it; null: the middle of what training has
    target: str | None = None  # the column to predict
    layout: str | None = None  # where channels of images are: nchw, nhwc
    fit: bool = False  # no test split, and as few samples as there are: who fits scores elsewhere


def grow(params: Params, workspace: Workspace, asked: Growth, say: Callable[[str], None] = lambda line: None) -> Grown:
    """Let a policy grow networks on a task or the user's own data; export the best to ``asked.out``. ``say`` hears
    what was done to the data.

    A controller's hosts are trained as those that it was trained on: budget, actions and lifecycle are its.
    """
    if asked.out.exists():
        raise SimicError(f"{asked.out}: already exists; choose another folder or remove it")
    with growth(params, workspace, asked) as (setup, policy):
        for note in setup.data.notes if setup.data is not None else ():
            say(note)
        # Two that write to one folder would delete each other's half-written network.
        alone = durable.locked(asked.out.with_name(f".{asked.out.name}.lock"), f"grows {asked.out}")
        with alone, shown(params.runtime.progress, "grow", "") as progress:
            return growing.grow(setup, policy, asked.hosts, asked.out, progress)


@contextmanager
def growth(params: Params, workspace: Workspace, asked: Growth) -> Iterator[tuple[GrowSetup, Rule | Controller]]:
    """Prepare the data in a temporary folder; yield the setup in which networks grow on them, and the policy."""
    device = machine.configure(params.runtime)
    host = None if asked.host is None else _as_host(asked.host)
    with tempfile.TemporaryDirectory(prefix="simic-grow-") as scratch:
        prepared = Path(scratch) / "prepared"
        data = _prepare_asked(asked, params, workspace, prepared)
        meta = read_meta(prepared)
        policy = _asked_policy(asked.policy, host, params, workspace, meta, device)
        if isinstance(policy, Controller):
            train = policy.learned.train
        else:
            train = params.train
            host = host or _usual_host(params, workspace, meta)
        changes = {"host": host or _usable(train.host), "episode_steps": asked.epochs or train.middle_episode}
        train = _batches_of(meta.samples["train"], train.model_copy(update=changes))
        inputs = data.inputs if data is not None else _raw_images(meta)
        tree = params.model_copy(update={"train": train})
        yield GrowSetup(tree, prepared, device, data, inputs), policy


def _prepare_asked(asked: Growth, params: Params, workspace: Workspace, prepared: Path) -> OwnData | None:
    """Write the splits of a task, or of the user's own data, and return these."""
    if asked.task is not None:
        prepare.prepare(_asked_task(asked, params), params.rng_seed, prepared, seals.raw_data(workspace.root))
        return None
    if asked.data is None:
        raise SimicError("grow: needs data, a file or a folder, or --task NAME")
    given = read(Path(asked.data), asked.target) if isinstance(asked.data, str) else asked.data
    split = params.prepare.split
    shares = {"val": split.val} if asked.fit else {"val": split.val, "test": split.test}
    own = own_data(given, shares, params.rng_seed, asked.layout, few=asked.fit)
    prepare.write_bank(own.bank, "own", split.model_dump(), params.rng_seed, prepared)
    return own


def _asked_task(asked: Growth, params: Params) -> Prepare:
    if asked.task in ("suite", registry.GYM):
        raise SimicError(f"--task {asked.task}: grow takes one data set; name another task or give a file")
    for name, value in (("target", asked.target), ("layout", asked.layout)):
        if value is not None:
            raise SimicError(f"--{name} {value}: is for a file or folder of your own; leave it out with --task")
    changes = {"task": asked.task, "source": asked.data}
    try:
        return Prepare.model_validate(params.prepare.model_dump() | changes)
    except ValidationError as error:
        raise SimicError(f"--task {asked.task}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _raw_images(meta: Meta) -> RawInputs | None:
    """Return what a network must do to take a task's images as they are; None of anything else."""
    mean, std = meta.tasks[0].mean, meta.tasks[0].std
    if len(meta.shape) != 3 or len(mean) != meta.shape[0] or meta.shape[:-1] == (1, 1):
        return None
    classes = tuple(map(str, range(meta.classes)))
    return RawInputs(layout="nchw", shape=meta.shape, mean=tuple(mean), std=tuple(std), classes=classes)


def _asked_policy(
    name: str, host: Host | None, params: Params, workspace: Workspace, meta: Meta, device: torch.device
) -> Rule | Controller:
    """Return a baseline or a controller: "learned" is the project's own or the published one that fits."""
    if name in BASELINES:
        return Rule(name)
    if name != "learned":
        shipped = controllers.PUBLISHED / name
        return Controller.load(shipped if shipped.is_dir() else Path(name), device)
    models, own = workspace.models, None
    seals.refuse_changed(workspace.root, models.name)  # no other takes the place of one that is lost
    if models.exists():
        own = Controller.own(models, device)
    return choose(own, host, params.train.host, meta, device)


# --- on what hosts, and how they train ---


def _as_host(name: str) -> Host:
    """Return the host ``family/preset``; SimicError naming what is known."""
    family, _, preset = name.partition("/")
    try:
        return Host.model_validate({"family": family, "preset": preset})
    except ValidationError:
        families, presets = registry.known(registry.FAMILY), registry.known(registry.PRESET)
        raise SimicError(
            f"host {name!r}: must be FAMILY/PRESET, {' or '.join(families)} / {' or '.join(presets)}"
        ) from None


def _usual_host(params: Params, workspace: Workspace, meta: Meta) -> Host:
    """Return the host of params.yaml where it takes such samples, else the usual one for their shape. Images never get
    a host for tables: it would compare every pixel, as a column, with every other; nor does a single column.
    """
    vectors, own = meta.shape[:-1] == (1, 1), params.train.host
    if vectors and not 1 < meta.shape[-1] <= MOST_COLUMNS:
        return _as_host(HOST_OF_ANY_COLUMNS)
    if workspace.params.exists() and (vectors or own.family != "tables"):
        try:
            build_host(own, meta.shape, meta.classes)
        except SimicError:
            pass
        else:
            return _usable(own)
    return _as_host(HOST_OF_VECTORS if vectors else USUAL_HOSTS[len(meta.shape)])


def _usable(host: Host) -> Host:
    """Return the host, or the baseline of its family for an impaired one, which only serves to train controllers."""
    return Host(family=host.family, preset="baseline") if host.preset == "impaired" else host


def _batches_of(samples: int, train: Train) -> Train:
    """Shrink batches until an epoch has as many as it should. With many samples raise their number to a whole pass, up
    to MOST_BATCHES, so that a user's network learns from all of them.
    """
    if train.batches_per_epoch == "all":
        return train.model_copy(update={"batch_size": min(train.batch_size, samples)})
    passed = min(MOST_BATCHES, samples // train.batch_size)
    count = max(min(train.batches_per_epoch, samples), passed)
    return train.model_copy(update={"batches_per_epoch": count, "batch_size": min(train.batch_size, samples // count)})
