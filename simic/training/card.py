"""Write the card of a trained policy: Markdown with the front matter that model hubs read; numbers are the run's."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ruamel.yaml import YAML

from simic.data.batches import Meta
from simic.training.checkpoint import Manifest
from simic.training.learned import Learned

FILE = "README.md"
LIBRARY = "simic"
TAGS = ("simic", "growing-neural-networks")
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
given = [torch.ones(2, *each["shape"][1:], dtype=getattr(torch, each["dtype"])) for each in inputs]
features, categories, *masks, h, c = given  # masks: true where a choice is allowed
actions, op_logits, value, h, c = program(features, categories, tuple(masks), 0 * h, 0 * c)
```

The memory `h` and `c` is zero at the start of an episode; what comes out goes in with the next step. The model
registered in MLflow is this program with the same names of inputs, for `mlflow.pyfunc.load_model`."""


class Measured(NamedTuple):
    """One number of a card for model hubs, and what it was measured on."""

    name: str
    value: float
    dataset: str
    split: str


def front_matter(
    name: str, task: str, tags: Sequence[str], datasets: Sequence[str], measured: Sequence[Measured]
) -> str:
    """Return YAML between two rules. simic puts no licence on what it makes of a user's data, hence ``unknown``."""
    kinds = list(dict.fromkeys((each.dataset, each.split) for each in measured))
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": dataset, "type": _slug(dataset), "split": split},
            "metrics": [
                {"type": "accuracy", "name": each.name, "value": round(each.value, 4)}
                for each in measured
                if (each.dataset, each.split) == (dataset, split)
            ],
        }
        for dataset, split in kinds
    ]
    content = {
        "license": "unknown",
        "library_name": LIBRARY,
        "tags": [*TAGS, *tags],
        "datasets": [_slug(each) for each in datasets],
        "metrics": ["accuracy"],
        "model-index": [{"name": name, "results": results}],
    }
    text = io.StringIO()
    YAML().dump(content, text)
    return f"---\n{text.getvalue()}---\n"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Trained:
    """A policy, the checkpoint that it is of, and the data that it was trained on."""

    learned: Learned
    manifest: Manifest
    meta: Meta

    def own_card(self) -> str:
        """Return the card before anything was evaluated, with the validation score that chose the policy."""
        best = self.manifest.scalars["best_score"]
        measured, said = list[Measured](), "It was never validated."
        if isinstance(best, float) and self.manifest.best_iteration is not None:
            measured = [Measured("validation score, which chose this iteration", best, self.meta.source, "validation")]
            said = f"Validation score: {best:.2f} points. It chose this iteration, and so flatters."
        return self.card(
            measured,
            f"{said} Evaluation and the audit's verdict are on the card that the audit writes, reports/model_card.md.",
        )

    def card(self, measured: Sequence[Measured], results: str) -> str:
        meta, manifest, train = self.meta, self.manifest, self.learned.train
        family = train.host.family
        weights = sum(parameter.numel() for parameter in self.learned.policy.parameters())
        head = front_matter(
            f"controller-{_slug(meta.source)}",
            "reinforcement-learning",
            ("reinforcement-learning", "ppo"),
            meta.source.split(" + "),
            measured,
        )
        return f"""{head}
# A controller of growth, trained on {meta.source}

A recurrent, masked PPO policy of {weights:,} parameters. While a {family} network trains, it decides after every
epoch which module to grow where, and what to keep.

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
{limits(self.learned, meta.shape)}
- simic puts no licence on it; the data's is above.
"""


NOT_EVALUATED = "Its evaluation and the audit's verdict are on the card that the audit writes, reports/model_card.md."


def gym_card(learned: Learned, manifest: Manifest, meta: Meta, results: str) -> str:
    """Return the card of an agent that controls a Gymnasium environment."""
    weights, train = sum(parameter.numel() for parameter in learned.policy.parameters()), learned.train
    tags = ("reinforcement-learning", "ppo", _slug(meta.source))
    head = front_matter(f"agent-{_slug(meta.source)}", "reinforcement-learning", tags, [meta.source], [])
    return f"""{head}
# An agent for {meta.source}

A recurrent, masked PPO policy of {weights:,} parameters, core {train.policy.core}.

## Training
One training, rng_seed {manifest.params["rng_seed"]}: {manifest.scalars["env_steps"]:,} environment steps until \
iteration {manifest.iteration} of {train.iterations}, which was kept. On {manifest.machine.device}, \
torch {manifest.machine.libraries["torch"]}. sha256 of the description of the environment `{manifest.data_sha256}`.

## Results
{results}

## How to load
`Learned.load(Path("policy"))` of `simic.training.learned`; or `torch.export.load("program/policy.pt2")`, without simic.
"""


def data_used(meta: Meta, data_sha256: str) -> str:
    """Say where the data came from, their licence, their number."""
    tasks = [task for task in meta.tasks if task.group == "train"]
    kinds = list(dict.fromkeys(task.kind for task in tasks))
    samples = ", ".join(f"{count} {split}" for split, count in meta.samples.items())
    chose = len(meta.tasks) - len(tasks)
    named = f" ({', '.join(kinds)})" if len(kinds) <= MOST_KINDS else ""
    many = f"{len(tasks)} tasks of training, of {len(kinds)} kinds{named}; {chose} more chose the best iteration. "
    bank = many if len(meta.tasks) > 1 else ""
    return (
        f"{meta.source}; licence: {meta.licence}. {bank}Samples of each task: {samples}. "
        f"sha256 of the prepared data `{data_sha256}`."
    )


def limits(learned: Learned, shape: Sequence[int]) -> str:
    """List what it was trained with, beyond which nothing is known of it."""
    train, slots = learned.train, learned.policy.observation_spec.categories
    life, shortest, longest = train.lifecycle, train.shortest_episode, train.longest_episode
    seeds = "one seed for each slot" if life.max_seeds is None else f"{life.max_seeds} seed{'s' * (life.max_seeds > 1)}"
    allowed = "; ".join(f"{head}: {', '.join(map(str, kept))}" for head, kept in train.actions.items()) or "all"
    epochs = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    batches = "all batches" if train.batches_per_epoch == "all" else f"{train.batches_per_epoch} batches"
    return f"""- Host family {train.host.family} with {slots} slot{"s" * (slots > 1)}; trained on preset \
{train.host.preset} alone.
- Trained on samples [{", ".join(map(str, shape))}] alone.
- At most {seeds}, up to {life.param_budget:g} times the host's parameters. Actions: {allowed}.
- An episode is {epochs} epochs of {batches} of {train.batch_size} samples, with {train.host_optimizer.name}, learning \
rate {train.host_optimizer.learning_rate:g}. `simic grow` trains your hosts so too."""
