"""Train the agent alone on a Gymnasium environment, with the policy and PPO of params.yaml."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simic.agent import Agent, export
from simic.agent.agent import about_twenty
from simic.errors import SimicError
from simic.params import Params
from simic.training import machine


@dataclass(frozen=True)
class Asked:
    """A Gymnasium id, how long and how wide to train, and a new folder for the trained policy, if it is kept."""

    env: str
    steps: int
    envs: int
    rollout: int
    out: Path | None = None


def train(params: Params, asked: Asked, say: Callable[[str], None]) -> None:
    """Train, write the policy as a program and say the return of greedy episodes."""
    out = asked.out
    if out is not None and out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    if params.runtime.device == "cuda":
        raise SimicError("runtime.device = 'cuda': Gymnasium's environments are on the CPU; use cpu or auto")
    machine.configure(params.runtime.model_copy(update={"device": "cpu"}))
    settings = {"policy": params.train.policy, "ppo": params.train.ppo}
    agent = Agent(asked.env, rng_seed=params.rng_seed, envs=asked.envs, rollout_steps=asked.rollout, **settings)
    say(str(agent.env))
    agent.train(asked.steps, about_twenty(-(-asked.steps // (asked.envs * asked.rollout)), say))
    if out is not None:
        export.export_policy(agent.policy, agent.normalizers.observation, out, agent.env.masked)
        say(f"policy written to {out}")
    returns = agent.evaluate()
    say(f"greedy return {sum(returns) / len(returns):.1f} (mean of {len(returns)} episodes)")
