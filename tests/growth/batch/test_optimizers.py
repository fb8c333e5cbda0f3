"""Stacked optimizers against torch.optim, one network at a time."""

import pytest
import torch
from torch import nn

from simic.growth.batch import optimizers
from simic.growth.batch.optimizers import MOMENTS, Update, clip_scale
from simic.params import HostOptimizer

from ..worlds import generator

ROWS, SIZE, STEPS = 4, 11, 6


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rows_equal_torch_optim_and_inactive_rows_stand_still(name: str, decay: float) -> None:
    draw = generator(0)
    start = torch.randn(ROWS, SIZE, generator=draw)
    rates = torch.tensor([0.01, 0.1, 0.05, 0.2])
    # row 3 rests in steps 2 and 3, row 1 from step 4 on
    active = torch.ones(STEPS, ROWS, dtype=torch.bool)
    active[2:4, 3] = active[4:, 1] = False
    param, step = start.clone(), torch.zeros(ROWS, dtype=torch.float64)
    moments = {moment: torch.zeros(ROWS, SIZE) for moment in MOMENTS[name]}
    modules = [nn.Parameter(row.clone()) for row in start]
    makers = {
        "sgd": lambda p, lr: torch.optim.SGD([p], lr, momentum=0.9, weight_decay=decay),
        "adamw": lambda p, lr: torch.optim.AdamW([p], lr, weight_decay=decay),
    }
    theirs = [makers[name](module, rate) for module, rate in zip(modules, rates.tolist(), strict=True)]
    for t in range(STEPS):
        grad = torch.randn(ROWS, SIZE, generator=draw)
        before = [tensor.clone() for tensor in (param, *moments.values())]
        step += active[t]
        mask = None if active[t].all() else active[t][:, None].expand(ROWS, SIZE)
        update = Update(param, grad.clone(), moments, step[:, None], rates[:, None], decay, mask)
        optimizers.apply(update, HostOptimizer(name=name, momentum=0.9))
        for row in range(ROWS):
            if active[t, row]:
                modules[row].grad = grad[row].clone()
                theirs[row].step()
            else:
                after = (param, *moments.values())
                assert all(torch.equal(a[row], b[row]) for a, b in zip(after, before, strict=True))
    torch.testing.assert_close(param, torch.stack([module.detach() for module in modules]), rtol=1e-5, atol=1e-6)


def test_clipping_equals_torchs() -> None:
    grad = torch.randn(3, SIZE, generator=generator(1)) * torch.tensor([[0.01], [1.0], [30.0]])
    clipped = grad * clip_scale(grad.norm(dim=1), 1.0)[:, None]
    for row, mine in zip(grad, clipped, strict=True):
        module = nn.Parameter(torch.zeros(SIZE))
        module.grad = row.clone()
        nn.utils.clip_grad_norm_([module], 1.0)
        torch.testing.assert_close(mine, module.grad)


def test_a_nan_stays_in_its_row() -> None:
    scale = clip_scale(torch.tensor([0.5, torch.nan, 4.0]), 1.0)
    assert scale[0] == 1.0
    assert scale[1].isnan()
    assert scale[2].item() == pytest.approx(0.25, rel=1e-5)
