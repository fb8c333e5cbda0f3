"""All that decides what a training computes. Its hash is the run's fingerprint; it is kept in the work directory, so
that what has changed since can be named.
"""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from simic import durable, params, seals
from simic.data.batches import data_hash
from simic.params import Params
from simic.pipeline.paths import Workspace
from simic.telemetry.rows import FindingRow
from simic.training import run_layout
from simic.training.checkpoint import FORMAT_VERSION
from simic.training.resume import Identity, differences

MOST_FILES = 3  # of changed code, that are named


class Changes(NamedTuple):
    """Changes from one recipe to another: params with both values, files of code, and what else."""

    params: dict[str, str]
    code: tuple[str, ...]
    others: tuple[str, ...]

    def named(self) -> tuple[str, ...]:
        """Return each change in a few words."""
        shown, rest = self.code[:MOST_FILES], len(self.code) - MOST_FILES
        code = f"the code ({', '.join(shown)}{f' and {rest} more files' if rest > 0 else ''})"
        values = (f"{name} ({text})" for name, text in self.params.items())
        return (*values, *self.others, *([code] if self.code else []))


class TrainingRecipe(BaseModel):
    """Params of training, sha256 of the data and of each file of code, format of checkpoints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    params: dict[str, Any]
    data_sha256: str
    code: dict[str, str]
    format_version: int

    @classmethod
    def of(cls, tree: Params, workspace: Workspace) -> "TrainingRecipe":
        """Return the recipe of training with these params, and the data and code that are there now."""
        return cls(
            params=Identity.params_of(tree),
            data_sha256=data_hash(workspace.prepared),
            code=seals.code_hashes(seals.STAGES["train"].code) | seals.extension_hashes(workspace.root, tree),
            format_version=FORMAT_VERSION,
        )

    @property
    def fingerprint(self) -> str:
        """sha256 of all of it."""
        return params.digest(self)

    def changes(self, now: "TrainingRecipe") -> Changes:
        """Return what differs in ``now``."""
        files = sorted(self.code.keys() | now.code.keys())
        others = {
            "the prepared data": self.data_sha256 != now.data_sha256,
            "the format of checkpoints": self.format_version != now.format_version,
        }
        return Changes(
            differences(self.params, now.params),
            tuple(file for file in files if self.code.get(file) != now.code.get(file)),
            tuple(name for name, changed in others.items() if changed),
        )


class Kept(BaseModel):
    """A recipe with the seams of the run: where it went on with what another recipe had made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: TrainingRecipe
    seams: tuple[FindingRow, ...] = ()


def write(work: Path, kept: Kept) -> None:
    """Write recipe.json into the work directory."""
    work.mkdir(parents=True, exist_ok=True)
    durable.replace_file(work / run_layout.RECIPE, durable.with_checksum(kept.model_dump(mode="json")))


def read(work: Path) -> Kept | None:
    """Return what the work directory has; None where it is missing or damaged."""
    try:
        return Kept.model_validate(durable.checked((work / run_layout.RECIPE).read_bytes()))
    except (OSError, ValueError, ValidationError):
        return None
