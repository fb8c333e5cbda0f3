"""Held-out data are out of reach of the code that trains and selects, and of the files that it opens."""

import ast
import hashlib
from pathlib import Path

import pytest
import torch

from simic.data.batches import HELD_OUT_FILE, TEST_FILE, held_out_closed, load_held_out, load_split
from simic.data.prepare import prepare
from simic.errors import SimicError
from tests.standard import Prepare

ROOT = Path(__file__).parents[2]
OPENERS = {"load_held_out", "TEST_FILE", "HELD_OUT_FILE", TEST_FILE, HELD_OUT_FILE}
# The reference scores the exported network again, after all that trains and selects is done.
REFERENCE = "simic/certify/bank.py"
MAY = ("simic/evaluation/", "simic/data/batches.py", "simic/data/prepare.py", REFERENCE)


def named(tree: ast.AST) -> set[str]:
    """Return every name, attribute, import and string of a piece of code."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                names.add(name)
    return names


def test_evaluation_alone_names_what_opens_held_out_data() -> None:
    files = [path for folder in ("simic", "flows") for path in (ROOT / folder).rglob("*.py")]
    openers = {
        str(path.relative_to(ROOT)) for path in files if named(ast.parse(path.read_text(encoding="utf-8"))) & OPENERS
    }
    assert {name for name in openers if not name.startswith(MAY)} == set()
    assert any(name.startswith("simic/evaluation/") for name in openers), "the names are still those"
    assert "simic/evaluation/promotion.py" not in openers  # it selects


def test_where_held_out_data_are_closed_opening_them_raises(bank: Path) -> None:
    with held_out_closed("they are not for this"):
        load_split(bank, "val")
        with pytest.raises(SimicError, match=r"test\.safetensors: held-out data are closed: they are not for this$"):
            load_held_out(bank)
    load_held_out(bank)


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bank")
    instances = {"train": 30, "val": 10, "held_out": 20, "held_out_kinds": 6}
    prepare(Prepare(task="suite", samples=300, suite={"instances": instances}), 1, folder / "out", folder)
    return folder / "out"


def hashes(x: torch.Tensor) -> list[bytes]:
    return [hashlib.sha256(row.numpy().tobytes()).digest() for row in x]


def test_no_sample_of_training_is_one_of_a_held_out_task(bank: Path) -> None:
    held_out = load_held_out(bank)
    seen, hidden = (
        {digest for data in group for digest in hashes(data.x)}
        for group in (
            (load_split(bank, "train"), load_split(bank, "val")),
            (held_out.train, held_out.val, held_out.test),
        )
    )
    assert min(len(seen), len(hidden)) > 2000 and not seen & hidden
