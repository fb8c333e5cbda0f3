"""Run the Prefect flows of what is in production: a watch whose findings start a retraining.

Postponed annotations must stay out of this file: Prefect resolves the parameters from the signature.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.events import DeploymentEventTrigger, emit_event
from prefect.runtime import flow_run
from prefect.states import Completed

from flows import recovery
from simic import params
from simic.errors import printable
from simic.pipeline.paths import Workspace
from simic.serving import champions
from simic.serving import retrain as retraining
from simic.serving import watch as watching

SHIFT = "simic.shift"
# What a watch and the retraining that it starts are of.
SHARED = ("model", "data", "requests", "labels")
RETRAINS = DeploymentEventTrigger(
    name="simic: a shift starts a retraining",
    expect={SHIFT},
    parameters={name: f"{{{{ event.payload.{name} }}}}" for name in SHARED},
)


def _say(line: str) -> None:
    get_run_logger().info(printable(line))


def _alive() -> AbstractContextManager[None]:
    return recovery.alive(Path.cwd(), UUID(flow_run.get_id()))


@flow(name="simic", on_crashed=[recovery.put_back])
def watch(
    model: str = "simic-grown",
    data: str = "data.csv",
    requests: str = "requests",
    labels: str = "labels.csv",
) -> State:
    """Look at the requests of a model; a finding starts simic/retrain.

    Args:
        model: A registered model of networks, whose champion is watched.
        data: The table of the first training, for a retraining.
        requests: Folder of the server's request log.
        labels: A table with the columns request and the label; it may be missing.
    """
    workspace = Workspace(Path.cwd())
    with _alive(), champions.opened(workspace, model) as network:
        report = watching.watch(network, Path(requests), workspace.watch_of(model), Path(labels))
        for line in report.lines:
            _say(line)
        # The automation hears it, and runs simic/retrain with the same parameters.
        with watching.alarm(report) as findings:
            if findings:
                payload = {"data": data, "requests": requests, "labels": labels}
                emit_event(
                    SHIFT,
                    resource={"prefect.resource.id": f"simic.model.{model}"},
                    payload={"model": model, "findings": findings, **payload},
                )
        # Green in either case: the watch has done what it is for.
        findings = report.look is not None and report.look.findings
        return Completed(name="Shift" if findings else "No shift", message="; ".join(report.lines))


@flow(name="simic", on_crashed=[recovery.put_back])
def retrain(
    model: str = "simic-grown",
    data: str = "data.csv",
    requests: str = "requests",
    labels: str = "labels.csv",
    window: int | None = None,
) -> State:
    """Grow a challenger on old rows and labelled requests; simic promote compares it.

    Args:
        model: A registered model of networks.
        data: The table of the first training.
        requests: Folder of the server's request log.
        labels: A table with the columns request and the label.
        window: Rows to train on, the newest; None: all.
    """
    # A run that was killed is repeated by the runner, and goes on where it was.
    workspace = Workspace(Path.cwd())
    request = retraining.Retraining(model, Path(data), Path(requests), Path(labels), window)
    with _alive():
        try:
            challenger = retraining.retrain(params.load(workspace.params), workspace, request, _say)
        except retraining.TooFewRows as wait:
            # No failure: the next finding starts another one.
            return Completed(name="Waits for labels", message=str(wait))
        return Completed(name="Challenger", message=challenger)
