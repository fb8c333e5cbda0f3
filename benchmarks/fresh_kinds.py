"""Score trained controllers on eight kinds of tables that no design decision saw, beside the tuned rule.

    python -m benchmarks.fresh_kinds POLICY [POLICY ...] --data FOLDER

A POLICY is a workspace's models/policy. The kinds were written after all else was fixed, and were looked at once.
"""

import argparse
import math
from pathlib import Path

import torch
from pydantic import JsonValue

from benchmarks.rules import EPOCHS, RULE, reached, table
from simic import params
from simic.data.prepare import prepare
from simic.data.suites.kinds import Draws, kind
from simic.data.suites.table_rules import COLUMNS, Columns, LabelRule, plain, scaled, skewed
from simic.data.suites.tables import _ruled
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.evaluation import rules
from simic.evaluation.baselines import Static
from simic.evaluation.result import TunedRules
from simic.pipeline.stages import suite_overrides
from simic.training import machine
from simic.training.learned import Learned


def _columns(draws: Draws, count: int) -> list[int]:
    return draws.permutation(COLUMNS)[:count].tolist()


def ring(draws: Draws, columns: Columns) -> LabelRule:
    """How far two columns are from a point."""
    pair, centre = _columns(draws, 2), [draws.number(-0.8, 0.8), draws.number(-0.8, 0.8)]
    return LabelRule(
        lambda x: (x[:, pair] - torch.tensor(centre)).norm(dim=1), {"columns": [*pair], "centre": [*centre]}
    )


def sector(draws: Draws, columns: Columns) -> LabelRule:
    """The angle of two columns, in alternating sectors."""
    (a, b), sectors = _columns(draws, 2), draws.whole(2, 3)
    return LabelRule(lambda x: (sectors * torch.atan2(x[:, a], x[:, b])).sin(), {"a": a, "b": b, "sectors": sectors})


def switch(draws: Draws, columns: Columns) -> LabelRule:
    """One weighted sum where a column is high, another where it is low."""
    gate, high, low = draws.whole(0, COLUMNS - 1), draws.normal(COLUMNS), draws.normal(COLUMNS)
    high, low = (weights.mul(1000).round().div(1000) for weights in (high, low))
    parameters: dict[str, JsonValue] = {"gate": gate, "high": high.tolist(), "low": low.tolist()}
    return LabelRule(lambda x: torch.where(x[:, gate] > 0, x @ high, x @ low), parameters)


def majority(draws: Draws, columns: Columns) -> LabelRule:
    """How many of five columns are far from their mean."""
    chosen, far = _columns(draws, 5), draws.number(0.5, 0.9)
    return LabelRule(lambda x: (x[:, chosen].abs() > far).float().sum(1), {"columns": [*chosen], "far": far}, (2.5,))


def middle(draws: Draws, columns: Columns) -> LabelRule:
    """A column less the median of its row."""
    column = draws.whole(0, COLUMNS - 1)
    return LabelRule(lambda x: (x[:, column] - x.median(1).values).abs(), {"column": column})


def quotient(draws: Draws, columns: Columns) -> LabelRule:
    """A column over the size of another."""
    a, b = _columns(draws, 2)
    return LabelRule(lambda x: x[:, a] / (0.3 + x[:, b].abs()), {"a": a, "b": b})


def levels(draws: Draws, columns: Columns) -> LabelRule:
    """Free values for the levels of two columns, added."""
    (a, b), count = _columns(draws, 2), draws.whole(5, 8)
    first, second = (draws.normal(count).mul(1000).round().div(1000) for _ in range(2))
    parameters: dict[str, JsonValue] = {"a": a, "b": b, "first": first.tolist(), "second": second.tolist()}
    return LabelRule(lambda x: first[columns.level(x, a, count)] + second[columns.level(x, b, count)], parameters)


def beat(draws: Draws, columns: Columns) -> LabelRule:
    """The sine of a sum of two columns."""
    (a, b), frequency = _columns(draws, 2), draws.number(2.0, 4.0)
    return LabelRule(
        lambda x: (frequency * (x[:, a] + x[:, b]) / math.sqrt(2)).sin(), {"a": a, "b": b, "frequency": frequency}
    )


FRESH = {
    "ring": (ring, plain), "sector": (sector, plain), "switch": (switch, plain), "majority": (majority, plain),
    "middle": (middle, scaled), "quotient": (quotient, plain), "levels": (levels, plain), "beat": (beat, skewed),
}  # fmt: skip


def register() -> list[str]:
    """Add the kinds to the suite ``tables``; return their names there."""
    for name, (rule, shape) in FRESH.items():
        kind("tables", f"fresh_{name}")(lambda draws, rule=rule, shape=shape: _ruled(draws, rule, shape=shape))
    return [f"fresh_{name}" for name in FRESH]


def main() -> None:
    """Prepare the tasks where they are missing, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    counts = f"{{train: 64, val: 12, held_out: 2, held_out_kinds: {24 * len(FRESH)}, outside: 0}}"
    kinds = f"prepare.suite.held_out_kinds=[{', '.join(register())}]"
    tree = params.load(Path("params.yaml"), [*suite_overrides("tables"), kinds, f"prepare.suite.instances={counts}"])
    prepared, device = given.data / "prepared", machine.configure(tree.runtime)
    if not prepared.exists():
        prepare(tree.prepare, tree.rng_seed, prepared, given.data / "raw")
    tuned = TunedRules.model_validate_json((rules.PUBLISHED / "tables.json").read_text(encoding="utf-8"))

    def actors(env: GrowthEnv) -> dict[str, Actor]:
        learned = {
            f"PPO {number}": Learned.load(path).actor(greedy=True) for number, path in enumerate(given.policies, 1)
        }
        return {"static": Static(), RULE: rules.tuned_actor(env, tuned), **learned}

    group = "held_out_kinds"
    print(table({epochs: {group: reached(tree, prepared, device, epochs, actors)[group]} for epochs in EPOCHS}))


if __name__ == "__main__":
    main()
