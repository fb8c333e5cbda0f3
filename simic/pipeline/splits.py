"""What the record of a run says of its data: the splits, from the description of the prepared data alone."""

from simic import durable
from simic.data.batches import META_FILE, Meta, read_meta
from simic.pipeline.mlflow_datasets import Context, DescribedSplit
from simic.pipeline.paths import Workspace

CONTEXTS: dict[str, Context] = {"train": "training", "val": "validation", "test": "testing"}


def described(workspace: Workspace) -> tuple[DescribedSplit, ...]:
    """What training, the choice of a checkpoint and evaluation use; nothing where no data are prepared.

    Of a suite the uses have tasks of their own, with all their samples; how many are held out nobody reads here.
    """
    if not (workspace.prepared / META_FILE).exists():
        return ()
    meta = read_meta(workspace.prepared)
    folder = workspace.prepared.relative_to(workspace.root)
    return tuple(_split(meta, split, folder.as_posix()) for split in CONTEXTS)


def _split(meta: Meta, split: str, folder: str) -> DescribedSplit:
    file = f"{'test' if split == 'test' else 'trainval'}.safetensors"  # named for its digest, never opened
    text = len(meta.shape) == 1
    return DescribedSplit(
        name=f"{meta.task}-{split}",
        context=CONTEXTS[split],
        digest=durable.sha256_of(f"{meta.sha256[file]} {split}".encode()),
        source=f"{folder}/{file}",
        dtype="int64" if text else "float32",
        shape=meta.shape,
        target_shape=meta.shape if text else (),
        profile={**_counted(meta, split), "classes": meta.classes, "source": meta.source, "licence": meta.licence},
    )


def _counted(meta: Meta, split: str) -> dict[str, int]:
    """``num_rows`` is the name that MLflow's own data sets have for it."""
    if meta.task != "suite":
        return {"num_rows": meta.samples[split]}
    rows = sum(meta.samples.values())
    if split == "test":
        return {"rows_per_task": rows}
    tasks = sum(task.group == split for task in meta.tasks)
    return {"num_rows": tasks * rows, "tasks": tasks, "rows_per_task": rows}
