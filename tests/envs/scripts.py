"""Scripted play: the same op in every host."""

import torch

from simic.envs import rewards
from simic.envs.growth_env import GrowthEnv
from simic.growth.life.vocabulary import Action, Op


def act(envs: int, op: Op, **heads: int) -> Action:
    """The same action in every host: fastest ramp to alpha 1 in slot 0 unless said otherwise."""
    named = {"op": int(op), "tempo": 0, "alpha_target": 2, **heads}
    return Action.wait(envs)._replace(**{name: torch.full((envs,), value) for name, value in named.items()})


def returns(
    mode: str, transitions: list, gamma: float, only: tuple[str, ...] | None = None, without: tuple[str, ...] = ()
) -> torch.Tensor:
    """Discounted sum ``[E]`` of what a mode pays for recorded transitions, of some of its terms if asked for."""
    total = torch.zeros(transitions[0][0].op.shape, dtype=torch.float64)
    for t, (transition, setting) in enumerate(transitions):
        for name, part in rewards.components(mode, transition, setting).items():
            if (only is None or name in only) and name not in without:
                total += gamma**t * part
    return total


def play_ops(env: GrowthEnv, actions: list[Action]) -> list:
    """One scripted episode, every op taking effect; the step infos."""
    env.reset(options={"iteration": 0})
    infos = []
    for action in actions:
        *_, info = env.step(action)
        assert torch.equal(info.effective_op, action.op), (action, info.gate)
        infos.append(info)
    return infos
