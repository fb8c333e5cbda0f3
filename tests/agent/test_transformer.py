"""The transformer as memory: steps and rows agree, nothing is seen beyond its window, and it learns to remember."""

import numpy as np
import pytest
import torch

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.core import Core
from simic.agent.policy import ActorCritic
from simic.agent.transformer import GatedTransformer
from tests.gym_toys import Maze

from .worlds import HIERARCHY, SEEN, SMALL, TensorWorld, make_policy, make_rollout, rescore

STEPS = 11
BEFORE = 6


def make_core(window: int) -> Core:
    """With weights that open the gates, in float64, so that a step seen or not is no matter of rounding."""
    generator = torch.Generator().manual_seed(1)
    core = Core("transformer", 6, 8, window).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return core


@pytest.mark.parametrize("start_inside", [True, False])
@pytest.mark.parametrize("window", [1, 3, STEPS, 40])
def test_single_steps_equal_one_call_over_the_row(window: int, start_inside: bool) -> None:
    """After some steps before it, of which one episode of the first row began in the last ones."""
    generator = torch.Generator().manual_seed(2)
    core = make_core(window)
    x = torch.randn(BEFORE + STEPS, 4, 6, generator=generator, dtype=torch.float64)
    starts = torch.rand(BEFORE + STEPS, 4, generator=generator) < 0.2
    starts[BEFORE:] &= start_inside
    starts[BEFORE - 2, 0] = True
    state = core.initial_state(4, x)
    outputs = []
    for t in range(BEFORE + STEPS):
        if t == BEFORE:
            first = state
        output, state = core.step(x[t], state.zeroed(starts[t]))
        outputs.append(output)
    row = core.unroll(x[BEFORE:], first, starts[BEFORE:] if start_inside else None)
    torch.testing.assert_close(row, torch.stack(outputs[BEFORE:]), rtol=0, atol=1e-12)


def test_a_step_sees_its_window_of_its_episode_and_no_more() -> None:
    window = 4
    core = make_core(window)
    x = torch.randn(STEPS, 2, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x.requires_grad_()
    starts = torch.zeros(STEPS, 2, dtype=torch.bool)
    starts[7, 0] = True
    row = core.unroll(x, core.initial_state(2, x), starts)
    for t in range(STEPS):
        [gradient] = torch.autograd.grad(row[t].sum(), x, retain_graph=True)
        seen = gradient.any(dim=-1)
        for n, begin in enumerate((7 if t >= 7 else 0, 0)):
            expected = range(max(begin, t + 1 - window), t + 1)
            assert seen[:, n].nonzero().flatten().tolist() == list(expected)


def test_it_begins_nearly_as_the_identity_and_looks_everywhere_alike() -> None:
    core = ActorCritic(HIERARCHY, SEEN, SMALL.model_copy(update={"core": "transformer"})).actor.core
    transformer = core.transformer
    x = torch.randn(STEPS, 4, SMALL.encoder_units, generator=torch.Generator().manual_seed(4))
    entering = transformer.embed(x)
    change = core.unroll(x, core.initial_state(4, x), None) - entering
    assert 0.0 < change.norm() < 0.35 * entering.norm()
    assert not transformer.distance.any()


@pytest.mark.parametrize("units", [(3, 1), (6, 2), (16, 4)])
def test_any_width_has_as_many_heads_as_divide_it(units: tuple[int, int]) -> None:
    assert GatedTransformer(5, units[0], 3).heads == units[1]


def test_rows_are_the_same_in_any_company() -> None:
    """Every row alone, as another grouping of environments or another process has it."""
    policy = make_policy("transformer")
    world = TensorWorld(list(range(4)), {1: {3: (True, False)}}, same_step=True)
    rollout = make_rollout(policy, world, STEPS)
    together = rescore(policy, rollout)
    for row in torch.arange(4).split(1):
        alone = rescore(policy, rollout.select(row))
        torch.testing.assert_close(alone.log_probs, together.log_probs[:, row])
        torch.testing.assert_close(alone.values, together.values[:, row])


@pytest.mark.parametrize(("window", "solves"), [(6, True), (5, False)])
def test_it_learns_to_remember_what_its_window_reaches(window: int, solves: bool) -> None:
    """A T-maze whose sign lies five steps back; without it half of all turns are right."""

    class LongerMaze(Maze):
        length = 5

    policy = sizes(
        core="transformer",
        window=window,
        encoder_units=16,
        core_units=16,
        head_units=16,
        critic="detached",
    )
    agent = Agent(
        LongerMaze,
        rollout_steps=48,
        policy=policy,
        ppo=settings(learning_rate=5e-3, minibatches=2),
    )
    agent.train(4_000)
    returns = agent.evaluate(40)
    assert np.mean(returns) == 1.0 if solves else np.mean(returns) < 0.8
