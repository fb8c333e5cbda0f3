"""Whether one unfinished training is sound: where the next start goes on, and what becomes of what is damaged.

It asks what a start asks (training.resume), without setting anything aside.
"""

from collections.abc import Iterator
from pathlib import Path

from simic.errors import SimicError
from simic.pipeline import recipe
from simic.pipeline.answers import Answer, damaged, sound
from simic.telemetry import naming, recorder, starts, timing
from simic.telemetry.recorder import Chain, path_of
from simic.training import resume, run_layout
from simic.training.checkpoint import CheckpointStore, Damaged, Manifest, read_manifest
from simic.training.session import CHECKPOINTS, LOCK_FILE

FRESH = "the next start refuses: no checkpoint is usable; --fresh starts over"


def is_work(folder: Path) -> bool:
    """Whether it is the folder of one training, rather than a workspace."""
    numbered = (folder / CHECKPOINTS).glob("[0-9]*")
    return folder.resolve().parent.name in ("work", "finished") or any(numbered)


def examine(folder: Path) -> Iterator[Answer]:
    """Checkpoints, log, wall times, starts, recipe; and what killed processes or damage have left."""
    name = f"work {naming.run_name(folder.name)}"
    store = CheckpointStore(folder / CHECKPOINTS, 1)
    try:
        found = StoredWork(name, store, Chain.of(folder / recorder.FOLDER))
    except SimicError as error:
        yield Answer(f"{name}, checkpoints", False, f"not usable: {error}")
    else:
        yield from found.checkpoints()
        yield from found.log()
    yield from _files(name, folder)
    yield from _rest(name, folder)


class StoredWork:
    """Checkpoints and log of one training, and from which of them it goes on."""

    def __init__(self, name: str, store: CheckpointStore, chain: Chain):
        self.name, self.store, self.chain = name, store, chain
        self.start, self.newer = resume.usable(store, chain)

    def checkpoints(self) -> Iterator[Answer]:
        """Each of them; where there is none training begins anew."""
        for iteration in self.store.iterations():
            place = f"{self.name}, checkpoint {iteration}"
            damage = self._damage(iteration)
            if damage is None:
                yield sound(place, self._role(iteration))
            else:
                yield damaged(place, str(damage), self._then(iteration))
        if not self.store.iterations():
            yield sound(f"{self.name}, checkpoints", "none yet; the next start begins at the beginning")

    def log(self) -> Iterator[Answer]:
        """Its files, as far as the newest checkpoint whose manifest can be read needs them."""
        place, manifest = f"{self.name}, telemetry", self._newest_manifest()
        if manifest is None:
            return
        lost = self.chain.lost(resume.extent(manifest))
        kept = 0 if self.start is None else self.start.manifest.telemetry_files
        for number in lost:
            what = "changed" if number in self.chain.sha256 else "missing"
            again = number >= kept
            then = "the next start makes it again" if again else "its rows are lost; the next start goes on and says so"
            file = path_of(self.chain.folder, number).name
            yield damaged(place, f"{file} is {what}", f"{then}; nothing to do")
        if not lost:
            later = len([number for number in self.chain.sha256 if number >= manifest.telemetry_files])
            more = f"; {later} after the checkpoint, which the next start makes again" if later else ""
            yield sound(place, f"{manifest.telemetry_files} files{more}")

    def _damage(self, iteration: int) -> Damaged | None:
        if self.start is None or iteration in self.newer:
            return self.newer.get(iteration)
        updates = self.chain.updates_of(resume.extent(self.start.manifest))
        return resume.damage_of(self.store, iteration, updates)

    def _role(self, iteration: int) -> str:
        assert self.start is not None  # else none is sound
        roles = ["training goes on from it"] if iteration == self.start.manifest.iteration else []
        roles += ["the best so far"] if iteration == self.start.manifest.best_iteration else []
        return ", ".join(roles) or "an earlier one"

    def _then(self, iteration: int) -> str:
        if self.start is None:
            return FRESH
        done, best = self.start.manifest.iteration, self.start.manifest.best_iteration
        if iteration > done:
            again = f"goes on after {done} iterations and trains {iteration - done} again"
            return f"the next start sets it aside, {again}; nothing to do"
        if iteration == best:
            return "the next start sets it aside and takes the best of the others; nothing to do"
        return "the next start does not need it; nothing to do"

    def _newest_manifest(self) -> Manifest | None:
        for iteration in reversed(self.store.iterations()):
            try:
                return read_manifest(self.store.path(iteration))
            except Damaged:
                continue  # said of the checkpoint
        return None


def _files(name: str, folder: Path) -> Iterator[Answer]:
    """Wall times, starts, recipe."""
    times, begun, seam = (folder / file for file in (timing.TIMING_FILE, starts.RUN_FILE, run_layout.RECIPE))
    if times.exists():
        try:
            yield sound(f"{name}, {times.name}", f"times of {len(timing.read(times))} iterations")
        except SimicError as error:
            yield damaged(f"{name}, {times.name}", str(error), "the next start leaves lost times out; nothing to do")
    if begun.exists():
        try:
            yield sound(f"{name}, {begun.name}", f"{len(starts.read(begun))} starts")
        except SimicError as error:
            then = "the next start puts it aside and begins a new one; nothing to do"
            yield damaged(f"{name}, {begun.name}", str(error), then)
    if seam.exists():
        kept = recipe.read(folder)
        then = "with the params, data and code of this run the next start writes it again, with others it cannot go on"
        yield (
            sound(f"{name}, {seam.name}", "what the run is made of")
            if kept
            else damaged(f"{name}, {seam.name}", "its checksum does not match", then)
        )


def _rest(name: str, folder: Path) -> Iterator[Answer]:
    lock = folder / LOCK_FILE
    if lock.exists():
        said = lock.read_text(encoding="utf-8", errors="replace")
        yield Answer(f"{name}, lock", True, f"of {said or 'a process'}, which trains, or was killed; a start tells")
    for path in sorted(folder.glob("*/damaged-*")) + sorted(folder.glob("damaged-*")):
        yield Answer(f"{name}, {path.name}", True, "set aside by an earlier start; nothing reads it, remove it at will")
    left = [path for path in folder.glob("*/.*") if path.is_dir()]
    if left:
        yield Answer(f"{name}, leftovers", True, f"{len(left)} of writes that were cut short; nothing reads them")
