"""Files of a finished run that somebody changed, their checksums too, are found by the audit or stop the next stage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from simic import durable
from simic.audit.audit import examine
from simic.errors import SimicError
from simic.evaluation import endpoints, result
from simic.evaluation.evaluate import summary
from simic.evaluation.intervals import compare_with_all
from simic.growth import grown_network
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import publish
from simic.training import checkpoint
from tests.pipeline.conftest import project, suite_run  # noqa: F401
from tests.pipeline.small_suite import tree

POINTS = 2.0  # by which scores are raised
NUDGE = 0.02  # added to weights


# --- evaluation ---


def raise_one_estimate(workspace: Workspace) -> None:
    """Raise the learned policy's mean in evaluation.json, with its interval."""
    content = json.loads(workspace.evaluation.read_text(encoding="utf-8"))
    interval = content["policies"][result.LEARNED]["test_accuracy_pct"]
    interval |= {name: value + POINTS for name, value in interval.items()}
    workspace.evaluation.write_text(
        json.dumps(content, sort_keys=True, indent=1) + "\n", encoding="utf-8"
    )


def raise_scores(workspace: Workspace) -> None:
    """Raise the learned policy's score on every host, and all that follows from it."""
    evaluation = result.read(workspace.evaluation)
    headroom = result.read_headroom(workspace.headroom)
    seeds = {name: policy.per_seed for name, policy in evaluation.policies.items()}
    learned = seeds[result.LEARNED]
    raised = tuple(round(min(100.0, value + POINTS), 4) for value in learned.test_accuracy_pct)
    seeds[result.LEARNED] = learned.model_copy(update={"test_accuracy_pct": raised})
    played = {name: values for name, values in seeds.items() if name not in headroom.policies}
    accuracies = {name: values.test_accuracy_pct for name, values in seeds.items()}
    host, rng_seed = evaluation.host.params, evaluation.rng_seed
    changed = evaluation.model_copy(
        update={
            "policies": {name: summary(values, host, rng_seed) for name, values in seeds.items()},
            "comparisons": compare_with_all(result.LEARNED, accuracies, rng_seed),
            "standings": endpoints.standings(headroom, {**played, **evaluation.static_final}),
        }
    )
    workspace.evaluation.write_text(changed.to_json(), encoding="utf-8")
    workspace.metrics.write_text(
        json.dumps(endpoints.metrics(changed), indent=2) + "\n", encoding="utf-8"
    )


def raise_metrics(workspace: Workspace) -> None:
    """Raise every number of metrics.json."""
    content = json.loads(workspace.metrics.read_text(encoding="utf-8"))
    raised = {
        name: value + POINTS if isinstance(value, float) else value
        for name, value in content.items()
    }
    workspace.metrics.write_text(json.dumps(raised, indent=2) + "\n", encoding="utf-8")


def change_grown(workspace: Workspace) -> None:
    """Change all weights of the exported network, with matching checksums."""
    weights = workspace.grown / grown_network.WEIGHTS
    moved = {name: tensor + NUDGE for name, tensor in load_file(weights).items()}
    replace_arrays(weights, moved, workspace.grown / grown_network.STRUCTURE)


def replace_arrays(path: Path, arrays: dict[str, Tensor], described: Path) -> None:
    """Write arrays, and their checksum where they are described."""
    save_file(arrays, path)
    description = durable.checked(described.read_bytes())
    description["sha256"][path.name] = durable.sha256(path)
    described.write_bytes(durable.with_checksum(description))


# --- checkpoints and data ---


def change_best_weights(workspace: Workspace) -> None:
    """Change the policy's weights in the best checkpoint, with matching checksums."""
    path = workspace.checkpoints / "best"
    best = checkpoint.read(path)
    moved = {
        name: tensor + NUDGE
        for name, tensor in best.tensors.items()
        if name.startswith("ppo/policy.")
    }
    content = save({**best.tensors, **moved})
    sha256 = {**best.manifest.sha256, checkpoint.STATE_FILE: durable.sha256_of(content)}
    (path / checkpoint.STATE_FILE).write_bytes(content)
    (path / checkpoint.MANIFEST_FILE).write_bytes(
        best.manifest.model_copy(update={"sha256": sha256}).to_json()
    )


def change_labels(workspace: Workspace) -> None:
    """Shift the labels of the training samples, with matching checksums."""
    path = workspace.prepared / "trainval.safetensors"
    arrays = load_file(path)
    replace_arrays(
        path, {**arrays, "y_train": arrays["y_train"].roll(1)}, workspace.prepared / "meta.json"
    )


# --- telemetry ---


def changed_table(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Workspace], None]:
    """Change one published table."""

    def do(workspace: Workspace) -> None:
        path = workspace.telemetry / name
        pq.write_table(change(pq.read_table(path)), path)

    return do


def without(rows: slice) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.concat_tables([table.slice(0, rows.start), table.slice(rows.stop)])


def replaced(column: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def do(table: pa.Table) -> pa.Table:
        values = change(table[column].to_numpy())
        return table.set_column(
            table.schema.get_field_index(column), column, pa.array(np.asarray(values))
        )

    return do


READ_BY_EVALUATE = {
    "weights of the best checkpoint changed": change_best_weights,
    "labels changed": change_labels,
}
TAMPERINGS: dict[str, Callable[[Workspace], None]] = READ_BY_EVALUATE | {
    "estimate raised": raise_one_estimate,
    "scores raised throughout": raise_scores,
    "metrics raised": raise_metrics,
    "weights of the grown network changed": change_grown,
    "update missing": changed_table(publish.UPDATES_FILE, without(slice(1, 2))),
    "steps missing": changed_table(publish.STEPS_FILE, without(slice(30, 40))),
    "steps twice": changed_table(
        publish.STEPS_FILE, lambda table: pa.concat_tables([table, table])
    ),
    "returns raised": changed_table(
        publish.EPISODES_FILE, replaced("return", lambda values: values + POINTS)
    ),
    "validation raised": changed_table(
        publish.UPDATES_FILE,
        replaced("validation_accuracy", lambda values: values + np.arange(len(values))),
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_the_audit_refutes_a_run_whose_files_were_changed(name: str, project: Workspace) -> None:  # noqa: F811
    TAMPERINGS[name](project)
    assert "X6" in examine(stages.recorded(tree(), project), "run").unsound


@pytest.mark.parametrize("name", READ_BY_EVALUATE)
def test_evaluation_refuses_what_was_changed_before_it(name: str, project: Workspace) -> None:  # noqa: F811
    READ_BY_EVALUATE[name](project)
    with pytest.raises(SimicError, match=r"checkpoints|of other data"):
        stages.evaluate(tree(), project)


def test_the_audit_refutes_a_run_whose_params_were_changed(project: Workspace) -> None:  # noqa: F811
    assert "X6" in examine(stages.recorded(tree("train.ppo.gamma=0.9"), project), "run").unsound
