"""One iteration of the learner: play a rollout, move the scales, learn. Training and its replay both do it here."""

from collections.abc import Callable
from dataclasses import dataclass

from simic.agent.ppo import with_advantages
from simic.agent.rollout import Position, Rollout, StepRecord, collect
from simic.training.state import TrainState
from simic.training.task import RolloutColumns


@dataclass(frozen=True)
class Experience:
    """A rollout of the environments of this process, where it ended, and its telemetry."""

    rollout: Rollout
    end: Position
    columns: RolloutColumns


def play(
    state: TrainState,
    iteration: int,
    rng_seed: int,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Experience:
    """Play one rollout with the policy and the scales as they are.

    Args:
        state: The learner and its task.
        iteration: Number of the iteration, from 0; it keys the random numbers.
        rng_seed: Seed of the run.
        on_step: Called after each step, once the step is recorded; it may raise to end the rollout.
    """
    task = state.task
    # Made before the rollout: of a Gymnasium environment it notes where episodes stand.
    recorder = task.recorder()

    def record(step: StepRecord) -> None:
        recorder.add(step)
        if on_step is not None:
            on_step(step)

    # The environments go on from where the last rollout ended, or are reset.
    rollout, end = collect(
        task.env,
        state.ppo.policy,
        state.normalizers,
        iteration,
        rng_seed,
        task.steps_of(iteration),
        on_step=record,
        position=task.position(),
    )
    return Experience(rollout, end, recorder.columns(rollout))


def scale_and_estimate(state: TrainState, experience: Experience) -> Rollout:
    """Move the scales, in this one place, and estimate advantages on the scaled rewards."""
    # From here on the state is neither that of this iteration nor of the next; who saves has to know.
    state.task.keep_position(experience.end)
    rollout = experience.rollout
    settings = state.ppo.settings
    rewards = state.normalizers.update(
        rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid, state.ranks.reduce
    )
    return with_advantages(rollout, rewards, settings.gamma, settings.gae_lambda)
