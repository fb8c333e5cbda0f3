"""Validation episodes: always the same ones, greedy, seen by no update; their score chooses the best checkpoint."""

from collections.abc import Callable

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.envs.growth_env import GrowthEnv
from simic.telemetry.rows import EpisodeRow
from simic.training.episodes import Tally

VALIDATION_ITERATION = 1 << 41  # a namespace of its own: no training (≤ 10^6) and no evaluation episode (1 << 40)


def play(
    env: GrowthEnv,
    policy: ActorCritic,
    normalizers: Normalizers,
    iteration: int,
    on_step: Callable[[], None],
) -> EpisodeRow:
    """One greedy episode of every host; ``on_step`` is called after each step and may raise. Normalisers stay as they
    are. The environment is left at the end of these episodes.
    """
    observation, _ = env.reset(options={"iteration": VALIDATION_ITERATION})
    state, tally = policy.initial_state(env.num_envs), Tally(env)
    for _ in range(env.steps):
        decision = policy.act(normalizers.see(observation), state, greedy=True, valid=env.state.alive)
        state = decision.state
        observation, reward, _, _, info = env.step(decision.actions)
        tally.add(reward, info)
        on_step()
    return tally.row(iteration, "validation")


def score(row: EpisodeRow) -> float:
    """Mean committed validation accuracy in points: of host and FOSSILIZED seeds alone, since that is what is kept."""
    return sum(row.committed_accuracy) / len(row.committed_accuracy)
