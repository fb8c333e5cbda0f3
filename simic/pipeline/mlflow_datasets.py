"""Describe the splits of the prepared data as MLflow's data sets: use, digest, schema and profile."""

import json
from collections.abc import Mapping

import numpy as np
from mlflow.data.schema import TensorDatasetSchema
from mlflow.types import Schema, TensorSpec

from simic import durable
from simic.data.batches import ENVIRONMENT_FILE, META_FILE, Meta, read_meta
from simic.pipeline.paths import Workspace
from simic.registry import GYM

CONTEXTS = {"train": "training", "val": "validation", "test": "testing"}
DIGEST_CHARACTERS = 36  # that MLflow's tables have room for


def described(workspace: Workspace) -> tuple[dict[str, str], ...]:
    """Return what training, the choice of a checkpoint and evaluation use, from the description of the data alone;
    nothing where no data are prepared.

    Of a suite the uses have tasks of their own, with all their samples; how many are held out nobody reads here.
    """
    if not (workspace.prepared / META_FILE).exists():
        return ()
    meta = read_meta(workspace.prepared)
    folder = workspace.prepared.relative_to(workspace.root).as_posix()
    if meta.task == GYM:  # of which each use plays other episodes
        source, profile = f"{folder}/{ENVIRONMENT_FILE}", {"source": meta.source, "licence": meta.licence}
        return tuple(
            _fields(use, f"{meta.source}-{use}", f"{meta.source_sha256} {use}", source, profile)
            for use in CONTEXTS.values()
        )
    text = len(meta.shape) == 1
    features = TensorSpec(np.dtype("int64" if text else "float32"), (-1, *meta.shape))
    targets = TensorSpec(np.dtype("int64"), (-1, *(meta.shape if text else ())))
    schema = TensorDatasetSchema(features=Schema([features]), targets=Schema([targets])).to_dict()
    described = []
    for split, use in CONTEXTS.items():
        file = f"{'test' if split == 'test' else 'trainval'}.safetensors"  # named for its digest, never opened
        profile = {**_counted(meta, split), "classes": meta.classes, "source": meta.source, "licence": meta.licence}
        fields = _fields(use, f"{meta.task}-{split}", f"{meta.sha256[file]} {split}", f"{folder}/{file}", profile)
        described.append({**fields, "schema": json.dumps(schema)})
    return tuple(described)


def _fields(context: str, name: str, digested: str, place: str, profile: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of MLflow's entity and its ``context``."""
    return {
        "context": context,
        "name": name,
        "digest": durable.sha256_of(digested.encode())[:DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": place}),
        "profile": json.dumps(profile),
    }


def _counted(meta: Meta, split: str) -> dict[str, int]:
    """Return numbers of samples; ``num_rows`` is the name that MLflow's own data sets have for it."""
    if meta.task != "suite":
        return {"num_rows": meta.samples[split]}
    rows = sum(meta.samples.values())
    if split == "test":
        return {"rows_per_task": rows}
    tasks = sum(task.group == split for task in meta.tasks)
    return {"num_rows": tasks * rows, "tasks": tasks, "rows_per_task": rows}
