"""Serve the deployments simic/train, watch and retrain, one run at a time, from the project's root: `make serve`."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
from prefect import Flow, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from flows import recovery
from flows.pipeline import simic
from flows.production import RETRAINS, retrain, watch
from simic import durable
from simic.errors import exit_with_message

GRACE_SECONDS = 28.0

_log = logging.getLogger("prefect.simic")


# What is served: a flow with the name of its deployment, and the event that starts it.
DEPLOYMENTS: dict[str, tuple[Flow, list[Any]]] = {
    "train": (simic, []),
    "watch": (watch, []),
    "retrain": (retrain, [RETRAINS]),
}


async def register(runner: Runner) -> None:
    """Create or update the deployments on the server."""
    for name, (flow, triggers) in DEPLOYMENTS.items():
        deployment = await flow.ato_deployment(
            name=name,
            tags=["simic"],
            entrypoint_type=EntrypointType.MODULE_PATH,
            schedules=await _schedules(f"{flow.name}/{name}"),
            triggers=triggers,
        )
        # Explicit: takes back a work pool that `prefect deploy` may have set
        deployment.work_pool_name = None
        deployment.work_queue_name = None
        await runner.aadd_deployment(deployment)


async def _schedules(name: str) -> list[DeploymentScheduleCreate]:
    """Read the schedules that a user has given the deployment; to register it without them would remove them."""
    async with get_client() as client:
        try:
            deployment = await client.read_deployment_by_name(name)
        except ObjectNotFound:
            return []
    fields = {"schedule", "active", "max_scheduled_runs", "parameters", "slug"}
    return [
        DeploymentScheduleCreate(**schedule.model_dump(include=fields))
        for schedule in deployment.schedules
    ]


async def _serve() -> None:
    # One run at a time, since a workspace has one; a paused schedule would stay so after a restart.
    runner = Runner(name="simic", limit=1, pause_on_shutdown=False)
    await register(runner)
    serving = asyncio.create_task(runner.start())
    # The line below tells `make serve` and its tests that runs are accepted from now on.
    while not runner.started and not serving.done():
        await asyncio.sleep(0.05)
    # Prefect's own handler exits in the middle of its event loop and kills the run without a word.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print("ready for runs of simic/train", flush=True)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await _let_runs_save()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _let_runs_save() -> None:
    """Pass SIGTERM on; a run then saves its state and reports, while the server is still up."""
    deadline = time.monotonic() + GRACE_SECONDS
    # Not the runner's children alone: a run goes on when the runner that started it has died.
    for pid in recovery.living(Path.cwd()):
        os.kill(pid, signal.SIGTERM)
        while psutil.pid_exists(pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)  # the runner, on this loop, collects the process


def main() -> None:
    """Wait for the server, settle runs left unfinished, then serve until SIGTERM, SIGINT or SIGHUP."""
    root = Path.cwd()
    # Two runners would both start what is due, and settle what the other is about to start.
    with durable.locked(root / ".prefect" / "serve.lock", "serves simic/train"):
        # `make serve` starts server and runner together, and the server takes longer.
        with get_client(sync_client=True) as client:
            while client.api_healthcheck() is not None:
                time.sleep(0.2)
        # Before anything is served: then a run whose lock is free surely has no process.
        for line in recovery.reconcile(root, simic.name):
            _log.warning("run left unfinished: %s", line)
        asyncio.run(_serve())


if __name__ == "__main__":
    with exit_with_message("runner"):
        main()
