"""Identify a stage by its code, params and inputs, and seal what it made: the one record of what belongs together.

dvc.yaml lists the same code, params, inputs and outputs (a test compares), and dvc.lock records the seal as an output.
The seal is kept apart from that record because whoever asks for it can write it (`dvc commit`), a seal only the stage
itself; and because a run can be checked where there is no DVC.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from simic import durable, params
from simic.errors import SimicError
from simic.params import Params, differences, digest, value_at

PACKAGE = Path(__file__).parent
FOLDER = Path("reports") / "seals"
# Wall times and the starts of a run differ between equal runs: a seal holds them apart from all else, and no other seal
# does.
APART = ("timing.jsonl", "run.json")
OWN_FILE_TASKS = (
    "npz",
    "text",
)  # their source is a file of the user's, which lies outside of what DVC records


class Sealed(NamedTuple):
    """List what a stage depends on and makes: files below simic/, keys of params.yaml, places in the workspace."""

    code: tuple[str, ...]
    params: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


# Shared by several stages: what plays episodes, and what hosts are made of.
_HOSTS = ("agent", "data/batches.py", "durable.py", "envs", "program.py")
_BASE = ("growth", "rng.py", "threads.py", "transfer.py")
_MEASURING = (
    "checkpoint", "episodes", "growth_task", "learned", "machine", "task", "worker_layout",
)  # fmt: skip
_GROWN_AS = (
    "actions", "batch_size", "batches_per_epoch", "episode_steps", "governor", "host", "host_optimizer", "lifecycle",
    "price",
)  # fmt: skip
# dvc.yaml lists the same (a test compares). After a change in train's code an unfinished run is not continued.
STAGES: dict[str, Sealed] = {
    "prepare": Sealed(
        code=(
            *(f"data/{name}.py" for name in ("bank", "batches", "prepare", "published", "sources")),
            *("data/suites", "data/tasks.py", "durable.py"),
            *("agent/action_space.py", "agent/checked_env.py", "agent/gym_adapter.py"),
            "agent/repeatable.py",
            *("agent/spaces.py", "agent/spec.py", "agent/tensor_env.py"),
            *("envs/__init__.py", "envs/gym_env.py"),
            *("rng.py", "threads.py", "transfer.py"),
        ),
        params=("rng_seed", "extensions", "prepare"),
        reads=(),
        writes=("data/prepared",),
    ),
    "headroom": Sealed(
        code=(
            *(*_HOSTS, *_BASE, "evaluation", "telemetry/columns.py", "telemetry/rows.py"),
            *(f"training/{name}.py" for name in _MEASURING),
            "published/headroom",
            "published/rules",
        ),
        params=(
            *("rng_seed", "extensions", "headroom", "evaluate.epochs", "evaluate.eval_seeds"),
            *(f"train.{name}" for name in _GROWN_AS),
        ),
        reads=("data/prepared",),
        writes=("reports/headroom.json",),
    ),
    "train": Sealed(
        code=(*_HOSTS, *_BASE, "telemetry", "torch_modes.py", "training"),
        params=("rng_seed", "extensions", "train"),
        reads=("data/prepared",),
        writes=("checkpoints", "models", "telemetry"),
    ),
    "evaluate": Sealed(
        code=(
            *(*_HOSTS, *_BASE, "evaluation", "data/raw_inputs.py", "data/own/predict.py"),
            "data/own/rates.py",
            "torch_modes.py",
            *(
                f"training/{name}.py"
                for name in ("checkpoint", "learned", "machine", "worker_layout")
            ),
        ),
        params=("rng_seed", "extensions", "headroom", "train", "evaluate"),
        reads=("checkpoints", "data/prepared", "reports/headroom.json"),
        writes=("reports/grown", "reports/evaluation.json", "reports/metrics.json"),
    ),
    "audit": Sealed(
        code=(
            *(
                "agent",
                "audit",
                "data",
                "durable.py",
                "envs",
                "evaluation",
                "program.py",
                "telemetry",
                "training",
            ),
            *_BASE,
        ),
        params=("rng_seed", "extensions", "headroom", "train", "evaluate", "audit"),
        reads=(
            *("checkpoints", "data/prepared", "models", "telemetry"),
            *(
                f"reports/{name}"
                for name in ("evaluation.json", "grown", "headroom.json", "metrics.json")
            ),
            *(
                f"reports/seals/{stage}.json"
                for stage in ("prepare", "headroom", "train", "evaluate")
            ),
        ),
        writes=(
            *(
                f"reports/{name}"
                for name in ("report.html", "report.md", "findings.json", "model_card.md")
            ),
            *("reports/figures", "reports/audit_metrics.json"),
        ),
    ),
}


class Identity(BaseModel):
    """Everything that decides what a stage makes: its code and inputs by hash, and its params.

    Two runs of a stage with one identity make the same outputs. Resuming, skipping, parts of a stage that was
    interrupted, and the audit all compare this record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    code: dict[str, str]
    params: dict[str, JsonValue]
    reads: dict[str, str]

    @property
    def sha256(self) -> str:
        return digest(self.model_dump(mode="json", include=set(Identity.model_fields)))

    def changes(self, now: "Identity") -> dict[str, str]:
        """Describe what differs now, by param, input or file of code; of params with both values."""
        changed = differences(self.params, now.params)
        for kind, before, after in (
            ("input", self.reads, now.reads),
            ("code", self.code, now.code),
        ):
            for name in sorted(before.keys() | after.keys()):
                if before.get(name) != after.get(name):
                    changed[f"{kind} {name}"] = ""
        return changed


class Seal(Identity):
    """Record what a stage made, and from what: the hashes of its outputs beside its identity."""

    format: Literal[3] = 3
    writes: dict[str, str]
    apart: dict[str, str]  # of what it wrote, the files that differ between equal runs


def path_of(root: Path, stage: str) -> Path:
    """Locate the file of a stage's seal."""
    return root / FOLDER / f"{stage}.json"


def identify(root: Path, stage: str, tree: Params) -> Identity:
    """Compute the identity of a stage from the code, params and inputs that are there now.

    Args:
        root: Of the workspace.
        stage: Its name.
        tree: The whole of params.yaml.
    """
    # What was made by earlier stages counts by its bytes, not by how it was made.
    sealed = STAGES[stage]
    reads = {place: content_hash(root / place) for place in sealed.reads}
    if (
        stage == "prepare"
        and tree.prepare.task in OWN_FILE_TASKS
        and tree.prepare.source is not None
    ):
        reads[tree.prepare.source] = _source_hash(root, tree.prepare.source)
    return Identity(
        stage=stage,
        code=code_hashes(sealed.code) | extension_hashes(root, tree),
        params=params_of(stage, tree),
        reads=reads,
    )


def params_of(stage: str, tree: Params) -> dict[str, JsonValue]:
    """Select the params that a stage depends on, by their keys in params.yaml."""
    # As JSON has it, since it is compared with what was read back from a file.
    dumped = tree.model_dump(mode="json")
    return {key: value_at(dumped, key) for key in STAGES[stage].params}


def raw_data(root: Path) -> Path:
    """Locate the folder of the user's own files: SIMIC_DATA_DIR, else data/raw."""
    return Path(os.environ.get("SIMIC_DATA_DIR") or root / "data" / "raw")


def _source_hash(root: Path, source: str) -> str:
    """Hash the user's own file. Where it is gone, what was prepared from it counts as it was."""
    # A user may delete a source that is prepared; a changed one must be noticed.
    file = raw_data(root) / source
    prepared = root / "data" / "prepared" / "meta.json"
    if file.exists() or not prepared.exists():
        return content_hash(file)
    return json.loads(prepared.read_bytes()).get("source_sha256", "")


def write(root: Path, identity: Identity) -> None:
    """Seal what a stage has made in the workspace ``root``; its last act.

    Args:
        root: Of the workspace.
        identity: Of the stage, computed before it began: from that its outputs were made.
    """
    seal = _sealed(root, identity)
    path = path_of(root, identity.stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(path, durable.with_checksum(seal.model_dump(mode="json")))


def _sealed(root: Path, identity: Identity) -> Seal:
    """Hash the outputs of a stage as they are now, beside its identity."""
    # Files that differ between equal runs are hashed apart, so that the other hashes can be compared.
    places = STAGES[identity.stage].writes
    files = (
        path for place in places for path in sorted((root / place).rglob("*")) if path.name in APART
    )
    return Seal(
        **identity.__dict__,
        writes={place: content_hash(root / place) for place in places},
        apart={path.relative_to(root).as_posix(): durable.sha256(path) for path in files},
    )


def holds(root: Path, stage: str, tree: Params) -> bool:
    """Tell whether a stage has nothing to do: its seal is of this code, these params and inputs, and its outputs.

    Args:
        root: Of the workspace.
        stage: Its name.
        tree: The whole of params.yaml.
    """
    seal = read(root, stage)
    if seal is None:
        return False
    # Two steps: outputs are large, and only hashed where all else is equal.
    identity = identify(root, stage, tree)
    return seal.sha256 == identity.sha256 and seal == _sealed(root, identity)


def read(root: Path, stage: str) -> Seal | None:
    """Read a stage's seal; None where it left none that can be read."""
    seal = _read(path_of(root, stage))
    return seal if isinstance(seal, Seal) else None


def broken(root: Path, tree: Params) -> tuple[list[str], list[str]]:
    """Hash everything again; return what differs from the seals, in words, and the stages that have one.

    A stage that left nothing is not looked at.
    """
    # In the order in which stages ran: what one made, the next must have read.
    problems = list[str]()
    looked = list[str]()
    made: dict[str, tuple[str, str]] = {}  # by place: the stage that made it, and its hash then
    for stage, sealed in STAGES.items():
        if stage == "audit" or not any((root / place).exists() for place in sealed.writes):
            continue  # the audit asks, and replaces its own outputs
        seal = _read(path_of(root, stage))
        if isinstance(seal, str):
            problems.append(seal)
            continue
        looked.append(stage)
        now = _sealed(root, identify(root, stage, tree))
        problems += [f"{stage}: {text}" for text in _differences(seal, now)]
        problems += [
            f"{stage}: read another {place} than {made[place][0]} made"
            for place, digest in seal.reads.items()
            if place in made and digest != made[place][1]
        ]
        made |= {place: (stage, digest) for place, digest in seal.writes.items()}
    return problems, looked


def refuse_changed(root: Path, place: str) -> None:
    """Raise SimicError where a place differs from what its stage sealed; one without a seal passes."""
    # Every place has one stage that makes it.
    stage = next(stage for stage, sealed in STAGES.items() if place in sealed.writes)
    file = path_of(root, stage)
    # Nothing vouches for it, as for what was brought here from elsewhere.
    if not file.exists():
        return
    seal = _read(file)
    remedy = f"dvc checkout brings back what was recorded, or run simic {stage} again"
    if isinstance(seal, str):
        raise SimicError(f"{file}: {seal}; {remedy}")
    if content_hash(root / place) != seal.writes.get(place):
        raise SimicError(f"{root / place}: is not what {stage} made; {remedy}")


def _read(path: Path) -> Seal | str:
    """Return the seal, or what is wrong with it."""
    try:
        return Seal.model_validate(durable.checked(path.read_bytes()))
    except FileNotFoundError:
        return f"{path.stem}: has outputs and no seal"
    except (OSError, ValueError) as error:
        return f"{path.stem}: its seal is not readable: {str(error).splitlines()[0]}"


def _differences(seal: Seal, now: Seal) -> Iterator[str]:
    for what, then, present in (
        ("code", seal.code, now.code),
        ("param", seal.params, now.params),
        ("input", seal.reads, now.reads),
        ("output", seal.writes, now.writes),
        ("file", seal.apart, now.apart),
    ):
        for name in sorted(then.keys() | present.keys()):
            if then.get(name) != present.get(name):
                yield f"{what} {name} has changed since"


def code_hashes(places: tuple[str, ...]) -> dict[str, str]:
    """Return the sha256 of each file or folder below simic/."""
    return {place: content_hash(PACKAGE / place) for place in places}


def extension_hashes(root: Path, tree: Params) -> dict[str, str]:
    """Return the sha256 of each of the user's files that the params name."""
    folder = root / params.EXTENSIONS_FOLDER
    return {
        f"{params.EXTENSIONS_FOLDER}/{name}": content_hash(folder / f"{name}.py")
        for name in tree.extensions
    }


def content_hash(place: Path) -> str:
    """Hash the names and contents of a folder's files, or a file; empty where there is none. Bytecode and what numba
    compiled are left out: they come of running the code.
    """
    if not place.is_dir():
        return durable.sha256(place) if place.exists() else ""
    # Sorted, since a file system lists names in any order.
    files = sorted(
        path
        for path in place.rglob("*")
        if path.is_file()
        and path.name not in APART
        and "__pycache__" not in path.relative_to(place).parts
    )
    # Names are hashed with the contents: swapped files would otherwise go unnoticed.
    listed = "".join(
        f"{durable.sha256(path)} {path.relative_to(place).as_posix()}\n" for path in files
    )
    return hashlib.sha256(listed.encode()).hexdigest()


@contextmanager
def explain_damage(root: Path, params: Params) -> Iterator[None]:
    """Turn an error into SimicError naming the damage where files are not as they were sealed."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        # Only now, since hashing takes seconds, and mostly nothing is wrong.
        damaged, _ = broken(root, params)
        # All is as it was sealed, so the error is a defect, and keeps its traceback.
        if not damaged:
            raise
        raise SimicError(
            f"{root}: {damaged[0]}, and no report can be made of what is there ({type(error).__name__}); "
            f"dvc checkout brings back what was recorded, or run simic {damaged[0].partition(':')[0]} again"
        ) from error
