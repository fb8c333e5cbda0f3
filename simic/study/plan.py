"""Plan a study: what is to be done, what is done already, and what the rest costs by what was measured."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue

from simic import seals
from simic.params import Runtime
from simic.pipeline.paths import Workspace
from simic.study import cells
from simic.study.cells import Cell, CellResult
from simic.study.file import StudyFile
from simic.training import worker_layout
from simic.training.observers import duration


@dataclass(frozen=True)
class StudyPlan:
    """List a study's cells in the order of its table, and the folder that they are computed in."""

    study: StudyFile
    folder: Path
    cells: list[Cell]

    @classmethod
    def of(cls, study: StudyFile, source: Path, project: Workspace) -> "StudyPlan":
        """Return the plan; SimicError where a cell's params are not allowed."""
        return cls(study, project.state / "studies" / study.name, cells.cells_of(study, source, project))

    def done(self) -> dict[str, CellResult]:
        """Return the results of finished cells, by fingerprint."""
        results = ((cell.fingerprint, cells.finished(cell, self.folder)) for cell in self.cells)
        return {fingerprint: result for fingerprint, result in results if result is not None}

    def left(self) -> list[Cell]:
        """Return the cells that are not done."""
        done = self.done()
        return [cell for cell in self.cells if cell.fingerprint not in done]

    def lines(self, workers: int) -> Iterator[str]:
        """Yield the plan as it is printed before anything runs."""
        left, seeds = self.left(), self.study.seeds
        open_ = Counter(in_words(self.study, cell.point) for cell in left)
        points = dict.fromkeys(in_words(self.study, cell.point) for cell in self.cells)
        yield (
            f"study    {self.study.name}: {len(points)} grid points × {len(seeds)} training seeds = "
            f"{len(self.cells)} cells; policies {', '.join(self.study.policies)}"
        )
        for point in points:
            yield f"  {point}: {len(seeds) - open_[point]} of {len(seeds)} cells done"
        shared = ", ".join(f"{stage} {len(self._open(stage))} times" for stage in cells.SHARED)
        yield f"left     {len(left)} of {len(self.cells)} cells" + (f"; for all of them {shared}" if left else "")
        yield f"cost     {self.cost(workers)}"

    def cost(self, workers: int) -> str:
        """Return the cost of what is left, by the mean of what has been measured here; never a guess."""
        left, spent = self.left(), [result.seconds for result in self.done().values()]
        if not left:
            return "nothing is left to do"
        if not spent:
            return "not known before the first cell is done"
        mean = sum(spent) / len(spent)
        seconds = mean * len(left)
        for stage in cells.SHARED:
            paths = {cells.shared(self.folder, cell)[stage].root / cells.SECONDS for cell in self.cells}
            took = [float(json.loads(path.read_bytes())) for path in paths if path.exists()]
            seconds += len(self._open(stage)) * sum(took) / max(1, len(took))
        measured = f"a cell took {duration(mean)}, the mean of {len(spent)}"
        return f"about {duration(seconds / min(workers, len(left)))} with {workers} workers: {measured}"

    def _open(self, stage: str) -> set[Path]:
        """Return the folders in which a shared stage is still to run."""
        roots = {cells.shared(self.folder, cell)[stage].root for cell in self.left()}
        return {root for root in roots if not seals.path_of(root, stage).exists()}


def workers_of(plan: StudyPlan) -> int:
    """Return how many cells the machine has cores for at a time; one where they train on a GPU."""
    runtime = Runtime.model_validate(plan.cells[0].params["runtime"])
    if runtime.device != "cpu" and torch.cuda.is_available():
        return 1
    each = [count for count in (runtime.processes, runtime.threads) if count != "auto"]
    return max(1, worker_layout.cores() // math.prod(each))


def in_words(study: StudyFile, point: tuple[JsonValue, ...]) -> str:
    """Return a grid point as ``train.envs=8 train.price=0``; "params.yaml" where nothing varies."""
    named = [f"{key}={json.dumps(value)}" for key, value in zip(study.grid, point, strict=True)]
    return " ".join(named) or "params.yaml"
