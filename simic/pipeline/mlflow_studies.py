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

        def send(client: MlflowClient, experiment_id: str, parent: str) -> None:
            if find_run(client, experiment_id, "simic.cell", fingerprint) is not None:
                return
            tags = {"mlflow.parentRunId": parent, "simic.study_name": self._name}
            run_id = self._made(client, experiment_id, name, f"A cell of the study {self._name}: {name}.", tags)
            client.log_batch(run_id, params=[Param(key, value) for key, value in values.items()])
            log_evaluation(client, run_id, own)
            client.set_terminated(run_id)
            client.set_tag(run_id, "simic.cell", fingerprint)  # last: a run without it is not whole

        self._attempt(send)

    def ended(self, table: Path, status: EndStatus) -> None:
        """Log the table as it is now."""

        def send(client: MlflowClient, _: str, parent: str) -> None:
            client.log_artifact(parent, str(table))
            client.set_terminated(parent, END_STATUS[status])

        self._attempt(send)

    def _attempt(self, send: Callable[[MlflowClient, str, str], None]) -> None:
        """Call ``send`` with the run of the study, which is made at the first call."""
        if self._lost:
            return
        try:
            client, experiment_id = connect(self._workspace)
            parent = find_run(client, experiment_id, "simic.study", self._name)
            if parent is None:
                note = f"The study {self._name}, a nested run for each of its cells."
                parent = self._made(client, experiment_id, self._name, note, {"simic.study": self._name})
            send(client, experiment_id, parent)
        except TROUBLE as error:
            warn(error)
            self._lost = True

    def _made(self, client: MlflowClient, experiment_id: str, name: str, note: str, tags: Mapping[str, str]) -> str:
        tags = {**tags, NOTE_TAG: note, **origin(code_revision(self._workspace.root))}
        return client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
