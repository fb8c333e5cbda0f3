"""Keep the parts of a long measurement, so that one that was interrupted goes on with the part that it was in."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from simic import durable

T = TypeVar("T")


class Parts:
    """Keep each part as a JSON file with a checksum in ``folder``, which must be another for every recipe; without a
    folder nothing is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def of(self, name: str, kind: Any, make: Callable[[], T]) -> T:
        """Return the part of that name: what was kept of it, of a type that pydantic knows, or what ``make`` returns.
        One that is damaged is made again.
        """
        if self._folder is None:
            return make()
        file, adapter = self._folder / f"{name}.json", TypeAdapter(kind)
        if file.exists():
            with suppress(ValueError):  # damaged
                return adapter.validate_python(durable.checked(file.read_bytes())["part"])
        part = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = json.loads(json.dumps(adapter.dump_python(part)))  # not pydantic's JSON, which has no NaN
        durable.replace_file(file, durable.with_checksum({"part": plain}))
        return part

    def drop(self) -> None:
        """Remove what was kept, and what other recipes have left beside it."""
        if self._folder is not None:
            shutil.rmtree(self._folder.parent, ignore_errors=True)


NOTHING_KEPT = Parts()
