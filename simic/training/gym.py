"""Train the agent alone on a Gymnasium environment, with the policy and PPO of params.yaml."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from simic.agent import Agent, export
from simic.agent.agent import IterationReport
from simic.errors import SimicError
from simic.params import Params
from simic.training import machine

LINES = 20  # in a run, about


def train(
    params: Params, env: str, steps: int, envs: int, rollout: int, out: Path | None, say: Callable[[str], None]
) -> None:
    """Train on a Gymnasium id, write the policy as a program to the new folder ``out``, if any, and say the return of
    greedy episodes.
    """
    if out is not None and out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    if params.runtime.device == "cuda":
        raise SimicError("runtime.device = 'cuda': Gymnasium's environments are on the CPU; use cpu or auto")
    machine.configure(params.runtime.model_copy(update={"device": "cpu"}))
    settings = {"policy": params.train.policy, "ppo": params.train.ppo}
    agent = Agent(env, rng_seed=params.rng_seed, envs=envs, rollout_steps=rollout, **settings)
    say(str(agent.env))
    agent.train(steps, _progress(-(-steps // (envs * rollout)), say))
    if out is not None:
        export.export_policy(agent.policy, agent.normalizers.observation, out, agent.env.masked)
        say(f"policy written to {out}")
    returns = agent.evaluate()
    say(f"greedy return {sum(returns) / len(returns):.1f} (mean of {len(returns)} episodes)")


def _progress(updates: int, say: Callable[[str], None]) -> Callable[[IterationReport], None]:
    """Return what says, every so many updates, the steps, their speed and the mean return of the last episodes."""
    started, last = time.perf_counter(), deque[float](maxlen=100)

    def report(done: IterationReport) -> None:
        last.extend(done.returns)
        if done.iteration % max(1, updates // LINES) == 0:
            mean = f"{sum(last) / len(last):8.1f}" if last else "       –"
            speed = done.env_steps / (time.perf_counter() - started)
            say(
                f"{done.env_steps:>9} steps  {speed:7.0f}/s  return {mean}  "
                f"entropy {done.metrics.entropy:.2f}  kl {done.metrics.approx_kl:.4f}"
            )

    return report
