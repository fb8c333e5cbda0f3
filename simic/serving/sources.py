"""Find what is to be served: the files of a folder, or the version with an alias in MLflow's registry."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from simic import durable, params
from simic.errors import SimicError
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.tracking import CHALLENGER, CHAMPION


@contextmanager
def loading(version: str) -> Iterator[None]:
    """Raise SimicError for what a damaged model ends in, which are errors of many kinds of many libraries."""
    try:
        yield
    except SimicError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SimicError(f"{version}: cannot be loaded: {reason}") from error


class ModelSource(Protocol):
    """Where models come from."""

    def newest(self) -> str:
        """Name the version that is to be served now; SimicError where that cannot be told."""
        ...

    def fetch(self, version: str, scratch: Path) -> Path:
        """Bring the files of the version that was named last.

        Args:
            version: Its name.
            scratch: Empty folder for them.

        Returns:
            Where they are.
        """
        ...


class FolderSource:
    """A folder, whose version is its name with a hash of its program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest(self) -> str:
        """Name the version; a folder is one and the same as long as it is served."""
        # A policy of a run has its program in a folder of its own.
        programs = [*self._folder.glob("*.pt2"), *self._folder.glob("program/*.pt2")]
        if not programs:
            raise SimicError(f"{self._folder}: has no network.pt2 or policy.pt2")
        return f"{self._folder.resolve().name}-{durable.sha256(programs[0])[:12]}"

    def fetch(self, version: str, scratch: Path) -> Path:
        """Give the folder itself."""
        return self._folder


class RegistrySource:
    """A registered model's version that has an alias."""

    def __init__(self, workspace: Workspace, name: str, alias: str) -> None:
        self._name = name
        self._alias = alias
        with tracking.answering():
            self._client = tracking.connect(workspace).client

    def newest(self) -> str:
        """Name the version that has the alias."""
        with tracking.answering():
            version = tracking.version_with(self._client, self._name, self._alias)
        if version is None:
            raise SimicError(f"{self._name}: no version is the {self._alias}, or no such model")
        return f"{self._name}/{version.version}"

    def fetch(self, version: str, scratch: Path) -> Path:
        """Download the version."""
        with tracking.answering():
            number = version.rpartition("/")[2]
            registered = self._client.get_model_version(self._name, number)
            return tracking.download(self._client, registered, scratch)


def find_source(model: str, workspace: Workspace) -> ModelSource:
    """Find a model: a folder, a registered name with or without @ALIAS, or an alias of the project's own policy.

    Args:
        model: As the user names it.
        workspace: Says where MLflow's store is.

    Raises:
        SimicError: There is none, or MLflow does not answer.
    """
    if Path(model).is_dir():
        return FolderSource(Path(model))
    # An alias alone is of the policy that params.yaml trains.
    if model in (CHAMPION, CHALLENGER):
        dataset = params.load(workspace.params).prepare.dataset
        return RegistrySource(workspace, tracking.registered_name(dataset), model)
    name, _, alias = model.partition("@")
    return RegistrySource(workspace, name, alias or CHAMPION)
