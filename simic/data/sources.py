"""Define what every reader returns and the checks that all share; read bundled data sets, a user's .npz and text.

Raw files lie in the data directory: ``SIMIC_DATA_DIR``, or ``data/raw``. DVC tracks the stage's code and params and its
output ``data/prepared``, not the raw files, which may lie on another disk and be read-only. ``simic run`` notices if a
user's file was edited; DVC alone needs ``dvc repro -f prepare``. As its sha256 is in meta.json, later stages follow.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic import durable, safe_read
from simic.errors import SimicError
from simic.memory import machine_bytes, refuse_too_much
from simic.params import Prepare
from simic.rng import Purpose, bits, key

# Tokens of byte-level text.
BYTES = 256
# A text has three parts: train, val, test.
PARTS = 3
# Rows whose words are widened at once.
ROWS_HASHED_AT_ONCE = 4096
# How often raw data are held in memory at least, while they are split.
COPIES = 2
# The diabetes target is cut into bands of equally many rows, of which 2 or 3 classes are made.
BANDS = 6
TEXT_EXAMPLE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
# Data sets that come with scikit-learn, and their licences.
BUNDLED = {
    "digits": "CC BY 4.0 (E. Alpaydin, C. Kaynak, UCI Machine Learning Repository 1998, doi 10.24432/C50P49)",
    "breast_cancer": "CC BY 4.0 (UCI Machine Learning Repository, doi 10.24432/C5DW2B)",
    "wine": "CC BY 4.0 (UCI Machine Learning Repository, doi 10.24432/C5PC7J)",
    "iris": "CC BY 4.0 (UCI Machine Learning Repository, doi 10.24432/C56C76)",
    "diabetes": "none stated (B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least Angle Regression, 2004)",
}


@dataclass(frozen=True)
class Source:
    """Raw samples. Images and vectors: ``x [N, C, H, W]`` or ``[N, D]``, float32 and finite, or uint8; ``y [N]`` int64
    with each of 0…C-1 present. Of text, which ``read_text`` alone gives: ``x [N, L]`` and ``y [N, L]`` uint8, and
    ``part [N]``, which of train (0), val (1) and test (2) a sequence belongs to.
    """

    name: str
    sha256: str
    licence: str
    x: Tensor
    y: Tensor
    part: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """Count the classes; every byte is one, whether it occurs or not."""
        return BYTES if self.part is not None else int(self.y.max()) + 1

    def take(self, indices: Tensor) -> "Source":
        """Choose these samples, in this order."""
        part = None if self.part is None else self.part[indices]
        return replace(self, x=self.x[indices], y=self.y[indices], part=part)


def read_bundled(name: str) -> Source:
    """Read a data set of scikit-learn's: rows, or of ``digits`` 8×8 images; a target that is a number in ``BANDS``."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    # A target that is a number is cut into bands of equally many rows.
    if y.dtype.kind == "f":
        y = y.argsort(kind="stable").argsort() * BANDS // len(y)
    # The hash is that of little-endian values, equal on all machines.
    values = np.ascontiguousarray(x, dtype="<f4")
    labels = np.ascontiguousarray(y, dtype="<i8")
    digest = durable.sha256_of(values.tobytes() + labels.tobytes())
    samples = values.reshape(-1, 1, 8, 8) if name == "digits" else values
    full_name = f"scikit-learn {name}"
    return Source(full_name, digest, BUNDLED[name], *checked(full_name, samples, labels))


def read_npz(data_dir: Path, source: str) -> Source:
    """Read a user's ``.npz`` with ``x [N, D]``, ``[N, H, W]`` or ``[N, C, H, W]`` and integer ``y [N]``."""
    path = inside(data_dir, source)
    content = read_file(path)
    arrays = npz_arrays(path, content, ("x", "y"))
    if missing := sorted({"x", "y"} - arrays.keys()):
        raise SimicError(f"{path}: no array {missing[0]!r}; it must hold x and y")
    x = arrays["x"][:, None] if arrays["x"].ndim == 3 else arrays["x"]
    # The name alone: the folder would make the prepared bytes differ between machines.
    return Source(
        path.name,
        durable.sha256_of(content),
        "the user's own",
        *checked(str(path), x, arrays["y"]),
    )


def npz_arrays(path: Path, content: bytes, allowed: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file.

    Args:
        path: of the file, for messages.
        content: its bytes.
        allowed: lower-case names of the arrays to read; others are left.

    Raises:
        SimicError: for a damaged or too large file.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = [name for name in archive.files if name.lower() in allowed]
            size = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in names)
            refuse_too_much(
                f"{path}: arrays {', '.join(names)}",
                size * COPIES,
                "their number of samples",
            )
            return {name.lower(): archive[name] for name in names}
    except SimicError:
        raise
    # Damaged bytes end in errors of many kinds of zipfile, its packers and numpy.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SimicError(
            f"{path}: damaged, or not an .npz file of plain arrays: {reason}"
        ) from error


def read_text(data_dir: Path, params: Prepare, rng_seed: int) -> Source:
    """Read a UTF-8 file as windows ``x [N, L]`` and, one byte on, ``y [N, L]`` uint8, with L = ``params.context``.

    The text is cut once into train | val | test, in its own order, and each part into windows of L + 1 bytes at a
    stride of L: no byte is in two parts, so none that was trained on is ever predicted in another.

    Args:
        data_dir: folder in which ``params.source`` lies.
        params: section ``prepare``; with ``samples``, one piece of the text that holds so many windows serves.
        rng_seed: seed of the run; its hash says where that piece starts.
    """
    path = inside(data_dir, params.source or "")
    content = read_file(path, f" (any UTF-8 text; for example {TEXT_EXAMPLE})")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SimicError(
            f"{path}: not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}"
        ) from None
    # How many windows each part has; it needs one byte more than their inputs.
    length = params.context
    available = max(0, (len(content) - PARTS) // length)
    windows = available if params.samples is None else params.samples
    val = round(windows * params.split.val)
    test = round(windows * params.split.test)
    sizes = [windows - val - test, val, test]
    if windows > available or min(sizes) < 1:
        raise SimicError(
            f"{path}: {len(content)} bytes make {available} windows of prepare.context = {length}: too few for {sizes} "
            "of training, validation and test; give more text, or lower prepare.context or prepare.samples"
        )
    # Which piece of the text.
    span = windows * length + PARTS
    room = len(content) - span if params.samples is not None else 0
    start = (int(bits(key(rng_seed, Purpose.SUBSAMPLE), (1,))) & 0x7FFFFFFFFFFFFFFF) % (room + 1)
    stream = torch.frombuffer(bytearray(content[start : start + span]), dtype=torch.uint8)
    # Inputs, and the byte after each.
    pieces = stream.split([size * length + 1 for size in sizes])
    x = torch.cat([piece[:-1].view(-1, length) for piece in pieces])
    y = torch.cat([piece[1:].view(-1, length) for piece in pieces])
    part = torch.arange(PARTS).repeat_interleave(torch.tensor(sizes))
    return Source(path.name, durable.sha256_of(content), "the user's own", x, y, part)


def inside(data_dir: Path, source: str) -> Path:
    """Resolve the path of a source; SimicError where it leaves the data directory."""
    try:
        path = (data_dir / source).resolve()
    # A NUL, too long a name, links in a circle.
    except (OSError, ValueError, RuntimeError) as error:
        raise SimicError(f"prepare.source = {source!r}: not the path of a file: {error}") from None
    if not path.is_relative_to(data_dir.resolve()):
        raise SimicError(
            f"prepare.source = {source!r}: must lie under {data_dir} (links are followed); or set SIMIC_DATA_DIR"
        )
    return path


def read_file(path: Path, example: str = "") -> bytes:
    """Read all bytes; SimicError that says which file to put where, and where to get one."""
    missing = f"put it there{example}, or set SIMIC_DATA_DIR to its folder"
    return safe_read.read_file(path, machine_bytes() // COPIES, missing)


def complete(source: Source) -> Source:
    """Check what a reader gave, whoever wrote it; SimicError naming it and what is wrong."""
    if not isinstance(source, Source):
        raise SimicError(f"task reader: gave {type(source).__name__}, must be a Source")
    if source.part is not None:
        return source
    x, y = checked(source.name, source.x.numpy(), source.y.numpy())
    return replace(source, x=x, y=y)


def drop_duplicates(source: Source) -> tuple[Source, int]:
    """Drop exact copies of a sample (the first stays), and count them.

    Suites draw from such sources: a copy could be drawn into another split, whatever its label.
    """
    firsts = equal_rows(source.x.numpy())
    rows = torch.nonzero(firsts == torch.arange(len(source))).flatten()
    dropped = len(source) - len(rows)
    return (source.take(rows) if dropped else source), dropped


def equal_rows(x: np.ndarray) -> Tensor:
    """Find for each sample the place of the first that is equal to it, ``[N]``."""
    # −0 and 0 are one value with two patterns of bits; adding 0 makes them one.
    values = x + 0.0 if x.dtype.kind == "f" else x
    rows = np.ascontiguousarray(values.reshape(len(x), -1))
    words = rows.view(np.uint32 if rows.itemsize % 4 == 0 else np.uint8)
    # A weighted sum of all words stands for a row: of equal rows it is equal, of others very rarely.
    weights = bits(torch.zeros((), dtype=torch.int64), words.shape[1:]).numpy().view(np.uint64)
    blocks = range(0, len(words), ROWS_HASHED_AT_ONCE)
    sums = [words[k : k + ROWS_HASHED_AT_ONCE].astype(np.uint64) @ weights for k in blocks]
    _, places, group = np.unique(np.concatenate(sums), return_index=True, return_inverse=True)
    firsts = places[group]
    copies = np.flatnonzero(firsts != np.arange(len(words)))
    # Where different rows share a sum after all, their bytes are compared.
    if not np.array_equal(words[copies], words[firsts[copies]]):
        first: dict[bytes, int] = {}
        contents = [row.tobytes() for row in words]
        firsts = np.array([first.setdefault(row, place) for place, row in enumerate(contents)])
    return torch.from_numpy(firsts)


def checked(name: str, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """Turn samples and labels into tensors, after they were found usable.

    Args:
        name: of the data, for messages.
        x: numbers ``[N, D]`` or ``[N, C, H, W]``.
        y: integers ``[N]``.

    Returns:
        x as float32 (bytes stay bytes), y as int64.

    Raises:
        SimicError: naming the data and what is wrong with them.
    """
    # Types and shapes.
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 4) or x.size == 0:
        raise SimicError(
            f"{name}: x is {x.dtype} {list(x.shape)}: must be numbers [N, D], [N, H, W] or [N, C, H, W]"
        )
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise SimicError(
            f"{name}: y is {y.dtype} {list(y.shape)}: must be integers [{x.shape[0]}], one per sample"
        )
    # Labels 0 to classes - 1, each of them present.
    targets = torch.from_numpy(y.astype(np.int64))
    if y.min() < 0 or y.max() >= len(y):
        raise SimicError(f"{name}: labels reach from {y.min()} to {y.max()}: must be 0…classes-1")
    absent = torch.nonzero(torch.bincount(targets, minlength=2) == 0)
    if len(absent):
        raise SimicError(
            f"{name}: no sample has label {int(absent[0])}: labels must be 0…classes-1 of at least two classes"
        )
    # Values. Bytes stay bytes: a fourth of the size.
    if x.dtype == np.uint8:
        return torch.from_numpy(np.array(x, order="C")), targets
    # A float64 beyond float32 becomes inf, which is refused below.
    with np.errstate(over="ignore"):
        values = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    finite = values.flatten(1).isfinite().all(dim=1)
    if not finite.all():
        bad = int(torch.nonzero(~finite)[0])
        raise SimicError(f"{name}: sample {bad} of x has a value that is not a finite float32")
    return values, targets
