"""Save and resume inside an iteration, so that a kill costs steps and not the iteration.

``partial/<steps done, six digits>/`` lies beside the checkpoints and is written and verified as they are. It belongs
to the checkpoint of the last whole iteration and holds what a rollout moves: hosts, episode, what was seen and done.
Policy and scales stand still in a rollout, so they are in that checkpoint. One is kept, until the iteration is saved.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from simic import durable
from simic.telemetry.rows import FindingRow
from simic.training import checkpoint
from simic.training.checkpoint import (
    STATE_FILE,
    Checkpoint,
    Damaged,
    OtherFormat,
    SavedState,
    StateManifest,
    StateStore,
)

FOLDER = "partial"


class PartialManifest(StateManifest):
    """The manifest of a partial checkpoint."""

    iteration: int  # iterations done before it
    step: int  # steps done of the rollout
    checkpoint_sha256: str  # of the tensors of the checkpoint that it belongs to
    columns: list[str]  # of the telemetry of a step, in their order
    findings: list[FindingRow]  # of this iteration so far


PartialCheckpoint = SavedState[PartialManifest]


class PartialStore(StateStore):
    """The partial checkpoints of one run, by steps done."""

    def write(self, tensors: Mapping[str, Tensor], manifest: PartialManifest) -> None:
        """Write a state in place of the one before; SimicError where that fails, which leaves that one as it was.

        Numbers that are not finite are written as they are: NaN stands for what was not measured, and a host may be
        broken until it is put back.
        """
        kept = [step for step in self.numbers() if step != manifest.step][-1:]
        steps = "".join(f" and {step} steps of the next one" for step in kept)
        text = f"{manifest.iteration} iterations{steps} are kept"
        checkpoint.write(self.path(manifest.step), tensors, manifest, text)
        self.clear(keep=manifest.step)

    def clear(self, keep: int | None = None) -> None:
        """Remove all but ``keep``, as when the iteration is saved whole. What was set aside stays."""
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if path.name.startswith("."):  # what a killed process left
                shutil.rmtree(path)
            elif path.name.isdecimal() and (keep is None or path != self.path(keep)):
                durable.remove_directory(path)

    def choose(self, newest: Checkpoint | None) -> tuple[PartialManifest | None, list[FindingRow]]:
        """Return the state to go on with after the ``newest`` checkpoint, if any, and findings about those that cannot
        be used, which are set aside. A state of an iteration that is saved by now is removed.
        """
        done, findings = 0 if newest is None else newest.manifest.iteration, list[FindingRow]()
        for step in reversed(self.numbers()):
            try:
                manifest = self.read(step).manifest
                if newest is None or manifest.iteration >= done:
                    _refuse_other(self.path(step), manifest, newest)
                    return manifest, findings
                durable.remove_directory(self.path(step))
            except Damaged as damage:
                findings.append(self.report(step, done, damage))
        return None, findings

    def report(self, step: int, done: int, damage: Damaged) -> FindingRow:
        """Set a state aside that cannot be used; the finding says why."""
        text = f"{damage}; kept as {FOLDER}/{self.set_aside(step).name}, iteration {done + 1} starts again"
        return FindingRow(iteration=done, check="damaged_checkpoint", severity="medium", message=text)

    def read(self, step: int) -> PartialCheckpoint:
        """Return the verified state after so many steps; ``Damaged`` naming the file and what is wrong with it."""
        try:
            saved = checkpoint.read_state(self.path(step), PartialManifest)
        except OtherFormat as other:
            raise Damaged(str(other)) from None
        if saved.manifest.step != step:
            raise Damaged(f"{saved.path}: holds the state after {saved.manifest.step} steps, not after {step}")
        return saved


def _refuse_other(path: Path, manifest: PartialManifest, newest: Checkpoint | None) -> None:
    """Raise ``Damaged`` unless it goes on from just that checkpoint."""
    if newest is None or manifest.iteration != newest.manifest.iteration:
        done = "none" if newest is None else f"that after {newest.manifest.iteration} iterations"
        raise Damaged(f"{path}: belongs to the checkpoint after {manifest.iteration} iterations, the newest is {done}")
    if manifest.checkpoint_sha256 != newest.manifest.sha256[STATE_FILE]:
        raise Damaged(f"{path}: belongs to another checkpoint than {newest.path}")
