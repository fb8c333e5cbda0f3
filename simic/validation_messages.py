"""Say what pydantic finds wrong with params: each key, its value and what is allowed, in one line."""

import difflib
import operator
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simic.errors import SimicError

SHOWN = 8  # problems of one message; a file of another program has hundreds
LONGEST = 80  # characters of a value
NO_LIMIT = 2**53


def refusal(error: ValidationError, source: str, tree: Any, model: type[BaseModel]) -> SimicError:
    """Describe in one line what pydantic found wrong, the first few keys by name.

    Args:
        error: What pydantic raised.
        source: Where the values come from, for example params.yaml.
        tree: The values.
        model: What they should be.
    """
    # Several problems of one key, as of the variants of its type, are one sentence.
    sentences: dict[str, list[str]] = {}
    for problem in error.errors():
        key = ".".join(_place(problem, tree))
        sentences.setdefault(key, []).append(_sentence(problem, key, model))
    texts = []
    for key in sentences:
        # A list with one wrong value is a problem of that value alone.
        if not any(inner.startswith(f"{key}.") for inner in sentences):
            texts.append(" or ".join(sentences[key]))
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return SimicError(f"{source}: " + "; ".join([*texts[:SHOWN], *more]))


def _place(problem: ErrorDetails, tree: Any) -> Iterator[str]:
    """Yield the keys and places that lead to a problem, without pydantic's names for the variants of a type."""
    # Down through the values: what is no key there is pydantic's name for a variant.
    for part in problem["loc"]:
        inside: Any = dict(enumerate(tree)) if isinstance(tree, list | tuple) else tree
        if isinstance(inside, dict) and part in inside:
            tree = inside[part]
            yield short(str(part))
        elif problem["type"] == "missing":
            yield str(part)


def _sentence(problem: ErrorDetails, key: str, model: type[BaseModel]) -> str:
    # In the words of simic's own messages.
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] == "extra_forbidden":
        return f"{key}: {_unknown(key, model)}"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    if problem["type"] == "model_type":
        message = "must be a section, with KEY: VALUE in it"
    if problem["type"] == "value_error" and isinstance(
        problem["input"], dict
    ):  # a rule over several keys
        return f"{key}: {message}" if key else message
    return f"{key} = {short(repr(problem['input']))}: {message}"


def _unknown(key: str, model: type[BaseModel]) -> str:
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    # Keys of the same section, and where in the tree the last part of the key is known.
    valid = list(keys(model))
    siblings = [path.rpartition(".")[2] for path in valid if path.rpartition(".")[0] == section]
    # A key of another section is likelier meant than one that is spelt alike.
    likely = [path for path in valid if path.rpartition(".")[2] == name]
    likely = likely or [
        prefix + sibling for sibling in difflib.get_close_matches(name, siblings, 1)
    ]
    suggestion = f"did you mean {' or '.join(likely)}? " if likely else ""
    return f"unknown key; {suggestion}known here are {', '.join(siblings)}"


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key of a tree of sections, sections too, as dotted names."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")


def short(text: str) -> str:
    """Cut a text to what fits a line."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def whole_number(name: str, number: Any, least: int, most: int = NO_LIMIT) -> int:
    """Take an integer of any library.

    Args:
        name: What it is, for the message.
        number: What a caller gave.
        least: From where it may be.
        most: To where.

    Raises:
        SimicError: It is no integer, or out of range.
    """
    try:
        value = operator.index(number)
    except TypeError:
        value = least - 1
    if isinstance(number, bool) or not least <= value <= most:
        limit = "" if most == NO_LIMIT else f" to {most}"
        raise SimicError(
            f"{name} = {short(repr(number))}: must be a whole number from {least}{limit}"
        )
    return value
