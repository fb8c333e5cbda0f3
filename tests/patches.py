"""A small suite of images for the tests, registered as an extension registers one: 16 × 16 pixels in one channel.

Kinds differ in the module that helps: pairs of dots at three distances, brightness that the host tells alone, and
digits of scikit-learn's, a finite source.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite

SIZE = 16
HELD_OUT = ("gratings", "digits_negative")
# Overrides of params.yaml for small networks on images and sequences: a seed trains and blends in over several epochs.
GRADUAL = (
    "train.host={family: cnn, preset: impaired}",
    "train.iterations=8",
    "train.horizon=null",
    "train.envs=64",
    "train.episode_steps=25",
    "train.batches_per_epoch=all",
    "train.batch_size=64",
    "train.validate_every=4",
    "train.host_optimizer={name: sgd, learning_rate: 0.05, weight_decay: 0.0005, seed_weight_decay: 0.0}",
    "train.lifecycle={training_dwell: 3, blending_dwell: 3, min_prune_age: 8, embargo_steps: 5, reset_steps: 1, "
    "sequential_development: true, max_seeds: null}",
    "train.actions={}",
    "train.reward={mode: shaped, pbrs_weight: 0.3, intervention_cost: 0.01}",
    "train.policy={core: lstm, encoder_units: 128, core_units: 128, critic: own}",
    "train.ppo={learning_rate: 0.001, learning_rate_schedule: constant, epochs: 4, target_kl: 0.015, "
    "entropy_coef: 0.01, entropy_coef_final: 0.001, gamma: 0.995, normalize_rewards: true}",
)
# One seed, for which three can be tried in an episode.
OVERRIDES = (
    *GRADUAL,
    "prepare.suite={name: patches, instances: {train: 192, val: 16, held_out: 16, held_out_kinds: 4, outside: 0}}",
    "train.episode_steps=40",
    "train.batches_per_epoch=8",
    "train.batch_size=32",
    "train.host_optimizer.name=adamw",
    "train.host_optimizer.learning_rate=0.003",
    "train.reward.mode=score",
    "train.lifecycle.max_seeds=1",
    "train.lifecycle.embargo_steps=0",
    "train.lifecycle.sequential_development=false",
    "train.actions.blueprint=[norm, attention, depthwise, bottleneck]",
    "train.actions.style=[linear_add, sigmoid_add]",
    "train.actions.alpha_target=[1.0]",
)

suite(TaskSuite(name="patches", held_out=HELD_OUT, samples={"train": 512, "val": 256, "test": 512}))


def cells(values: Tensor, size: int) -> Tensor:
    """Return ``[n, h, w]`` as an image ``[n, 1, h · size, w · size]`` of equal squares."""
    return values.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, None]


def pairs(block: int, noise: float) -> Problem:
    """Put two high and two low dots at the corners of each ``block`` of pixels: high beside high is 0, above high 1."""
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
        return cells(dots + noise * draws.normal(n, SIZE // 2, SIZE // 2), 2), y

    return Problem(2, {"block": block, "noise": noise}, sample)


kind("patches", "pairs_near")(lambda draws: pairs(4, draws.number(0.5, 1.0)))
kind("patches", "pairs_middle")(lambda draws: pairs(8, draws.number(0.3, 0.6)))
kind("patches", "pairs_far")(lambda draws: pairs(16, draws.number(0.2, 0.45)))


@kind("patches", "brightness")
def brightness(draws: Draws) -> Problem:
    """Draw pixels around one of some levels."""
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


def of_digits(
    chosen: list[int], show: Callable[[Draws, Tensor], Tensor], **parameters: Any
) -> Problem:
    """Return an instance whose classes are the chosen digits, equally often."""

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.bundled("digits")
        y = draws.labels(n, len(chosen))
        index = draws.of_pool("digits", source.y, torch.tensor(chosen)[y])
        return show(draws, source.x[index, 0] / 16.0), y

    return Problem(len(chosen), {"digits": chosen, **parameters}, sample)


@kind("patches", "digits")
def digits(draws: Draws) -> Problem:
    """Show some classes of digits at twice their size, in noise."""
    chosen, noise = draws.subset(10, 3, 10), draws.number(0.0, 0.3)
    return of_digits(
        chosen,
        lambda draws, x: cells(x, 2) + noise * draws.normal(len(x), 1, SIZE, SIZE),
        noise=noise,
    )


@kind("patches", "digits_negative")
def digits_negative(draws: Draws) -> Problem:
    """Show digits, half of them white on black."""

    def show(draws: Draws, x: Tensor) -> Tensor:
        return cells((2.0 * draws.integers(2, len(x), 1, 1) - 1.0) * (x - 0.5), 2)

    return of_digits(draws.subset(10, 3, 8), show)


@kind("patches", "digits_permuted")
def digits_permuted(draws: Draws) -> Problem:
    """Move the pixels of all digits about alike: no neighbours belong together."""
    chosen, order = draws.subset(10, 3, 8), draws.permutation(64)
    return of_digits(chosen, lambda draws, x: cells(x.flatten(1)[:, order].view_as(x), 2))
