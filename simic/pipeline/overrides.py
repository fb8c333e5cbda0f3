"""Read overrides, as ``dvc exp run -S`` has them, and work out what params.yaml would be with them."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from simic import durable, params
from simic.errors import SimicError
from simic.params import parse, read_tree, value_at


def changes(path: Path, overrides: list[str]) -> list[str]:
    """Describe every value of a params file that overrides change: a line ``key: old -> new`` for each."""
    # Compared as values: what is written in another way, 1e-4 as 0.0001, is no change.
    before = read_tree(path)
    after = read_tree(path, overrides)
    lines = list[str]()
    for key in _keys(overrides):
        old, new = value_at(before, key), value_at(after, key)
        # 1 == 1.0 == True in Python, and not in params.
        if old != new or type(old) is not type(new):
            lines.append(f"{key}: {json.dumps(old)} -> {json.dumps(new)}")
    return lines


def _keys(overrides: list[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def edited(path: Path, overrides: list[str]) -> bytes:
    """Work out a params file, comments kept, with overrides that ``params.load`` has accepted. Nothing is written."""
    if not changes(path, overrides):
        return path.read_bytes()
    # ruamel keeps comments and order; whether it kept the values too is checked by reading the result.
    after = read_tree(path, overrides)
    text = _text_with(path, {key: value_at(after, key) for key in _keys(overrides)})
    if json.dumps(parse(text, str(path)), sort_keys=True) != json.dumps(after, sort_keys=True):
        raise SimicError(
            f"{path}: its anchors tie other values to those that change; write them out, or edit it"
        )
    return text.encode()


def from_file(path: Path, overrides: list[str] | None = None) -> list[str]:
    """List every value of a params file, changed by overrides and filled up with defaults, as overrides. An extension
    that lies beside the file and not in this project is copied into it.
    """
    # Before the file is read: its params may use names that the extension registers.
    own, given = Path(params.EXTENSIONS_FOLDER), path.parent / params.EXTENSIONS_FOLDER
    names = read_tree(path, overrides).get("extensions")
    for name in names if isinstance(names, list) else ():
        file = f"{name}.py"
        if str(name).isidentifier() and (given / file).is_file() and not (own / file).exists():
            own.mkdir(exist_ok=True)
            durable.replace_file(own / file, (given / file).read_bytes())
    tree = params.load(path, overrides, whole=False, extensions=own)
    return [f"{name}={json.dumps(value)}" for name, value in _leaves(tree)]


def from_model(model: BaseModel) -> list[str]:
    """Write the ``key.path=value`` form of a tree of optional sections: only what was set explicitly."""
    return [f"{name}={json.dumps(value)}" for name, value in _leaves(model, only_set=True)]


def _leaves(
    model: BaseModel, prefix: str = "", only_set: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield what is no section; a mapping with keys of its own is one value, so that it replaces what is there."""
    # JSON, so that values mean the same to DVC, to YAML and to a shell.
    plain = model.model_dump(mode="json", exclude_unset=only_set)
    for key, value in plain.items():
        section = getattr(model, key)
        if isinstance(section, BaseModel):
            yield from _leaves(section, f"{prefix}{key}.", only_set)
        else:
            yield prefix + key, value


def _text_with(path: Path, values: dict[str, Any]) -> str:
    """Write the file's text with only these values replaced."""
    # Long lines and quotes stay as the user wrote them.
    editor = YAML()
    editor.width = 4096
    editor.preserve_quotes = True
    editor.representer.add_representer(type(None), _null)
    editor.representer.add_representer(float, _float)
    editor.representer.add_representer(str, _text)
    tree = editor.load(path.read_text(encoding="utf-8"))
    # A section that the file leaves out is made; its other keys stay defaults.
    for key, value in values.items():
        *sections, leaf = key.split(".")
        section = tree
        for name in sections:
            section = section.setdefault(name, {})
        section[leaf] = value
    text = io.StringIO()
    editor.dump(tree, text)
    return text.getvalue()


def _float(representer: Any, value: float) -> Any:
    """Write 1.0e-05, since YAML 1.1 takes 1e-05 for a word."""
    mantissa, exponent, power = repr(value).partition("e")
    text = f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(value)
    return representer.represent_scalar("tag:yaml.org,2002:float", text)


def _text(representer: Any, value: str) -> Any:
    """Quote what has a colon: within braces it would be taken for a key."""
    return representer.represent_scalar(
        "tag:yaml.org,2002:str", value, style='"' if ":" in value else None
    )


def _null(representer: Any, _: None) -> Any:
    """Write ``null`` in words: ruamel would leave the value empty."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
