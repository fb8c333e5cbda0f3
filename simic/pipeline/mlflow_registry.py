"""Read and move the versions of the registered policy: challenger and champion, their files, what was decided."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow.artifacts import download_artifacts
from mlflow.entities.model_registry import ModelVersion

from simic.errors import SimicError
from simic.pipeline import mlflow_observer, mlflow_store
from simic.pipeline.mlflow_models import CHALLENGER, CHAMPION, aliases, registered_name
from simic.pipeline.paths import Workspace


@contextmanager
def _answering() -> Iterator[None]:
    """Raise SimicError where MLflow does not answer."""
    try:
        yield
    except mlflow_store.TROUBLE as error:
        said = mlflow_store.in_one_line(error)
        raise SimicError(f"MLflow does not answer, try again when it does: {said}") from None


def named(version: ModelVersion) -> str:
    """Return how messages call a version."""
    return f"version {version.version} of {version.name}"


class Registry:
    """Read and change the registered model of a data set, after what MLflow lacks was sent; SimicError where MLflow
    cannot be reached.
    """

    @_answering()
    def __init__(self, workspace: Workspace, dataset: str):
        mlflow_observer.settle(workspace)
        self._client, self._experiment_id = mlflow_store.connect(workspace)
        self._uri, self.name = mlflow_store.store_uri(workspace), registered_name(dataset)

    @_answering()
    def holder(self, alias: str) -> ModelVersion | None:
        """Return the version with that alias; None where nobody has it."""
        number = aliases(self._client, self.name).get(alias)
        return None if number is None else self._client.get_model_version(self.name, number)

    @_answering()
    def of_run(self, run: str) -> ModelVersion:
        """Return the version of the run with that name or id; SimicError naming the newest runs that have one."""
        versions = {each.run_id: each for each in self._client.search_model_versions(f"name = '{self.name}'")}
        found = [each.info for each in self._client.search_runs([self._experiment_id]) if each.info.run_id in versions]
        for each in found:
            if run in (each.run_name, each.run_id):
                return versions[each.run_id]
        known = ", ".join(each.run_name or each.run_id for each in found[:5])
        raise SimicError(f"run {run!r}: has no version of {self.name}; there are {known or 'none: run simic run'}")

    @_answering()
    def fetch(self, version: ModelVersion, folder: Path) -> Path:
        """Copy its files to a new folder; SimicError where they are no more where MLflow says."""
        source = version.source or ""
        place = urlsplit(source)
        if place.scheme == "file" and not Path(url2pathname(place.path)).exists():
            raise SimicError(
                f"{named(version)}: its files are not in {source} any more: bring them back, or take its alias away "
                "in MLflow"
            )
        folder.mkdir()
        return Path(download_artifacts(source, dst_path=str(folder), tracking_uri=self._uri))

    @_answering()
    def findings(self, version: ModelVersion, folder: Path) -> bytes:
        """Return findings.json of its run."""
        return Path(self._client.download_artifacts(version.run_id or "", "findings.json", str(folder))).read_bytes()

    @_answering()
    def decided(self, version: ModelVersion, decision: Path, tags: Mapping[str, str], promoted: bool) -> None:
        """Keep a decision about the challenger with its version and its run. A champion is a challenger no more."""
        number = str(version.version)
        for key, value in tags.items():
            self._client.set_model_version_tag(version.name, number, key, value)
        self._client.log_artifact(version.run_id or "", str(decision))
        if promoted:
            self._client.set_registered_model_alias(version.name, CHAMPION, number)
            if aliases(self._client, version.name).get(CHALLENGER) == number:
                self._client.delete_registered_model_alias(version.name, CHALLENGER)
