"""Write the card of a trained policy in Markdown; its numbers are the run's."""

from collections.abc import Sequence

from simic.data.batches import Meta
from simic.errors import as_markdown
from simic.training.checkpoint import Manifest
from simic.training.learned import Learned

FILE = "README.md"
MOST_KINDS = 16  # of tasks, that a card names
_LOAD = """```python
from pathlib import Path

from simic.training.learned import Learned

learned = Learned.load(Path("policy"))
```

Networks are grown with it by `simic grow DATA --policy policy`. With torch alone, greedy, for two hosts:

```python
import json
from pathlib import Path

import torch

program = torch.export.load("program/policy.pt2").module()
inputs = json.loads(Path("program/policy.json").read_text())["inputs"].values()
tensors = [torch.ones(2, *each["shape"][1:], dtype=getattr(torch, each["dtype"])) for each in inputs]
features, categories, *masks, h, c = tensors  # masks: true where a choice is allowed
actions, op_logits, value, h, c = program(features, categories, tuple(masks), 0 * h, 0 * c)
```

The memory `h` and `c` is zero at the start of an episode; what comes out goes in with the next step. The model
registered in MLflow is this program with the same names of inputs, for `mlflow.pyfunc.load_model`."""


NOT_EVALUATED = "Its evaluation and the audit's verdict are on the card that the audit writes, reports/model_card.md."


def validated(manifest: Manifest) -> str:
    """Say the results before anything was evaluated: the validation score that chose the policy."""
    score = manifest.scalars["best_score"]
    # Both are None where no validation was due before the run ended.
    text = "It was never validated."
    if isinstance(score, float) and manifest.best_iteration is not None:
        text = f"Validation score: {score:.2f} points. It chose this iteration, and so flatters."
    return f"{text} {NOT_EVALUATED}"


def growth_card(learned: Learned, manifest: Manifest, meta: Meta, results: str) -> str:
    """Write the card of a controller of growth.

    Args:
        learned: The policy.
        manifest: Of the checkpoint that it comes from.
        meta: Of the prepared data.
        results: Paragraphs in Markdown.
    """
    train = learned.train
    return f"""# A controller of growth, trained on {as_markdown(meta.source)}

A recurrent, masked PPO policy of {_weights(learned):,} parameters. While a {train.host.family} network trains, it \
decides after every epoch which module to grow where, and what to keep.

## Data
{data_used(meta, manifest.data_sha256)}

## Training
One training, rng_seed {manifest.params["rng_seed"]}: {train.iterations} iterations of {train.envs} hosts; kept is \
iteration {manifest.iteration}. On {manifest.machine.device}, torch {manifest.machine.libraries["torch"]}.

## Results
{results}

## How to load
From the folder with `policy` and `program`:

{_LOAD}

## Limits
{limits(learned, meta.shape)}
- simic puts no licence on it; the data's is above.
"""


def gym_card(learned: Learned, manifest: Manifest, meta: Meta, results: str) -> str:
    """Write the card of an agent that controls a Gymnasium environment.

    Args:
        learned: The policy.
        manifest: Of the checkpoint that it comes from.
        meta: Of the description of the environment.
        results: Paragraphs in Markdown.
    """
    train = learned.train
    return f"""# An agent for {as_markdown(meta.source)}

A recurrent, masked PPO policy of {_weights(learned):,} parameters, core {train.policy.core}.

## Training
One training, rng_seed {manifest.params["rng_seed"]}: {manifest.scalars["env_steps"]:,} environment steps until \
iteration {manifest.iteration} of {train.iterations}, which was kept. On {manifest.machine.device}, \
torch {manifest.machine.libraries["torch"]}. sha256 of the description of the environment `{manifest.data_sha256}`.

## Results
{results}

## How to load
`Learned.load(Path("policy"))` of `simic.training.learned`; or `torch.export.load("program/policy.pt2")`, without simic.
"""


def _weights(learned: Learned) -> int:
    return sum(parameter.numel() for parameter in learned.policy.parameters())


def data_used(meta: Meta, data_sha256: str) -> str:
    """Say where the data came from, their licence, their number."""
    # Many kinds are counted, few are named.
    tasks = [task for task in meta.tasks if task.group == "train"]
    kinds = list(dict.fromkeys(task.kind for task in tasks))
    samples = ", ".join(f"{count} {split}" for split, count in meta.samples.items())
    validation = len(meta.tasks) - len(tasks)
    names = f" ({as_markdown(', '.join(kinds))})" if len(kinds) <= MOST_KINDS else ""
    many = f"{len(tasks)} tasks of training, of {len(kinds)} kinds{names}; {validation} more chose the best iteration. "
    bank = many if len(meta.tasks) > 1 else ""
    return (
        f"{as_markdown(meta.source)}; licence: {as_markdown(meta.licence)}. {bank}Samples of each task: {samples}. "
        f"sha256 of the prepared data `{data_sha256}`."
    )


def limits(learned: Learned, shape: Sequence[int]) -> str:
    """List what it was trained with, beyond which nothing is known of it."""
    # Elsewhere the policy acts without an error; what it is worth there nobody has measured.
    train = learned.train
    life = train.lifecycle
    slots = learned.policy.observation_spec.categories
    shortest = train.shortest_episode
    longest = train.longest_episode
    seeds = (
        "one seed for each slot"
        if life.max_seeds is None
        else f"{life.max_seeds} seed{'s' * (life.max_seeds > 1)}"
    )
    allowed = (
        "; ".join(
            f"{head}: {', '.join(map(str, choices))}" for head, choices in train.actions.items()
        )
        or "all"
    )
    epochs = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    batches = (
        "all batches" if train.batches_per_epoch == "all" else f"{train.batches_per_epoch} batches"
    )
    # Each line is a border of what training has met.
    return f"""- Host family {train.host.family} with {slots} slot{"s" * (slots > 1)}; trained on preset \
{train.host.preset} alone.
- Trained on samples [{", ".join(map(str, shape))}] alone.
- At most {seeds}, up to {life.param_budget:g} times the host's parameters. Actions: {allowed}.
- An episode is {epochs} epochs of {batches} of {train.batch_size} samples, with {train.host_optimizer.name}, learning \
rate {train.host_optimizer.learning_rate:g}. `simic grow` trains your hosts so too."""
