"""Flow runs with one checkout, some of whose processes are killed while others run and params.yaml is edited."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Pending

from flows import artifacts, pipeline
from simic import seals
from simic.audit.findings import Summary
from simic.params import Params
from simic.pipeline import engine, run_summary, stages
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from tests.helpers import FORKING, Toys, dvc_in_process, toy_project

ORDER: tuple[dict[str, Any] | None, ...] = (
    None,
    {"rng_seed": 2},
    {"train": {"iterations": 3}},
    {"rng_seed": 3, "train": {"iterations": 5}},
    None,
)
KILLED = (1, 4, 8, 12)  # by their place in the order of starts
NOTES = "notes"


class NotingToys(Toys):
    """Training takes a while, and each stage notes the flow run, and the params that it is run with."""

    def make(
        self, name: str, params: Params, workspace: Workspace, *_: object, **__: object
    ) -> None:
        self.note("begins", name, params, workspace)
        if name == "train":
            time.sleep(0.3 * params.train.iterations)
        super().make(name, params, workspace)
        if name == "train":
            (workspace.checkpoints / "toy").write_text(
                f"{params.rng_seed}-{params.train.iterations}"
            )
        self.note("ends", name, params, workspace)

    def note(self, event: str, name: str, params: Params, workspace: Workspace) -> None:
        made = workspace.checkpoints / "toy"
        result = made.read_text() if made.exists() else "-"
        with (workspace.root / NOTES).open("a") as file:
            words = flow_run.get_id(), event, name, params.rng_seed, params.train.iterations, result
            print(*words, file=file)


def summary(workspace: Workspace) -> run_summary.RunSummary:
    seal = seals.read(workspace.root, "train")
    assert seal is not None
    said = Summary(what="", record="", replay="", learning="")
    return run_summary.RunSummary(said, "no finding", run_name(seal.sha256), "", False, True)


def attempt(root: Path, api: str, run_id: UUID) -> None:
    """Do a flow run, as the process that a runner starts for it."""
    os.chdir(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "STAGES", NotingToys().stages(*stages.STAGES))
        patch.setattr(engine, "observers", lambda *_: ())
        patch.setattr(engine, "log_run", lambda *_: None)
        patch.setattr(artifacts, "publish", lambda *_: None)
        patch.setattr(run_summary, "of", summary)
        dvc_in_process(patch)
        with temporary_settings({PREFECT_API_URL: api}):
            with get_client(sync_client=True) as client:
                run = client.read_flow_run(run_id)
            run_flow(pipeline.simic, run, return_type="state")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_of_twenty_runs_four_are_killed_and_every_one_ends_as_itself(tmp_path: Path) -> None:
    """In two orders of overrides. Another run goes between, and params.yaml is edited after each kill."""
    workspace, notes = toy_project(tmp_path), tmp_path / NOTES
    text = workspace.params.read_text().replace("iterations: 80", "iterations: 4")
    workspace.params.write_text(text)
    api = PREFECT_API_URL.value()
    wanted = [*ORDER, *ORDER, *ORDER[::-1], *ORDER[::-1]]
    notes.touch()

    def process(run_id: UUID) -> Any:
        child = FORKING.Process(target=attempt, args=(tmp_path, api, run_id))
        child.start()
        return child

    with get_client(sync_client=True) as client:
        runs = [
            client.create_flow_run(
                pipeline.simic, parameters={"overrides": overrides}, state=Pending()
            ).id
            for overrides in wanted
        ]
        killed = list[UUID]()
        for place, run_id in enumerate(runs):
            child = process(run_id)
            if place in KILLED:
                while f"{run_id} begins train" not in notes.read_text():
                    assert child.is_alive()
                    time.sleep(0.02)
                os.kill(child.pid, signal.SIGKILL)
                workspace.params.write_text(re.sub("rng_seed: .*", f"rng_seed: {50 + place}", text))
                killed.append(run_id)
            child.join()
            # The one that was killed before this goes on now: a runner puts it back behind those that wait.
            if killed and killed[-1] != run_id:
                client.set_flow_run_state(killed[-1], Pending(), force=True)
                process(killed.pop()).join()
        assert killed == []
        ends = [client.read_flow_run(run_id) for run_id in runs]

    lines = [line.split() for line in notes.read_text().splitlines()]
    for place, (overrides, end) in enumerate(zip(wanted, ends, strict=True)):
        mine = [line[3:] for line in lines if line[0] == str(end.id)]
        print(
            place,
            overrides,
            end.state_name,
            end.state and end.state.message,
            end.run_count,
            mine[-1:],
        )
        assert end.state is not None and end.state_name == "No finding"
        assert end.run_count == (2 if place in KILLED else 1)
        if not mine:  # all was up to date
            continue
        # In all its attempts it had the same params, its own, and the result is of these.
        [(seed, iterations)] = {(line[0], line[1]) for line in mine}
        asked = overrides or {}
        assert int(seed) == asked.get("rng_seed", int(seed))
        assert int(iterations) == asked.get("train", {}).get("iterations", 4)
        assert mine[-1] == [seed, iterations, f"{seed}-{iterations}"]
        given = {**(end.parameters["overrides"] or {})}
        assert (given["rng_seed"], given["train"]["iterations"]) == (int(seed), int(iterations))
    assert workspace.params.read_text() == re.sub(
        "rng_seed: .*", f"rng_seed: {50 + KILLED[-1]}", text
    )
