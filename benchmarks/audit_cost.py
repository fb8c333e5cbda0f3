"""How the cost of binding and recomputing a run grows with its iterations.

    python -m benchmarks.audit_cost RUN [--times 1 10 100]

RUN is the folder of a finished run. Its telemetry is repeated so many times, as a longer run of the same hosts would
leave it, published in a scratch folder, read and checked. What is found there is not looked at: repeated iterations do
not follow from each other, which costs what following costs.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simic import params
from simic.audit.audit import checks
from simic.audit.record import RunRecord
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import timing
from simic.telemetry.publish import EPISODES_FILE, FINDINGS_FILE, STEPS_FILE, UPDATES_FILE

LAYERS = ("bind", "recompute")


def repeated(telemetry: Path, times: int, target: Path) -> None:
    """The tables of a run, one copy after another, each of later iterations."""
    target.mkdir()
    iterations = pq.read_table(telemetry / UPDATES_FILE, columns=["iteration"]).num_rows
    for name in (UPDATES_FILE, STEPS_FILE, EPISODES_FILE):
        table = pq.read_table(telemetry / name)
        at = table.column_names.index("iteration")
        column = table.column("iteration")
        copies = [
            table.set_column(at, "iteration", pa.array(column.to_numpy() + iterations * copy, column.type))
            for copy in range(times)
        ]
        pq.write_table(pa.concat_tables(copies), target / name)
    rows = timing.read(telemetry / timing.TIMING_FILE)
    for copy in range(times):
        for row in rows:
            later = row.model_copy(update={"iteration": row.iteration + iterations * copy})
            timing.append(target / timing.TIMING_FILE, later)
    shutil.copy(telemetry / FINDINGS_FILE, target)


def cost(tree: params.Params, workspace: Workspace, times: int) -> dict[str, float]:
    """CPU seconds of reading, binding and recomputing."""
    with tempfile.TemporaryDirectory() as scratch:
        telemetry = Path(scratch) / "telemetry"
        repeated(workspace.telemetry, times, telemetry)
        begun = time.process_time()
        bound = stages.recorded(tree, workspace)
        read = RunRecord.from_published(tree, telemetry)
        tables = {name: getattr(read, name) for name in ("updates", "steps", "episodes", "validations", "timing")}
        run, seconds = replace(bound, **tables), {"read and bind": time.process_time() - begun}
    for check in checks():
        if check.layer in LAYERS:
            begun = time.process_time()
            check.run(run)
            seconds[check.id] = time.process_time() - begun
    return {"iterations": len(run.updates), "rows": int(run.steps.column("op").size), **seconds}


def main() -> None:
    """A line for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    given = parser.parse_args()
    workspace = Workspace(given.run)
    tree = params.load(workspace.params, whole=False)
    for times in given.times:
        found = cost(tree, workspace, times)
        total = sum(value for name, value in found.items() if name not in ("iterations", "rows"))
        slowest = sorted(found, key=lambda name: -found[name] if name not in ("iterations", "rows") else 0.0)[:4]
        worst = ", ".join(f"{name} {found[name]:.1f}" for name in slowest)
        print(f"{found['iterations']} iterations, {found['rows']} rows: {total:.1f} CPU s ({worst})", flush=True)


if __name__ == "__main__":
    main()
