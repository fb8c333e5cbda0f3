"""Optimisers of the reference are torch's. That seeds reach hosts as they are to is shown by episodes of both."""

import pytest
import torch

from simic.certify.epochs import stepped
from simic.certify.networks import Block
from tests import standard


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_are_those_of_torch(name: str) -> None:
    optimizer = standard.HostOptimizer(name=name, learning_rate=0.1, weight_decay=0.01)  # pyright: ignore[reportArgumentType]
    value = torch.linspace(-1, 1, 5, dtype=torch.float64)
    theirs = value.clone().requires_grad_()
    torchs = (
        torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
        if name == "sgd"
        else torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01, betas=(0.9, 0.99))
    )
    block = Block({"w": value}, decay=0.01)
    for n in range(4):
        grad = (value.detach() * (n + 1)).cos()
        theirs.grad = grad.clone()
        torchs.step()
        stepped(block, {"w": grad}, optimizer)
        assert torch.allclose(value, theirs.detach(), rtol=0, atol=1e-15)
