"""Files of a finished run that somebody changed, their checksums too, are found by the audit or stop the next stage."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from simic import durable
from simic.audit.audit import examine
from simic.errors import SimicError
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.conftest import project, suite_run  # noqa: F401
from tests.pipeline.small_suite import tree

# Arrays, and the file that holds their checksum.
DESCRIBED = {
    "checkpoints/best/state.safetensors": "manifest.json",
    "data/prepared/trainval.safetensors": "meta.json",
    "reports/grown/weights.safetensors": "structure.json",
}
READ_BY_EVALUATE = [*DESCRIBED][:2]
TABLES = [f"telemetry/{name}.parquet" for name in ("updates", "steps", "episodes")]
NUMBERS = ["reports/evaluation.json", "reports/metrics.json"]


def tamper(path: Path, description: str | None) -> None:
    """Change a file so that it can still be read, and holds against the checksum that describes it."""
    if path.suffix == ".parquet":
        pq.write_table(pq.read_table(path).slice(1), path)
    elif description is None:
        path.write_text(path.read_text() + "\n")
    else:
        arrays = load_file(path)
        save_file({name: x.flatten().flip(0).view_as(x) for name, x in arrays.items()}, path)
        content = durable.checked(path.with_name(description).read_bytes())
        content["sha256"][path.name] = durable.sha256(path)
        path.with_name(description).write_bytes(durable.with_checksum(content))


@pytest.mark.parametrize("name", [*DESCRIBED, *TABLES, *NUMBERS])
def test_the_audit_refutes_a_run_whose_files_were_changed(name: str, project: Workspace) -> None:  # noqa: F811
    tamper(project.root / name, DESCRIBED.get(name))
    assert "X6" in examine(stages.recorded(tree(), project), "run").unsound


@pytest.mark.parametrize("name", READ_BY_EVALUATE)
def test_evaluation_refuses_what_was_changed_before_it(name: str, project: Workspace) -> None:  # noqa: F811
    tamper(project.root / name, DESCRIBED[name])
    with pytest.raises(SimicError, match=r"checkpoints|of other data"):
        stages.evaluate(tree(), project)
