"""Is a stage's record true, and record it: DVC as a command, in projects of a few lines."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import dvc_record

DVC_YAML = """
stages:
  double:
    cmd: exit 9
    deps: [code.py]
    params: [number]
    outs: [out.txt]
"""


PARAMS = {"number": 2}


def computed(folder: Path) -> Path:
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text(
        "[core]\n    analytics = false\n    check_update = false\n"
    )
    files = {"dvc.yaml": DVC_YAML, "params.yaml": "number: 2\n", "code.py": "1", "out.txt": "4"}
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A DVC project outside git, with its stage's output computed and not recorded."""
    return computed(tmp_path / "project")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = computed(tmp_path_factory.mktemp("committed") / "project")
    dvc_record.commit(folder, "double", PARAMS)
    return folder


@pytest.fixture
def recorded(committed: Path, tmp_path: Path) -> Path:
    """The same with a record; it may be spoilt."""
    return Path(shutil.copytree(committed, tmp_path / "recorded"))


def test_any_change_of_code_params_or_output_makes_it_stale(recorded: Path) -> None:
    assert not dvc_record.is_stale(recorded, "double")
    for name, content in (("code.py", "2"), ("params.yaml", "number: 3\n"), ("out.txt", "5")):
        before = (recorded / name).read_text()
        (recorded / name).write_text(content)
        assert dvc_record.is_stale(recorded, "double"), name
        (recorded / name).write_text(before)


def test_unpacked_archive_works_and_joining_git_later_too(recorded: Path) -> None:
    assert "no_scm = true" in (recorded / ".dvc" / "config.local").read_text()
    subprocess.run(["git", "init", "-q", str(recorded)], check=True)
    assert not dvc_record.is_stale(recorded, "double")
    assert "no_scm" not in (recorded / ".dvc" / "config.local").read_text()


def test_a_record_that_was_cut_short_takes_no_other_stage_with_it(recorded: Path) -> None:
    """DVC killed while it writes dvc.lock, at one byte or another."""
    second = (
        DVC_YAML.partition("stages:\n")[2]
        .replace("double", "after")
        .replace("out.txt", "other.txt")
    )
    (recorded / "dvc.yaml").write_text(DVC_YAML + second)
    (recorded / "other.txt").write_text("5")
    lock, backup = recorded / "dvc.lock", recorded / ".simic" / "dvc.lock-before-after"
    before = lock.read_bytes()
    dvc_record.commit(recorded, "after", PARAMS)
    assert not backup.exists()
    content = lock.read_bytes()
    for end in range(0, len(content), 13):
        lock.write_bytes(content[:end])
        backup.write_bytes(before)
        assert dvc_record.is_recorded(recorded, "out.txt"), end
        assert not backup.exists()
    assert dvc_record.is_stale(recorded, "after") is not dvc_record.is_recorded(
        recorded, "other.txt"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"<<<<<<< HEAD\nschema: '2.0'\n=======\n",
        b"[" * 5000,
        b"schema: '2.0'\nstages: {double: {deps: [x]}}",
        b"schema: '2.0'\nstages: {double: {params: {params.yaml: 3}}}",
    ],
    ids=repr,
)
def test_a_damaged_lock_is_named_by_whatever_reads_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_bytes(content)
    for ask in (
        lambda: dvc_record.is_recorded(tmp_path, "out.txt"),
        lambda: dvc_record.is_stale(tmp_path, "double"),
        lambda: dvc_record.commit(tmp_path, "double", PARAMS),
    ):
        with pytest.raises(SimicError, match=r"/dvc\.lock: damaged: .*; git checkout dvc\.lock"):
            ask()


@pytest.mark.parametrize(("earlier", "room"), [(True, True), (True, False), (False, True)])
def test_a_disk_that_is_full_while_dvc_writes_its_lock_costs_no_record(
    recorded: Path, earlier: bool, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC empties dvc.lock before it writes it; empty, it can read it no more. To put it back needs room too."""
    lock, replace, written = recorded / "dvc.lock", dvc_record.durable.replace_file, list[Path]()
    if not earlier:
        lock.unlink()
    before = lock.read_bytes() if earlier else None

    def full(*_: object, **__: object) -> str:
        lock.write_bytes(b"")
        raise SimicError("dvc commit failed: No space left on device")

    def write(path: Path, content: bytes) -> None:
        written.append(path)
        if path == lock and not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(dvc_record, "_patiently", full)
        patch.setattr(dvc_record.durable, "replace_file", write)
        with pytest.raises(SimicError, match="No space left"):
            dvc_record.commit(recorded, "double", PARAMS)
    assert (lock in written) is earlier  # else there was none, which needs no room
    assert dvc_record.is_recorded(recorded, "out.txt") is earlier
    assert (lock.read_bytes() if lock.exists() else None) == before
    assert list((recorded / ".simic").iterdir()) == []


def test_params_are_recorded_as_the_stage_had_them_whatever_params_yaml_says_by_then(
    recorded: Path,
) -> None:
    """To write them there for the time of the record would leave them there if the run is killed meanwhile."""
    dvc_record.commit(recorded, "double", {"number": 7})
    assert "number: 7" in (recorded / "dvc.lock").read_text()
    assert (recorded / "params.yaml").read_text() == "number: 2\n"
    assert dvc_record.is_stale(recorded, "double")
    (recorded / "params.yaml").write_text("number: 7")
    assert not dvc_record.is_stale(recorded, "double")


def test_a_record_that_failed_leaves_nothing_to_put_back(recorded: Path) -> None:
    """Else a lock that someone else has written since would be undone."""
    (recorded / "out.txt").unlink()
    with pytest.raises(
        SimicError, match=r"dvc commit --no-relink -f double failed in .*: .*out.txt"
    ):
        dvc_record.commit(recorded, "double", PARAMS)
    assert list((recorded / ".simic").iterdir()) == []


def test_the_cache_that_dvc_unpickles_is_the_users_alone(recorded: Path) -> None:
    cache = recorded / ".dvc" / "tmp" / f"site-{os.getuid()}"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert any((cache / "repo").iterdir())  # DVC uses it


def test_missing_dvc_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SimicError, match=r"not a DVC project \(no \.dvc folder\)") as caught:
        dvc_record.is_stale(tmp_path, "double")
    assert "\n" not in str(caught.value)


def test_busy_names_the_process_and_what_is_left_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second DVC process holds the output; commit waits its patience out, then says how to go on."""
    sleep = f"echo 4 > out.txt && {sys.executable} -c 'import time; time.sleep(60)'"
    (project / "dvc.yaml").write_text(DVC_YAML.replace("exit 9", sleep))
    dvc_record.configure(project)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "dvc", "repro"]
    process = subprocess.Popen(command, cwd=project, start_new_session=True, **quiet)
    try:
        lock, deadline = project / ".dvc" / "tmp" / "rwlock", time.monotonic() + 20
        while not (
            lock.exists() and "out.txt" in lock.read_text() and (project / "out.txt").exists()
        ):
            assert time.monotonic() < deadline, "dvc repro never took its lock"
            time.sleep(0.05)
        monkeypatch.setattr(dvc_record, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(dvc_record.Busy, match="dvc is busy") as caught:
            dvc_record.commit(project, "double", PARAMS)
    finally:
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=True)
        process.wait()
    assert str(process.pid) in str(caught.value) and "dvc commit -f double" in str(caught.value)


def test_revision_is_that_of_the_code_and_not_of_what_a_run_writes(tmp_path: Path) -> None:
    (tmp_path / "simic").mkdir()
    (tmp_path / "simic" / "code.py").write_text("1")
    (tmp_path / "dvc.lock").write_text("a")

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        result = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return result.stdout.strip()

    git("init", "-q")
    assert dvc_record.code_revision(tmp_path) == ""  # nothing is committed
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    assert dvc_record.code_revision(tmp_path) == commit
    (tmp_path / "dvc.lock").write_text("b")
    (tmp_path / "params.yaml").write_text("rng_seed: 2")
    assert dvc_record.code_revision(tmp_path) == commit
    (tmp_path / "simic" / "new.py").write_text("2")
    assert dvc_record.code_revision(tmp_path) == f"{commit}-dirty"
