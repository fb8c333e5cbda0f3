"""The memory: single steps, whole rows, and rows cut at episode starts."""

import pytest
import torch

from simic.agent.policy import Core, RecurrentState


def make_core(kind: str) -> Core:
    generator = torch.Generator().manual_seed(1)
    core = Core(kind, 6, 5)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return core


def steps_one_by_one(core: Core, x: torch.Tensor, state: RecurrentState, starts: torch.Tensor) -> torch.Tensor:
    """The slow obvious version: one step after another, memory wiped where an episode starts."""
    outputs = []
    for t in range(len(x)):
        h, state = core.step(x[t], state.zeroed(starts[t]))
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", ["lstm", "gru", "none"])
@pytest.mark.parametrize("density", [0.0, 0.2, 0.9])
def test_single_steps_equal_one_call_over_the_row(kind: str, density: float) -> None:
    generator = torch.Generator().manual_seed(2)
    core = make_core(kind)
    x = torch.randn(11, 4, 6, generator=generator)
    state = RecurrentState(*(torch.randn(part.shape, generator=generator) for part in core.initial_state(4, x)))
    starts = torch.rand(11, 4, generator=generator) < density
    slow = steps_one_by_one(core, x, state, starts)
    fast = core.over(x, state, starts if density else None)
    assert torch.allclose(slow, fast, atol=1e-6)


def test_gradients_do_not_cross_an_episode_start() -> None:
    core = make_core("lstm")
    x = torch.randn(6, 2, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    core.over(x, core.initial_state(2, x), starts)[5].sum().backward()
    assert x.grad is not None
    assert not x.grad[:3, 0].any() and x.grad[:3, 1].any()
    assert x.grad[3:, 0].any()
