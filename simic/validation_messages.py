"""Say what pydantic finds wrong with params: each key, its value and what is allowed, in one line."""

import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simic.errors import SimicError

SHOWN = 8  # problems of one message; a file of another program has hundreds
LONGEST = 80  # characters of a value


def refusal(error: ValidationError, source: str, tree: Any, model: type[BaseModel]) -> SimicError:
    """Return the error about a ``tree`` from ``source`` that is no ``model``; it tells the first few offending keys."""
    told: dict[str, list[str]] = {}
    for problem in error.errors():
        key = ".".join(_place(problem, tree))
        told.setdefault(key, []).append(_sentence(problem, key, model))
    # A list with one wrong value is not told twice.
    texts = [" or ".join(told[key]) for key in told if not any(other.startswith(f"{key}.") for other in told)]
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return SimicError(f"{source}: " + "; ".join([*texts[:SHOWN], *more]))


def _place(problem: ErrorDetails, tree: Any) -> Iterator[str]:
    """Yield the keys and places that lead to a problem, without pydantic's names for the variants of a type."""
    for part in problem["loc"]:
        inside: Any = dict(enumerate(tree)) if isinstance(tree, list | tuple) else tree
        if isinstance(inside, dict) and part in inside:
            tree = inside[part]
            yield short(str(part))
        elif problem["type"] == "missing":
            yield str(part)


def _sentence(problem: ErrorDetails, key: str, model: type[BaseModel]) -> str:
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] == "extra_forbidden":
        return f"{key}: {_unknown(key, model)}"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    if problem["type"] == "model_type":
        message = "must be a section, with KEY: VALUE in it"
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):  # a rule over several keys
        return f"{key}: {message}" if key else message
    return f"{key} = {short(repr(problem['input']))}: {message}"


def _unknown(key: str, model: type[BaseModel]) -> str:
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    every = [each.rpartition(".") for each in keys(model)]
    known = [own for holder, _, own in every if holder == section]
    elsewhere = [f"{holder}.{own}" for holder, _, own in every if own == name]
    likely = elsewhere or [prefix + each for each in difflib.get_close_matches(name, known, 1)]
    meant = f"did you mean {' or '.join(likely)}? " if likely else ""
    return f"unknown key; {meant}known here are {', '.join(known)}"


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key of a tree of sections, sections too, as dotted names."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")


def short(text: str) -> str:
    """Return as much of a text as fits a line."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
