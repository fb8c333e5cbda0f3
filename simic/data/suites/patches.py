"""Define the suite ``patches``: images of 16 × 16 in one channel, for hosts that mix no neighbouring pixels.

Where a seed helps depends on the scale of what has to be seen, and which one on its form; some kinds the host solves
alone. Digits are scikit-learn's; each group of tasks and each split has digits of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import GRADUAL, TaskSuite, suite

SIZE = 16

suite(
    TaskSuite(
        name="patches",
        held_out=("gratings", "digits_negative", "digits_clutter", "digits_mislabelled", "pairs_mislabelled"),
        samples={"train": 512, "val": 256, "test": 512},
        overrides=(
            *GRADUAL,
            # Of 64 tasks a controller knows too little (docs/history/experiments.md); 20 are held out, as many as
            # evaluate.eval_seeds.
            "prepare.suite.instances={train: 192, val: 16, held_out: 16, held_out_kinds: 4, outside: 0}",
            "train.episode_steps=40",
            "train.batches_per_epoch=8",
            "train.batch_size=32",
            "train.host_optimizer.name=adamw",  # SGD, best of three rates: 5 points less (docs/history/experiments.md)
            "train.host_optimizer.learning_rate=0.003",
            "train.reward.mode=score",
            "train.lifecycle.max_seeds=1",
            # Three seeds can be tried in an episode, each for twelve steps.
            "train.lifecycle.embargo_steps=0",
            "train.lifecycle.sequential_development=false",
            # Of blueprints one 3 × 3 convolution at most: two of them in slot 0 reach as far as a seed in slot 1.
            "train.actions.blueprint=[norm, attention, depthwise, bottleneck]",
            "train.actions.style=[linear_add, sigmoid_add]",
            "train.actions.alpha_target=[1.0]",
        ),
    )
)


def cells(values: Tensor, size: int) -> Tensor:
    """Return ``[n, h, w]`` as an image ``[n, 1, h · size, w · size]`` of equal squares."""
    return values.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, None]


def _pairs(block: int, noise: float, flips: float = 0.0) -> Problem:
    """Put two high and two low dots at the corners of each ``block`` of pixels: high beside high is 0, above high 1.

    As in ``synthetic.orientation`` no single dot tells, nor all of a block once their places are forgotten. Dots of a
    block of 4 are neighbours in slot 0 and one pixel in slot 1; of 8, too far apart for 3 × 3 in slot 0, neighbours in
    slot 1 and one pixel in slot 2; of 16, too far apart in slots 0 and 1, neighbours in slot 2.
    """
    count, gap = SIZE // block, block // 2 - 1  # in dots of 2 × 2 pixels

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        coin = draws.integers(2, n, count, count)
        side = coin.repeat_interleave(2, 1).repeat_interleave(2, 2)
        place = torch.arange(2 * count) % 2
        high = torch.where(y[:, None, None] == 0, place[:, None] == side, place == side)
        corner = torch.arange(SIZE // 2)[torch.arange(SIZE // 2) % (block // 2) % gap == 0]
        dots = torch.zeros(n, SIZE // 2, SIZE // 2)
        dots[:, corner[:, None], corner] = 2.0 * high - 1.0
        return cells(dots + noise * draws.normal(n, SIZE // 2, SIZE // 2), 2), draws.mislabelled(y, 2, flips)

    return Problem(2, {"block": block, "noise": noise, "label_noise": flips}, sample)


# Dots are 2 pixels apart, in 16 blocks; 6 pixels, in 4 blocks; 14 pixels, in one block.
kind("patches", "pairs_near")(lambda draws: _pairs(4, draws.number(0.5, 1.0)))
kind("patches", "pairs_middle")(lambda draws: _pairs(8, draws.number(0.3, 0.6)))
kind("patches", "pairs_far")(lambda draws: _pairs(16, draws.number(0.2, 0.45)))


@kind("patches", "pairs_mislabelled")
def pairs_mislabelled(draws: Draws) -> Problem:
    """Put dots at any of the three distances, with some wrong labels."""
    return _pairs(2 ** draws.whole(2, 4), draws.number(0.1, 0.3), draws.number(0.05, 0.15))


@kind("patches", "brightness")
def brightness(draws: Draws) -> Problem:
    """Draw pixels around one of some levels: the host alone tells which."""
    classes, noise = draws.whole(2, 5), draws.number(2.0, 4.0)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return y.float()[:, None, None, None] + noise * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(classes, {"classes": classes, "noise": noise}, sample)


@kind("patches", "gratings")
def gratings(draws: Draws) -> Problem:
    """Draw waves in some directions, of one length and any phase."""
    classes, length, noise = draws.whole(2, 4), 2 ** draws.whole(1, 3) + 1, draws.number(0.5, 1.5)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        angle = torch.pi * y / classes
        axis = torch.arange(SIZE, dtype=torch.float32)
        along = axis * angle.cos()[:, None, None] + axis[:, None] * angle.sin()[:, None, None]
        wave = (2 * torch.pi * (along / length + draws.uniform(n, 1, 1))).sin()
        return wave[:, None] + noise * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(classes, {"classes": classes, "wavelength": length, "noise": noise}, sample)


@kind("patches", "same")
def same(draws: Draws) -> Problem:
    """Repeat the right half on the left, or not."""
    cell, noise = 2 ** draws.whole(1, 2), draws.number(0.1, 0.4)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        height, width = SIZE // cell, SIZE // 2 // cell
        first, other = (draws.normal(n, height, width).sign() for _ in range(2))
        second = torch.where(y[:, None, None] == 1, first, other)
        return cells(torch.cat((first, second), 2) + noise * draws.normal(n, height, 2 * width), cell), y

    return Problem(2, {"cell": cell, "noise": noise}, sample)


@kind("patches", "either")
def either(draws: Draws) -> Problem:
    """Show one of two sorts of dots anywhere, or both or none of them: the mean of all pixels does not tell."""
    noise, dots = draws.number(0.1, 0.3), draws.whole(1, 4)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        first = draws.integers(2, n)
        there = torch.stack((first, (first + y) % 2), 1)  # equal: both or none
        image = noise * draws.normal(n, SIZE // 2 * SIZE // 2)
        order = draws.uniform(n, SIZE // 2 * SIZE // 2).argsort(dim=1, stable=True)
        rows = torch.arange(n)[:, None]
        for sort, value in enumerate((2.0, -2.0)):
            mine = order[:, sort * dots : (sort + 1) * dots]
            image[rows, mine] += value * there[:, sort : sort + 1]
        return cells(image.view(n, SIZE // 2, SIZE // 2), 2), y

    return Problem(2, {"dots": dots, "noise": noise}, sample)


# --- digits ----------------------------------------------------------------------------------------------------------

Show = Callable[[Draws, Tensor], Tensor]  # images [n, 1, 16, 16] of digits [n, 8, 8] from 0 to 1


def _digits(chosen: list[int], show: Show, flips: float = 0.0, **parameters: Any) -> Problem:
    """Return an instance whose classes are the chosen digits, equally often, of which a share is labelled wrongly."""

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.bundled("digits")
        y = draws.labels(n, len(chosen))
        index = draws.of_pool("digits", source.y, torch.tensor(chosen)[y])
        return show(draws, source.x[index, 0] / 16.0), draws.mislabelled(y, len(chosen), flips)

    return Problem(len(chosen), {"digits": chosen, **parameters}, sample)


def _noisy(draws: Draws, image: Tensor, noise: float) -> Tensor:
    return image + noise * draws.normal(*image.shape)


@kind("patches", "digits")
def digits(draws: Draws) -> Problem:
    """Show some classes of digits at twice their size, in noise."""
    chosen, noise = draws.subset(10, 3, 10), draws.number(0.0, 0.3)
    return _digits(chosen, lambda draws, x: _noisy(draws, cells(x, 2), noise), noise=noise)


@kind("patches", "digits_negative")
def digits_negative(draws: Draws) -> Problem:
    """Show digits, half of them white on black: brightness says nothing."""
    chosen, noise = draws.subset(10, 3, 8), draws.number(0.0, 0.2)

    def show(draws: Draws, x: Tensor) -> Tensor:
        sign = 2.0 * draws.integers(2, len(x), 1, 1) - 1.0
        return _noisy(draws, cells(sign * (x - 0.5), 2), noise)

    return _digits(chosen, show, noise=noise)


@kind("patches", "digits_clutter")
def digits_clutter(draws: Draws) -> Problem:
    """Show a digit of 8 × 8 anywhere among dots."""
    chosen, dots = draws.subset(10, 2, 4), draws.number(0.01, 0.05)

    def show(draws: Draws, x: Tensor) -> Tensor:
        n, span = len(x), torch.arange(SIZE // 2)
        image = (draws.uniform(n, SIZE, SIZE) < dots).float()
        at = draws.integers(SIZE // 2 + 1, n, 2)
        image[torch.arange(n)[:, None, None], (at[:, :1] + span)[:, :, None], (at[:, 1:] + span)[:, None]] = x
        return image[:, None]

    return _digits(chosen, show, dots=dots)


@kind("patches", "digits_permuted")
def digits_permuted(draws: Draws) -> Problem:
    """Move the pixels of all digits about alike: no neighbours belong together."""
    chosen, order = draws.subset(10, 3, 8), draws.permutation(64)
    return _digits(chosen, lambda draws, x: cells(x.flatten(1)[:, order].view_as(x), 2))


@kind("patches", "digits_mislabelled")
def digits_mislabelled(draws: Draws) -> Problem:
    """Show digits of which some carry another's label."""
    chosen, share = draws.subset(10, 3, 8), draws.number(0.1, 0.3)
    return _digits(chosen, lambda draws, x: cells(x, 2), share, label_noise=share)
