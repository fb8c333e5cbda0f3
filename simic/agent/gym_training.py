"""``simic train-gym ENV``: the controller's own agent, with the params of params.yaml, on a Gymnasium environment."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simic.agent.export import export_policy
from simic.agent.gym_adapter import GymAdapter
from simic.agent.learner import IterationReport, Learner, vectorized
from simic.errors import SimicError
from simic.params import Params

REPORTS = 20  # lines of a run


@dataclass(frozen=True)
class GymRun:
    """What is asked for: ``steps`` environment steps in all, ``rollout`` of them from each environment per update."""

    env: str
    steps: int = 50_000
    envs: int = 8
    rollout: int = 128
    episodes: int = 24  # greedy ones, after training
    out: Path | None = None  # where the trained policy goes, as a program of its own

    @property
    def iterations(self) -> int:
        return -(-self.steps // (self.envs * self.rollout))  # at least what was asked for


def train_gym(tree: Params, asked: GymRun, say: Callable[[str], None] = print) -> list[float]:
    """Train, say how it goes, and return the greedy returns of the trained policy."""
    settings, runtime = tree.train.ppo, tree.runtime
    if asked.envs < settings.minibatches:
        raise SimicError(f"envs = {asked.envs}: must be at least ppo.minibatches ({settings.minibatches})")
    if runtime.device == "cuda":
        raise SimicError("runtime.device = 'cuda': Gymnasium's environments are on the CPU; use cpu or auto")
    if str(Path.cwd()) not in sys.path:  # a console script does not look here, where a user's environments are
        sys.path.insert(0, str(Path.cwd()))
    env = vectorized(asked.env, asked.envs, tree.rng_seed)
    say(_described(env))
    learner = Learner(env, tree.train.policy, settings, tree.rng_seed, asked.iterations, asked.rollout)
    started = time.perf_counter()
    for _ in range(asked.iterations):
        progress = learner.iterate()
        if progress.iteration % max(1, asked.iterations // REPORTS) == 0:
            say(_line(progress, learner.returns.finished, time.perf_counter() - started))
    if asked.out is not None:
        export_policy(learner.policy, learner.normalizers.observation, asked.out, env.masked)
        say(f"policy written to {asked.out}")
    returns = learner.evaluate(env, -(-asked.episodes // asked.envs) * asked.envs)
    env.close()
    say(f"greedy return {sum(returns) / len(returns):.1f} (mean of {len(returns)} episodes)")
    return returns


def _described(env: GymAdapter) -> str:
    heads = ", ".join(f"{head.name} {head.size}" for head in env.action_spec.heads)
    masks = "masked by the environment" if env.mask_method else "nothing masked"
    return f"{env.observation_spec.features} observed numbers; action heads {heads}; {masks}"


def _line(progress: IterationReport, returns: list[float], seconds: float) -> str:
    last = returns[-100:]
    mean = f"{sum(last) / len(last):8.1f}" if last else "       –"
    return (
        f"{progress.env_steps:>9} steps  {progress.env_steps / seconds:7.0f}/s  return {mean}  "
        f"entropy {progress.metrics.entropy:.2f}  kl {progress.metrics.approx_kl:.4f}"
    )
