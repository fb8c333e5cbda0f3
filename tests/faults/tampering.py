"""Changes of a workspace's files between two stages, or while training is interrupted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ruamel.yaml import YAML
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from simic import durable
from simic.evaluation import endpoints, result
from simic.evaluation.evaluate import summary
from simic.evaluation.statistics import compare_with_all
from simic.growth import export
from simic.params import read_tree
from simic.pipeline.paths import Workspace
from simic.telemetry import publish
from simic.training import checkpoint

POINTS = 3.0  # by which scores are raised
NUDGE = 0.02  # added to weights


def another(name: str) -> Callable[[Workspace, Workspace], None]:
    """Replace a file or folder by that of the other run."""

    def do(workspace: Workspace, donor: Workspace) -> None:
        target, source = workspace.root / name, donor.root / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)

    return do


# --- evaluation ------------------------------------------------------------------------------------------------------


def raise_one_estimate(workspace: Workspace, donor: Workspace) -> None:
    """Raise the learned policy's mean in evaluation.json, with its interval."""
    found = json.loads(workspace.evaluation.read_text(encoding="utf-8"))
    interval = found["policies"][result.LEARNED]["test_accuracy_pct"]
    interval |= {name: value + POINTS for name, value in interval.items()}
    workspace.evaluation.write_text(json.dumps(found, sort_keys=True, indent=1) + "\n", encoding="utf-8")


def raise_scores(workspace: Workspace, donor: Workspace) -> None:
    """Raise the learned policy's score on every seed of evaluation.json, and all that follows from it."""
    found, floors = result.read(workspace.evaluation), result.read_headroom(workspace.headroom)
    policies = {name: each.per_seed for name, each in found.policies.items()}
    own = policies[result.LEARNED]
    raised = tuple(round(min(100.0, value + POINTS), 4) for value in own.test_accuracy_pct)
    policies[result.LEARNED] = own.model_copy(update={"test_accuracy_pct": raised})
    played = {name: seeds for name, seeds in policies.items() if name not in floors.policies}
    accuracies = {name: seeds.test_accuracy_pct for name, seeds in policies.items()}
    changed = found.model_copy(
        update={
            "policies": {n: summary(seeds, found.host.params, found.rng_seed) for n, seeds in policies.items()},
            "comparisons": compare_with_all(result.LEARNED, accuracies, found.rng_seed),
            "standings": endpoints.standings(floors, {**played, **found.static_final}),
        }
    )
    workspace.evaluation.write_text(changed.to_json(), encoding="utf-8")
    workspace.metrics.write_text(json.dumps(endpoints.metrics(changed), indent=2) + "\n", encoding="utf-8")


def raise_metrics(workspace: Workspace, donor: Workspace) -> None:
    """Raise every number of metrics.json."""

    def raised(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: raised(each) for name, each in value.items()}
        return value + POINTS if isinstance(value, float) else value

    found = json.loads(workspace.metrics.read_text(encoding="utf-8"))
    workspace.metrics.write_text(json.dumps(raised(found), sort_keys=True, indent=1) + "\n", encoding="utf-8")


def change_grown(workspace: Workspace, donor: Workspace) -> None:
    """Change all weights of the exported network, with matching checksums."""
    moved = {name: tensor + NUDGE for name, tensor in load_file(workspace.grown / export.WEIGHTS).items()}
    _replace_arrays(workspace.grown / export.WEIGHTS, moved, workspace.grown / export.STRUCTURE)


def _replace_arrays(path: Path, arrays: dict[str, Tensor], described: Path) -> None:
    """Write arrays, and their checksum where they are described."""
    save_file(arrays, path)
    found = durable.checked(described.read_bytes())
    found["sha256"][path.name] = durable.sha256(path)
    described.write_bytes(durable.with_checksum(found))


# --- checkpoints, data, params ---------------------------------------------------------------------------------------


def swap_checkpoints(workspace: Workspace, donor: Workspace) -> None:
    """Swap the folders best and latest."""
    best, latest, aside = (workspace.checkpoints / name for name in ("best", "latest", "aside"))
    best.rename(aside)
    latest.rename(best)
    aside.rename(latest)


def change_best_weights(workspace: Workspace, donor: Workspace) -> None:
    """Change the policy's weights in the best checkpoint, with matching checksums."""
    _change_checkpoint(workspace.checkpoints / "best")


def change_latest_weights(workspace: Workspace, donor: Workspace) -> None:
    """Change the policy's weights in the newest checkpoint of an unfinished training, with matching checksums."""
    _change_checkpoint(max(_unfinished(workspace).glob("checkpoints/[0-9]*")))


def _change_checkpoint(path: Path) -> None:
    found = checkpoint.read(path)
    moved = {name: tensor + NUDGE for name, tensor in found.tensors.items() if name.startswith("ppo/policy.")}
    content = save({**found.tensors, **moved})
    sha256 = {**found.manifest.sha256, checkpoint.STATE_FILE: durable.sha256_of(content)}
    manifest = found.manifest.model_copy(update={"sha256": sha256})
    (path / checkpoint.STATE_FILE).write_bytes(content)
    (path / checkpoint.MANIFEST_FILE).write_bytes(manifest.to_json())


def damage_log(workspace: Workspace, donor: Workspace) -> None:
    """Change one byte of the last telemetry file of an unfinished training."""
    path = max(_unfinished(workspace).glob("telemetry/[0-9]*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _unfinished(workspace: Workspace) -> Path:
    [work] = (workspace.state / "work").glob("[!.]*")
    return work


def change_labels(workspace: Workspace, donor: Workspace) -> None:
    """Shift the labels of the training samples, with matching checksums."""
    path = workspace.prepared / "trainval.safetensors"
    arrays = load_file(path)
    _replace_arrays(path, {**arrays, "y_train": arrays["y_train"].roll(1)}, workspace.prepared / "meta.json")


def change_params(workspace: Workspace, donor: Workspace) -> None:
    """Change the discount in params.yaml."""
    found = read_tree(workspace.params)
    found["train"]["ppo"]["gamma"] = 0.9
    YAML().dump(found, workspace.params)


# --- telemetry -------------------------------------------------------------------------------------------------------


def drop_update(workspace: Workspace, donor: Workspace) -> None:
    """Remove one row from the middle of the updates."""
    _change_table(workspace, publish.UPDATES_FILE, lambda table: _without(table, slice(4, 5)))


def drop_steps(workspace: Workspace, donor: Workspace) -> None:
    """Remove ten rows from the middle of the steps."""
    _change_table(workspace, publish.STEPS_FILE, lambda table: _without(table, slice(300, 310)))


def double_steps(workspace: Workspace, donor: Workspace) -> None:
    """Repeat the steps of the fourth iteration."""

    def doubled(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, table.filter(pc.field("iteration") == 3)])

    _change_table(workspace, publish.STEPS_FILE, doubled)


def raise_returns(workspace: Workspace, donor: Workspace) -> None:
    """Raise the return of every episode."""
    _change_table(workspace, publish.EPISODES_FILE, lambda table: _replaced(table, "return", lambda x: x + POINTS))


def change_validation(workspace: Workspace, donor: Workspace) -> None:
    """Raise each later validation, so that the last is the best."""

    def rising(table: pa.Table) -> pa.Table:
        return _replaced(table, "validation_accuracy", lambda scores: scores + np.arange(len(scores)))

    _change_table(workspace, publish.UPDATES_FILE, rising)


def _change_table(workspace: Workspace, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    path = workspace.telemetry / name
    pq.write_table(change(pq.read_table(path)), path)


def _without(table: pa.Table, rows: slice) -> pa.Table:
    return pa.concat_tables([table.slice(0, rows.start), table.slice(rows.stop)])


def _replaced(table: pa.Table, column: str, change: Callable[[Any], Any]) -> pa.Table:
    values = change(table[column].to_numpy())
    return table.set_column(table.schema.get_field_index(column), column, pa.array(np.asarray(values)))
