"""Loss and right answers, by class or by torch's own softmax, against the plain definitions."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from simic.growth.batch.statistics import FEW_CLASSES, score

from ..worlds import generator

NETWORKS, ROWS = 5, 33
SOME = pytest.mark.parametrize("classes", [2, 3, FEW_CLASSES, FEW_CLASSES + 1])


def drawn(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, answers, and which classes each network's task lacks: the last of every second, where three remain."""
    logits = 3 * torch.randn(NETWORKS, ROWS, classes, generator=generator(classes))
    lacking = torch.zeros(NETWORKS, classes, dtype=torch.bool)
    if classes > 2:
        lacking[::2, -1] = True
    y = torch.randint(max(2, classes - 1), (NETWORKS, ROWS), generator=generator(1))
    return logits, y, lacking


@SOME
@pytest.mark.parametrize("lacks", [False, True])
def test_loss_gradient_and_answers_are_those_of_each_network_by_itself(classes: int, lacks: bool) -> None:
    logits, y, lacking = drawn(classes)
    mine = logits.clone().requires_grad_()
    loss, right = score(mine, y, lacking if lacks else None)
    weight = torch.rand(NETWORKS, ROWS, generator=generator(2))  # another one for each sample
    (loss * weight).sum().backward()
    for row in range(NETWORKS):
        known = ~lacking[row] if lacks else torch.ones(classes, dtype=torch.bool)
        own = logits[row].clone().requires_grad_()
        expected = F.cross_entropy(own[:, known], y[row], reduction="none")
        (expected * weight[row]).sum().backward()
        torch.testing.assert_close(loss[row], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(right[row], own[:, known].argmax(1) == y[row])
        assert mine.grad is not None and own.grad is not None
        torch.testing.assert_close(mine.grad[row], own.grad, rtol=1e-5, atol=1e-6)


@SOME
def test_of_equal_logits_the_first_is_the_answer(classes: int) -> None:
    logits = torch.zeros(1, 2, classes)
    _, right = score(logits, torch.tensor([[0, 1]]), None)
    assert right.tolist() == [[True, False]]


@SOME
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_network_with_a_non_finite_logit_is_never_right_there(classes: int, value: float) -> None:
    """Also where the logit is of a class that the task lacks; the others are as they were."""
    logits, y, lacking = drawn(classes)
    _, before = score(logits, y, lacking)
    broken = logits.clone()
    broken[2, 7, -1] = value
    _, right = score(broken, y, lacking)
    assert not right[2, 7]
    before[2, 7] = False
    assert torch.equal(right, before)
