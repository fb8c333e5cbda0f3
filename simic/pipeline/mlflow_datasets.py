"""Describe the splits of the prepared data as MLflow's data sets: use, digest and origin."""

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
        file, name, sha256 = ENVIRONMENT_FILE, meta.source, meta.source_sha256
    else:
        file = f"{'test' if split == 'test' else 'trainval'}.safetensors"  # named for its digest, never opened
        name, sha256 = meta.task, meta.sha256[file]
    place = (workspace.prepared / file).relative_to(workspace.root).as_posix()
    return {
        "context": CONTEXTS[split],
        "name": f"{name}-{split}",
        "digest": durable.sha256_of(f"{sha256} {split}".encode())[:DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": place}),
        "profile": json.dumps({"source": meta.source, "licence": meta.licence}),
    }
