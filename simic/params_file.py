"""params.yaml as a plain mapping, with overrides in DVC's ``-S`` syntax."""

import re
from pathlib import Path
from typing import Any

import yaml

from simic.errors import SimicError


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-4 as a string (it wants 1.0e-4); DVC and YAML 1.2 read it as a number, so do we."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_tree(path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """The raw mapping of a params file with overrides applied, not yet validated."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run from the project's root or pass --params FILE") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SimicError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise SimicError(f"{path}: must be a mapping of sections, not {type(tree).__name__}")
    for override in overrides or []:
        _apply(tree, override)
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not all(name.split(".")):
        raise SimicError(f"override {override!r}: must be KEY.PATH=VALUE, for example train.ppo.learning_rate=1e-4")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise SimicError(f"override {override!r}: the value is not YAML") from None
    *sections, leaf = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SimicError(f"override {override!r}: {section} is a value, not a section")
    tree[leaf] = value
