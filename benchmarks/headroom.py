"""Measure the headroom that comes with simic anew: simic/published/headroom/tables.json.gz, in some minutes.

python -m benchmarks.headroom [--work FOLDER]

After a change of the suite, of how hosts are trained, or of what a headroom measures.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from simic import params
from simic.evaluation import result, shipped
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training import machine

ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, help="keeps prepared data, which are taken again")
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    options = parser.parse_args(arguments)
    # A GPU would give other last bits than nearly every user's machine.
    fixed = ["headroom.shipped=false", "runtime.device=cpu"]
    tree = params.load(ROOT / "params.yaml", [*options.overrides, *fixed])
    with TemporaryDirectory() as folder:
        workspace = Workspace(options.work or Path(folder))
        workspace.reports.mkdir(parents=True, exist_ok=True)
        if not workspace.prepared.exists():
            stages.prepare(tree, workspace)
        stages.headroom(tree, workspace)
        report = result.read_headroom(workspace.headroom)
    here = machine.describe(tree.runtime, torch.device("cpu"), len(report.rows))
    file = shipped.file_of(tree)
    shipped.write(file, tree, here, report)
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
