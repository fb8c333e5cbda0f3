"""Define the suite ``adapt``: a host that was trained on digits and is frozen meets digits whose images, features or
labels have shifted.

Where a seed helps depends on the shift (Lee et al. 2023, arXiv 2210.11466): changes of pixels are best undone in the
first slot, changes of labels in the last. Digits are scikit-learn's, 8 × 8, from -1 to 1; the host has seen the
training digits of training tasks and no other.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import GRADUAL, SourceTask, TaskSuite, suite
from simic.params import Host

SIZE = 8
NOISE = 0.1  # of every pixel, so that no image comes twice
WIDTHS = (16, 8, 16)  # the second layer is narrow: what the first one lost of a shifted image is not found again
# How seeds learn in a frozen host. Where it is confident and wrong, gradients have norms of 5 to 50, and they become no
# smaller until a seed's output counts: one epoch of that at a higher rate drives it out of what the host can read
# (docs/history/experiments.md).
OPTIMIZER: dict[str, Any] = {
    "name": "adamw",
    "learning_rate": 0.003,
    "weight_decay": 5e-4,
    "seed_weight_decay": 0.0,
    "max_grad_norm": 10.0,
}
TRAINING_DWELL = 1
Shift = Callable[[Draws, Tensor], Tensor]  # of images [n, 1, 8, 8]


def _digits(shift: Shift | None, groups: list[list[int]] | None = None, **parameters: Any) -> Problem:
    """Return an instance of digits moved by up to a pixel, and then shifted; a class is one digit or a group."""
    dealt = groups or [[digit] for digit in range(10)]

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.bundled("digits")
        y = draws.labels(n, len(dealt))
        x = source.x[draws.of_pool("digits", source.y, draws.members(y, dealt)), 0] / 8.0 - 1.0
        rows, columns = ((torch.arange(SIZE) + draws.integers(3, n, 1) - 1).clamp(0, SIZE - 1) for _ in range(2))
        x = x[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None]][:, None]
        x = x + NOISE * draws.normal(*x.shape)
        return (x if shift is None else shift(draws, x)).contiguous(), y

    return Problem(len(dealt), {"labels": dealt, **parameters}, sample)


suite(
    TaskSuite(
        name="adapt",
        held_out=("inverted", "exchanged"),
        samples={"train": 512, "val": 192, "test": 384},
        overrides=(
            *GRADUAL,
            "prepare.suite.instances={train: 64, val: 16, held_out: 12, held_out_kinds: 4, outside: 0}",
            f"train.host={{family: adapted_cnn, preset: baseline, widths: {list(WIDTHS)}}}",
            "train.episode_steps=40",
            "train.batches_per_epoch=8",
            "train.batch_size=32",
            f"train.host_optimizer={json.dumps(OPTIMIZER)}",
            f"train.lifecycle.training_dwell={TRAINING_DWELL}",
            "train.reward.mode=score",
            "train.lifecycle.max_seeds=1",
            "train.lifecycle.embargo_steps=0",
            "train.actions.style=[linear_add, sigmoid_add]",
            "train.actions.alpha_target=[1.0]",
            "headroom.policies=[static, random_legal, patient]",
        ),
        source=SourceTask(
            Host(family="adapted_cnn", preset="baseline", widths=WIDTHS), lambda draws: _digits(None), 2048, 25
        ),
    )
)


# --- shifts of the input ---------------------------------------------------------------------------------------------


@kind("adapt", "checkered")
def checkered(draws: Draws) -> Problem:
    """Invert every other cell of one or two pixels."""
    cell = draws.whole(1, 2)
    place = torch.arange(SIZE) // cell
    sign = (place[:, None] + place) % 2 * 2.0 - 1.0
    return _digits(lambda draws, x: x * sign, cell=cell)


@kind("adapt", "scrambled")
def scrambled(draws: Draws) -> Problem:
    """Exchange the four pixels of every block of 2 × 2, in all alike."""
    order = draws.permutation(4)
    return _digits(lambda draws, x: F.pixel_shuffle(F.pixel_unshuffle(x, 2)[:, order], 2), order=order.tolist())


@kind("adapt", "striped")
def striped(draws: Draws) -> Problem:
    """Add stripes across, of one width and any phase, brighter than the digit."""
    length, height = draws.number(2.5, 5.0), draws.number(1.0, 2.0)

    def shift(draws: Draws, x: Tensor) -> Tensor:
        wave = (2 * torch.pi * (torch.arange(SIZE) / length + draws.uniform(len(x), 1))).sin()
        return x + height * wave[:, None, :, None]

    return _digits(shift, wavelength=length, height=height)


@kind("adapt", "inverted")
def inverted(draws: Draws) -> Problem:
    """Invert some images, or all."""
    share = draws.number(0.5, 1.0)
    return _digits(lambda draws, x: torch.where(draws.uniform(len(x), 1, 1, 1) < share, -x, x), share=share)


# --- shifts of features ----------------------------------------------------------------------------------------------


@kind("adapt", "quartered")
def quartered(draws: Draws) -> Problem:
    """Exchange the quarters of the image: strokes stay as they were, digits do not."""
    order = draws.permutation(4)
    half = SIZE // 2

    def shift(draws: Draws, x: Tensor) -> Tensor:
        quarters = [x[:, :, half * i : half * (i + 1), half * j : half * (j + 1)] for i in range(2) for j in range(2)]
        a, b, c, d = (quarters[k] for k in order.tolist())
        return torch.cat((torch.cat((a, b), 3), torch.cat((c, d), 3)), 2)

    return _digits(shift, order=order.tolist())


@kind("adapt", "outlined")
def outlined(draws: Draws) -> Problem:
    """Draw the edges of strokes alone, in some noise."""
    noise = draws.number(0.0, 0.3)

    def shift(draws: Draws, x: Tensor) -> Tensor:
        edges = F.max_pool2d(x, 3, 1, 1) + F.max_pool2d(-x, 3, 1, 1) - 1.0
        return edges + noise * draws.normal(*x.shape)

    return _digits(shift, noise=noise)


# --- shifts of labels ------------------------------------------------------------------------------------------------


@kind("adapt", "permuted")
def permuted(draws: Draws) -> Problem:
    """Permute the labels of all digits."""
    return _digits(None, [[digit] for digit in draws.permutation(10).tolist()])


@kind("adapt", "regrouped")
def regrouped(draws: Draws) -> Problem:
    """Group the digits into a few classes at random."""
    count, order = draws.whole(2, 5), draws.permutation(10).tolist()
    return _digits(None, [sorted(order[k::count]) for k in range(count)])


@kind("adapt", "ranked")
def ranked(draws: Draws) -> Problem:
    """Tell small digits from large ones, or the other way round."""
    least, turned = draws.whole(3, 7), draws.whole(0, 1)
    groups = [[*range(least)], [*range(least, 10)]]
    return _digits(None, groups[::-1] if turned else groups)


@kind("adapt", "exchanged")
def exchanged(draws: Draws) -> Problem:
    """Permute the labels of some digits; the others keep theirs."""
    order = torch.arange(10)
    chosen = draws.permutation(10)[: draws.whole(4, 8)]
    order[chosen] = order[chosen.roll(1)]
    return _digits(None, [[digit] for digit in order.tolist()])
