"""Damage to files at random, reproducible by its number: what disks, copies and hands do to them."""

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from simic import durable

BLOCK = 4096  # bytes: of a disk


class Unfit(Exception):
    """There is nothing that can be damaged in this way."""


class Place(NamedTuple):
    """What may be damaged: everything below some files and folders of ``root``."""

    root: Path
    names: Sequence[str]

    def entries(self) -> list[Path]:
        """Files and folders; not the lock, which a running process holds."""
        paths = [
            path
            for name in self.names
            for path in ((self.root / name), *(self.root / name).rglob("*"))
        ]
        return sorted(path for path in paths if path.exists() and path.name != "lock")

    def files(self, *suffixes: str) -> list[Path]:
        paths = [path for path in self.entries() if path.is_file() and path.stat().st_size]
        return [path for path in paths if not suffixes or path.suffix in suffixes]

    def digest(self) -> str:
        parts = [
            f"{path}{durable.sha256(path) if path.is_file() else ''}" for path in self.entries()
        ]
        return durable.sha256_of("\n".join(parts).encode())

    def named(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def one(draw: random.Random, paths: Sequence[Path]) -> Path:
    if not paths:
        raise Unfit
    return draw.choice(paths)


def two(draw: random.Random, paths: Sequence[Path]) -> tuple[Path, Path]:
    """Neither of which lies in the other; mostly of one kind."""
    first = one(draw, paths)
    apart = [
        path for path in paths if first not in (path, *path.parents) and path not in first.parents
    ]
    alike = [
        path for path in apart if path.suffix == first.suffix and path.is_dir() == first.is_dir()
    ]
    return first, one(draw, alike if alike and draw.random() < 0.7 else apart)


def flip(draw: random.Random, place: Place) -> str:
    """One to eight bits; every other time near the start of the file, where headers are."""
    path = one(draw, place.files())
    content, count = bytearray(path.read_bytes()), draw.choice((1, 1, 2, 8))
    reach = min(len(content), draw.choice((len(content), 400)))
    for _ in range(count):
        content[draw.randrange(reach)] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"{count} bits of the first {reach} bytes of {place.named(path)}"


def zero(draw: random.Random, place: Place) -> str:
    """A block reads as nothing."""
    path = one(draw, place.files())
    content = bytearray(path.read_bytes())
    at = draw.randrange(-(-len(content) // BLOCK)) * BLOCK
    content[at : at + BLOCK] = bytes(len(content[at : at + BLOCK]))
    path.write_bytes(content)
    return f"the block at {at} of {place.named(path)}"


def truncate(draw: random.Random, place: Place) -> str:
    path = one(draw, place.files())
    size = draw.choice((0, path.stat().st_size - 1, draw.randrange(path.stat().st_size)))
    with path.open("r+b") as file:
        file.truncate(size)
    return f"{place.named(path)} to {size} bytes"


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def delete(draw: random.Random, place: Place) -> str:
    path = one(draw, place.entries()[1:])
    remove(path)
    return place.named(path)


def swap(draw: random.Random, place: Place) -> str:
    first, second = two(draw, place.entries())
    aside = place.root / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return f"{place.named(first)} and {place.named(second)}"


def copy_over(draw: random.Random, place: Place) -> str:
    first, second = two(draw, place.entries())
    remove(second)
    shutil.copytree(first, second) if first.is_dir() else shutil.copyfile(first, second)
    return f"{place.named(first)} over {place.named(second)}"


def digit(draw: random.Random, place: Place) -> str:
    """Another one in a text of numbers."""
    path = one(draw, place.files(".json", ".jsonl"))
    content = bytearray(path.read_bytes())
    places = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        raise Unfit
    at = draw.choice(places)
    content[at] = ord(draw.choice("0123456789"))
    path.write_bytes(content)
    return f"at {at} of {place.named(path)}"


KINDS: dict[str, Callable[[random.Random, Place], str]] = {
    "bits flipped": flip,
    "block zeroed": zero,
    "truncated": truncate,
    "deleted": delete,
    "swapped": swap,
    "copied over": copy_over,
    "digit changed": digit,
}


def spoil(place: Place, kind: str, number: int) -> str:
    """Does the damage of that number, which changes something, and says what it did."""
    draw, before = random.Random(f"{kind} {number}"), place.digest()
    for _ in range(100):
        with suppress(Unfit):
            words = KINDS[kind](draw, place)
            if place.digest() != before:
                return f"{kind} {number}: {words}"
    raise Unfit
