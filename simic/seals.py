"""Seal files that belong together: every stage leaves the hashes of its code, params, inputs and outputs.

Seals are kept apart from DVC's record because that one is written by whoever asks for it (`dvc commit`), a seal only by
the stage itself; and because a run can be checked where there is no DVC.
"""

import functools
import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from simic import durable, params
from simic.errors import SimicError
from simic.params import Params

PACKAGE = Path(__file__).parent
FOLDER = Path("reports") / "seals"
# Wall times and the starts of a run differ between equal runs: a seal holds them apart from all else, and no other seal
# does.
APART = ("timing.jsonl", "run.json")


class Sealed(NamedTuple):
    """List what a stage depends on and makes: files below simic/, keys of params.yaml, places in the workspace."""

    code: tuple[str, ...]
    params: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


_HOSTS = ("agent", "data/batches.py", "durable.py", "envs", "program.py")
_BASE = ("growth", "rng.py", "transfer.py")
_MEASURING = (
    "checkpoint", "episodes", "growth_task", "gym_task", "learned", "machine", "task", "worker_layout",
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
            *("agent/gym_adapter.py", "agent/spec.py", "envs/__init__.py", "envs/gym_env.py"),
            *_BASE,
        ),
        params=("rng_seed", "extensions", "prepare"),
        reads=(),
        writes=("data/prepared",),
    ),
    "headroom": Sealed(
        code=(
            *(*_HOSTS, *_BASE, "evaluation", "telemetry/columns.py", "telemetry/rows.py"),
            *(f"training/{name}.py" for name in _MEASURING),
        ),
        params=(
            *("rng_seed", "extensions", "headroom", "evaluate.epochs", "evaluate.eval_seeds"),
            *(f"train.{name}" for name in _GROWN_AS),
        ),
        reads=("data/prepared",),
        writes=("reports/headroom.json",),
    ),
    "train": Sealed(
        code=(*_HOSTS, *_BASE, "telemetry", "training"),
        params=("rng_seed", "extensions", "train"),
        reads=("data/prepared",),
        writes=("checkpoints", "models", "telemetry"),
    ),
    "evaluate": Sealed(
        code=(
            *(*_HOSTS, *_BASE, "evaluation", "telemetry/columns.py", "telemetry/rows.py", "training"),
            "data/raw_inputs.py",
        ),
        params=("rng_seed", "extensions", "headroom", "train", "evaluate"),
        reads=("checkpoints", "data/prepared", "reports/headroom.json"),
        writes=("reports/grown", "reports/evaluation.json", "reports/metrics.json"),
    ),
}


class Seal(BaseModel):
    """Seal of one stage: sha256 by place, and the values of its params."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2] = 2
    stage: str
    code: dict[str, str]
    params: dict[str, JsonValue]
    reads: dict[str, str]
    writes: dict[str, str]
    apart: dict[str, str]  # of what it wrote, the files that differ between equal runs


def path_of(root: Path, stage: str) -> Path:
    """Return the file of a stage's seal."""
    return root / FOLDER / f"{stage}.json"


def write(root: Path, stage: str, tree: Params) -> None:
    """Seal what the stage has just made in the workspace ``root``; its last act."""
    seal = _now(root, stage, tree)
    path = path_of(root, stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(path, (seal.model_dump_json(indent=1) + "\n").encode())


def recipe(root: Path, stage: str, tree: Params) -> tuple[dict[str, str], dict[str, JsonValue]]:
    """Return the code and the params that decide what a stage makes of its inputs."""
    sealed, dumped = STAGES[stage], tree.model_dump(mode="json")
    code = code_hashes(sealed.code) | extension_hashes(root, tree)
    return code, {key: functools.reduce(operator.getitem, key.split("."), dumped) for key in sealed.params}


def _now(root: Path, stage: str, tree: Params) -> Seal:
    """Return the seal that the stage would be given as things are now."""
    sealed = STAGES[stage]
    code, values = recipe(root, stage, tree)
    return Seal(
        stage=stage,
        code=code,
        params=values,
        reads={place: content_hash(root / place) for place in sealed.reads},
        writes={place: content_hash(root / place) for place in sealed.writes},
        apart={
            path.relative_to(root).as_posix(): durable.sha256(path)
            for place in sealed.writes
            for path in sorted((root / place).rglob("*"))
            if path.name in APART
        },
    )


def read(root: Path, stage: str) -> Seal | None:
    """Return a stage's seal; None where it left none that can be read."""
    seal = _read(path_of(root, stage))
    return seal if isinstance(seal, Seal) else None


def broken(root: Path, tree: Params) -> tuple[list[str], list[str]]:
    """Hash everything again; return what differs from the seals, in words, and the stages that have one.

    A stage that left nothing is not looked at.
    """
    problems, looked = list[str](), list[str]()
    made: dict[str, tuple[str, str]] = {}  # by place: the stage that made it, and its hash then
    for stage, sealed in STAGES.items():
        if not any((root / place).exists() for place in sealed.writes):
            continue
        seal = _read(path_of(root, stage))
        if isinstance(seal, str):
            problems.append(seal)
            continue
        looked.append(stage)
        now = _now(root, stage, tree)
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
    stage = next(stage for stage, sealed in STAGES.items() if place in sealed.writes)
    file = path_of(root, stage)
    if not file.exists():
        return
    seal, remedy = _read(file), f"dvc checkout brings back what was recorded, or run simic {stage} again"
    if isinstance(seal, str):
        raise SimicError(f"{file}: {seal}; {remedy}")
    if content_hash(root / place) != seal.writes.get(place):
        raise SimicError(f"{root / place}: is not what {stage} made; {remedy}")


def _read(path: Path) -> Seal | str:
    """Return the seal, or what is wrong with it."""
    try:
        return Seal.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return f"{path.stem}: has outputs and no seal"
    except (OSError, ValidationError) as error:
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
    return {place: content_hash(PACKAGE / place, "*.py") for place in places}


def extension_hashes(root: Path, tree: Params) -> dict[str, str]:
    """Return the sha256 of each of the user's files that the params name."""
    folder = root / params.EXTENSIONS_FOLDER
    return {f"{params.EXTENSIONS_FOLDER}/{name}": content_hash(folder / f"{name}.py") for name in tree.extensions}


def content_hash(place: Path, pattern: str = "*") -> str:
    """Return the sha256 over names and contents of a folder's files, or of a file; empty where there is none."""
    if not place.is_dir():
        return durable.sha256(place) if place.exists() else ""
    files = sorted(path for path in place.rglob(pattern) if path.is_file() and path.name not in APART)
    listed = "".join(f"{durable.sha256(path)} {path.relative_to(place).as_posix()}\n" for path in files)
    return hashlib.sha256(listed.encode()).hexdigest()


@contextmanager
def explain_damage(root: Path, params: Params) -> Iterator[None]:
    """Turn an error into SimicError naming the damage where files are not as they were sealed."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        damaged, _ = broken(root, params)
        if not damaged:
            raise
        raise SimicError(
            f"{root}: {damaged[0]}, and no report can be made of what is there ({type(error).__name__}); "
            f"dvc checkout brings back what was recorded, or run simic {damaged[0].partition(':')[0]} again"
        ) from error
