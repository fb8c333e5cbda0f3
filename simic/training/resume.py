"""Choose where to resume: the newest checkpoint that is intact with its telemetry; report what is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from simic.errors import SimicError
from simic.params import Params, differences, digest
from simic.telemetry.recorder import Chain, Extent
from simic.telemetry.rows import FindingRow
from simic.telemetry.timing import TIMING_FILE
from simic.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Damaged,
    Edited,
    Manifest,
    refuse_edited,
)
from simic.training.machine import Machine

LOST_BEST = "best_checkpoint_lost"  # a finding
# A run may resume with other values of these alone.
HARMLESS = ("train.iterations", "train.validate_every", "train.stop_on")


@dataclass(frozen=True)
class RunIdentity:
    """The params, data and machine of a run, which must be the same for a checkpoint to be resumed."""

    params: dict[str, Any]
    data_sha256: str
    machine: Machine

    @property
    def params_sha256(self) -> str:
        return digest(self.params)

    @staticmethod
    def params_of(tree: Params) -> dict[str, Any]:
        """Select the sections that training depends on."""
        return {"rng_seed": tree.rng_seed, "train": tree.train.model_dump(mode="json")}


class Best(NamedTuple):
    """The checkpoint with the best validation, and its score in points; None where none was validated."""

    iteration: int | None
    score: float | None


@dataclass(frozen=True)
class Start:
    """The checkpoint to resume (None: start from the beginning), the best one so far, and findings to record."""

    checkpoint: Checkpoint | None
    findings: list[FindingRow]
    best: Best


def choose(store: CheckpointStore, log: Path, identity: RunIdentity) -> Start:
    """Choose the newest checkpoint that can be used; newer ones are set aside and reported.

    Args:
        store: The checkpoints of the run.
        log: The folder of its telemetry, of which a checkpoint needs its part.
        identity: What training would be made from now.

    Raises:
        SimicError: The checkpoint belongs to other params or data, or none of several can be used: starting over is for
            the user to decide.
    """
    iterations = store.numbers()
    # Nothing was saved yet. That is no damage, so training begins without a finding.
    if not iterations:
        return Start(None, [], Best(None, None))
    # The newest that is whole, with its part of the log and the hash chain.
    telemetry = Chain.of(log)
    checkpoint, damaged = usable(store, telemetry)
    if checkpoint is None:
        raise SimicError(
            f"{store.root}: none of the {len(iterations)} checkpoints is usable; the newest: "
            f"{damaged[iterations[-1]]}; start over with --fresh"
        )
    # It must be of these params and data; then newer ones that are damaged are put aside.
    findings = compare(checkpoint.manifest, identity)
    aside = [
        _set_aside(store, iteration, damage, "damaged_checkpoint")
        for iteration, damage in damaged.items()
    ]
    # After newer ones were put aside: the best of the run may be among them.
    best, lost_best = _best(store, checkpoint.manifest, telemetry)
    return Start(checkpoint, [*aside, *lost_best, *findings], best)


def usable(
    store: CheckpointStore, telemetry: Chain
) -> tuple[Checkpoint | None, dict[int, Damaged]]:
    """Find the newest good checkpoint that has all of its telemetry, and what is wrong with newer ones."""
    damaged: dict[int, Damaged] = {}
    for iteration in reversed(store.numbers()):
        # Whole in itself, with its part of the log (an earlier checkpoint makes lost rows again), and of this run.
        try:
            checkpoint = store.read(iteration)
            extent = extent_of(checkpoint.manifest)
            if (lost := telemetry.damage(extent)) is not None:
                raise Damaged(f"{lost}, but checkpoint {checkpoint.path.name} needs it")
            refuse_edited(checkpoint, telemetry.links(extent))
        except Damaged as damage:
            damaged[iteration] = damage
        else:
            return checkpoint, damaged
    return None, damaged


def _best(
    store: CheckpointStore, manifest: Manifest, telemetry: Chain
) -> tuple[Best, list[FindingRow]]:
    """Find the best checkpoint if it is good, else the best of the good ones that are there."""
    score = manifest.scalars["best_score"]
    best = Best(manifest.best_iteration, None if score is None else float(score))
    # The newest was verified a moment ago.
    if best.iteration is None or best.iteration == manifest.iteration:
        return best, []
    extent = extent_of(manifest)
    links = telemetry.links(extent)
    damage = damage_of(store, best.iteration, links)
    if damage is None:
        return best, []

    # It is damaged: of the others the one with the best score that telemetry has.
    updates = telemetry.updates_of(extent)
    scores = {
        number: row.validation_accuracy
        for number, row in updates.items()
        if not isnan(row.validation_accuracy)
    }
    good = [
        number
        for number in store.numbers()
        if number in scores and not damage_of(store, number, links)
    ]
    # Of equal scores the earlier one, as in training: there a later one has to be better.
    second = max(good, key=lambda number: (scores[number], -number), default=None)
    if second is None:
        text = "none of the others was validated, so the next validation decides"
        return Best(None, None), [_set_aside(store, best.iteration, damage, LOST_BEST, text)]
    text = f"the best of the others is after {second} iterations ({scores[second]:.2f} points, not {best.score:.2f})"
    return Best(second, scores[second]), [
        _set_aside(store, best.iteration, damage, LOST_BEST, text)
    ]


def damage_of(store: CheckpointStore, iteration: int, links: Mapping[int, str]) -> Damaged | None:
    """Say what is wrong with a checkpoint, held against the hash chain.

    Args:
        store: The checkpoints of the run.
        iteration: Iterations done at this one.
        links: The hash chain, by iterations done.

    Returns:
        The damage; None where it is good.
    """
    try:
        refuse_edited(store.read(iteration), links)
    except Damaged as damage:
        return damage
    return None


def _set_aside(
    store: CheckpointStore,
    iteration: int,
    damage: Damaged,
    check: str,
    then: str = "resuming from an earlier one",
) -> FindingRow:
    """Set a checkpoint aside; the finding says why."""
    aside = f"kept as {store.set_aside(iteration).name}, " if store.path(iteration).exists() else ""
    # An edited checkpoint was somebody's hand, a damaged one may be the disk's accident.
    severity = "high" if isinstance(damage, Edited) else "medium"
    return FindingRow(
        iteration=iteration, check=check, severity=severity, message=f"{damage}; {aside}{then}"
    )


def lost_times(iteration: int, count: int) -> list[FindingRow]:
    """Report where wall times of so many iterations were damaged."""
    text = f"{TIMING_FILE}: damaged; the wall times of {count} iterations are lost"
    return (
        [FindingRow(iteration=iteration, check="wall_times_lost", severity="low", message=text)]
        if count
        else []
    )


def extent_of(manifest: Manifest) -> Extent:
    """Say how much of the telemetry belongs to a checkpoint."""
    return Extent(manifest.telemetry_files, manifest.telemetry_sha256)


def compare(manifest: Manifest, identity: RunIdentity) -> list[FindingRow]:
    """Report harmless differences and another machine; SimicError naming fields that forbid a resume."""
    changed = differences(manifest.params, identity.params)
    if manifest.data_sha256 != identity.data_sha256:
        changed["prepared data"] = f"{manifest.data_sha256[:12]} → {identity.data_sha256[:12]}"
    # A few settings may differ; any other would change what was trained so far.
    refused = {name: text for name, text in changed.items() if name not in HARMLESS}
    if refused:
        raise SimicError(
            f"checkpoint after {manifest.iteration} iterations was trained with other settings: {_listed(refused)}; "
            "restore them, or start over with --fresh"
        )
    iteration = manifest.iteration
    findings: list[FindingRow] = []
    if changed:
        text = f"resumed with changed settings: {_listed(changed)}"
        findings.append(
            FindingRow(
                iteration=iteration, check="resumed_with_changes", severity="info", message=text
            )
        )
    # No refusal: the run is as good as before, and only its bits will not be repeated.
    if machine := manifest.machine.differences(identity.machine):
        text = f"resumed on another machine, so the result is not bit for bit the same: {_listed(machine)}"
        findings.append(
            FindingRow(
                iteration=iteration,
                check="inexact_resume",
                severity="medium",
                message=text,
                evidence={**machine},
            )
        )
    return findings


def _listed(changed: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({text})" for name, text in changed.items())
