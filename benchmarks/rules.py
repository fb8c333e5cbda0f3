"""Score tuned hand rules and supervised choosers of a suite on held-out tasks, by number of epochs.

python -m benchmarks.rules tables [--policy models/policy]    # writes benchmarks/results/rules/tables.md

Rules that come with simic for these tasks are taken as they are; where there are none, they are tuned and written to
simic/published/rules. A --policy, of a workspace, plays beside them.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import choosers
from benchmarks.tuning import Ground, tune
from simic import durable, params
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.evaluation import rules
from simic.evaluation.intervals import Values, paired_difference
from simic.evaluation.page import GROUPS, interval
from simic.evaluation.policies import Static
from simic.evaluation.result import TunedRules
from simic.evaluation.scoring import EvaluationSetup, play_for_score, rows_at_once
from simic.params import Params
from simic.training import machine
from simic.training.learned import Learned

EPOCHS = (6, 9, 12, 16)
RESULTS = Path("benchmarks/results/rules")
RULE = "tuned_rule"
# Side by side: the host alone, the rule, the chooser.
POLICIES = 3

Make = Callable[[GrowthEnv], Mapping[str, Actor]]


def reached(
    tree: Params, prepared: Path, device: torch.device, epochs: int, make: Make
) -> dict[str, dict[str, Values]]:
    """Play on held-out tasks, and average test accuracy by task.

    Args:
        tree: params of the suite.
        prepared: folder of the prepared data.
        device: where to compute.
        epochs: of an episode.
        make: the policies for an environment, by name.

    Returns:
        Points per task ``[T]``, by group of tasks and policy.
    """
    # One for each length: an environment is made for its longest episode.
    shorter = tree.model_copy(
        update={"train": tree.train.model_copy(update={"episode_steps": epochs})}
    )
    setup = EvaluationSetup.open(shorter, prepared, device, POLICIES)
    with closing(setup.env) as env:
        scores = {
            name: np.array(performance.score.test_accuracy_pct)
            for name, performance in play_for_score(setup, make(env))
        }
    # By task, since hosts of one task are no measurements apart.
    rows = setup.tasks.numpy()
    scores_of = dict[str, dict[str, list[float]]]()
    for task, meta in enumerate(setup.held_out.tasks):
        for name, accuracy in scores.items():
            scores_of.setdefault(meta.group, {}).setdefault(name, []).append(
                accuracy[rows == task].mean()
            )
    return {
        group: {name: np.array(values) for name, values in of.items()}
        for group, of in scores_of.items()
    }


def table(scores_by_length: Mapping[int, Mapping[str, Mapping[str, Values]]]) -> str:
    """Write a table for each group of tasks: scores, and every policy less the tuned rule, by number of epochs."""
    lines = []
    # All lengths have the same groups and policies.
    for group, first in next(iter(scores_by_length.values())).items():
        names = list(first)
        lines += [
            "",
            f"## On {len(first[RULE])} {GROUPS.get(group, group)}",
            "",
            f"| epochs | {' | '.join(names)} |",
        ]
        lines.append(f"|---|{'--:|' * len(names)}")
        for epochs, of_groups in scores_by_length.items():
            policies = of_groups[group]
            cells = [
                f"{policies[name].mean():.1f}"
                + (
                    f", {interval(paired_difference(policies[name], policies[RULE]))}"
                    * (name != RULE)
                )
                for name in names
            ]
            lines.append(f"| {epochs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(
    suite: str, tuned: TunedRules, learned: Sequence[choosers.Chooser], cost: int, scores: str
) -> str:
    """Write the page of a suite.

    Args:
        suite: its name.
        tuned: the rules, and what they cost.
        learned: the choosers.
        cost: host trainings of the choosers.
        scores: the tables.
    """
    lines = [
        f"# Tuned rules and choosers of the suite {suite}",
        "",
        f"Rules: {tuned.configurations} configurations, {tuned.trainings} host trainings on tasks of training. "
        f"Choosers: {cost} host trainings. "
        "Test accuracy, points; beside it the lead over the rule.",
        scores,
        "",
        *(f"- {rule.epochs} epochs, rule: {rule}" for rule in tuned.rules),
        *(f"- {chooser.epochs} epochs, chooser: {chooser}" for chooser in learned),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(".simic/benchmarks/rules"))
    parser.add_argument("--policy", type=Path)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of the params")
    options = parser.parse_args()
    tree = params.load(Path("params.yaml"), options.overrides)
    suite = tree.prepare.suite.name
    device = machine.configure(tree.runtime)
    data = options.data / suite
    if not (data / "prepared").exists():
        prepare(tree.prepare, tree.rng_seed, data / "prepared", data / "raw")

    def show_progress(phase: str, count: int, of: int) -> None:
        print(f"{phase}: {count} of {of}", flush=True)

    open_ground = partial(Ground.open, tree, data / "prepared", device, EPOCHS, rows_at_once(tree))
    tuned = rules.known(tree)
    # Rules that come with simic are not tuned again.
    if tuned is None:
        ground = open_ground()
        tuned = tune(tree, ground, show_progress)
        rules.PUBLISHED.mkdir(parents=True, exist_ok=True)
        durable.replace_file(rules.PUBLISHED / f"{suite}.json", tuned.to_json().encode())
    # The choosers' trainings are counted apart.
    ground = open_ground()
    learned, cost = choosers.learn(ground, show_progress)

    def actors(env: GrowthEnv) -> dict[str, Actor]:
        # For each environment anew: an actor remembers its episode.
        trained = {"PPO": Learned.load(options.policy).actor(greedy=True)} if options.policy else {}
        return {
            "static": Static(),
            RULE: rules.tuned_actor(env, tuned),
            "chooser": choosers.actor(env, learned),
            **trained,
        }

    scores_by_length = {
        epochs: reached(tree, data / "prepared", device, epochs, actors) for epochs in EPOCHS
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    durable.replace_file(
        RESULTS / f"{suite}.md",
        page(suite, tuned, learned, cost, table(scores_by_length)).encode(),
    )


if __name__ == "__main__":
    main()
