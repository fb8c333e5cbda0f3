"""A process that has imported all of other packages that a run needs, and forks a child for each run: that saves a
quarter of its time. It imports nothing of simic, since each child has a source of its own.

Run as a script; from each line of its input, JSON of a folder and a job's file, to a line with the child's status.
"""

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

PATIENCE_SECONDS = 600  # of one run: a fault may make it wait for ever
IMPORTED = (
    "torch._dynamo",
    "torch.export",
    "safetensors.torch",
    "gymnasium",
    "pydantic",
    "filelock",
    "ruamel.yaml",
    "pyarrow.parquet",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.linear_model",
    "matplotlib.pyplot",
    "jinja2",
)


def serve() -> None:
    """One child after another until the input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        source, job = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(Path(source), Path(job))
        print(os.waitpid(child, 0)[1], flush=True)


def _run(source: Path, job: Path) -> None:
    """The job with the package in ``source``; what it prints goes beside it. Never returns."""
    output = os.open(job.with_name("output.txt"), os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(PATIENCE_SECONDS)
    os.chdir(source)
    sys.path.insert(0, str(source))
    sys.argv[1:] = [str(job)]
    try:
        runpy.run_module("simic.selftest.play", run_name="__main__")
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    serve()
