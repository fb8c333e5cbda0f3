"""Ask DVC whether a stage is out of date, and record stages: by its command line, without a shell, here alone."""

import base64
import hashlib
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simic import durable, seals
from simic.errors import SimicError
from simic.params import value_at
from simic.pipeline.paths import Workspace
from simic.safe_read import read_file

_BUSY_PHRASES = ("is busy, it is being blocked by", "Unable to acquire lock")
_NO_REPOSITORY = "you are not inside of a DVC repository"
# Inputs of a run. Its outputs, and dvc.lock, which it rewrites, do not make a checkout dirty.
CODE = ("simic", "flows", "extensions", "pyproject.toml", "constraints.txt")
PATIENCE_SECONDS = 60.0  # with another DVC process, such as one that a killed run left behind
BEFORE = "dvc.lock-before-"  # and the stage: a copy of dvc.lock while DVC records that stage
LONGEST_LOCK = 20_000_000  # bytes of a dvc.lock
RAN_WITH = "recorded-params.yaml"
WITH_PARAMS = Path(__file__).with_name(
    "dvc_params.py"
)  # a program of its own: to import DVC takes seconds


class Busy(SimicError):
    """Say that another DVC process holds this workspace."""


def is_stale(root: Path, stage: str) -> bool:
    """Ask DVC whether code, params, inputs or outputs of a stage differ from dvc.lock; SimicError where it cannot."""
    # DVC refuses to start without git, unless it is told that there is none.
    configure(root)
    _recorded(root)
    return bool(json.loads(_patiently(root, "status", "--json", stage)))


def is_recorded(root: Path, file: str) -> bool:
    """Tell whether dvc.lock has a stage's file as it is now; without DVC, so that a stage which DVC runs can ask."""
    # The hash counts, and not the time of the file: git sets that anew at each checkout.
    path = root / file
    outputs = [output for stage in _recorded(root).values() for output in stage.outs]
    hashes = [output.md5 for output in outputs if output.path == file]
    return path.exists() and _md5(path.read_bytes()) in hashes


def recorded_stages(root: Path) -> set[str]:
    """Name the stages that dvc.lock has; SimicError where it cannot be read."""
    return {*_recorded(root)}


def damaged_cache(root: Path) -> list[Path]:
    """List the files of DVC's cache that are not what their names say: `dvc checkout` would bring those back."""
    # Half-written ones have other names.
    files = (root / ".dvc" / "cache" / "files" / "md5").glob("[0-9a-f][0-9a-f]/*")
    digests = {
        file: digest
        for file in files
        if re.fullmatch("[0-9a-f]{32}", digest := file.parent.name + file.name.removesuffix(".dir"))
    }
    return [file for file, digest in digests.items() if _md5(file.read_bytes()) != digest]


def sees_no_change(root: Path, stage: str, tree: Mapping[str, Any]) -> bool:
    """Tell whether dvc.lock has a stage's code and params as they are now; without DVC.

    Args:
        root: Of the project.
        stage: Its name.
        tree: The params as params.yaml would have them.

    DVC watches more than what decides a result: each file of extensions/, and how a value is written in params.yaml.
    What other stages made is left out: the seals compare that.
    """
    # Params by value: a comment or another order of keys in params.yaml is no change.
    entry = _recorded(root).get(stage) or _Entry()
    values = entry.params.get("params.yaml", {})
    if any(value_at(tree, key) != value for key, value in values.items()):
        return False
    # Files by the hash that DVC would compute.
    watched = {dep.path: dep.md5 for dep in entry.deps}
    places = watched.keys() - {*seals.STAGES[stage].reads}
    return all(_hash_of(root / place) == watched[place] for place in places)


def _hash_of(place: Path) -> str:
    """Hash a file or folder as DVC does; empty where there is none."""
    if not place.is_dir():
        return _md5(place.read_bytes()) if place.exists() else ""
    files = (
        path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    listed = [
        {"md5": _md5(path.read_bytes()), "relpath": path.relative_to(place).as_posix()}
        for path in files
    ]
    # DVC's own order and form: any other text has another hash.
    listed.sort(key=operator.itemgetter("relpath"))
    return f"{_md5(json.dumps(listed, sort_keys=True).encode())}.dir"


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def commit(root: Path, stage: str, tree: Mapping[str, Any]) -> None:
    """Record the stage's outputs as they are now; wait for another DVC process to finish before giving up.

    Args:
        root: Of the project.
        stage: Its name.
        tree: The params to record, as params.yaml would have them; that file may say others.
    """
    configure(root)
    _recorded(root)
    # DVC truncates dvc.lock before it writes: killed in between it would lose all other stages.
    copy = Workspace(root).state / f"{BEFORE}{stage}"
    lock = root / "dvc.lock"
    copy.parent.mkdir(exist_ok=True)
    ran_with = copy.with_name(RAN_WITH)
    durable.replace_file(ran_with, json.dumps(tree).encode())
    durable.replace_file(copy, lock.read_bytes() if lock.exists() else b"")
    try:
        # Not -q: that would silence the reason of a failure. Relinking takes outputs away for a moment.
        _patiently(root, "commit", "--no-relink", "-f", stage, params=ran_with)
    except Busy as busy:
        copy.unlink()
        # Not lost: the outputs are in place, only their record is missing.
        raise Busy(
            f"{busy}; stage {stage} is done but not recorded; to record it: dvc commit -f {stage}"
        ) from None
    except SimicError:
        with suppress(
            OSError
        ):  # no room for it: then the copy stays, and is put back by the next command
            restore(root)
        raise
    finally:
        ran_with.unlink()
    copy.unlink()


def refuse_no_project(root: Path) -> None:
    """Raise SimicError where there is no DVC project."""
    if not (root / ".dvc").is_dir():
        raise _no_project(root)


def _no_project(root: Path) -> SimicError:
    remedy = "clone simic again, or run dvc init there"
    return SimicError(f"{root}: not a DVC project (no .dvc folder); {remedy}")


def add(root: Path, folder: str) -> str:
    """Version a folder that no stage makes.

    Args:
        root: Of the project.
        folder: Relative to it; ``FOLDER.dvc`` beside it, which is to be committed, names the version.

    Returns:
        The hash of its content.
    """
    configure(root)
    _patiently(root, "add", folder)
    entry = YAML(typ="safe").load((root / f"{folder}.dvc").read_bytes())
    return str(_Entry.model_validate(entry).outs[0].md5)


def default_remote(root: Path) -> str | None:
    """Look up the name of the store that `dvc push` sends to; None where none is set."""
    configure(root)
    names = re.findall(r"^core\.remote=(.*)$", _dvc(root, "config", "--list"), re.MULTILINE)
    return names[-1] if names else None


def experiments(root: Path) -> str:
    """Ask DVC for what `dvc exp show` has of all experiments, as JSON."""
    configure(root)
    return _patiently(root, "exp", "show", "--json", "--all-commits")


def push(root: Path) -> int:
    """Send what dvc.lock records to the default remote; return how many files were not there yet."""
    configure(root)
    sent = re.search(r"(\d+) files? pushed", _patiently(root, "push"))
    return int(sent[1]) if sent else 0


def restore(root: Path) -> None:
    """Restore dvc.lock where DVC, which writes it in place, was killed meanwhile and lost other stages."""
    lock = root / "dvc.lock"
    for copy in Workspace(root).state.glob(f"{BEFORE}*"):
        stage = copy.name.removeprefix(BEFORE)
        before = copy.read_bytes()
        try:
            # The entry of the stage itself may have changed: that is what was being recorded.
            now = _stages(lock)
            lost = bool(before) and any(
                now.get(name) != entry for name, entry in _stages(copy).items() if name != stage
            )
        except ValueError:
            lost = True
        # Otherwise the record is whole, and the copy has done its service.
        if lost and before:
            durable.replace_file(lock, before)
        elif lost:  # there was none
            lock.unlink()
        copy.unlink()


class _File(BaseModel):
    """Hold what dvc.lock has of a file or folder."""

    model_config = ConfigDict(extra="allow")
    path: str
    md5: str | None = None


class _Entry(BaseModel):
    """Hold what dvc.lock has of a stage."""

    model_config = ConfigDict(extra="allow")
    deps: list[_File] = []
    outs: list[_File] = []
    params: dict[str, dict[str, Any]] = {}


class _Lock(BaseModel):
    """Hold a dvc.lock. An empty one is what is left where its writer was killed: it has no schema."""

    schema_: str = Field(alias="schema")
    stages: dict[str, _Entry] = {}


def _recorded(root: Path) -> dict[str, _Entry]:
    """Read what dvc.lock has by stage; SimicError where it cannot be read."""
    restore(root)
    lock = root / "dvc.lock"
    try:
        return _stages(lock)
    except ValueError as error:
        raise SimicError(
            f"{lock}: damaged: {error}; git checkout dvc.lock restores it; without it all stages run again"
        ) from None


def _stages(lock: Path) -> dict[str, _Entry]:
    """Read what a dvc.lock has by stage; ValueError where it cannot be read."""
    if not lock.exists():
        return {}
    content = read_file(lock, LONGEST_LOCK, "")
    # Its nesting may exhaust the reader.
    try:
        return _Lock.model_validate(YAML(typ="safe").load(content)).stages
    except ValidationError as error:
        places = ".".join(str(place) for place in error.errors()[0]["loc"]) or "all of it"
        raise ValueError(f"not what DVC writes ({places})") from None
    except (YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _patiently(root: Path, *arguments: str, params: Path | None = None) -> str:
    # A killed run may leave a DVC process behind, which usually ends by itself within this time.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return _dvc(root, *arguments, params=params)
        except Busy:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def code_revision(root: Path) -> str:
    """Name the commit of the checkout, with ``-dirty`` where code differs from it: results and their records, which a
    run writes itself, do not count. The empty string outside git.
    """
    commit = _git(root, "rev-parse", "HEAD").strip()
    return f"{commit}-dirty" if commit and changed_files(root) else commit


def changed_files(root: Path) -> list[str]:
    """List the files of the code that differ from the commit of the checkout, or from what was installed."""
    # Untracked files count: an extension that was never added decides results too.
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *CODE)
    return sorted({line[3:] for line in status.splitlines()} | {*_edited_installation()})


def removed_files(root: Path) -> list[str]:
    """List the files of the code that are missing, by the commit of the checkout or by what was installed."""
    in_checkout = _git(root, "ls-files", "--deleted", "--", *CODE).splitlines()
    return in_checkout + [file for file in _edited_installation() if not Path(file).exists()]


def _git(root: Path, *arguments: str) -> str:
    """Ask git; the empty string outside of a repository."""
    if not in_git(root) or shutil.which("git") is None:
        return ""
    # Whose code runs here is trusted already, though another user may own the checkout.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def _edited_installation() -> Iterator[str]:
    """Yield the installed files of simic that are not as they were installed; none of a checkout."""
    # Without git the hashes that pip recorded are the only ones to compare with.
    try:
        files = distribution("simic-grow").files or ()
    except PackageNotFoundError:
        return
    for file in files:
        if file.suffix == ".py" and file.hash is not None:
            path = Path(str(file.locate()))
            content = path.read_bytes() if path.exists() else b""
            digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
            if digest.decode().rstrip("=") != file.hash.value:
                yield str(path)


def configure(root: Path) -> None:
    """Tell DVC in its local config whether there is git (an unpacked archive has none), and of a cache of its own.

    DVC unpickles what is in its site cache, and the usual one lies where every user of the machine may write
    (CVE-2025-69872 of diskcache).
    """
    if not (root / ".dvc").is_dir():
        return
    # The local configuration is not versioned, so that a checkout of the same project elsewhere keeps its git.
    local = root / ".dvc" / "config.local"
    settings = local.read_text(encoding="utf-8") if local.exists() else ""
    without_git = "no_scm = true" in settings
    if without_git == in_git(root):
        change = ("--unset", "core.no_scm") if without_git else ("core.no_scm", "true")
        _dvc(root, "config", "--local", *change)
    # Made here, since DVC would let everybody write to it; each user of a shared checkout has one.
    cache = root.resolve() / ".dvc" / "tmp" / f"site-{os.getuid()}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.chmod(0o700)
    if f"site_cache_dir = {cache}\n" not in settings:
        _dvc(root, "config", "--local", "core.site_cache_dir", str(cache))


def in_git(root: Path) -> bool:
    """Tell whether a folder is inside of a git repository."""
    return any((folder / ".git").exists() for folder in (root.resolve(), *root.resolve().parents))


def _dvc(root: Path, *arguments: str, params: Path | None = None) -> str:
    """Run a DVC command in ``root`` for its standard output; SimicError with its last error line when it fails.

    Args:
        root: Of the project.
        arguments: Of the command.
        params: A file that stands in for params.yaml.
    """
    # -P: the project's folders (data, flows, ...) must not shadow anything DVC imports
    program = ["-m", "dvc"] if params is None else [str(WITH_PARAMS), str(params.resolve())]
    command = [sys.executable, "-P", *program, *arguments]
    # In a session of its own: Ctrl-C is for this process, which may have it finish a record.
    done = subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    if done.returncode == 0:
        return done.stdout
    # DVC has no exit code for this.
    if any(phrase in done.stderr for phrase in _BUSY_PHRASES):
        holder = (
            done.stderr.partition("being blocked by:")[2].strip().splitlines()[:1]
        )  # (PID 12): dvc repro
        raise Busy(
            f"dvc is busy in {root}: "
            + (f"{holder[0].strip()} is running" if holder else _reason(done.stderr))
        )
    if _NO_REPOSITORY in done.stderr:
        raise _no_project(root)
    reason = _reason(done.stderr) or f"exit code {done.returncode}"
    # DVC keeps its hashes in SQLite, which says no more of a full disk.
    if "disk I/O error" in reason:
        reason += " (No space left on device?)"
    raise SimicError(f"dvc {' '.join(arguments)} failed in {root}: {reason}")


def _reason(stderr: str) -> str:
    """Pick out what DVC calls an error, else its last line; of an error for every file the last, and their number."""
    # One error for every file of a large folder would fill the screen.
    lines = [
        line.removeprefix("ERROR: ").strip()
        for line in stderr.splitlines()
        if line.startswith("ERROR")
    ]
    if len(lines) > 2:
        return f"{lines[-1]} ({len(lines) - 1} more errors)"
    return " ".join(lines) or stderr.strip().rpartition("\n")[2]
