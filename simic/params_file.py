"""params.yaml as a plain mapping, with overrides in DVC's ``-S`` syntax.

It is parsed as DVC parses it (ruamel.yaml, YAML 1.2), so that what simic uses is what dvc.lock records.
"""

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simic.errors import SimicError
from simic.reading import read_file

# Far above what any params file needs; a file beyond them is a mistake, or made to exhaust the reader.
MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1_000_000, 20, 10_000
LONGEST = 80  # characters of an override that a message repeats


def read_tree(path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """The raw mapping of a params file with overrides applied, not yet validated."""
    content = read_file(path, MAX_BYTES, "run from the project's root or pass --params FILE")
    try:
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8").read()
    except UnicodeDecodeError as error:
        raise SimicError(f"{path}: not readable as YAML: byte {error.start} is not UTF-8") from None
    tree = parse(text, str(path))
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"a {type(tree).__name__}"
        raise SimicError(f"{path}: must be a mapping of sections, not {kind}; git checkout {path.name} restores it")
    for override in overrides or []:
        _apply(tree, override)
    return tree


def parse(text: str, source: str) -> Any:
    """YAML as plain mappings, lists, strings, numbers, booleans and nulls, none shared; SimicError for all else."""
    try:
        _refuse_strange(text, source)
        value = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        reason = error.problem or error.context
        raise SimicError(f"{source}: not readable as YAML: {reason}{where}") from None
    except (YAMLError, ValueError) as error:
        raise SimicError(f"{source}: not readable as YAML: {str(error).splitlines()[0]}") from None
    return _Plain(source).copy(value, ())


def _refuse_strange(text: str, source: str) -> None:
    """SimicError for tags, which ask for other types, and for nesting that no params have, before it is followed."""
    depth = 0
    for event in YAML(typ="safe").parse(text):
        name = type(event).__name__
        depth += name in ("MappingStartEvent", "SequenceStartEvent")
        depth -= name in ("MappingEndEvent", "SequenceEndEvent")
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise SimicError(f"{source}: nested more than {MAX_DEPTH} deep in line {line}")
        if getattr(event, "tag", None):
            raise SimicError(f"{source}: tag {event.tag!r} in line {line}: must be plain YAML without tags")


class _Plain:
    """Copies what was parsed; what anchors share becomes many, so their number and depth are limited again."""

    def __init__(self, source: str) -> None:
        self.source, self.values = source, 0

    def copy(self, value: Any, where: tuple[str, ...]) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or len(where) > MAX_DEPTH:
            raise SimicError(f"{self.source}: more than {MAX_VALUES} values or {MAX_DEPTH} levels: its anchors repeat")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise SimicError(f"{self.source}: key {key!r}: must be a word")
            return {key: self.copy(each, (*where, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.copy(each, (*where, str(place))) for place, each in enumerate(value)]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        kind = type(value).__name__
        raise SimicError(f"{self.source}: {'.'.join(where)} = {value}: is a {kind} in YAML; put it in quotes")


def _apply(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    source = f"-S {override[:LONGEST]}"
    if not equals or not all(name.split(".")):
        raise SimicError(f"{source}: must be KEY.PATH=VALUE, for example train.ppo.learning_rate=1e-4")
    value = parse(text, source)
    *sections, leaf = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SimicError(f"{source}: {section[:LONGEST]} is a value, not a section")
    tree[leaf] = value


def refuse_repeated(overrides: list[str] | None) -> list[str] | None:
    """The overrides; SimicError where a later one would undo an earlier one."""
    seen = list[str]()
    for override in overrides or []:
        key = override.partition("=")[0]
        for earlier in seen:
            if f"{earlier.partition('=')[0]}.".startswith(f"{key}."):
                raise SimicError(f"-S {override}: undoes -S {earlier}; give {key} once")
        seen.append(override)
    return overrides
