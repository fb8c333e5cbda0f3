"""Export the best host of a finished episode: a plain network with its history and a model card."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import JsonValue

from simic.data.batches import HeldOut, Meta, TaskMeta, read_meta
from simic.data.raw_inputs import RawInputs
from simic.envs.actions import RELEVANT
from simic.envs.governor import Cause
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError, as_markdown
from simic.evaluation.intervals import share_interval
from simic.evaluation.scoring import Turn
from simic.growth.grown_network import (
    FittedStructure,
    Structure,
    contents,
    grown_network,
    write_network,
)
from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLE_NAMES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Stage,
)

if TYPE_CHECKING:
    from simic.evaluation.floors import Contender, Floors

FLOORS = "floors.json"
# What the test split promises of a model: whoever serves it compares.
PROMISE = "promise.json"
RECOMMENDED = "recommended"
MOST_NAMES = 20
# Decimals of points: far below one sample of any split.
ACCURACY_DIGITS = 3


@dataclass(frozen=True)
class Grown:
    """Describe an exported network; accuracies in points, of the committed network."""

    path: Path
    host: int
    val_accuracy_pct: float
    test_accuracy_pct: float
    host_params: int
    params: int
    account: "Account"


@dataclass(frozen=True)
class Account:
    """Hold what is exported beside the network and its numbers."""

    grown_by: str  # who decided
    floors: "Floors | None" = None
    # What they name as the one to use, unless that is the grown network.
    recommended: "Contender | None" = None
    # What was done to the data.
    notes: Sequence[str] = ()
    # To write beside the network, by name of the file.
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def best_host(env: GrowthEnv, rows: slice) -> int:
    """Find the place of the best host among some rows, by committed validation accuracy; SimicError where none is a
    number.
    """
    accuracy = env.state.measured.committed_accuracy[rows]
    if not accuracy.isfinite().any():
        raise SimicError(
            "no host has a committed accuracy that is a number, so there is nothing to export"
        )
    return int(accuracy.nan_to_num(-1.0).argmax())


def export_best(
    env: GrowthEnv,
    rows: slice,
    turns: Sequence[Turn],
    held_out: HeldOut,
    prepared: Path,
    account: Account,
    out: Path,
    inputs: RawInputs | None = None,
) -> Grown:
    """Export the host with the best committed validation accuracy.

    Args:
        env: at the end of an episode.
        rows: of the environment, to choose from.
        turns: the steps of these rows.
        held_out: with the test split.
        prepared: folder of the prepared data.
        account: what the model card says beside the numbers.
        out: new folder of the network.
        inputs: what the network takes in place of standardised samples.

    Raises:
        SimicError: ``out`` exists, or no host has an accuracy.
    """
    best = best_host(env, rows)
    row = rows.start + best
    accuracy, _ = env.committed(held_out.test)
    network = grown_network(env.population, env.slots, row, committed=True, inputs=inputs)
    grown = Grown(
        path=out,
        host=best,
        val_accuracy_pct=float(env.state.measured.committed_accuracy[row]),
        test_accuracy_pct=float(accuracy[row]),
        host_params=env.host.params,
        params=network.structure.params,
        account=account,
    )
    meta = read_meta(prepared)
    task = held_out.tasks[int(env.tasks[row])]

    # What was done to the data, then how the host grew.
    entries: list[JsonValue] = []
    if task.mean and not inputs:
        entries.append({"preprocessing": _preprocessing(meta, task)})
    if account.notes:
        entries.append({"data": [*account.notes]})
    entries += history(env, turns, best)

    contributions = [round(value, 2) for value in env.state.measured.contribution[row].tolist()]
    hosts = rows.stop - rows.start
    text = card(grown, network.structure, meta, task, env, hosts, contributions, len(held_out.test))
    files: dict[str, str | bytes] = dict(account.files)
    if account.recommended is not None and account.recommended.model is not None:
        # A folder of the same kind within.
        other = recommended_card(account, account.recommended, meta, task)
        model = contents(account.recommended.model, other) | dict(account.files)
        correct = account.recommended.correct
        model[PROMISE] = _promise(account.recommended.name, float(correct.mean()), len(correct))
        files |= {f"{RECOMMENDED}/{name}": content for name, content in model.items()}
    if account.floors is not None:
        files[FLOORS] = account.floors.to_json()
    files[PROMISE] = _promise("grown network", grown.test_accuracy_pct / 100, len(held_out.test))
    write_network(network, out, entries, text, files)
    return grown


def _promise(model: str, accuracy: float, rows: int) -> str:
    promise = {
        "model": model,
        "accuracy": accuracy,
        "rows": rows,
    }
    return json.dumps(promise) + "\n"


# --- history.json ----------------------------------------------------------------------------------------------------


def history(env: GrowthEnv, turns: Sequence[Turn], row: int) -> list[JsonValue]:
    """Describe how one host grew: for each step its accuracy, the decision, a rollback, and changes of stages.

    Args:
        env: where it grew.
        turns: the steps.
        row: of the host in them.
    """
    blueprints = [item.name for item in env.blueprints]
    entries: list[JsonValue] = []
    before = [int(Stage.DORMANT)] * env.host.slots
    for turn in turns:
        # JSON has no NaN: an accuracy that is no number is null.
        info = turn.info
        live = float(info.live_accuracy[row])
        after = info.stage[row].tolist()
        entry: dict[str, JsonValue] = {
            "step": turn.situation.step + 1,
            "live_accuracy_pct": round(live, ACCURACY_DIGITS) if math.isfinite(live) else None,
        }
        # After a rollback the host is out of the episode, and decides nothing.
        if info.valid[row]:
            heads = {
                name: int(head[row]) for name, head in zip(Action._fields, turn.action, strict=True)
            }
            entry |= _decision(heads, int(info.effective_op[row]), blueprints)
        cause = Cause(int(info.cause[row]))
        if cause is not Cause.NONE:
            entry["rolled_back"] = cause.name
        # Stages change by the op, but also by themselves: what happened is told by their difference.
        transitions: dict[str, JsonValue] = {
            str(slot): f"{Stage(old).name} -> {Stage(new).name}"
            for slot, (old, new) in enumerate(zip(before, after, strict=True))
            if old != new
        }
        if transitions:
            entry["stages"] = transitions
        entries.append(entry)
        before = after
    return entries


def _decision(
    heads: dict[str, int], effective_op: int, blueprints: Sequence[str]
) -> dict[str, JsonValue]:
    """Write the op with the heads it uses, in words; nothing for WAIT."""
    op = Op(heads["op"])
    if op is Op.WAIT:
        return {}
    words: dict[str, JsonValue] = {
        "slot": heads["slot"],
        "blueprint": blueprints[heads["blueprint"]],
        "style": STYLE_NAMES[heads["style"]],
        "tempo": TEMPO_STEPS[heads["tempo"]],
        "alpha_target": ALPHA_TARGETS[heads["alpha_target"]],
        "alpha_speed": ALPHA_SPEED_STEPS[heads["alpha_speed"]],
        "alpha_curve": Curve(heads["alpha_curve"]).name.lower(),
    }
    # A head that the op does not read was chosen too, but means nothing.
    return {
        "op": op.name,
        **{name: words[name] for name in RELEVANT[op]},
        "took_effect": effective_op == op,
    }


def _preprocessing(meta: Meta, task: TaskMeta) -> JsonValue:
    """Write mean and std of the inputs, which whoever uses the network needs to standardise them.

    Their shape broadcasts against a sample: [C, 1, 1] for images, [1, 1, D] for vectors.
    """
    shape = (-1, 1, 1) if len(task.mean) == meta.shape[0] else (1, 1, -1)
    return {
        "input": "(x - mean) / std",
        "mean": torch.tensor(task.mean, dtype=torch.float64).view(shape).tolist(),
        "std": torch.tensor(task.std, dtype=torch.float64).view(shape).tolist(),
    }


# --- model card ------------------------------------------------------------------------------------------------------


def card(
    grown: Grown,
    structure: Structure,
    meta: Meta,
    task: TaskMeta,
    env: GrowthEnv,
    hosts: int,
    contributions: Sequence[float],
    tested: int,
) -> str:
    """Write the model card, in Markdown.

    Args:
        grown: the network's numbers, and who grew it.
        structure: of the network.
        meta: of the data.
        task: that it grew on.
        env: where it grew.
        hosts: how many grew side by side.
        contributions: of every slot in points; NaN where no seed acts.
        tested: how many samples the test split has.
    """
    inputs, scale = _inputs(structure, task)
    shape = ", ".join(
        map(str, structure.inputs.shape if structure.inputs else structure.input_shape)
    )
    test = share_interval(grown.test_accuracy_pct / 100, tested)
    account = grown.account
    compared = f"\n{_floors(account.floors)}\n" if account.floors else ""
    notes = "".join(f"\n- {as_markdown(note)}" for note in account.notes)
    return f"""# A {env.host.family}/{env.host.preset} network grown by simic

## What it is
Input: {inputs}, one sample is [{shape}]. Output: logits over {structure.classes} classes.
{scale}
{structure.params} parameters, of which the host alone has {grown.host_params}.

| slot | seed | joined by | alpha | parameters | contribution |
|---|---|---|---|---|---|
{_seeds(structure, contributions)}

A contribution is what the network loses without that seed at the end, in points of validation accuracy.

## How it was grown
By {as_markdown(account.grown_by)}, in {env.steps} steps of one epoch each, beside {hosts - 1} other hosts
(rng_seed {env.rng_seed}).
It is host {grown.host}, the one with the best validation accuracy; what happened at each step is in `history.json`.

## Data
Task {as_markdown(task.name)}: {as_markdown(meta.source)}.
Licence: {as_markdown(meta.licence)}. sha256 `{meta.source_sha256}`.
Samples: {meta.samples["train"]} train, {meta.samples["val"]} validation, {meta.samples["test"]} test.{notes}

## Results
| split | accuracy |
|---|---|
| validation (chose this host) | {grown.val_accuracy_pct:.2f} % |
| test, with its 95 % interval over {tested} samples | {grown.test_accuracy_pct:.2f} % \
[{100 * test.low:.2f}, {100 * test.high:.2f}] |
{compared}
{_use(structure, shape)}

## Limits
It has seen this data set only. The validation figure is the best of {hosts} and so flatters; the test figure
does not. simic puts no licence on it; the data's is above. The audit of the run that grew it, if there was one, is not
part of this card.
"""


def recommended_card(account: Account, recommended: "Contender", meta: Meta, task: TaskMeta) -> str:
    """Write the card of the model that is recommended in place of the grown network, in Markdown."""
    assert recommended.model is not None
    assert account.floors is not None
    structure = recommended.model.structure
    inputs, scale = _inputs(structure, task)
    shape = ", ".join(
        map(str, structure.inputs.shape if structure.inputs else structure.input_shape)
    )
    accuracy = float(recommended.correct.mean())
    tested = len(recommended.correct)
    test = share_interval(accuracy, tested)
    is_network = isinstance(structure, Structure)
    return f"""# A classifier: {as_markdown(recommended.name)}

## What it is
The model that simic recommends beside the grown network in the folder above: {as_markdown(recommended.cost)}.
Input: {inputs}, one sample is [{shape}]. Output: logits over {structure.classes} classes.
{scale}

## Data
Task {as_markdown(task.name)}: {as_markdown(meta.source)}.
Licence: {as_markdown(meta.licence)}. sha256 `{meta.source_sha256}`.
Fitted to the training split alone; what was done to the data is in the card above.

## Results
Test accuracy {100 * accuracy:.2f} %, with its 95 % interval over {tested} samples [{100 * test.low:.2f}, \
{100 * test.high:.2f}].

{as_markdown(account.floors.advice)}

{_use(structure, shape, is_network)}

## Limits
It has seen this data set only. simic puts no licence on it; the data's is above.
"""


def _floors(floors: "Floors") -> str:
    return f"""## Beside what costs less
{floors.table()}

{floors.advice}
Test accuracy of the network that validation chose among {floors.hosts}; seconds are those of all {floors.hosts}."""


def _use(structure: Structure | FittedStructure, shape: str, is_network: bool = True) -> str:
    # predict.py reads the user's own files; a task of the project has none.
    predict = (
        ""
        if structure.inputs is None
        else "`python predict.py DATA` prints a class for each row of a file.\n"
    )
    network = """

With simic it is a plain `nn.Module`, which can be trained on:

```python
from simic.growth import load_grown

network = load_grown(".")
```"""
    return f"""## How to use it
{predict}From this folder, with torch alone:

```python
import torch

network = torch.export.load("network.pt2").module()
logits = network({_example(structure, shape)})
```{network if is_network else ""}"""


def _inputs(structure: Structure | FittedStructure, task: TaskMeta) -> tuple[str, str]:
    """Describe what the network takes, and how it is to be standardised."""
    if structure.inputs is not None:
        return _raw_inputs(structure.inputs)
    # By the shape: tokens have one dimension, vectors come as images of one row.
    nothing = "Nothing is standardised."
    if len(structure.input_shape) == 1:
        inputs = "tokens `int64 [B, L]`"
        nothing = "Tokens are bytes, 0 to 255; nothing is standardised."
    elif structure.input_shape[:-1] == (1, 1):
        inputs = "vectors of D values as `float32 [B, 1, 1, D]`"
    else:
        inputs = "images `float32 [B, C, H, W]`"
    if not task.mean:
        return inputs, nothing
    return (
        inputs,
        "Standardise the input first: `(x - mean) / std`, with mean and std in `history.json`.",
    )


def _raw_inputs(inputs: RawInputs) -> tuple[str, str]:
    """Describe what a network takes that standardises by itself."""
    note = f"Classes, in order: {_list(inputs.classes)}. Standardising is inside the network."
    if inputs.layout != "table":
        return f"images as they are, `float32`, channels as in {inputs.layout}", note
    columns = inputs.columns
    names = _list([column.name for column in columns])
    has_strings = any(column.levels is not None for column in columns)
    coded = "; strings as their place among the levels in `structure.json`" if has_strings else ""
    return (
        f"rows as they are, `float64 [B, {len(columns)}]`: {names}{coded}; NaN where missing",
        note,
    )


def _list(names: Sequence[str]) -> str:
    listed = as_markdown(", ".join(names[:MOST_NAMES]))
    return listed + (", …" if len(names) > MOST_NAMES else "")


def _seeds(structure: Structure, contributions: Sequence[float]) -> str:
    rows = [
        f"| {seed.slot} | {seed.blueprint} | {seed.operator} | {seed.alpha:g} | {seed.params} "
        f"| {contributions[seed.slot]:+.1f} |"
        for seed in structure.seeds
    ]
    return "\n".join(rows) or "| – | nothing was kept | – | – | 0 | – |"


def _example(structure: Structure | FittedStructure, shape: str) -> str:
    """Write an expression for samples of that shape, as the network takes them."""
    if structure.inputs:
        return f"torch.zeros(8, {shape}, dtype={structure.inputs.dtype})"
    is_tokens = len(structure.input_shape) == 1
    return f"torch.zeros(8, {shape}{', dtype=torch.int64' if is_tokens else ''})"
