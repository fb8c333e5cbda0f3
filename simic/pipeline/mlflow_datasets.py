"""Describe the splits of the prepared data as MLflow's data sets: use, digest and size."""

import json

from simic import durable
from simic.data.batches import ENVIRONMENT_FILE, META_FILE, Meta, read_meta
from simic.pipeline.paths import Workspace
from simic.registry import GYM

CONTEXTS = {"train": "training", "val": "validation", "test": "testing"}
DIGEST_CHARACTERS = 36  # that MLflow's tables have room for


def described(workspace: Workspace) -> tuple[dict[str, str], ...]:
    """Return the fields of MLflow's entity, and its ``context``, for what training, the choice of a checkpoint and
    evaluation use, from the description of the data alone; nothing where no data are prepared.
    """
    if not (workspace.prepared / META_FILE).exists():
        return ()
    meta = read_meta(workspace.prepared)
    return tuple(_fields(meta, split, workspace) for split in CONTEXTS)


def _fields(meta: Meta, split: str, workspace: Workspace) -> dict[str, str]:
    if meta.task == GYM:  # of which each use plays other episodes
        file, sha256, profile = ENVIRONMENT_FILE, meta.source_sha256, {}
    else:
        file = f"{'test' if split == 'test' else 'trainval'}.safetensors"  # named for its digest, never opened
        sha256, profile = meta.sha256[file], _counted(meta, split)
    place = (workspace.prepared / file).relative_to(workspace.root).as_posix()
    return {
        "context": CONTEXTS[split],
        "name": f"{meta.source if meta.task == GYM else meta.task}-{split}",
        "digest": durable.sha256_of(f"{sha256} {split}".encode())[:DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": place}),
        "profile": json.dumps({**profile, "source": meta.source, "licence": meta.licence}),
    }


def _counted(meta: Meta, split: str) -> dict[str, int]:
    """Return numbers of samples; ``num_rows`` is the name that MLflow's own data sets have for it. Of a suite the uses
    have tasks of their own, with all their samples; how many are held out nobody reads here.
    """
    if meta.task != "suite":
        return {"num_rows": meta.samples[split]}
    rows = sum(meta.samples.values())
    if split == "test":
        return {"rows_per_task": rows}
    tasks = sum(task.group == split for task in meta.tasks)
    return {"num_rows": tasks * rows, "tasks": tasks, "rows_per_task": rows}
