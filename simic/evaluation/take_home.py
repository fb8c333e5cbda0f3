"""The best host of a finished episode as a product: a plain network with its history and a model card."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from simic.data.batches import Dataset, Meta, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.evaluation.history import Histories
from simic.growth.export import Structure, grown_network, write_network


@dataclass(frozen=True)
class Grown:
    """What was exported; accuracies in points, of the committed network."""

    path: Path
    host: int
    val_accuracy_pct: float
    test_accuracy_pct: float
    host_params: int
    params: int


def export_best(env: GrowthEnv, histories: Histories, test: Dataset, prepared: Path, policy: str, out: Path) -> Grown:
    """Writes the host with the best committed validation accuracy to the new directory ``out``.

    ``policy`` says in words what grew it. SimicError when ``out`` exists.
    """
    score = env.state.measured.committed_accuracy
    best = int(score.nan_to_num(-1.0).argmax())
    accuracy, _ = env.committed(test)
    network = grown_network(env.population, env.slots, best, committed=True)
    found = Grown(
        path=out,
        host=best,
        val_accuracy_pct=float(score[best]),
        test_accuracy_pct=float(accuracy[best]),
        host_params=env.host.params,
        params=network.structure.params,
    )
    meta = read_meta(prepared)
    # The network was trained on standardised inputs: whoever uses it needs these two.
    preprocessing: JsonValue = {"input": "(x - mean) / std", "mean": [*meta.mean], "std": [*meta.std]}
    history: list[JsonValue] = [{"preprocessing": preprocessing}] if meta.mean else []
    write_network(network, out, history + histories.entries[best], card(found, network.structure, meta, env, policy))
    return found


def card(found: Grown, structure: Structure, meta: Meta, env: GrowthEnv, policy: str) -> str:
    """The model card, Markdown."""
    seeds = [
        f"| {seed.slot} | {seed.blueprint} | {seed.operator} | {seed.alpha:g} | {seed.params} |"
        for seed in structure.seeds
    ] or ["| – | nothing was kept | – | – | 0 |"]
    inputs = "tokens `int64 [B, L]`" if len(structure.input_shape) == 1 else "images `float32 [B, C, H, W]`"
    shape = ", ".join(map(str, structure.input_shape))
    scale = (
        f"Standardise the input first: `(x - mean) / std`, mean {_short(meta.mean)}, std {_short(meta.std)}"
        " (in full in `history.json`)."
        if meta.mean
        else "Tokens are bytes, 0 to 255; nothing is standardised."
    )
    return f"""# A {structure.host.family}/{structure.host.preset} network grown by simic

## What it is
Input: {inputs}, one sample is [{shape}]. Output: logits over {structure.classes} classes.
{scale}
{structure.params} parameters, of which the host alone has {found.host_params}.

| slot | seed | joined by | alpha | parameters |
|---|---|---|---|---|
{chr(10).join(seeds)}

## How it was grown
By {policy}, in {env.steps} steps of one epoch each, beside {env.num_envs - 1} other hosts (rng_seed {env.rng_seed}).
It is host {found.host}, the one with the best validation accuracy; what happened at each step is in `history.json`.

## Data
Task {meta.task}: {meta.source}. Licence: {meta.licence}. sha256 `{meta.source_sha256}`.
Samples: {meta.samples["train"]} train, {meta.samples["val"]} validation, {meta.samples["test"]} test.

## Results
| split | accuracy |
|---|---|
| validation (chose this host) | {found.val_accuracy_pct:.2f} % |
| test | {found.test_accuracy_pct:.2f} % |

## How to use it
With simic: `simic.growth.load_grown(PATH)` gives a plain `nn.Module`. With torch alone:

    import torch
    network = torch.export.load("network.pt2").module()
    logits = network({_example(structure)})

## Limits
It has seen this data set only. The validation figure is the best of {env.num_envs} and so flatters; the test figure
does not.
"""


def _short(values: list[float]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:3])
    return f"[{shown}, …]" if len(values) > 3 else f"[{shown}]"


def _example(structure: Structure) -> str:
    sizes = ", ".join(map(str, structure.input_shape))
    if len(structure.input_shape) == 1:
        return f"torch.zeros(8, {sizes}, dtype=torch.int64)"
    return f"torch.zeros(8, {sizes})"
