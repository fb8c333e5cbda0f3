"""docs/scaling.md: what a large study and a very large population would take, computed from what was measured.

    python -m benchmarks.scaling

Inputs are benchmarks/results/pipeline.json, the sizes of hosts and policy as built from params.yaml, and the assumptions
named below; nothing else. Run it again after a benchmark.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from simic import durable, params
from simic.data.registry import describe
from simic.growth.blueprints import blueprints_of
from simic.growth.hosts import build_host

PAGE = Path("docs/scaling.md")
STUDY_RUNS, POPULATION = 10_000, 100_000
WORKERS = (10, 100, 1000)
GPUS = (1, 2, 4, 8)
# Assumptions. A writer of one SQLite database is asked for nothing faster than this; the GPU is an H200 by its data
# sheet, of which a training of small hosts reaches a tenth in float32.
MLFLOW_CALLS_PER_SECOND = 50
GPU_MEMORY, GPU_FLOPS, GPU_SHARE = 141e9, 67e12, 0.1
HOST_CORES_PER_GPU = 2
