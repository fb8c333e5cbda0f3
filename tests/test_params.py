"""params.yaml and its frozen tree: what no run could use is refused in one line, whatever is wrong with the file."""

import copy
import random
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simic import params
from simic.errors import SimicError
from simic.params import read_tree
from simic.pipeline import overrides
from tests.conftest import Simic

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "params.yaml").read_text()
TREE = yaml.safe_load(TEXT)
Keys = tuple[str, ...]


def test_the_shipped_file_and_the_classes_have_every_key_with_the_same_value() -> None:
    assert yaml.safe_load(yaml.safe_dump(params.Params().model_dump(mode="json"))) == TREE
    assert params.load(ROOT / "params.yaml") == params.Params()


def leaves(
    model: type[params.Tree] = params.Params, path: Keys = ()
) -> Iterator[tuple[Keys, TypeAdapter[Any]]]:
    """Every value of the tree and what its type admits."""
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, params.Tree):
            yield from leaves(kind, (*path, name))
        else:
            admitted = Annotated[(kind, *field.metadata)] if field.metadata else kind
            yield (*path, name), TypeAdapter(admitted, config=params.Tree.model_config)


LEAVES = dict(leaves())
WORDS = st.text(max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(WORDS, SCALARS, max_size=2)


def refused(tree: Any) -> str:
    """The one line that says why."""
    with pytest.raises(SimicError) as caught:
        params.validate(tree, "params.yaml")
    message = str(caught.value)
    assert "\n" not in message and len(message) < 3000
    return message


def changed(path: Keys, value: Any) -> dict[str, Any]:
    """The shipped params with another value."""
    tree = copy.deepcopy(TREE)
    at(path[:-1], tree)[path[-1]] = value
    return tree


def at(path: Keys, tree: Any) -> Any:
    return reduce(getitem, path, tree)


@given(st.sampled_from(sorted(LEAVES)), VALUES)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_what_its_type_does_not_admit_is_refused_by_name(path: Keys, value: Any) -> None:
    try:
        LEAVES[path].validate_python(value)
    except ValidationError:
        message = refused(changed(path, value))
        assert ".".join(path) in message, message
    else:
        assume(False)


# Mappings whose values are no numbers of simic's own: choices by head, and what an environment takes.
CALLERS = (("train", "actions"), ("prepare", "gym", "options"))


@pytest.mark.parametrize(
    "huge", [1e30, -1e30, 10**12, -(10**12), float("nan"), float("inf"), -float("inf")]
)
def test_no_number_is_without_a_range_and_none_is_a_flag(huge: float) -> None:
    for path, admitted in LEAVES.items():
        for value in (huge, [huge], {"op": huge}):
            if path not in CALLERS or value != {"op": huge}:
                with pytest.raises(ValidationError):
                    admitted.validate_python(value)
        if not isinstance(at(path, TREE), bool):
            with pytest.raises(ValidationError):
                admitted.validate_python(True)


def test_an_unknown_key_is_refused_in_every_section() -> None:
    for path in {path[:-1] for path in LEAVES}:
        message = refused(changed((*path, "zzzz"), 1))
        assert f"{'.'.join((*path, 'zzzz'))}: unknown key; known here are " in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "train.ppo.lr=0.1",
            ["-S train.ppo.lr=0.1: train.ppo.lr: unknown key; known here are learning_rate"],
        ),
        (
            "train.learning_rate=1",
            ["did you mean train.host_optimizer.learning_rate or train.ppo.learning_rate?"],
        ),
        ("ppo.gamma=1", ["ppo: unknown key; did you mean train.ppo?"]),
        ("train.ppo.value_clip=0.2", ["train.ppo.value_clip: unknown key", "clip_range"]),
        ("train.ppo.gradient_accumulation=2", ["train.ppo.gradient_accumulation: unknown key"]),
        ("train.envs=0", ["train.envs = 0: must be greater than or equal to 1"]),
        ("train.envs=2.5", ["train.envs = 2.5: must be a valid integer"]),
        ("train.envs=7", ["train: envs (7) must be a multiple of ppo.minibatches (4)"]),
        (
            "train.ppo.learning_rate=1e30",
            ["train.ppo.learning_rate = 1e+30: must be less than or equal to 10"],
        ),
        (
            "train.ppo.learning_rate=.nan",
            ["train.ppo.learning_rate = nan: must be a finite number"],
        ),
        (
            "train.policy.core=rnn",
            ["train.policy.core = 'rnn': must be 'lstm', 'gru', 'transformer' or 'none'"],
        ),
        (
            "train.host.family=vit",
            ["train.host.family = 'vit': must be one of", "cnn", "mlp", "transformer"],
        ),
        (
            "train.host.widths=[16, 16, 16]",
            ["train.host: widths [16, 16, 16]: family tables has two, or null"],
        ),
        ("prepare.split.train=0.9", ["prepare.split: ", "sum to 1"]),
        ("prepare.task=npz", ["prepare: source is", "required"]),
        ("prepare.source=mine.npz", ["prepare: source is", "null otherwise"]),
        ("train.episode_steps=[16, 5]", ["train: episode_steps (16, 5): must be low, high"]),
        ("evaluate.epochs=[12, 0]", ["evaluate.epochs.1 = 0: must be greater than or equal to 1"]),
        (
            "evaluate.policies=[blind, blind]",
            ["evaluate.policies = ['blind', 'blind']: values must be unique"],
        ),
        ("train=3", ["train = 3: must be a section, with KEY: VALUE in it"]),
        ("extensions=[../scale]", ["extensions.0 = '../scale': ", "match"]),
        ("extensions=[nowhere]", ["extensions/nowhere.py", "no such file"]),
        *(
            (override, [f"-S {override}: "])
            for override in ("train.envs", "=3", "train..envs=3", "rng_seed.x=3", "train.envs=[1")
        ),
    ],
)
def test_wrong_value_names_key_value_and_range(override: str, words: list[str]) -> None:
    with pytest.raises(SimicError) as caught:
        params.load(ROOT / "params.yaml", [override])
    message = str(caught.value)
    assert "\n" not in message and "params.yaml" not in message
    assert [word for word in words if word not in message] == []


def test_what_is_wrong_with_the_file_is_not_blamed_on_s(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(TEXT.replace("batch_size: 48", "batch_size: -1"))
    with pytest.raises(
        SimicError, match=r"params\.yaml: train\.batch_size = -1: must be"
    ) as caught:
        params.load(path, ["train.ppo.gamma=2"])
    assert "gamma" not in str(caught.value)


def test_a_file_that_was_cut_off_is_refused_wherever(tmp_path: Path) -> None:
    path, end = tmp_path / "params.yaml", TEXT.index("extensions: []") + len("extensions: []")
    for place in range(0, end, 61):
        path.write_text(TEXT[:place])
        with pytest.raises(SimicError):
            params.load(path)
    path.write_text(TEXT[:end])
    assert params.load(path) == params.Params()


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    """Up to eight bytes changed: what is not refused is sound params."""
    draw, accepted, count, path = random.Random(1), 0, 100, tmp_path / "params.yaml"
    for _ in range(count):
        content = bytearray(TEXT.encode())
        for _ in range(draw.randint(1, 8)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        try:
            tree = params.load(path)
        except SimicError:
            continue
        assert params.validate(tree.model_dump(mode="json"), "again") == tree
        accepted += 1
    assert accepted < count / 2


# Nine lists of nine of nine …: a billion values from a few lines.
BOMB = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}' if k else '1'] * 9)}]" for k in range(10)]


def with_seed(text: str) -> str:
    return TEXT.replace("rng_seed: 1", f"rng_seed: {text}")


HOSTILE: dict[str, str | bytes] = {
    "empty": "",
    "a list": "- 1",
    "nested lists without end": "a: " + "[" * 100_000,
    "billion laughs": "\n".join(BOMB),
    "holds itself": TEXT.replace("  actions:", "  actions: &a\n    op: [*a]", 1),
    "5000 digits": with_seed("9" * 5000),
    "a key twice": TEXT + "\nrng_seed: 1\n",
    "two documents": TEXT + "\n---\nrng_seed: 2\n",
    "a tag": "a: !!python/object/apply:os.system [id]",
    "a directive of YAML 1.1 and a wrong value": "%YAML 1.1\n---\n" + with_seed("1:30"),
    "a NUL": with_seed("1\0"),
    "an escape": with_seed('"\\e[2J"'),
    "a line break in a key": TEXT + '\n"a\\nb": 1\n',
    "a number as a key": TEXT + "\n1: 2\n",
    "a thousand unknown keys": TEXT + "\n" + "\n".join(f"key{k}: {k}" for k in range(1000)),
    "a lone surrogate": TEXT + '\na: "\\ud800"\n',
    "a date": TEXT.replace("source: null", "source: 2020-01-01"),
    "UTF-16": TEXT.encode("utf-16"),
    "too long": b"#" * (params.MAX_BYTES + 1),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    path, content = tmp_path / "params.yaml", HOSTILE[case]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SimicError) as caught:
        params.load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and len(message) < 3000


COMMANDS = {
    "-S train.envs=4 -S train.envs=8": "-S train.envs=8: undoes -S train.envs=4; give train.envs once",
    "-S train.envs=4 -S train={}": "-S train={}: undoes -S train.envs=4; give train once",
    "-S train.envs=[": "not readable as YAML",
    "--params nowhere.yaml": "nowhere.yaml: no such file",
    "--params escape.yaml": r"rng_seed = '\x1b[2J'",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_line_refuses_in_one_line_and_changes_nothing(
    tmp_path: Path, line: str, simic: Simic
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(TEXT)
    (tmp_path / "escape.yaml").write_text(str(HOSTILE["an escape"]))
    error = simic.refuses("run", *line.split(), root=tmp_path)
    assert COMMANDS[line] in error and simic.out == "" and "\x1b" not in error
    assert "params.yaml" not in error and path.read_text() == TEXT


def test_the_lengths_that_follow_from_a_range() -> None:
    tree = params.load(ROOT / "params.yaml", ["train.episode_steps=[4, 7]", "evaluate.epochs=null"])
    train = tree.train
    assert (train.shortest_episode, train.middle_episode, train.longest_episode) == (4, 6, 7)
    assert tree.lengths == (7,)  # the longest, where none are named
    assert params.load(ROOT / "params.yaml", ["evaluate.epochs=[6, 12]"]).lengths == (6, 12)


# As YAML 1.2 has it and DVC reads it; YAML 1.1 has 15, 90, "1e3", True, "0o17" and 1:30 = 90 among them.
FORMS: dict[str, Any] = {
    "017": 17, "09": 9, "0o17": 15, "0x1F": 31, "1_000": 1000, "+1": 1, "-0": 0,
    "1e3": 1000.0, "1E3": 1000.0, "12e03": 12000.0, "1e-4": 0.0001, "1.e-6": 1e-06, "1.": 1.0, ".5": 0.5, "1.0": 1.0,
    "1:30": "1:30", "1:30:00": "1:30:00", "yes": "yes", "NO": "NO", "on": "on", "0o9": "0o9", "1e": "1e", "y": "y",
    "'017'": "017", '"1e3"': "1e3", "'yes'": "yes", "'~'": "~", "'2020-01-01'": "2020-01-01", "'1:30'": "1:30",
    "a b": "a b", "1,5": "1,5", "1 000": "1 000",
}  # fmt: skip


def test_simic_reads_every_scalar_as_dvc_does_in_the_file_and_with_s(tmp_path: Path) -> None:
    from dvc.utils.serialize import parse_yaml

    path = tmp_path / "params.yaml"
    listed = "".join(f"\n    form{k}:\n    - {form}" for k, form in enumerate(FORMS))
    path.write_text(TEXT.replace("  actions:", "  actions:" + listed, 1))
    tree = read_tree(path, [f"train.actions.given{k}=- {form}" for k, form in enumerate(FORMS)])
    for k, (form, value) in enumerate(FORMS.items()):
        readings = [tree["train"]["actions"][f"{name}{k}"][0] for name in ("form", "given")]
        for reading in (parse_yaml(f"a: {form}", "f")["a"], *readings):
            assert (type(reading), reading) == (type(value), value), form  # 1 == 1.0 == True


def test_a_value_that_an_anchor_ties_to_another_is_not_changed_alone(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = TEXT.replace("score: {weight: 0.1}", "score: *w")
    path.write_text(text.replace("loss: {weight: 0.2,", "loss: {<<: &w {weight: 0.2},"))
    before = path.read_bytes()
    with pytest.raises(SimicError, match="its anchors tie other values to those that change"):
        overrides.edited(path, ["train.reward.score.weight=0.3"])
    assert path.read_bytes() == before
