"""Params that no run could use are refused in one line: files with one value changed, cut off, damaged or hostile."""

import copy
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from simic import cli, params
from simic.errors import SimicError, printable
from simic.params_file import MAX_BYTES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "params.yaml").read_text()
TREE = yaml.safe_load(TEXT)
SHIPPED = params.load(ROOT / "params.yaml")
HUGE = (1e30, -1e30, 10**12, -(10**12), float("nan"), float("inf"), -float("inf"))
FREE = {("train", "actions"), ("train", "ppo", "entropy_scale"), ("train", "ppo", "entropy_floor")}  # keys of one's own


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and (*path, key) not in FREE:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def wrong_values(path: tuple[str, ...], value: Any) -> list[Any]:
    """What no run can use there."""
    if path in FREE:
        return [3, "banana", [1], None, {"op": "banana"}, {"op": {"a": 1}}, {"op": None}]
    common: list[Any] = [{"a": 1}, [[1]], [None], "b" * 5000]
    if path == ("rng_seed",):
        return [*common, *HUGE, -1, 1.5, "banana", None, True]
    if path == ("prepare", "source"):
        return [*common, "banana", 3, True]  # a file where the task takes none
    if path == ("train", "episode_steps"):  # a number or a range
        return [*common, *HUGE, 0, 2.5, True, "banana", [5], [16, 5], [0, 5], [5, 9, 16]]
    if path == ("evaluate", "epochs"):
        return [*common, *HUGE, 12, 2.5, True, "banana", [], [0], [12, 0], [6, 6]]
    if isinstance(value, bool):
        return [*common, *HUGE, 0, 1, "yes", "banana", None]
    if isinstance(value, int | float) or path[-1] in ("samples", "max_seeds", "horizon", "kernel_size"):
        return [*common, *HUGE, "banana", "1", True, [1], 0 if path[-1] in COUNTS else -2 * abs(value or 1) - 1e7]
    if path[-1] in ("processes", "threads"):
        return [*common, *HUGE, 0, 2.5, True, "banana"]
    return [*common, *HUGE, 3, 2.5, True, "banana", ["banana", "banana"]]


COUNTS = ("envs", "episode_steps", "batch_size", "minibatches", "epochs", "core_units", "samples", "max_seeds",
          "horizon")  # fmt: skip


def changed(path: tuple[str, ...], value: Any) -> str:
    """The shipped file with one value changed, as text."""
    tree = copy.deepcopy(TREE)
    section = tree
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False)


def nonsense() -> list[tuple[tuple[str, ...], Any]]:
    """One key each, and a value with which no run can use the file."""
    found = [(path, value) for path, old in leaves(TREE) for value in wrong_values(path, old)]
    unknown = [(*path[:-1], path[-1] + "x") for path, _ in leaves(TREE)]
    return found + [(path, 1) for path in unknown if path[:-1] not in FREE]


def refusal(path: Path) -> str:
    """The one line."""
    with pytest.raises(SimicError) as caught:
        params.load(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 3000
    return message


def refused(cases: list[tuple[tuple[str, ...], Any]], path: Path) -> int:
    for place, value in cases:
        path.write_text(changed(place, value))
        key = ".".join(place)
        try:
            message = refusal(path)
        except BaseException as error:
            raise AssertionError(f"{key} = {str(value)[:20]}: {error!r}") from error
        assert any(part in message for part in (key, key.rpartition(".")[0], "params.yaml")), (key, message)
    return len(cases)


def test_every_kind_of_nonsense_is_refused(tmp_path: Path) -> None:
    """Every seventh; all of them in test-slow."""
    assert refused(nonsense()[::7], tmp_path / "params.yaml") >= 215


@pytest.mark.slow
def test_all_nonsense_is_refused(tmp_path: Path) -> None:
    assert refused(nonsense(), tmp_path / "params.yaml") >= 1500


def cut(places: range, path: Path) -> int:
    """How many of the files that end at these places are refused; the others lack a comment at most."""
    count = 0
    for place in places:
        path.write_text(TEXT[:place])
        try:
            assert params.load(path) == SHIPPED, place
        except SimicError:
            count += 1
    return count


def test_what_is_tried_is_enough() -> None:
    """Params with a wrong value, and what is made to hurt; data that hurt are in tests/data/test_hostile.py."""
    cases = nonsense()
    assert len(cases) >= 1500 and len({repr(case) for case in cases}) == len(cases)
    assert len(HOSTILE) + len(BYTES) + len(STRANGE) + len(OVERRIDES) >= 60


def test_a_file_that_was_cut_off_is_refused_wherever(tmp_path: Path) -> None:
    end = TEXT.index("extensions: []") + len("extensions: []")
    assert cut(range(0, end, 61), tmp_path / "params.yaml") == len(range(0, end, 61))
    assert cut(range(end, len(TEXT) + 1), tmp_path / "params.yaml") == 0


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_refused_everywhere(tmp_path: Path) -> None:
    end = TEXT.index("extensions: []") + len("extensions: []")
    assert cut(range(end), tmp_path / "params.yaml") == end


def damaged(count: int, path: Path) -> int:
    """Files with up to eight bytes changed at random: how many of so many are refused; the rest are sound params."""
    content, draw, kept = TEXT.encode(), random.Random(1), 0
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            tree = params.load(path)
            assert params.validate(tree.model_dump(mode="json"), "again") == tree
            kept += 1
        except SimicError:
            continue
    return count - kept


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    assert damaged(100, tmp_path / "params.yaml") > 50


@pytest.mark.slow
def test_much_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    assert damaged(3000, tmp_path / "params.yaml") > 1500


def bomb() -> str:
    """Nine lists of nine of nine …: a billion values from a few lines."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 10)]
    return "\n".join(lines)


HOSTILE = {
    "empty": "",
    "blank": "\n\n",
    "only a comment": "# nothing",
    "a list": "- 1",
    "a word": "hello",
    "nested lists": "a: " + "[" * 5000 + "]" * 5000,
    "nested lists without end": "a: " + "[" * 100_000,
    "nested mappings": "".join(" " * k + "a:\n" for k in range(400)),
    "nested mappings in a line": "a: " + "{a: " * 5000,
    "billion laughs": bomb(),
    "holds itself": TEXT.replace("  actions:", "  actions: &a\n    op: [*a]", 1),
    "merges itself": "a: &a {<<: *a}",
    "5000 digits": TEXT.replace("rng_seed: 1", "rng_seed: " + "9" * 5000),
    "5000 digits of a fraction": TEXT.replace("gamma: 1.0", "gamma: 0." + "9" * 5000 + "e9999"),
    "a key twice": TEXT + "\nrng_seed: 1\n",
    "a nested key twice": TEXT.replace("  iterations: ", "  iterations: 7\n  iterations: "),
    "a key twice in a line": TEXT.replace("{weight: 0.1}", "{weight: 1, weight: 2}"),
    "two documents": TEXT + "\n---\nrng_seed: 2\n",
    "a tag": "a: !!python/object/apply:os.system [id]",
    "another tag": TEXT.replace("rng_seed: 1", "rng_seed: !!int '1'"),
    "a set": TEXT.replace("policies: [learned, learned_sampled, blind]", "policies: !!set {learned, blind}"),
    "a directive of YAML 1.1 and a wrong value": "%YAML 1.1\n---\n" + TEXT.replace("rng_seed: 1", "rng_seed: 1:30"),
    "a tab": "\ta: 1",
    "a NUL": TEXT.replace("rng_seed: 1", "rng_seed: 1\0"),
    "an escape": TEXT.replace("rng_seed: 1", 'rng_seed: "\\e[2J"'),
    "a line break in a key": TEXT + '\n"a\\nb": 1\n',
    "a key of 10,000 characters": TEXT + f"\n{'k' * 1000}: 1\n",
    "a list as a key": TEXT + "\n[1]: 2\n",
    "a number as a key": TEXT + "\n1: 2\n",
    "a mapping as a key": TEXT + "\n? {a: 1}\n: 2\n",
    "a thousand unknown keys": TEXT + "\n" + "\n".join(f"key{k}: {k}" for k in range(1000)),
    "a lone surrogate": TEXT + '\na: "\\ud800"\n',
    "an alias of nothing": TEXT.replace("rng_seed: 1", "rng_seed: *nothing"),
    "a date that is none": TEXT.replace("source: null", "source: 2020-13-45"),
    "the same policy twice": TEXT.replace("[learned, learned_sampled, blind]", "[learned, learned]"),
    "an extension outside": TEXT.replace("extensions: []", "extensions: [../../evil]"),
    "an extension of the system": TEXT.replace("extensions: []", "extensions: [/etc/passwd]"),
}
BYTES = {
    "every byte": bytes(range(256)),
    "UTF-16": TEXT.encode("utf-16"),
    "gzip": b"\x1f\x8b\x08" + bytes(100),
    "random": random.Random(2).randbytes(4096),
    "too long": b"#" * (MAX_BYTES + 1),
    "half a character": TEXT.encode() + b"\xc3",
}


@pytest.mark.parametrize("case", [*HOSTILE, *BYTES])
def test_a_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(BYTES[case] if case in BYTES else HOSTILE[case].encode())
    assert str(path) in refusal(path)


def strange(folder: Path, case: str) -> Path:
    """The path of what is no params file."""
    path = folder / "params.yaml"
    if case == "pipe":
        os.mkfifo(path)
    elif case == "directory":
        path.mkdir()
    elif case == "link in a circle":
        path.symlink_to(path)
    elif case == "link to a device":
        path.symlink_to("/dev/zero")
    elif case == "under a file":
        (folder / "file").touch()
        return folder / "file" / "params.yaml"
    else:
        names = {
            "NUL": folder / "a\0b",
            "long": folder / ("a" * 300),
            "zero": Path("/dev/zero"),
            "random": Path("/dev/random"),
        }
        return names.get(case, folder / "absent.yaml")
    return path


STRANGE = (
    "pipe",
    "directory",
    "link in a circle",
    "link to a device",
    "under a file",
    "NUL",
    "long",
    "zero",
    "random",
    "none",
)


@pytest.mark.parametrize("case", STRANGE)
def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path, case: str) -> None:
    path = strange(tmp_path, case)
    assert printable(str(path)) in refusal(path)
    if case == "pipe":
        assert stat.S_ISFIFO(path.stat().st_mode)


OVERRIDES = {
    "-S train.ppo.lr=1": "-S train.ppo.lr=1: train.ppo.lr: unknown key; ",
    "-S train.ppo.learing_rate=1": "did you mean train.ppo.learning_rate?",
    "-S train.learning_rate=1": "did you mean train.host_optimizer.learning_rate or train.ppo.learning_rate?",
    "-S ppo.gamma=1": "-S ppo.gamma=1: ppo: unknown key; did you mean train.ppo?",
    "-S trian.iterations=3": "did you mean train?",
    "-S train.envs=0": "-S train.envs=0: train.envs = 0: must be an integer from 1 to 1000000; the default is 64",
    "-S train.ppo.learning_rate=1e30": "must be a number from 1e-12 to 10",
    "-S runtime.threads=1000000": "must be an integer from 1 to 256",
    "-S train.policy.core_units=1000000": "must be an integer from 1 to 8192",
    "-S train.envs=4 -S train.envs=8": "-S train.envs=8: undoes -S train.envs=4; give train.envs once",
    "-S train.envs=4 -S train={}": "-S train={}: undoes -S train.envs=4; give train once",
    "-S train.reward.score={weight: 1, weight: 2}": "found duplicate key",
    "-S train.envs=[": "not readable as YAML",
    "-S train.envs=7": "-S train.envs=7: train: envs (7) must be a multiple of ppo.minibatches (4)",
    "--params /dev/zero": "/dev/zero: is a device: must be a regular file",
    "--params .": ".: is a directory: must be a regular file",
    "--params nowhere.yaml": "nowhere.yaml: no such file",
}


@pytest.mark.parametrize("line", OVERRIDES)
def test_the_command_line_refuses_in_one_line_and_tells_it_of_what_was_given(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(TEXT)
    monkeypatch.setattr(sys, "argv", ["simic", "run", *re.findall(r"-S|--params|\S.*?(?= -S|$)", line)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, error = capfd.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert error.startswith("simic: ") and error.count("\n") == 1 and OVERRIDES[line] in error, error
    assert "params.yaml" not in error and Path("params.yaml").read_text() == TEXT


@pytest.mark.parametrize("case", ["billion laughs", "an escape", "a line break in a key"])
def test_the_command_as_a_process_ends_with_one_line_and_exit_code_2(tmp_path: Path, case: str) -> None:
    (tmp_path / "params.yaml").write_text(HOSTILE[case])
    command, environment = [sys.executable, "-m", "simic", "run"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "\x1b" not in done.stderr, done.stderr


def test_what_is_wrong_with_the_file_is_not_blamed_on_s(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(TEXT.replace("batch_size: 48", "batch_size: -1"))
    with pytest.raises(SimicError) as caught:
        params.load(path, ["train.ppo.gamma=2", "rng_seed=3"])
    file, given = str(caught.value).split("; -S ")
    assert file.startswith(f"{path}: train.batch_size = -1: must be")
    assert given.startswith("train.ppo.gamma=2: train.ppo.gamma = 2: must be a number from 0 to 1")
    assert "rng_seed" not in str(caught.value)
