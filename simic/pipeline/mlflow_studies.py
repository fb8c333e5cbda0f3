"""Log a study to MLflow."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param

from simic.pipeline.dvc_record import code_revision
from simic.pipeline.mlflow_results import log_evaluation
from simic.pipeline.mlflow_store import END_STATUS, NOTE_TAG, TROUBLE, connect, find_run, origin, warn
from simic.pipeline.paths import Workspace
from simic.training.observers import EndStatus


class StudyRecord:
    """Log a study as a run with a nested one for each cell, each once. A failure of MLflow is reported and ends the
    record; the next start of the study sends what is missing.
    """

    def __init__(self, workspace: Workspace, name: str):
        self._workspace, self._name, self._lost = workspace, name, False

    def cell(self, fingerprint: str, name: str, values: Mapping[str, str], own: Workspace) -> None:
        """Log params and evaluation of a finished cell, whose workspace is ``own``."""

        def send() -> None:
            client, experiment_id, parent = self._parent()
            if find_run(client, experiment_id, "simic.cell", fingerprint) is not None:
                return
            note = {NOTE_TAG: f"A cell of the study {self._name}: {name}."}
            tags = {"mlflow.parentRunId": parent, "simic.study_name": self._name, **note, **self._origin()}
            run_id = client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
            client.log_batch(run_id, params=[Param(key, value) for key, value in values.items()])
            log_evaluation(client, run_id, own)
            client.set_terminated(run_id)
            client.set_tag(run_id, "simic.cell", fingerprint)  # last: a run without it is not whole

        self._attempt(send)

    def ended(self, table: Path, status: EndStatus) -> None:
        """Log the table as it is now."""

        def send() -> None:
            client, _, parent = self._parent()
            client.log_artifact(parent, str(table))
            client.set_terminated(parent, END_STATUS[status])

        self._attempt(send)

    def _parent(self) -> tuple[MlflowClient, str, str]:
        client, experiment_id = connect(self._workspace)
        parent = find_run(client, experiment_id, "simic.study", self._name)
        if parent is None:
            note = {NOTE_TAG: f"The study {self._name}, a nested run for each of its cells."}
            tags = {"simic.study": self._name, **note, **self._origin()}
            parent = client.create_run(experiment_id, run_name=self._name, tags=tags).info.run_id
        return client, experiment_id, parent

    def _origin(self) -> dict[str, str]:
        return origin(code_revision(self._workspace.root))

    def _attempt(self, send: Callable[[], None]) -> None:
        if not self._lost:
            try:
                send()
            except TROUBLE as error:
                warn(error)
                self._lost = True
