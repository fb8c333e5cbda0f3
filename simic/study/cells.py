"""Compute one cell of a study: prepare, headroom, train and evaluate in folders named by what decides their content."""

import json
import os
import time
from itertools import product
from pathlib import Path

from pydantic import JsonValue

from simic import durable, params, seals
from simic.audit.live import LiveAudit
from simic.errors import SimicError
from simic.evaluation import gym, result
from simic.evaluation.result import Frozen
from simic.evaluation.statistics import Interval
from simic.params import Params, read_tree
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.study.file import StudyFile
from simic.telemetry import timing
from simic.telemetry.timing import TIMING_FILE

RESULT, SECONDS, FAILURE, LOCK = "cell.json", "seconds.json", "failure.txt", "lock"
SHARED = ("prepare", "headroom")
PATIENCE_SECONDS = 60.0  # a process of a study that was killed is about to end
FOR_EVER = -1.0


class Cell(Frozen):
    """Define a cell; ``prepared``, ``headroom`` and ``fingerprint`` are digests of all that decides those contents."""

    project: str
    point: tuple[JsonValue, ...]  # values in the order of the grid's keys
    seed: int
    params: dict[str, JsonValue]
    prepared: str
    headroom: str
    fingerprint: str


class PolicyRow(Frozen):
    """Score one policy on the held-out tasks of known kinds, or of a single task on its hosts."""

    policy: str
    score: Interval
    params: float
    training_flops: float  # of a host
    controller_trainings: int  # of hosts, that learning it cost; 0 for a rule


class CellResult(Frozen):
    """Keep the numbers of a finished cell for the table; seconds are those of training and evaluation."""

    rows: tuple[PolicyRow, ...]
    seconds: float


def cells_of(study: StudyFile, source: Path, project: Workspace) -> list[Cell]:
    """Return all cells in the order of the table; SimicError where a key or value is wrong, or two are the same."""
    cells: dict[str, Cell] = {}
    extensions = project.root / params.EXTENSIONS_FOLDER
    for point in product(*study.grid.values()):
        varied: dict[str, JsonValue] = dict(zip(study.grid, point, strict=True))
        varied |= {"evaluate.policies": list(study.trained), "headroom.policies": list(study.rules)}
        changes = [*study.base, *(f"{key}={json.dumps(value)}" for key, value in varied.items())]
        tree = params.validate(read_tree(project.params, changes), str(source), extensions)
        for seed in study.seeds:
            cell = _cell(project, tree, point, seed)
            if cell.fingerprint in cells:
                same = cells[cell.fingerprint].point
                raise SimicError(f"{source}: grid: {list(point)} gives the same cell as {list(same)}; leave one out")
            cells[cell.fingerprint] = cell
    return list(cells.values())


def _cell(project: Workspace, tree: Params, point: tuple[JsonValue, ...], seed: int) -> Cell:
    root = project.root

    def digest(before: str, stage: str, made_with: Params) -> str:
        return params.digest(before, *seals.recipe(root, stage, made_with))

    # One core for each cell: cells share a machine better than the hosts of one do.
    alone = {name: 1 for name in ("processes", "threads") if getattr(tree.runtime, name) == "auto"}
    runtime = tree.runtime.model_copy(update={**alone, "progress": "none"})
    source = tree.prepare.source
    prepared = digest(seals.content_hash(stages.raw_data(project) / source) if source else "", "prepare", tree)
    headroom = digest(prepared, "headroom", tree)
    trained = digest(headroom, "train", tree.model_copy(update={"rng_seed": seed}))
    return Cell(
        project=str(root.resolve()),
        point=point,
        seed=seed,
        params=tree.model_copy(update={"runtime": runtime}).model_dump(mode="json"),
        prepared=prepared[:16],
        headroom=headroom[:16],
        fingerprint=digest(trained, "evaluate", tree)[:16],
    )


def run(cell: Cell, folder: Path) -> None:
    """Compute one cell below ``folder`` unless that is done. What was begun goes on from its checkpoint; raises
    ``Interrupted`` when training is asked to stop.
    """
    own = Workspace(folder / cell.fingerprint)
    with durable.locked(own.root / LOCK, "computes this cell", PATIENCE_SECONDS):
        if (own.root / RESULT).exists():
            return
        tree = params.validate(cell.params, str(own.root), Path(cell.project) / params.EXTENSIONS_FOLDER)
        _link(own, _measured(cell, tree, folder), "data/prepared", "reports/headroom.json", params.EXTENSIONS_FOLDER)
        if not seals.path_of(own.root, "train").exists():
            stages.train(tree.model_copy(update={"rng_seed": cell.seed}), own, (LiveAudit(),))
        started = time.monotonic()
        stages.evaluate(tree, own)
        trained = sum(row.seconds for row in timing.read(own.telemetry / TIMING_FILE))  # over all lives of the run
        spent = trained + time.monotonic() - started
        done = CellResult(rows=_rows(tree, own), seconds=spent)
        durable.replace_file(own.root / RESULT, durable.with_checksum(done.model_dump(mode="json")))


def shared(folder: Path, cell: Cell) -> dict[str, Workspace]:
    """Return where the stages run that cells of equal params share."""
    names = zip(SHARED, (cell.prepared, cell.headroom), strict=True)
    return {stage: Workspace(folder / f"{stage}-{digest}") for stage, digest in names}


def _measured(cell: Cell, tree: Params, folder: Path) -> Workspace:
    """Return the workspace with data and headroom, made by the first cell that needs them; the others wait."""
    data, headroom = shared(folder, cell).values()
    _once(data, Workspace(Path(cell.project)), "prepare", tree, "data/raw", params.EXTENSIONS_FOLDER)
    _once(headroom, data, "headroom", tree, "data/prepared", params.EXTENSIONS_FOLDER)
    return headroom


def _once(own: Workspace, other: Workspace, stage: str, tree: Params, *needed: str) -> None:
    """Run one stage that cells share, unless its seal says that it is done."""
    with durable.locked(own.root / LOCK, f"does {stage}", FOR_EVER):
        if not seals.path_of(own.root, stage).exists():
            _link(own, other, *needed)
            started = time.monotonic()
            stages.STAGES[stage](tree, own)
            durable.replace_file(own.root / SECONDS, json.dumps(time.monotonic() - started).encode())


def _link(own: Workspace, other: Workspace, *places: str) -> None:
    """Link places of another workspace into this one."""
    for place in places:
        here, there = own.root / place, other.root / place
        if there.exists() and not here.is_symlink():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(os.path.relpath(there.resolve(), here.parent.resolve()))


def _rows(tree: Params, own: Workspace) -> tuple[PolicyRow, ...]:
    if tree.prepare.is_gym:
        played = gym.read(own.evaluation).policies
        return tuple(
            PolicyRow(policy=name, score=each.mean_return, params=0.0, training_flops=0.0, controller_trainings=0)
            for name, each in played.items()
        )
    evaluation = result.read(own.evaluation)
    standings = next(iter(evaluation.standings.values())).policies
    return tuple(
        PolicyRow(
            policy=name,
            score=standings[name].score,
            params=standings[name].params,
            training_flops=evaluation.policies[name].training_flops,
            controller_trainings=(evaluation.controller_trainings or 0) if name in tree.evaluate.policies else 0,
        )
        for name in (*tree.evaluate.policies, *tree.headroom.policies)
    )


def finished(cell: Cell, folder: Path) -> CellResult | None:
    """Return a cell's result; None while it is not done. SimicError where its file is damaged."""
    path = folder / cell.fingerprint / RESULT
    try:
        return CellResult.model_validate_json(json.dumps(durable.checked(path.read_bytes())))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SimicError(f"{path}: not readable: {str(error).splitlines()[0]}; remove it to compute it again") from None
