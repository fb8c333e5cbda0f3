"""Show a run in Prefect's UI: progress, the verdict, the evaluation table, links."""

import logging
import time
from uuid import UUID

import httpx
from prefect import get_client
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from simic.errors import as_markdown, printable
from simic.evaluation import gym_evaluation, result
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.run_summary import RunSummary
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.observers import Observer, RunInfo

SECONDS_BETWEEN_UPDATES = 2.0
TROUBLE = (PrefectException, httpx.HTTPError, OSError)

_log = logging.getLogger(__name__)


class ProgressArtifact(Observer):
    """Show a progress bar in the UI. An unreachable server costs one log line, not the run."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._next_update = 0.0
        self._reachable = True

    def on_start(self, info: RunInfo) -> None:
        self._iterations = info.params.train.iterations
        self._name = info.name
        self._show(0.0, f"run {self._name}: starting")

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        iterations = update.iteration + 1
        if time.monotonic() >= self._next_update or iterations == self._iterations:
            self._next_update = time.monotonic() + SECONDS_BETWEEN_UPDATES
            # Each update is a request to the server: with one for every iteration short iterations would wait for it.
            percent = 100.0 * iterations / max(self._iterations, 1)
            self._show(percent, f"run {self._name}: iteration {iterations} of {self._iterations}")

    def _show(self, percent: float, description: str) -> None:
        try:
            # Made at the first contact, which may come late: the server can be away when training starts.
            if self._artifact is None:
                created = create_progress_artifact(percent, key="training", description=description)
                assert isinstance(created, UUID)  # a coroutine only where an event loop runs
                self._artifact = created
                _name_run(self._name)
            else:
                update_progress_artifact(self._artifact, percent, description=description)
            self._reachable = True
        except TROUBLE as error:
            if self._reachable:
                _log.warning(
                    "Prefect does not answer, training continues without it: %s",
                    printable(str(error)),
                )
            self._reachable = False


def _name_run(name: str) -> None:
    """Name this flow run as terminal, report and MLflow name what it trains."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.get_id()), name=name)


def evaluation_rows(evaluation: result.Evaluation) -> list[dict[str, str | float]]:
    """Make a row per policy on the tasks of the primary endpoint: score with its interval, size."""
    # The first group is that of the primary endpoint; a table of all groups would mix their tasks.
    standings = next(iter(evaluation.standings.values()))
    return [
        {
            "policy": printable(name),
            "score (points)": round(policy.score.estimate, 2),
            "95 % interval": f"{policy.score.low:.2f} to {policy.score.high:.2f}",
            "parameters": round(policy.params),
        }
        for name, policy in standings.policies.items()
    ]


def gym_rows(evaluation: gym_evaluation.GymEvaluation) -> list[dict[str, str | float]]:
    """Make a row per policy in a Gymnasium environment."""
    rows = []
    for name, policy in evaluation.policies.items():
        mean = policy.mean_return
        interval = f"{mean.low:.2f} to {mean.high:.2f}"
        rows.append(
            {
                "policy": printable(name),
                "return": round(mean.estimate, 2),
                "95 % interval": interval,
            }
        )
    return rows


def publish(stage: str, workspace: Workspace) -> None:
    """Publish the artifacts of a finished stage."""
    if stage == "evaluate":
        # The file and not params.yaml says which kind it is: the file is what is shown.
        if result.schema_of(workspace.evaluation) == gym_evaluation.SCHEMA:
            rows = gym_rows(gym_evaluation.read(workspace.evaluation))
            description = "Fresh episodes, the same for every policy"
        else:
            rows = evaluation_rows(result.read(workspace.evaluation))
            description = "Held-out tasks, test splits"
        create_table_artifact(rows, key="evaluation", description=description)
    if stage == "audit":
        create_markdown_artifact(
            (workspace.reports / "report.md").read_text(encoding="utf-8"), key="report"
        )


def publish_verdict(summary: RunSummary, workspace: Workspace) -> None:
    """Publish the verdict for the flow itself, whose artifacts stand above those of its tasks."""
    _name_run(summary.run)
    lines = [f"- **{name}** {as_markdown(text)}" for name, text in summary.sentences.items()]
    # A path and no link to the page with figures: a browser opens no file from another page.
    page = (workspace.reports / "report.html").resolve()
    in_mlflow = f"[the run in MLflow]({tracking.address(workspace, summary.run)})"
    places = f"The report is the artifact `report`; with figures it is `{page}`, and a file of {in_mlflow}."
    create_markdown_artifact(
        "\n".join([*lines, "", places]), key="verdict", description="The result of the run"
    )
