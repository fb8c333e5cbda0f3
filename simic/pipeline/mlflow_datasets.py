"""The splits of the prepared data as MLflow's data sets: what each is used for, its digest, schema and profile."""

import json
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from mlflow import MlflowClient
from mlflow.data.schema import TensorDatasetSchema
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.types import Schema, TensorSpec
from pydantic import BaseModel

CONTEXT_TAG = "mlflow.data.context"
DIGEST_CHARACTERS = 36  # that MLflow's tables have room for

Context = Literal["training", "validation", "testing"]


class DescribedSplit(BaseModel, frozen=True):
    """One split. ``source`` is a file of the project, by its path from the root; shapes are those of a sample."""

    name: str
    context: Context
    digest: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    profile: Mapping[str, int | str]


def inputs(splits: Iterable[DescribedSplit]) -> list[DatasetInput]:
    """As what a run reads."""
    return [DatasetInput(_dataset(split), [InputTag(CONTEXT_TAG, split.context)]) for split in splits]


def _dataset(split: DescribedSplit) -> Dataset:
    features = TensorSpec(np.dtype(split.dtype), (-1, *split.shape))
    targets = TensorSpec(np.dtype("int64"), (-1, *split.target_shape))
    schema = TensorDatasetSchema(features=Schema([features]), targets=Schema([targets])).to_dict()
    return Dataset(
        name=split.name,
        digest=split.digest[:DIGEST_CHARACTERS],
        source_type="local",
        source=json.dumps({"uri": split.source}),
        schema=json.dumps(schema),
        profile=json.dumps(dict(split.profile)),
    )


def used_for(client: MlflowClient, run_id: str, context: Context) -> Dataset | None:
    """The data set of a run that has this use; None where none was named."""
    has = client.get_run(run_id).inputs
    for given in has.dataset_inputs if has else ():
        if {tag.key: tag.value for tag in given.tags}.get(CONTEXT_TAG) == context:
            return given.dataset
    return None
