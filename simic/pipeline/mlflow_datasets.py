"""Describe the splits of the prepared data as MLflow's data sets: use, digest, schema and profile."""

import json

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
    if meta.task == GYM:
        return tuple(_environment(meta, context, folder) for context in CONTEXTS.values())
    return tuple(_split(meta, split, folder) for split in CONTEXTS)


def _environment(meta: Meta, context: str, folder: str) -> dict[str, str]:
    """Return the fields of a Gymnasium environment, of which each use plays other episodes."""
    return {
        "context": context,
        "name": f"{meta.source}-{context}",
        "digest": durable.sha256_of(f"{meta.source_sha256} {context}".encode())[:DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": f"{folder}/{ENVIRONMENT_FILE}"}),
        "profile": json.dumps({"source": meta.source, "licence": meta.licence}),
    }


def _split(meta: Meta, split: str, folder: str) -> dict[str, str]:
    """Return the fields of MLflow's entity and its ``context``."""
    file = f"{'test' if split == 'test' else 'trainval'}.safetensors"  # named for its digest, never opened
    text = len(meta.shape) == 1
    features = TensorSpec(np.dtype("int64" if text else "float32"), (-1, *meta.shape))
    targets = TensorSpec(np.dtype("int64"), (-1, *(meta.shape if text else ())))
    schema = TensorDatasetSchema(features=Schema([features]), targets=Schema([targets])).to_dict()
    profile = {**_counted(meta, split), "classes": meta.classes, "source": meta.source, "licence": meta.licence}
    return {
        "context": CONTEXTS[split],
        "name": f"{meta.task}-{split}",
        "digest": durable.sha256_of(f"{meta.sha256[file]} {split}".encode())[:DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": f"{folder}/{file}"}),
        "schema": json.dumps(schema),
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
