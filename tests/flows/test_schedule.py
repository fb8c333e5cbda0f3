"""A schedule of the deployment makes runs: what Prefect's server, with the database library that is pinned, is for."""

import asyncio
from datetime import timedelta

import pytest
from prefect import flow, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.server.services.scheduler import schedule_deployments


@flow
def nothing() -> None:
    """Do nothing."""


@pytest.mark.usefixtures("prefect_server")
def test_a_schedule_of_every_minute_makes_runs() -> None:
    schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(minutes=1)))
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            client.create_flow(nothing), name="scheduled", schedules=[schedule]
        )
        mine = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))
        # The server of tests has no services: its scheduler's turn is taken here.
        asyncio.run(schedule_deployments())
        assert len(client.read_flow_runs(flow_run_filter=mine)) >= 3
