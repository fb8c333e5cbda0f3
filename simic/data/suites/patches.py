"""The suite ``patches``: images of 16 × 16 in one channel, for convolutional hosts that mix no neighbouring pixels.

Where a seed helps depends on the scale of what has to be seen, and which one on its form; some kinds the host solves
alone. Digits are scikit-learn's (``sources.read_digits``); each group of tasks and each split has digits of its own.
"""

import torch
from torch import Tensor

from simic.data.sources import read_digits
from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import Suite, suite

SIZE = 16
BLOCK = 2  # cells of an orientation block on each side

suite(
    Suite(
        name="patches",
        held_out=("gratings", "digits_negative", "orientation_noisy"),
        samples={"train": 512, "val": 256, "test": 512},
        overrides=(
            "train.host.family=cnn",
            "train.host.preset=impaired",
            "train.episode_steps=40",
            "train.lifecycle.max_seeds=1",
        ),
    )
)


def cells(values: Tensor, size: int) -> Tensor:
    """``[n, h, w]`` as an image ``[n, 1, h · size, w · size]`` of equal squares."""
    return values.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, None]


def _orientation(cell: int, noise: float, flips: float = 0.0) -> Problem:
    """Pairs of high and low cells side by side (1) or one above the other (0), in blocks of 2 × 2, as
    ``synthetic.orientation``: cells of 2 pixels are told apart in slot 0, of 4 in slot 1, of 8 in slot 2 and before.
    """

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        count = SIZE // cell
        coin = draws.integers(2, n, count // BLOCK, count // BLOCK)
        side = coin.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        place = torch.arange(count) % BLOCK
        high = torch.where(y[:, None, None] == 0, place[:, None] == side, place == side)
        x = cells(2.0 * high - 1.0 + noise * draws.normal(n, count, count), cell)
        return x, draws.mislabelled(y, 2, flips)

    return Problem(2, {"cell": cell, "noise": noise, "label_noise": flips}, sample)


@kind("patches", "orientation_small")
def orientation_small(draws: Draws) -> Problem:
    """Cells of 2 pixels."""
    return _orientation(2, draws.number(0.6, 1.2))


@kind("patches", "orientation_medium")
def orientation_medium(draws: Draws) -> Problem:
    """Cells of 4 pixels."""
    return _orientation(4, draws.number(0.3, 0.8))


@kind("patches", "orientation_large")
def orientation_large(draws: Draws) -> Problem:
    """Cells of 8 pixels: one block."""
    return _orientation(8, draws.number(0.1, 0.4))


@kind("patches", "orientation_noisy")
def orientation_noisy(draws: Draws) -> Problem:
    """Of any scale, with wrong labels."""
    return _orientation(2 ** draws.whole(1, 3), draws.number(0.2, 0.5), draws.number(0.05, 0.2))


@kind("patches", "brightness")
def brightness(draws: Draws) -> Problem:
    """Which of some levels the pixels are drawn around: the host alone sees it."""
    classes, noise = draws.whole(2, 5), draws.number(2.0, 4.0)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return y.float()[:, None, None, None] + noise * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(classes, {"classes": classes, "noise": noise}, sample)


@kind("patches", "contrast")
def contrast(draws: Draws) -> Problem:
    """How far pixels spread around any mean: the host alone sees it."""
    classes, step = draws.whole(2, 4), draws.number(0.1, 0.25)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        spread = (1.0 + step * y)[:, None, None, None]
        return draws.normal(n, 1, 1, 1) + spread * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(classes, {"classes": classes, "step": step}, sample)


@kind("patches", "gratings")
def gratings(draws: Draws) -> Problem:
    """Waves in some directions, of one length and any phase."""
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
    """Whether the left half repeats the right one."""
    cell, noise = 2 ** draws.whole(1, 2), draws.number(0.1, 0.4)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        height, width = SIZE // cell, SIZE // 2 // cell
        first, other = (draws.normal(n, height, width).sign() for _ in range(2))
        second = torch.where(y[:, None, None] == 1, first, other)
        return cells(torch.cat((first, second), 2) + noise * draws.normal(n, height, 2 * width), cell), y

    return Problem(2, {"cell": cell, "noise": noise}, sample)


# --- digits ----------------------------------------------------------------------------------------------------------


def _drawn_digits(draws: Draws, n: int, chosen: list[int]) -> tuple[Tensor, Tensor]:
    """Digits ``[n, 8, 8]`` of the chosen classes, 0 … 1, and their places among them, each class as often."""
    source = draws.source("digits", lambda data_dir: read_digits())
    y = draws.labels(n, len(chosen))
    index = draws.of_pool("digits", source.y, torch.tensor(chosen)[y])
    return source.x[index, 0] / 16.0, y


@kind("patches", "digits")
def digits(draws: Draws) -> Problem:
    """Some classes of digits at twice their size, in noise."""
    chosen, noise = draws.subset(10, 3, 10), draws.number(0.0, 0.3)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _drawn_digits(draws, n, chosen)
        return cells(x, 2) + noise * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(len(chosen), {"digits": [*chosen], "noise": noise}, sample)


@kind("patches", "digits_negative")
def digits_negative(draws: Draws) -> Problem:
    """Digits, half of them white on black: brightness says nothing."""
    chosen, noise = draws.subset(10, 3, 8), draws.number(0.0, 0.2)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _drawn_digits(draws, n, chosen)
        sign = 2.0 * draws.integers(2, n, 1, 1) - 1.0
        return cells(sign * (x - 0.5), 2) + noise * draws.normal(n, 1, SIZE, SIZE), y

    return Problem(len(chosen), {"digits": [*chosen], "noise": noise}, sample)


@kind("patches", "digits_clutter")
def digits_clutter(draws: Draws) -> Problem:
    """A digit of 8 × 8 anywhere among dots."""
    chosen, dots = draws.subset(10, 2, 6), draws.number(0.05, 0.2)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _drawn_digits(draws, n, chosen)
        image = (draws.uniform(n, SIZE, SIZE) < dots).float()
        at = draws.integers(SIZE // 2 + 1, n, 2)
        rows = torch.arange(n)[:, None, None]
        span = torch.arange(SIZE // 2)
        image[rows, (at[:, :1] + span)[:, :, None], (at[:, 1:] + span)[:, None]] = x
        return image[:, None], y

    return Problem(len(chosen), {"digits": [*chosen], "dots": dots}, sample)


@kind("patches", "digits_permuted")
def digits_permuted(draws: Draws) -> Problem:
    """Digits whose pixels were moved about, all alike: no neighbours belong together."""
    chosen, order = draws.subset(10, 3, 8), draws.permutation(64)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _drawn_digits(draws, n, chosen)
        return cells(x.flatten(1)[:, order].view(n, 8, 8), 2), y

    return Problem(len(chosen), {"digits": [*chosen]}, sample)


@kind("patches", "digits_mislabelled")
def digits_mislabelled(draws: Draws) -> Problem:
    """Digits of which some carry another's label."""
    chosen, share = draws.subset(10, 3, 8), draws.number(0.1, 0.3)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _drawn_digits(draws, n, chosen)
        return cells(x, 2), draws.mislabelled(y, len(chosen), share)

    return Problem(len(chosen), {"digits": [*chosen], "label_noise": share}, sample)
