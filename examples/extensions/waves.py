r"""Tasks of one's own for a suite: a kind of the shipped suite tables, and a suite with kinds of its own.

cp examples/extensions/waves.py extensions/
simic run -S 'extensions=[waves]' -S 'prepare.suite={kinds: [product, corner]}'
simic run -S 'extensions=[waves]' -S prepare.suite.name=waves \
    -S train.host.family=mlp -S train.actions={}
"""

import torch
from torch import Tensor

from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite

LENGTH = 32


@kind("tables", "corner")
def corner(draws: Draws) -> Problem:
    """Whether some columns of a row are all above their mean."""
    chosen, noise = draws.subset(12, 1, 2), draws.number(0.0, 0.2)  # of this instance, recorded

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        x = draws.normal(n, 12)
        x[:, chosen] = x[:, chosen].abs()
        # In every row of class 0 the first of them is below.
        x[y == 0, chosen[0]] *= -1
        return (x + noise * draws.normal(n, 12))[:, None, None], y

    return Problem(2, {"columns": chosen, "noise": noise}, sample)


suite(
    TaskSuite(
        name="waves",
        held_out=("squares",),  # no controller trains on them
        samples={"train": 256, "val": 128, "test": 256},
    )
)


def frequencies(draws: Draws, square: bool) -> Problem:
    """Which of some frequencies a signal has, whatever its phase."""
    chosen = draws.subset(8, 2, 5)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, len(chosen))
        turns = torch.arange(LENGTH) / LENGTH * (1 + torch.tensor(chosen)[y])[
            :, None
        ] + draws.uniform(n, 1)
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
