"""Act by an exported policy, whose memory is kept for a session or goes to the caller and back."""

import json
import threading
from collections import OrderedDict
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from simic.pipeline.simic_policy import ServedPolicy
from simic.serving.bodies import MOST_ROWS
from simic.serving.refusals import Refusal

STATE = ("h", "c")
MOST_SESSIONS = 10_000
# Kinds of numpy's types that JSON may have for a type of torch's.
KINDS = {"float32": "biuf", "float64": "biuf", "int64": "iu", "bool": "b"}

Memory = dict[str, Any]


class Step(BaseModel):
    """What is sent of one step: observations as the environment gives them, or inputs by name; masks are inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    observations: list[Any] | None = None
    inputs: dict[str, Any] = {}
    # Of one episode, whose first step starts it; without it the memory of the last answer is sent.
    session: str | None = Field(None, min_length=1, max_length=200)
    start: bool = Field(False, strict=True)
    memory: Memory | None = None

    @model_validator(mode="after")
    def _refuse_two_memories(self) -> Self:
        """A step has one memory at most."""
        if self.memory is not None and (self.session is not None or self.start):
            raise ValueError("memory is sent without session and start")
        return self


class PolicyModel:
    """A policy, and what it takes."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        # A published policy has its program in a folder of its own.
        program = folder / "program" if (folder / "program").is_dir() else folder
        self._policy = ServedPolicy(program)
        self.terms = json.loads((program / "policy.json").read_text(encoding="utf-8"))
        card = folder / "README.md"
        self.card = card.read_text(encoding="utf-8") if card.exists() else ""
        # The first call takes longest, and shows that the program runs here.
        example = {
            name: np.full((1, *spec["shape"][1:]), name.startswith("mask_"), spec["dtype"])
            for name, spec in self.terms["inputs"].items()
        }
        self._policy.predict(example)

    def act(self, step: Step, memory: Memory | None) -> tuple[dict[str, Any], Memory]:
        """Choose the likeliest actions.

        Args:
            step: What is observed, in N rows.
            memory: Of these rows; None where an episode begins.

        Returns:
            The answer, and the memory for the next step.

        Raises:
            Refusal: Something does not fit, or a row cannot be decided.
        """
        arrays = self._read(step, memory)
        try:
            outputs = self._policy.predict(arrays)
        # A category that there is not is outside of a table in the program.
        except (IndexError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise Refusal(422, f"the policy cannot take this: {reason}") from None
        # Where nothing can be decided, each head answers so.
        actions = outputs["actions"]
        first = self.terms["heads"][0]
        undecided = ~(actions[:, 0] >= first.get("first", -np.inf))
        if undecided.any():
            reason = "a number is not finite, or masks allow nothing"
            raise Refusal(422, f"row {undecided.argmax()}: {reason}")
        answer = {"model": self.version, "actions": actions.tolist()}
        answer["value"] = outputs["value"].tolist()
        return answer, {"model": self.version, "h": outputs["h"], "c": outputs["c"]}

    def _read(self, step: Step, memory: Memory | None) -> dict[str, np.ndarray]:
        """Read all inputs of the program."""
        values = dict(step.inputs)
        if step.observations is not None:
            values |= self._flatten(step.observations)
        names = self.terms["inputs"].keys() - {*STATE}
        if values.keys() != names:
            reason = f"must be {', '.join(sorted(names))}, or observations in place of the first"
            raise Refusal(422, f"inputs are {', '.join(values) or 'none'}: {reason}")
        # What is observed, then the memory, which is empty where an episode begins.
        arrays = {name: self._array(name, value) for name, value in values.items()}
        rows = len(next(iter(arrays.values())))
        for name in STATE:
            spec = self.terms["inputs"][name]
            empty = np.zeros((rows, *spec["shape"][1:]), spec["dtype"])
            arrays[name] = empty if memory is None else self._array(name, memory.get(name))
        most = 1 if step.session else MOST_ROWS
        if {*map(len, arrays.values())} != {rows} or not 1 <= rows <= most:
            raise Refusal(422, f"{rows} rows: must be as many of all, 1 to {most}")
        return arrays

    def _flatten(self, observations: list[Any]) -> dict[str, np.ndarray]:
        """Put the parts of observations into the columns that the description names, which are in order."""
        rows = len(observations)
        parts = {name: [np.empty((rows, 0), int)] for name in ("features", "categories")}
        for leaf in self.terms.get("observation", ()):
            first, last = leaf["columns"]
            try:
                values = [reduce(getitem, leaf["path"], row) for row in observations]
                numbers = np.reshape(values, (rows, last - first)) + leaf.get("add", 0)
            except (LookupError, TypeError, ValueError, OverflowError):
                place = f"observations{leaf['path'] or ''}"
                reason = f"must be numbers of shape {leaf['shape']} in each row"
                raise Refusal(422, f"{place}: {reason}") from None
            parts[leaf["input"]].append(numbers)
        return {name: np.concatenate(columns, axis=1) for name, columns in parts.items()}

    def _array(self, name: str, value: Any) -> np.ndarray:
        spec = self.terms["inputs"][name]
        shape = spec["shape"][1:]
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            array = np.asarray("ragged")
        # No values at all are floats to numpy.
        fits = not array.size or array.dtype.kind in KINDS[spec["dtype"]]
        if not fits or not array.ndim or [*array.shape[1:]] != shape:
            raise Refusal(422, f"{name}: must be {spec['dtype']} of shape {['rows', *shape]}")
        # Beyond the range of float32 it becomes infinite, which no row is decided with.
        with np.errstate(over="ignore"):
            return array.astype(spec["dtype"])


class Sessions:
    """Keep the memory of episodes by the id of their session; of too many the one that is longest unused goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memories: OrderedDict[str, Memory] = OrderedDict()

    def take(self, session: str) -> Memory | None:
        """Take out a memory: what is being used cannot be taken twice."""
        with self._lock:
            return self._memories.pop(session, None)

    def put(self, session: str, memory: Memory) -> None:
        """Put a memory back."""
        with self._lock:
            self._memories[session] = memory
            while len(self._memories) > MOST_SESSIONS:
                self._memories.popitem(last=False)
