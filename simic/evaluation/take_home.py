"""The best host of a finished episode as a product: a plain network with its history and a model card."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue

from simic.data.batches import HeldOut, Meta, TaskMeta, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.compare import GrowthComparison
from simic.evaluation.history import Histories
from simic.evaluation.statistics import share_interval
from simic.growth.export import Structure, grown_network, write_network
from simic.training.card import Measured, front_matter

COMPARISON = "compare.json"


@dataclass(frozen=True)
class Grown:
    """What was exported; accuracies in points, of the committed network."""

    path: Path
    grown_by: str
    host: int
    val_accuracy_pct: float
    test_accuracy_pct: float
    host_params: int
    params: int
    compared: GrowthComparison | None
    bare_test_accuracy_pct: float | None  # of the same host without seeds; None where it was not trained


def best_host(env: GrowthEnv, rows: slice) -> int:
    """Its place among some rows, by committed validation accuracy; SimicError where none is a number."""
    score = env.state.measured.committed_accuracy[rows]
    if not score.isfinite().any():
        raise SimicError("no host has a committed accuracy that is a number, so there is nothing to export")
    return int(score.nan_to_num(-1.0).argmax())


def export_best(
    env: GrowthEnv,
    rows: slice,
    histories: Histories,
    held: HeldOut,
    prepared: Path,
    policy: str,
    out: Path,
    compared: GrowthComparison | None = None,
    bare: float | None = None,
) -> Grown:
    """Writes the host with the best committed validation accuracy among some rows to the new directory ``out``.

    ``policy`` says in words what grew them; what it was ``compared`` with is added, and the test accuracy of the
    ``bare`` host in points. SimicError when ``out`` exists.
    """
    best = best_host(env, rows)
    row = rows.start + best
    accuracy, _ = env.committed(held.test)
    network = grown_network(env.population, env.slots, row, committed=True)
    found = Grown(
        path=out,
        grown_by=policy,
        host=best,
        val_accuracy_pct=float(env.state.measured.committed_accuracy[row]),
        test_accuracy_pct=float(accuracy[row]),
        host_params=env.host.params,
        params=network.structure.params,
        compared=compared,
        bare_test_accuracy_pct=bare,
    )
    meta, task = read_meta(prepared), held.tasks[int(env.tasks[row])]
    history: list[JsonValue] = [{"preprocessing": _preprocessing(meta, task)}] if task.mean else []
    shares = [round(value, 2) for value in env.shapley().value[row].tolist()]
    text = card(found, network.structure, meta, task, env, len(histories.entries), shares, len(held.test))
    files = {COMPARISON: compared.to_json()} if compared else {}
    write_network(network, out, history + histories.entries[best], text, files)
    return found


def _preprocessing(meta: Meta, task: TaskMeta) -> JsonValue:
    """The network was trained on standardised inputs: whoever uses it needs mean and std, as they broadcast against a
    sample: [C, 1, 1] for images, [1, 1, D] for vectors.
    """
    shape = (-1, 1, 1) if len(task.mean) == meta.shape[0] else (1, 1, -1)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(shape).tolist() for values in (task.mean, task.std))
    return {"input": "(x - mean) / std", "mean": mean, "std": std}


def card(
    found: Grown,
    structure: Structure,
    meta: Meta,
    task: TaskMeta,
    env: GrowthEnv,
    hosts: int,
    shapley: Sequence[float],
    tested: int,
) -> str:
    """The model card, Markdown, of the best of ``hosts``; ``shapley`` per slot in points, NaN where no seed acts;
    ``tested`` samples of the test split.
    """
    inputs, scale = _inputs(structure, task)
    shape = ", ".join(map(str, structure.input_shape))
    host, load = _own(env) if structure.host is None else ("", 'load_grown(".")')
    test = share_interval(found.test_accuracy_pct / 100, tested)
    return f"""{_metadata(found, meta, task, env)}
# A {env.host.family}/{env.host.preset} network grown by simic

## What it is
Input: {inputs}, one sample is [{shape}]. Output: logits over {structure.classes} classes.
{scale}
{structure.params} parameters, of which the host alone has {found.host_params}.{host}

| slot | seed | joined by | alpha | parameters | Shapley value |
|---|---|---|---|---|---|
{_seeds(structure, shapley)}

A Shapley value is the seed's share, in points of validation accuracy, of what all seeds that acted at the end are
worth.

## How it was grown
By {found.grown_by}, in {env.steps} steps of one epoch each, beside {hosts - 1} other hosts
(rng_seed {env.rng_seed}).
It is host {found.host}, the one with the best validation accuracy; what happened at each step is in `history.json`.

## Data
Task {task.name}: {meta.source}. Licence: {meta.licence}. sha256 `{meta.source_sha256}`.
Samples: {meta.samples["train"]} train, {meta.samples["val"]} validation, {meta.samples["test"]} test.

## Results
| split | accuracy |
|---|---|
| validation (chose this host) | {found.val_accuracy_pct:.2f} % |
| test, with its 95 % interval over {tested} samples | {found.test_accuracy_pct:.2f} % \
[{100 * test.low:.2f}, {100 * test.high:.2f}] |{_bare(found)}
{_compared(found.compared)}
{_use(structure, load)}

## Limits
It has seen this data set only. The validation figure is the best of {hosts} and so flatters; the test figure
does not. simic puts no licence on it; the data's is above. The audit of the run that grew it, if there was one, is not
part of this card.
"""


def _use(structure: Structure, load: str) -> str:
    return f"""## How to use it
From this folder, with torch alone:

```python
import torch

network = torch.export.load("network.pt2").module()
logits = network({_example(structure)})
```

With simic it is a plain `nn.Module`, which can be trained on:

```python
from simic.growth import load_grown

network = {load}
```"""


def _metadata(found: Grown, meta: Meta, task: TaskMeta, env: GrowthEnv) -> str:
    """For model hubs."""
    source, flat = f"{meta.source}: {task.name}", meta.shape[:-1] == (1, 1)
    pictured = "tabular-classification" if flat else "image-classification"
    return front_matter(
        f"grown-{env.host.family}-{env.host.preset}",
        "text-generation" if len(meta.shape) == 1 else pictured,
        ("pytorch", env.host.family),
        meta.source.split(" + "),
        [
            Measured("accuracy in points", found.val_accuracy_pct, source, "validation"),
            Measured("accuracy in points", found.test_accuracy_pct, source, "test"),
        ],
    )


def _inputs(structure: Structure, task: TaskMeta) -> tuple[str, str]:
    """What the network takes, and how it is to be standardised."""
    tokens, vectors = len(structure.input_shape) == 1, structure.input_shape[:-1] == (1, 1)
    inputs = "images `float32 [B, C, H, W]`" if not vectors else "vectors of D values as `float32 [B, 1, 1, D]`"
    inputs = "tokens `int64 [B, L]`" if tokens else inputs
    if not task.mean:
        return inputs, f"{'Tokens are bytes, 0 to 255; n' if tokens else 'N'}othing is standardised."
    mean, std = _short(task.mean), _short(task.std)
    return (
        inputs,
        f"Standardise the input first: `(x - mean) / std`, mean {mean}, std {std} (in full in `history.json`).",
    )


def _compared(compared: GrowthComparison | None) -> str:
    return f"\n{compared.page()}\n" if compared else ""


def _bare(found: Grown) -> str:
    if found.bare_test_accuracy_pct is None:
        return ""
    return f"\n| test, the same host trained as long without seeds | {found.bare_test_accuracy_pct:.2f} % |"


def _own(env: GrowthEnv) -> tuple[str, str]:
    """What to say of a network of the user's own, and how to load what grew in it."""
    said = f" The host is the user's own network `{env.host.preset}`, frozen, in evaluation mode; its code is not here."
    return said, 'load_grown(".", host=network)  # network: yours'


def _seeds(structure: Structure, shapley: Sequence[float]) -> str:
    rows = [
        f"| {each.slot} | {each.blueprint} | {each.operator} | {each.alpha:g} | {each.params} | {share:+.1f} |"
        for each, share in ((seed, shapley[seed.slot]) for seed in structure.seeds)
    ]
    return "\n".join(rows) or "| – | nothing was kept | – | – | 0 | – |"


def _short(values: list[float]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:3])
    return f"[{shown}, …]" if len(values) > 3 else f"[{shown}]"


def _example(structure: Structure) -> str:
    sizes = ", ".join(map(str, structure.input_shape))
    if len(structure.input_shape) == 1:
        return f"torch.zeros(8, {sizes}, dtype=torch.int64)"
    return f"torch.zeros(8, {sizes})"
