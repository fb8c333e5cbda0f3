r"""Tasks of one's own for a suite: a kind of the shipped suite patches, and a suite with kinds of its own.

cp examples/extensions/waves.py extensions/
simic run -S 'extensions=[waves]' -S prepare.task=suite -S 'prepare.suite={kinds: [digits, checks]}'
simic run -S 'extensions=[waves]' -S prepare.task=suite -S prepare.suite.name=waves \
    -S train.host.family=mlp -S train.actions={}
"""

import torch
from torch import Tensor

from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite

LENGTH = 32


@kind("patches", "checks")
def checks(draws: Draws) -> Problem:
    """Whether an image in noise is a chessboard or one colour."""
    noise = draws.number(0.5, 2.0)  # of this instance, recorded

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        board = 2.0 * (torch.arange(16) + torch.arange(16)[:, None]).remainder(2) - 1.0
        return y[:, None, None, None] * board + noise * draws.normal(n, 1, 16, 16), y

    return Problem(2, {"noise": noise}, sample)


suite(
    TaskSuite(
        name="waves",
        held_out=("squares",),  # no controller trains on them
        samples={"train": 256, "val": 128, "test": 256},
        overrides=("train.host.family=mlp", "train.lifecycle.max_seeds=1"),
    )
)


def frequencies(draws: Draws, square: bool) -> Problem:
    """Which of some frequencies a signal has, whatever its phase."""
    chosen = draws.subset(8, 2, 5)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, len(chosen))
        turns = torch.arange(LENGTH) / LENGTH * (1 + torch.tensor(chosen)[y])[:, None] + draws.uniform(n, 1)
        signal = (2 * torch.pi * turns).sin()
        return (signal.sign() if square else signal)[:, None, None], y

    return Problem(len(chosen), {"frequencies": [*chosen]}, sample)


@kind("waves", "sines")
def sines(draws: Draws) -> Problem:
    """Smooth."""
    return frequencies(draws, square=False)


@kind("waves", "squares")
def squares(draws: Draws) -> Problem:
    """High or low."""
    return frequencies(draws, square=True)
