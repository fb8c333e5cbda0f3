"""Export the best host of a finished episode: a plain network with its history and a model card."""

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
from simic.errors import SimicError
from simic.evaluation.scoring import Turn
from simic.evaluation.statistics import share_interval
from simic.growth.grown_network import Structure, grown_network, write_network
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
    from simic.evaluation.floors import Floors

FLOORS = "floors.json"
MOST_NAMES = 20
ACCURACY_DIGITS = 3  # points; far below one sample of any split


@dataclass(frozen=True)
class Grown:
    """An exported network; accuracies in points, of the committed network."""

    path: Path
    host: int
    val_accuracy_pct: float
    test_accuracy_pct: float
    host_params: int
    params: int
    account: "Account"


@dataclass(frozen=True)
class Account:
    """Content of the model card beside the network's numbers: who grew it, comparisons, notes on the data; and files to
    write beside it, by name.
    """

    grown_by: str
    floors: "Floors | None" = None
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def best_host(env: GrowthEnv, rows: slice) -> int:
    """Return the place of the best host among some rows, by committed validation accuracy; SimicError where none is a
    number.
    """
    accuracy = env.state.measured.committed_accuracy[rows]
    if not accuracy.isfinite().any():
        raise SimicError("no host has a committed accuracy that is a number, so there is nothing to export")
    return int(accuracy.nan_to_num(-1.0).argmax())


def export_best(
    env: GrowthEnv,
    rows: slice,
    turns: Sequence[Turn],
    held: HeldOut,
    prepared: Path,
    account: "Account",
    out: Path,
    inputs: RawInputs | None = None,
) -> Grown:
    """Write the host with the best committed validation accuracy among some rows to the new directory ``out``.

    ``turns`` are the steps of these rows, ``account`` is added to the card, ``inputs`` to the network. SimicError when
    ``out`` exists.
    """
    best = best_host(env, rows)
    row = rows.start + best
    accuracy, _ = env.committed(held.test)
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
    meta, task = read_meta(prepared), held.tasks[int(env.tasks[row])]
    preprocessing: list[JsonValue] = [{"preprocessing": _preprocessing(meta, task)}] if task.mean and not inputs else []
    if account.notes:
        preprocessing.append({"data": [*account.notes]})
    contributions = [round(value, 2) for value in env.state.measured.contribution[row].tolist()]
    text = card(grown, network.structure, meta, task, env, rows.stop - rows.start, contributions, len(held.test))
    files = dict(account.files)
    if account.floors is not None:
        files[FLOORS] = account.floors.to_json()
    write_network(network, out, preprocessing + history(env, turns, best), text, files)
    return grown


# --- history.json ----------------------------------------------------------------------------------------------------


def history(env: GrowthEnv, turns: Sequence[Turn], row: int) -> list[JsonValue]:
    """Return how one host grew: for each step its accuracy, the decision, a rollback, and changes of stages."""
    blueprints, entries = [item.name for item in env.blueprints], list[JsonValue]()
    before = [int(Stage.DORMANT)] * env.host.slots
    for turn in turns:
        info, live, after = turn.info, float(turn.info.live_accuracy[row]), turn.info.stage[row].tolist()
        entry: dict[str, JsonValue] = {
            "step": turn.situation.step + 1,
            "live_accuracy_pct": round(live, ACCURACY_DIGITS) if math.isfinite(live) else None,
        }
        if info.valid[row]:
            heads = {name: int(head[row]) for name, head in zip(Action._fields, turn.action, strict=True)}
            entry |= _decision(heads, int(info.effective_op[row]), blueprints)
        cause = Cause(int(info.cause[row]))
        if cause is not Cause.NONE:
            entry["rolled_back"] = cause.name
        changes = enumerate(zip(before, after, strict=True))
        moved = {str(slot): f"{Stage(old).name} -> {Stage(new).name}" for slot, (old, new) in changes if old != new}
        if moved:
            entry["stages"] = dict(moved)
        entries.append(entry)
        before = after
    return entries


def _decision(heads: dict[str, int], effective_op: int, blueprints: Sequence[str]) -> dict[str, JsonValue]:
    """Return the op with the heads it uses, in words; nothing for WAIT."""
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
    return {"op": op.name, **{name: words[name] for name in RELEVANT[op]}, "took_effect": effective_op == op}


def _preprocessing(meta: Meta, task: TaskMeta) -> JsonValue:
    """Return mean and std of the inputs, shaped to broadcast against a sample: [C, 1, 1] for images, [1, 1, D] for
    vectors. The network was trained on standardised inputs, so whoever uses it needs them.
    """
    shape = (-1, 1, 1) if len(task.mean) == meta.shape[0] else (1, 1, -1)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(shape).tolist() for values in (task.mean, task.std))
    return {"input": "(x - mean) / std", "mean": mean, "std": std}


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
    """Return the model card, Markdown, of the best of ``hosts``; ``contributions`` per slot in points, NaN where no
    seed acts; ``tested`` samples of the test split.
    """
    inputs, scale = _inputs(structure, task)
    shape = ", ".join(map(str, structure.inputs.shape if structure.inputs else structure.input_shape))
    test = share_interval(grown.test_accuracy_pct / 100, tested)
    account = grown.account
    compared = f"\n{_floors(account.floors)}\n" if account.floors else ""
    notes = "".join(f"\n- {note}" for note in account.notes)
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
By {account.grown_by}, in {env.steps} steps of one epoch each, beside {hosts - 1} other hosts
(rng_seed {env.rng_seed}).
It is host {grown.host}, the one with the best validation accuracy; what happened at each step is in `history.json`.

## Data
Task {task.name}: {meta.source}. Licence: {meta.licence}. sha256 `{meta.source_sha256}`.
Samples: {meta.samples["train"]} train, {meta.samples["val"]} validation, {meta.samples["test"]} test.{notes}

## Results
| split | accuracy |
|---|---|
| validation (chose this host) | {grown.val_accuracy_pct:.2f} % |
| test, with its 95 % interval over {tested} samples | {grown.test_accuracy_pct:.2f} % \
[{100 * test.low:.2f}, {100 * test.high:.2f}] |
{compared}
{_use(structure)}

## Limits
It has seen this data set only. The validation figure is the best of {hosts} and so flatters; the test figure
does not. simic puts no licence on it; the data's is above. The audit of the run that grew it, if there was one, is not
part of this card.
"""


def _floors(floors: "Floors") -> str:
    return f"""## Beside what costs less
{floors.table()}

{floors.advice}
Test accuracy of the network that validation chose among {floors.hosts}; seconds are those of all {floors.hosts}."""


def _use(structure: Structure) -> str:
    predict = "" if structure.inputs is None else "`python predict.py DATA` prints a class for each row of a file.\n"
    return f"""## How to use it
{predict}From this folder, with torch alone:

```python
import torch

network = torch.export.load("network.pt2").module()
logits = network({_example(structure)})
```

With simic it is a plain `nn.Module`, which can be trained on:

```python
from simic.growth import load_grown

network = load_grown(".")
```"""


def _inputs(structure: Structure, task: TaskMeta) -> tuple[str, str]:
    """Say what the network takes, and how it is to be standardised."""
    if structure.inputs is not None:
        return _raw_inputs(structure.inputs)
    tokens, vectors = len(structure.input_shape) == 1, structure.input_shape[:-1] == (1, 1)
    inputs = "images `float32 [B, C, H, W]`" if not vectors else "vectors of D values as `float32 [B, 1, 1, D]`"
    inputs = "tokens `int64 [B, L]`" if tokens else inputs
    if not task.mean:
        return inputs, f"{'Tokens are bytes, 0 to 255; n' if tokens else 'N'}othing is standardised."
    return inputs, "Standardise the input first: `(x - mean) / std`, with mean and std in `history.json`."


def _raw_inputs(inputs: RawInputs) -> tuple[str, str]:
    """Say what a network takes that standardises by itself."""
    classes = ", ".join(inputs.classes[:MOST_NAMES]) + (", …" if len(inputs.classes) > MOST_NAMES else "")
    said = f"Classes, in order: {classes}. Standardising is inside the network."
    if inputs.layout != "table":
        return f"images as they are, `float32`, channels as in {inputs.layout}", said
    shown = ", ".join(column.name for column in inputs.columns[:MOST_NAMES])
    more = ", …" if len(inputs.columns) > MOST_NAMES else ""
    coded = (
        "; strings as their place among the levels in `structure.json`"
        if any(column.levels is not None for column in inputs.columns)
        else ""
    )
    return f"rows as they are, `float64 [B, {len(inputs.columns)}]`: {shown}{more}{coded}; NaN where missing", said


def _seeds(structure: Structure, contributions: Sequence[float]) -> str:
    rows = [
        f"| {each.slot} | {each.blueprint} | {each.operator} | {each.alpha:g} | {each.params} | {contribution:+.1f} |"
        for each, contribution in ((seed, contributions[seed.slot]) for seed in structure.seeds)
    ]
    return "\n".join(rows) or "| – | nothing was kept | – | – | 0 | – |"


def _example(structure: Structure) -> str:
    inputs, dtype = structure.inputs, ", dtype=torch.int64" if len(structure.input_shape) == 1 else ""
    sizes = ", ".join(map(str, inputs.shape if inputs else structure.input_shape))
    return f"torch.zeros(8, {sizes}{f', dtype={inputs.dtype}' if inputs else dtype})"
