"""Compare two published runs: the first iteration and the tensors that differ, and params, data, code and machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simic import seals
from simic.errors import SimicError
from simic.pipeline.kept_runs import some
from simic.pipeline.paths import Workspace
from simic.training.checkpoint import Checkpoint, read_chain, read_published
from simic.training.resume import differences

LATEST, BEST = "latest", "best"
MOST_NAMED = 5  # of a kind


@dataclass(frozen=True)
class Published:
    """Hold both checkpoints of a run, its hash chain by iterations done, and the hashes of the code that trained it."""

    checkpoints: dict[str, Checkpoint]
    links: dict[int, str]
    code: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> "Published":
        """Read a run's folder; SimicError where nothing whole is published there."""
        workspace = Workspace(folder)
        if not workspace.checkpoints.is_dir():
            raise SimicError(f"{workspace.checkpoints}: no such folder; give the folder of a run that was trained")
        checkpoints = {name: read_published(workspace.checkpoints, name) for name in (LATEST, BEST)}
        seal = seals.read(folder, "train")
        return cls(checkpoints, read_chain(workspace.checkpoints).links, seal.code if seal else {})


def compare(first: Path, second: Path) -> tuple[bool, list[str]]:
    """Return whether the states of two runs are equal after every iteration that both have, and lines that say more."""
    a, b = Published.of(first), Published.of(second)
    both = sorted(a.links.keys() & b.links.keys())
    if not both:
        raise SimicError(f"{first}, {second}: their hash chains have no iteration in common: nothing to compare")
    parted = next((done for done in both if a.links[done] != b.links[done]), None)
    made = [*_differences(a, b)] or ["params, data, code and machine are the same"]
    if parted is None:
        longest = max(a.links), max(b.links)
        lengths = [f"iterations: {longest[0]} → {longest[1]}"] if longest[0] != longest[1] else []
        return True, [f"equal after each of the {len(both)} iterations that both have", *lengths, *made]
    return False, [f"equal up to iteration {parted - 1}, not after iteration {parted}", *_tensors(a, b), *made]


def _tensors(a: Published, b: Published) -> Iterator[str]:
    """Name tensors that differ in checkpoints of the same iteration, the earlier one first."""
    pairs = [(a.checkpoints[name], b.checkpoints[name]) for name in (BEST, LATEST)]
    for one, other in {pair[0].manifest.iteration: pair for pair in pairs}.values():
        done = one.manifest.iteration
        if done != other.manifest.iteration:
            continue
        bits, others = (
            {name: (tensor.dtype, tensor.numpy().tobytes()) for name, tensor in each.tensors.items()}
            for each in (one, other)
        )
        differ = [name for name in bits.keys() | others.keys() if bits.get(name) != others.get(name)]
        if differ:
            named = some(sorted(differ), MOST_NAMED)
            yield f"after iteration {done}: {len(differ)} of {len(bits)} tensors differ: {named}"


def _differences(a: Published, b: Published) -> Iterator[str]:
    one, other = (run.checkpoints[LATEST].manifest for run in (a, b))
    for name, change in differences(one.params, other.params).items():
        yield f"{name}: {change}"
    if one.data_sha256 != other.data_sha256:
        yield f"prepared data: {one.data_sha256[:12]} → {other.data_sha256[:12]}"
    changed = [file for file in a.code.keys() | b.code.keys() if a.code.get(file) != b.code.get(file)]
    if changed:
        yield f"code: {some(sorted(changed), MOST_NAMED)}"
    for name, change in one.machine.differences(other.machine).items():
        yield f"machine, {name}: {change}"
