"""Know the names that params may use: what simic ships, and what a user's extensions add.

Below everything else, so that a misspelt task, host or reward mode in params.yaml is refused before anything heavy is
imported. What registers such a thing also adds its name here; a test holds both equal.
"""

import importlib.util
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from simic.errors import SimicError

FAMILY = "host family"
PRESET = "host preset"
TASK = "task"
SUITE = "suite"
REWARD_MODE = "reward mode"
GYM = "gym"  # the task that is a Gymnasium environment
_SHIPPED: dict[str, tuple[str, ...]] = {
    FAMILY: ("cnn", "mlp", "tables", "transformer"),
    PRESET: ("baseline", "deep", "double", "impaired", "triple"),
    TASK: ("digits", "mnist", "cifar10", "text", "npz", "suite", GYM),
    REWARD_MODE: ("shaped", "sparse", "escrow", "loss", "score"),
    SUITE: ("tables",),
}
EXTENSION_MODULE = "simic_extension_"  # and the file's stem
_KNOWN = {kind: list(names) for kind, names in _SHIPPED.items()}


def shipped(kind: str) -> tuple[str, ...]:
    """List the names of a kind that are simic's own."""
    return _SHIPPED[kind]


def known(kind: str) -> tuple[str, ...]:
    """List all names of a kind, the shipped ones first."""
    return tuple(_KNOWN[kind])


def add(kind: str, name: str) -> None:
    """Make a name valid in params; adding it again changes nothing."""
    if name not in _KNOWN[kind]:
        _KNOWN[kind].append(name)


def check(kind: str, name: str) -> str:
    """Pass a name that is known; else raise ValueError, for pydantic to report."""
    # ValueError and no SimicError: pydantic adds the key and all other problems.
    if name not in _KNOWN[kind]:
        raise ValueError(f"must be one of {', '.join(_KNOWN[kind])}")
    return name


def extensions() -> tuple[Path, ...]:
    """List the files of users that were imported in this process."""
    # From what Python has imported: a list kept here could differ from that.
    files = [
        module.__file__ for name, module in sys.modules.items() if name.startswith(EXTENSION_MODULE)
    ]
    return tuple(Path(file) for file in files if file is not None)


def load_extension(path: Path) -> ModuleType:
    """Import a user's file once per process; what it registers is known from then on.

    Raises:
        SimicError: the file cannot be imported, or another one with its name was.
    """
    path = path.resolve()
    name = f"{EXTENSION_MODULE}{path.stem}"
    # A file that is imported already, or a copy of it, is not imported again.
    loaded = sys.modules.get(name)
    if loaded is not None and (loaded.__file__ == str(path) or _is_copy(path, loaded)):
        return loaded
    if loaded is not None:
        raise SimicError(
            f"extensions: {path} and {loaded.__file__} have the same name; rename one of them"
        )

    # What is no Python file is refused.
    if not path.is_file():
        raise SimicError(f"extensions: {path}: no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SimicError(f"extensions: {path}: must be a Python file (.py)")

    # Import it as Python itself would; a failure leaves nothing behind.
    module = importlib.util.module_from_spec(spec)
    # Before it runs, since dataclasses look their module up while they are made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SimicError(
            f"extensions: {path}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    return module


def _is_copy(path: Path, loaded: ModuleType) -> bool:
    """Tell whether a file has the very content of one that was imported, as that of a copied project."""
    file = Path(loaded.__file__ or "")
    return path.is_file() and file.is_file() and path.read_bytes() == file.read_bytes()


@dataclass(frozen=True)
class Known:
    """Mark a string that must be a registered name of a kind, in validation and in the JSON schema of deployments."""

    kind: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(partial(check, self.kind), handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "enum": list(known(self.kind))}
