"""Play and learn one iteration again, from the state that training kept before it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from simic.agent.metrics import numbers
from simic.errors import SimicError
from simic.params import Params
from simic.training import machine
from simic.training.assemble import assemble, hosts_together, runtime_for
from simic.training.checkpoint import Manifest
from simic.training.iteration import play, scale_and_estimate
from simic.training.ranks import ALONE
from simic.training.task import RolloutColumns


class NotReplayable(SimicError):
    """The iteration cannot come out the same here: it was played on another machine, or its environments forget."""


@dataclass(frozen=True)
class ReplayedIteration:
    """What telemetry has of an iteration: ``state_begun``, ``state_ended`` and ``metrics`` are those of its update."""

    state_begun: str
    state_ended: str
    columns: RolloutColumns
    metrics: dict[str, float]


def replay(
    params: Params,
    prepared_dir: Path,
    iteration: int,
    tensors: Mapping[str, Tensor],
    manifest: Manifest,
    cores: int | None = None,
) -> ReplayedIteration:
    """Play and learn one iteration again, in an environment and a learner of their own.

    Args:
        params: The params of the run.
        prepared_dir: The prepared data.
        iteration: Its number, from 0.
        tensors: The state before it (``telemetry/iteration_….safetensors``).
        manifest: That of a checkpoint of the run, for its machine.
        cores: That share the hosts; None: as params.runtime says.

    Raises:
        NotReplayable: Training was on another machine or in several processes of torchrun, or its environments cannot
            go on from a state.
    """
    if cores is not None:
        # They change no result, so whoever replays may have a number of their own.
        params = params.model_copy(
            update={"runtime": params.runtime.model_copy(update={"cores": cores})}
        )
    device = machine.configure(runtime_for(params, ALONE))
    # The group of the training and not this machine's own: it decides the last bits.
    group = manifest.machine.group
    hosts_together(params, device, group=group)

    # Only an equal machine gives equal bytes.
    present = machine.describe(params.runtime, device, group)
    if differences := manifest.machine.differences(present):
        text = ", ".join(f"{name} ({values})" for name, values in differences.items())
        raise NotReplayable(f"trained on another machine: {text}")
    if manifest.scalars["group"]:
        raise NotReplayable(
            "the memory did not suffice for all hosts at once, and when is not recorded"
        )

    # Fresh environments and learner, put into the state before the iteration.
    state = assemble(params, prepared_dir, device, group=group)
    try:
        # What a resume reports, a replay refuses: what is compared has to begin equal.
        for finding in state.load_tensors(tensors):
            raise NotReplayable(finding.message)
        state_begun = state.sha256()
        experience = play(state, iteration, params.rng_seed)
        rollout = scale_and_estimate(state, experience)
        metrics = state.ppo.update(rollout, iteration)
        return ReplayedIteration(
            state_begun, state.sha256(), experience.columns, numbers(asdict(metrics))
        )
    finally:
        state.task.env.close()
