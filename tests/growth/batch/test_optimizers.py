"""Stacked optimizers against torch.optim, one network at a time."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from simic.growth.batch import arena
from simic.growth.batch.arena import MOMENTS, Arena, Block, Rows
from simic.growth.batch.template import RowLayout
from simic.transfer import CPU
from tests.standard import HostOptimizer

from ..worlds import generator

COLUMNS = RowLayout([torch.Size(size) for size in ((3, 2), (4,), (16,))], [True, False, True])
RATE = 0.05
# Which rows train in an epoch, in which order, and which of them stand still: then some rows have trained more than
# others, neighbours are alike or not, and a run of like rows is cut by a frozen one.
EPOCHS = (
    ([0, 1, 2, 3], []),
    ([2, 3, 4, 5, 6], [3]),
    ([6, 0, 1, 3, 2, 5, 4], [0]),
    ([3, 4, 5, 0, 1, 2, 6], [4, 6]),
)


class PlainRow:
    """One module of the block under torch.optim, clipped by torch."""

    def __init__(self, row: torch.Tensor, decay: float, name: str) -> None:
        first, _, last = row.split([6, 4, 16])
        self.parameters = [nn.Parameter(first.view(3, 2).clone()), nn.Parameter(last.clone())]
        kind = {
            "sgd": partial(torch.optim.SGD, momentum=0.9),
            "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.99)),
        }[name]
        self.optimizer = kind(self.parameters, RATE, weight_decay=decay)

    def step(self, grads: list[torch.Tensor]) -> float:
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad.clone()
        norm = nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return norm.item()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_modules_of_mixed_age_equal_torch_optim_row_by_row(
    name: str, decay: float, fused: bool, monkeypatch
) -> None:
    """By torch's fused kernels, as on a CPU, and elementwise, as elsewhere; what does not train keeps every bit."""
    monkeypatch.setattr(arena, "CPU", CPU if fused else "another")
    draw = generator(5)
    optimizer = HostOptimizer(name=name, momentum=0.9)
    store = Rows.zeros(7, COLUMNS, MOMENTS[name], CPU)
    store.param.copy_(torch.randn(7, COLUMNS.width, generator=draw))
    start = store.param.clone()
    plain = [PlainRow(row, decay, name) for row in start]
    steps_of_rows = [0] * 7
    for rows, still in EPOCHS:
        places = torch.tensor(rows), torch.arange(len(rows)), np.isin(rows, still)
        epoch = Arena([Block("host", store, *places, decay, COLUMNS)], RATE, optimizer, CPU)
        before = {part: tensor.clone() for part, tensor in store.tensors.items()}
        for scale in (0.1, 3.0, 1.0):  # without and with a clip
            grads = [
                scale * torch.randn(len(rows), *shape, generator=draw) for shape in ((3, 2), (16,))
            ]
            for buffer, grad in zip(epoch.blocks[0].grads, grads, strict=True):
                buffer.copy_(grad)
            [norms] = epoch.update()
            for place, row in enumerate(rows):
                if row not in still:
                    norm = plain[row].step([grad[place] for grad in grads])
                    assert norms[place].item() == pytest.approx(norm, rel=1e-5)
        epoch.scatter()
        for row in rows:
            steps_of_rows[row] += 0 if row in still else 3
        resting = [row for row in range(7) if row in still or row not in rows]
        assert all(
            torch.equal(tensor[resting], before[part][resting])
            for part, tensor in store.tensors.items()
        )
        for row, plain_row in enumerate(plain):
            first, constant, last = store.param[row].split([6, 4, 16])
            expected = [parameter.detach().flatten() for parameter in plain_row.parameters]
            torch.testing.assert_close([first, last], expected, rtol=2e-5, atol=2e-6)
            assert torch.equal(constant, start[row, 6:10])
    assert store.tensors["step"].tolist() == steps_of_rows and len(set(steps_of_rows)) > 2
