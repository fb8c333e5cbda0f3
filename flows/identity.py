"""Keep what a flow run is of, its params and the training that it does: a run that is repeated after a crash is the
same run, or refuses and says why.
"""

from uuid import UUID

from prefect import get_client
from prefect.runtime import flow_run

from flows.overrides import Overrides
from simic import params, seals
from simic.errors import SimicError
from simic.pipeline import overrides as writer
from simic.pipeline import training_work
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name

LABEL = "simic.run"


def keep_params(overrides: Overrides | None, workspace: Workspace) -> params.Params:
    """Make all params that decide results parameters of this flow run, and return them; params.yaml stays as it is.

    Prefect keeps parameters, and hands them to whatever process repeats the run: params.yaml may be another by then.

    Args:
        overrides: The parameter of the flow.
        workspace: Whose params.yaml has what is not given, and how to run on this machine.
    """
    tree = params.load(workspace.params, writer.from_model(overrides) if overrides else [])
    values = tree.model_dump(mode="json", exclude={"runtime"})
    # How to run is asked of the machine each time, but for what was given.
    if overrides:
        values |= overrides.model_dump(mode="json", include={"runtime"}, exclude_unset=True)
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.get_id()), parameters={"overrides": values})
    return tree


def keep_training(tree: params.Params, workspace: Workspace) -> str:
    """Note on this flow run which training it does, and return its name.

    Args:
        tree: The params of the run.
        workspace: With the prepared data.

    Raises:
        SimicError: It began with other code or data, so that its result would be that of another run.
    """
    now = seals.identify(workspace.root, "train", tree)
    name = run_name(now.sha256)
    run_id = UUID(flow_run.get_id())
    with get_client(sync_client=True) as client:
        begun = client.read_flow_run(run_id).labels.get(LABEL)
        client.update_flow_run_labels(run_id, {LABEL: begun or name})
    if begun not in (None, name):
        changed = training_work.changed_since(str(begun), now, workspace)
        raise SimicError(
            f"this flow run began as run {begun} and would end as {name}: {changed}; "
            "restore that and retry it, or start another flow run"
        )
    return name
