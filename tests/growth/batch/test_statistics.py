"""What is measured of hosts and seeds, against the plain networks that it is about."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from simic import rng
from simic.growth.batch import statistics
from simic.growth.batch.alignment import TASKS_AT_ONCE, Alignments
from simic.growth.batch.statistics import EXPLODING_CLIPS, FEW_CLASSES, gradient_ratio, score
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host

from ..worlds import (
    generator,
    logits_of,
    make_data,
    make_population,
    make_table,
    one_seed,
    small,
    stored,
)

DATA = make_data()
KIND = 1


def numbers(norms: list[list[float]] | None, clip: float) -> statistics.TrainStats:
    """Two minibatches of two hosts; the norms of a seed in host 1 at slot 0, or of nobody."""
    seeds = (
        []
        if norms is None
        else [statistics.SeedNorms(0, torch.tensor([1]), torch.tensor(norms), 25)]
    )
    per_host = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    return statistics.train_statistics(per_host, per_host / 10, per_host, 100, seeds, 3, clip)


def test_no_seed_gives_the_same_kinds_of_tensors_as_seeds_do() -> None:
    nobody = numbers(None, 1.0)
    somebody = numbers([[1.0], [2.0]], 1.0)
    for name, value in vars(somebody).items():
        empty = getattr(nobody, name)
        assert (value.dtype, value.shape) == (empty.dtype, empty.shape), name
    assert nobody.seed_grad_norm.isnan().all() and nobody.gradient_ratio.isnan().all()
    assert not nobody.gradient_healthy.any()
    assert somebody.loss.tolist() == [2.0, 2.0] and somebody.accuracy.tolist() == pytest.approx(
        [20.0, 20.0]
    )
    # seed 1.5 of 25 parameters, host 2.0 of 100: (1.5/5) / (2/10)
    assert somebody.gradient_ratio[1, 0].item() == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_a_seed_explodes_relative_to_the_clip_and_a_broken_one_is_never_healthy(
    clip: float,
) -> None:
    limit = EXPLODING_CLIPS * clip
    assert numbers([[limit], [limit * 0.9]], clip).gradient_healthy[1, 0]
    for norms in ([[limit], [limit * 1.1]], [[0.1], [torch.nan]], [[torch.inf], [0.1]]):
        assert not numbers(norms, clip).gradient_healthy[1, 0], norms


def test_a_vanished_gradient_has_ratio_zero_and_a_huge_one_is_bounded() -> None:
    unit = torch.ones(1)
    nothing = torch.zeros(1)
    assert gradient_ratio(nothing, 4, unit, 4) == 0.0
    assert gradient_ratio(unit, 4, nothing, 4) == 0.0
    assert gradient_ratio(1e6 * unit, 4, unit, 4) == 10.0


def test_looking_at_a_population_changes_nothing_of_it() -> None:
    """No gate is made, no seed is drawn, no parameter moves by a validation."""
    population = make_population("cnn", 4)
    slots = one_seed(population, Stage.BLENDING, KIND, alpha=0.5)
    before = stored(population._stores)
    off = torch.zeros(2, 4, population.host.slots, dtype=torch.bool)
    off[1, :, 0] = True
    population.evaluate(slots, DATA, off)
    logits_of(population, slots, DATA.x)
    after = stored(population._stores)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# --- alignment of untrained seeds with labels ---


def test_alignment_does_not_depend_on_which_tasks_are_asked_for() -> None:
    data = make_table(tasks=TASKS_AT_ONCE + 3)
    host = build_host(small("tables"), data.shape, data.classes)
    few_tasks = torch.tensor([TASKS_AT_ONCE + 1, 4, 4, 0])
    every, few = (
        Alignments.on(host, blueprints_of("tables"), data).of(task_numbers)
        for task_numbers in (torch.arange(data.tasks), few_tasks)
    )
    assert few.equal(every[few_tasks]) and every.std() > 0


def test_alignment_is_the_product_of_the_gradients_of_two_halves() -> None:
    """Of each untrained blueprint as a module of its own; the error is the label, centred."""
    data = make_table()
    population = make_population("tables", 1)
    x = data.x.flatten(1)
    products: list[Tensor] = []
    for number, item in enumerate(population.blueprints):
        template = population.templates.seeds[0][number]
        row = template.draw(rng.key(0, rng.Purpose.ALIGNMENT, number).expand(1))
        if template.fits:
            row = template.with_fit(row, template.fit(x[None]))
        module = item.build(population.host.seed_shapes[0])
        for name, value in zip(template.names, template.layout.unpack(row), strict=True):
            module.get_parameter(name).data.copy_(value[0])
        gradients: list[Tensor] = []
        for rows, labels in zip(x.chunk(2), data.y.chunk(2), strict=True):
            error = F.one_hot(labels, data.classes).float()
            agreement = module(rows)[:, : data.classes] * (error - error.mean(0))
            gradients += torch.autograd.grad(
                agreement.sum() / len(rows), module.get_parameter("out")
            )
        products.append((gradients[0] * gradients[1]).sum())
    expected = torch.stack(products)
    torch.testing.assert_close(
        population.aligned(data)[0], expected / expected.abs().max(), rtol=1e-3, atol=1e-5
    )


def test_seeds_that_read_features_have_none() -> None:
    assert make_population("cnn", 3).aligned(DATA).equal(torch.zeros(3, len(blueprints_of("cnn"))))


# --- loss and right answers, by class or by torch's own softmax, against the plain definitions ---

NETWORKS = 5
ROWS = 33
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
def test_loss_gradient_and_answers_are_those_of_each_network_by_itself(
    classes: int, lacks: bool
) -> None:
    """Of equal logits the first is the answer."""
    logits, y, lacking = drawn(classes)
    logits[:, :3] = 0.0
    y[:, 0] = 0
    leaf = logits.clone().requires_grad_()
    loss, right = score(leaf, y, lacking if lacks else None)
    assert torch.equal(right[:, :3], y[:, :3] == 0)
    weight = torch.rand(NETWORKS, ROWS, generator=generator(2))  # another one for each sample
    (loss * weight).sum().backward()
    for row in range(NETWORKS):
        present = ~lacking[row] if lacks else torch.ones(classes, dtype=torch.bool)
        row_logits = logits[row].clone().requires_grad_()
        expected = F.cross_entropy(row_logits[:, present], y[row], reduction="none")
        (expected * weight[row]).sum().backward()
        torch.testing.assert_close(loss[row], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(right[row], row_logits[:, present].argmax(1) == y[row])
        assert leaf.grad is not None and row_logits.grad is not None
        torch.testing.assert_close(leaf.grad[row], row_logits.grad, rtol=1e-5, atol=1e-6)


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
