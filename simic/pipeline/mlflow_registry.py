"""Read and move the versions of the registered policy: challenger and champion, their files, what was decided."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from pydantic import BaseModel

from simic.errors import SimicError
from simic.pipeline import mlflow_observer, mlflow_store
from simic.pipeline.mlflow_models import CHALLENGER, CHAMPION, DATA_TAG, REGISTERED_MODEL, aliases
from simic.pipeline.paths import Workspace


class PolicyVersion(BaseModel, frozen=True):
    """Identify a version of the registered policy."""

    version: str
    run_id: str
    source: str
    data_sha256: str  # of what it was trained on


@contextmanager
def _answering() -> Iterator[None]:
    """Raise SimicError where MLflow does not answer."""
    try:
        yield
    except mlflow_store.TROUBLE as error:
        said = mlflow_store.in_one_line(error)
        raise SimicError(f"MLflow does not answer, try again when it does: {said}") from None


class Registry:
    """Read and change MLflow's model registry; SimicError where it cannot be reached."""

    def __init__(self, client: MlflowClient, uri: str):
        self._client, self._uri = client, uri

    @classmethod
    @_answering()
    def open(cls, workspace: Workspace) -> "Registry":
        """Open the project's, after what MLflow lacks was sent."""
        mlflow_observer.settle(workspace)
        return cls(mlflow_store.connect(workspace)[0], mlflow_store.store_uri(workspace))

    @_answering()
    def holder(self, alias: str) -> PolicyVersion | None:
        """Return the version with that alias; None where nobody has it."""
        number = aliases(self._client).get(alias)
        if number is None:
            return None
        entry = self._client.get_model_version(REGISTERED_MODEL, number)
        data = entry.tags.get(DATA_TAG, "")
        return PolicyVersion(version=number, run_id=entry.run_id or "", source=entry.source or "", data_sha256=data)

    @_answering()
    def fetch(self, version: PolicyVersion, folder: Path) -> Path:
        """Copy its files to a new folder; SimicError where they are no more where MLflow says."""
        place = urlsplit(version.source)
        if place.scheme == "file" and not Path(url2pathname(place.path)).exists():
            raise SimicError(
                f"{REGISTERED_MODEL} version {version.version}: its files are not in {version.source} any more: bring "
                "them back, or take its alias away in MLflow"
            )
        folder.mkdir()
        return Path(download_artifacts(version.source, dst_path=str(folder), tracking_uri=self._uri))

    @_answering()
    def findings(self, version: PolicyVersion, folder: Path) -> bytes:
        """Return findings.json of its run."""
        return Path(self._client.download_artifacts(version.run_id, "findings.json", str(folder))).read_bytes()

    @_answering()
    def decided(self, version: PolicyVersion, decision: Path, tags: Mapping[str, str], promoted: bool) -> None:
        """Keep a decision about the challenger with its version and its run. A champion is a challenger no more."""
        for key, value in tags.items():
            self._client.set_model_version_tag(REGISTERED_MODEL, version.version, key, value)
        self._client.log_artifact(version.run_id, str(decision))
        if promoted:
            self._client.set_registered_model_alias(REGISTERED_MODEL, CHAMPION, version.version)
            self._client.delete_registered_model_alias(REGISTERED_MODEL, CHALLENGER)
