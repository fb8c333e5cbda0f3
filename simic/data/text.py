"""Read text as bytes: any UTF-8 file in windows that predict the next byte at each position."""

from pathlib import Path

import numpy as np
import torch

from simic import durable
from simic.data.sources import Source, inside, read_file
from simic.errors import SimicError
from simic.params import Prepare
from simic.rng import Purpose, bits, key

EXAMPLE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


def read_text(data_dir: Path, params: Prepare, rng_seed: int) -> Source:
    """Return windows ``x [N, L]`` and, one byte on, ``y [N, L]`` uint8, with L = ``params.context``.

    The text is cut once into train | val | test, in its own order, and each part into windows of L + 1 bytes at a
    stride of L: no byte is in two parts, so none that was trained on is ever predicted in another. With ``samples``,
    one piece of the text that holds so many windows is used; a hash of ``rng_seed`` says where it starts. What is left
    over at the end (less than a window) is not used.
    """
    path = inside(data_dir, params.source or "")
    content = read_file(path, f" (any UTF-8 text; for example {EXAMPLE})")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SimicError(f"{path}: not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    length, parts = params.context, len(params.split.model_dump())
    available = max(0, (len(content) - parts) // length)  # each part needs one byte more than its windows' inputs
    windows = available if params.samples is None else params.samples
    sizes = _part_sizes(windows, params)
    if windows > available or min(sizes) < 1:
        raise SimicError(
            f"{path}: {len(content)} bytes make {available} windows of prepare.context = {length}: "
            + (f"prepare.samples asks for {windows}" if windows > available else f"too few to split as {list(sizes)}")
        )
    used = windows * length + parts
    room = len(content) - used if params.samples is not None else 0
    start = (int(bits(key(rng_seed, Purpose.SUBSAMPLE), (1,))) & 0x7FFFFFFFFFFFFFFF) % (room + 1)
    stream = np.frombuffer(content, dtype=np.uint8)[start : start + used]
    x, y, at = [], [], 0
    for size in sizes:
        x.append(stream[at : at + size * length].reshape(size, length))
        y.append(stream[at + 1 : at + 1 + size * length].reshape(size, length))
        at += size * length + 1
    part = torch.arange(parts).repeat_interleave(torch.tensor(sizes))
    inputs, targets = (torch.from_numpy(np.concatenate(pieces)) for pieces in (x, y))
    return Source(path.name, durable.sha256_of(content), "the user's own", inputs, targets, part)


def _part_sizes(windows: int, params: Prepare) -> tuple[int, int, int]:
    """Return how many windows train, val and test have; train takes what rounding leaves."""
    val, test = round(windows * params.split.val), round(windows * params.split.test)
    return windows - val - test, val, test
