"""What pydantic finds wrong with params, in words: the key, its value, what is allowed, its default."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from simic import registry
from simic.errors import SimicError
from simic.registry import Known

SHOWN = 8  # problems of one message; a file of another program has hundreds
LONGEST = 80  # characters of a value
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a word", NoneType: "null"}


def described(problems: Iterable[ErrorDetails], model: type[BaseModel]) -> list[str]:
    """One text for each key of ``model`` that is wrong; the first few, and how many more there are."""
    told = dict[str, str]()
    for problem in problems:
        key, hint, default = _place(problem["loc"], model)
        if not any(each.startswith(f"{key}.") for each in told):  # of a list that is wrong by one of its values
            told.setdefault(key, _sentence(problem, key, hint, default, model))
    texts = list(told.values())
    return texts[:SHOWN] + ([f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else [])


def refusal(error: ValidationError, source: str, model: type[BaseModel]) -> SimicError:
    """Every offending key of a file that should have been a ``model``, its value and what is allowed."""
    return SimicError(f"{source}: " + "; ".join(described(error.errors(), model)))


def blamed(
    problems: Sequence[ErrorDetails],
    own: Sequence[ErrorDetails],
    file: str,
    overrides: Sequence[str],
    model: type[BaseModel],
) -> str:
    """``described``, told of the file where a problem is the file's ``own``, else of the overrides that touch it."""
    places = {problem["loc"] for problem in own}
    brought = [problem for problem in problems if problem["loc"] not in places]
    told = {file: [problem for problem in problems if problem["loc"] in places]}
    if brought:
        given = dict.fromkeys(each for problem in brought for each in _behind(problem["loc"], overrides))
        told[" ".join(f"-S {short(each)[1:-1]}" for each in given or overrides)] = brought
    return "; ".join(f"{source}: {'; '.join(described(each, model))}" for source, each in told.items() if each)


def _behind(loc: tuple[int | str, ...], overrides: Sequence[str]) -> list[str]:
    """Which overrides a problem comes from: the last of that very key, else all whose key holds it or lies within."""
    place = [str(part) for part in loc]
    keys = [(each, each.partition("=")[0].split(".")) for each in overrides]
    exact = [each for each, key in keys if key == place]
    return exact[-1:] or [each for each, key in keys if all(a == b for a, b in zip(key, place, strict=False))]


def _sentence(problem: ErrorDetails, key: str, hint: Any, default: Any, model: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        return _unknown(key, list(hint.model_fields), model)
    value = f"{key} = {short(problem['input'])}"
    if problem["type"] == "value_error" and not _kinds(hint):  # a rule of ours, over several keys or values
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if _section(hint) else f"{value}: {message}"
    if _section(hint):
        return f"{value}: must be a section, with KEY: VALUE in it"
    known = "" if default is PydanticUndefined else f"; the default is {_plain(default)}"
    return f"{value}: must be {allowed(hint)}{known}"


def _unknown(key: str, known: list[str], model: type[BaseModel]) -> str:
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    elsewhere = [each for each in keys(model) if each.rpartition(".")[2] == name]
    likely = elsewhere or [prefix + each for each in difflib.get_close_matches(name, known, 1)]
    meant = f"did you mean {' or '.join(likely)}? " if likely else ""
    return f"{key}: unknown key; {meant}known here are {', '.join(known)}"


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a tree of sections, sections too, as dotted names."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if _section(field.annotation):
            yield from keys(field.annotation, f"{prefix}{name}.")


def _place(loc: Sequence[int | str], model: type[BaseModel]) -> tuple[str, Any, Any]:
    """The dotted key, the type of what belongs there and its default; pydantic's names of variants are no keys."""
    hint, default, names = model, PydanticUndefined, list[str]()
    for part in loc:
        if _section(hint):
            names.append(short(str(part))[1:-1])
            if part not in hint.model_fields:
                break
            default = hint.model_fields[str(part)].default
            hint = get_type_hints(hint, include_extras=True)[str(part)]
            continue
        holder = next((each for each in map(_bare, _variants(hint)) if get_origin(each) in (tuple, dict)), None)
        listed = get_origin(holder) is tuple
        if holder is not None and isinstance(part, int) == listed and part != "[key]":
            names.append(short(str(part))[1:-1])
            hint, default = get_args(holder)[0 if listed else 1], PydanticUndefined
    return ".".join(names), hint, default


def _section(hint: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _notes(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _kinds(hint: Any) -> list[str]:
    """Of registered names, which kind it must be."""
    return [note.kind for note in _notes(hint) if isinstance(note, Known)]


def _variants(hint: Any) -> tuple[Any, ...]:
    bare = _bare(hint)
    return get_args(bare) if get_origin(bare) in (Union, UnionType) else (hint,)


def allowed(hint: Any) -> str:
    """What a type of the params admits."""
    if len(_variants(hint)) > 1:
        return ", or ".join(allowed(each) for each in _variants(hint))
    bare = _bare(hint)
    for kind in _kinds(hint):
        return f"one of {', '.join(registry.known(kind))}"
    if get_origin(bare) is Literal:
        return ("one of " if len(get_args(bare)) > 1 else "") + ", ".join(map(str, get_args(bare)))
    limits = [each for note in _notes(hint) if isinstance(note, FieldInfo) for each in note.metadata]
    if get_origin(bare) is tuple:
        least, most = (_limit(limits, f"{end}_length") for end in ("min", "max"))
        count = "" if least is None else f" of at least {least}" + (f" and at most {most}" if most is not None else "")
        return f"a list{count}, each {allowed(get_args(bare)[0])}"
    if get_origin(bare) is dict:
        return f"a mapping of names, each to {allowed(get_args(bare)[1])}"
    pattern = _limit(limits, "pattern")
    return _NAMES.get(bare, "a value") + (f" that matches {pattern}" if pattern else _range(limits))


def _limit(limits: Sequence[Any], name: str) -> Any:
    return next((getattr(each, name) for each in limits if getattr(each, name, None) is not None), None)


def _range(limits: Sequence[Any]) -> str:
    least, above, most, below = (_limit(limits, name) for name in ("ge", "gt", "le", "lt"))
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}" if isinstance(most, float) else f" from {least} to {most}"
    words = {"at least": least, "above": above, "at most": most, "below": below}
    said = [f"{name} {limit:g}" for name, limit in words.items() if limit is not None]
    return f" {' and '.join(said)}" if said else ""


def short(value: Any) -> str:
    """Of any value as much as fits a line."""
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _plain(default: Any) -> str:
    return "null" if default is None else short(list(default) if isinstance(default, tuple) else default)
