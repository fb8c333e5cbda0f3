"""The suite ``texts``: sequences of 24 bytes, of which each predicts the next, for hosts that see one byte alone.

Where a rule needs an earlier byte, an attention can find it. Natural text comes from any UTF-8 file
``text/tinyshakespeare.txt`` in the data directory; who has none names the other kinds in ``prepare.suite``.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic import durable
from simic.data.published import local_copy
from simic.data.sources import BYTES, Source
from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite
from simic.data.synthetic import recall as planted_recall
from simic.data.text import read_utf8

LENGTH = 24
FOLDER, FILE = "text", "tinyshakespeare.txt"
FIRST_LETTER, FIRST_DIGIT = ord("a"), ord("0")
PRINTABLE = range(32, 127)

suite(
    TaskSuite(
        name="texts",
        held_out=("reverse", "cipher"),
        samples={"train": 1024, "val": 128, "test": 256},
        overrides=(
            "train.host.family=transformer",
            "train.host.preset=impaired",
            "train.host_optimizer.name=adamw",
            "train.host_optimizer.learning_rate=0.005",
            "train.batch_size=32",
            "train.episode_steps=40",
            "train.lifecycle.max_seeds=1",
        ),
    )
)


def _predicted(text: Tensor) -> tuple[Tensor, Tensor]:
    """``[n, 25]`` as bytes and those that follow."""
    text = text.to(torch.uint8)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


@kind("texts", "copy")
def copy(draws: Draws) -> Problem:
    """A word again and again."""
    letters, period = draws.whole(16, 26), draws.whole(8, 12)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        word = draws.integers(letters, n, period) + FIRST_LETTER
        return _predicted(word[:, torch.arange(LENGTH + 1) % period])

    return Problem(BYTES, {"letters": letters, "period": period}, sample)


@kind("texts", "reverse")
def reverse(draws: Draws) -> Problem:
    """A word, then the same backwards."""
    letters = draws.whole(16, 26)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(LENGTH + 1)
        word = draws.integers(letters, n, LENGTH // 2 + 1) + FIRST_LETTER
        return _predicted(word[:, torch.minimum(place, LENGTH - place)])

    return Problem(BYTES, {"letters": letters}, sample)


@kind("texts", "recall")
def recall(draws: Draws) -> Problem:
    """A key, then questions whose answers depend on it (``synthetic.recall``)."""
    symbols = draws.whole(5, 9)
    return Problem(
        BYTES,
        {"symbols": symbols},
        lambda draws, n: planted_recall(int(draws.integers(1 << 30)), n, LENGTH, symbols),
    )


@kind("texts", "arithmetic")
def arithmetic(draws: Draws) -> Problem:
    """Sums of two numbers: 07+35=042."""
    below = draws.whole(50, 100)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        parts = []
        for _ in range(3):  # of 10 bytes each
            first, second = draws.integers(below, n), draws.integers(below, n)
            parts += [*_digits(first, 2), _same("+", n), *_digits(second, 2), _same("=", n)]
            parts += [*_digits(first + second, 3), _same(" ", n)]
        return _predicted(torch.stack(parts, 1)[:, : LENGTH + 1])

    return Problem(BYTES, {"below": below}, sample)


def _digits(number: Tensor, count: int) -> list[Tensor]:
    return [number // 10**place % 10 + FIRST_DIGIT for place in reversed(range(count))]


def _same(letter: str, n: int) -> Tensor:
    return torch.full((n,), ord(letter))


@kind("texts", "pairs")
def pairs(draws: Draws) -> Problem:
    """Each letter has a few that follow it: the host alone learns that."""
    return _chain(draws, 1)


@kind("texts", "skips")
def skips(draws: Draws) -> Problem:
    """Each letter has a few that follow it some places later."""
    return _chain(draws, draws.whole(2, 4))


def _chain(draws: Draws, gap: int) -> Problem:
    """A letter depends on the one ``gap`` before it and on nothing else."""
    letters, followers = draws.whole(12, 26), draws.whole(2, 4)
    table = draws.integers(letters, letters, followers)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        text, choice = draws.integers(letters, n, LENGTH + 1), draws.integers(followers, n, LENGTH + 1)
        for at in range(gap, LENGTH + 1):
            text[:, at] = table[text[:, at - gap], choice[:, at]]
        return _predicted(text + FIRST_LETTER)

    return Problem(BYTES, {"letters": letters, "followers": followers, "gap": gap}, sample)


# --- natural ---------------------------------------------------------------------------------------------------------


def _read_windows(data_dir: Path) -> Source:
    """The file in windows that share no byte."""
    path = local_copy(data_dir, FOLDER, FILE) or data_dir / FOLDER / FILE
    content = read_utf8(path)
    windows = len(content) // (LENGTH + 1)
    text = np.frombuffer(content, dtype=np.uint8)[: windows * (LENGTH + 1)].reshape(windows, LENGTH + 1)
    x, y = _predicted(torch.from_numpy(text.copy()))
    return Source(path.name, durable.sha256_of(content), "the user's own", x, y, torch.zeros(windows))


def _windows(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
    source = draws.source(FOLDER, _read_windows)
    alike = torch.zeros(len(source), dtype=torch.int64)  # no classes: all windows make one
    index = draws.of_pool(FOLDER, alike, torch.zeros(n, dtype=torch.int64))
    return source.x[index], source.y[index]


@kind("texts", "natural")
def natural(draws: Draws) -> Problem:
    """Windows of a text."""
    return Problem(BYTES, {}, _windows)


@kind("texts", "cipher")
def cipher(draws: Draws) -> Problem:
    """Windows of a text whose printable bytes were exchanged, all alike."""
    table = torch.arange(BYTES)
    table[PRINTABLE.start : PRINTABLE.stop] = PRINTABLE.start + draws.permutation(len(PRINTABLE))

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = _windows(draws, n)
        return table[x.long()].to(torch.uint8), table[y.long()].to(torch.uint8)

    return Problem(BYTES, {}, sample)
