"""Learn to spend one training well, on recorded curves of the suite ``together``.

    python -m benchmarks.together_bank --work FOLDER [--seeds 5] [--out FILE.json]

A task has eight candidates, the chooser's first sets of modules. A share of two epochs at a time goes to one of them;
after twelve, one that had a share is kept. PPO learns on tasks of pairs that the chooser does not know, and is compared
on the tasks of ``benchmarks.together`` with its rivals: FOLDER is the one that it filled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from benchmarks import page, together
from benchmarks.together import Lessons, Tasks
from benchmarks.together_rivals import EPOCHS, Integers, Values, across, features_of, halve
from examples.extensions.together import TRAINED
from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.spec import ActionSpec, Head
from simic.data.batches import load_held_out

CANDIDATES = 8
SHARE = 2  # epochs
SHARES = EPOCHS // SHARE
POINTS = 10.0  # of accuracy in a reward of 1
STEPS = 1_000_000
# Joins that nothing was chosen on.
FRESH = [
    "prepare.suite.name=fresh_together",
    "prepare.suite.instances={train: 1, val: 1, held_out: 1, held_out_kinds: 81, outside: 0}",
]
# Tasks of the learner: eight of each kind of training, and as few others as there can be.
OVERRIDES = [
    "rng_seed=2",
    "prepare.suite.instances={train: 1, val: 1, held_out: 648, held_out_kinds: 3, outside: 0}",
]
ENVS = 256


@dataclass(frozen=True)
class Bank:
    """Candidates after each number of shares: what is seen of them, ``[T, K, S + 1, F]``, and what keeping them pays,
    ``[T, K, S + 1]``. The first ``looks`` features do not change with shares.
    """

    features: Tensor
    pays: Tensor
    looks: int

    @classmethod
    def of(
        cls,
        tasks: Tasks,
    ) -> "Bank":
        """Take the chooser's first sets."""
        first = tasks.order[:, :CANDIDATES]
        rows = np.arange(len(first))[:, None]
        val, test, expected = (x[rows, first] for x in (tasks.val, tasks.test, tasks.expected))
        # Nothing is seen of a curve before the first share.
        by_share = [np.zeros((*first.shape, 4))]
        for epochs in range(SHARE, EPOCHS + 1, SHARE):
            curve = val[..., :epochs]
            share = np.full(first.shape, epochs / EPOCHS)
            columns = (
                share,
                curve[..., -1],
                curve[..., -SHARE:].mean(-1),
                curve.max(-1),
            )
            by_share.append(np.stack(columns, -1))
        looks = np.repeat(expected[:, :, None], SHARES + 1, 2)
        features = np.concatenate((looks, np.stack(by_share, 2)), -1)
        # Over what the chooser's first set reaches: the same for all decisions, but with less noise.
        pays = test[..., SHARE - 1 :: SHARE] - test[:, :1, -1:]
        pays = np.concatenate((np.zeros((*first.shape, 1)), pays), -1)
        return cls(torch.tensor(features).float(), torch.tensor(pays).float(), looks.shape[-1])

    def blind(self) -> "Bank":
        """Hide what curves show, but for how long they are."""
        features = self.features.clone()
        features[..., self.looks + 1 :] = 0.0
        return replace(self, features=features)

    def shuffled(self) -> "Bank":
        """Give each task the looks of another one."""
        features = self.features.clone()
        features[..., : self.looks] = features[..., : self.looks].roll(1, 0)
        return replace(self, features=features)


class Spending(VectorEnv):
    """Spend trainings on tasks of a bank, all at once; an action is a candidate, the last one keeps it."""

    def __init__(
        self,
        bank: Bank,
        num_envs: int,
    ) -> None:
        self.bank = bank
        self.num_envs = num_envs
        self.rows = torch.arange(num_envs)
        # What is left of the training, then the features of each candidate, which the head is described by.
        self.single_observation_space = Box(
            -np.inf, np.inf, (1 + CANDIDATES * bank.features.shape[-1],)
        )
        self.single_action_space = Discrete(CANDIDATES)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.action_spec = ActionSpec(
            (Head("set", CANDIDATES, described=bank.features.shape[-1]),), ((True,),) * CANDIDATES
        )
        self.random = torch.Generator()

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        if seed is not None:
            self.random.manual_seed(seed)
        tasks = torch.randint(len(self.bank.features), self.rows.shape, generator=self.random)
        # In any order, so that a policy looks at candidates and not at their places.
        order = torch.rand(self.num_envs, CANDIDATES, generator=self.random).argsort(1)
        return self.start(tasks, order), {}

    def start(
        self,
        tasks: Tensor,
        order: Tensor,
    ) -> Tensor:
        """Begin episodes on these tasks, with their candidates in this order; return what is observed."""
        self.tasks = tasks
        self.order = order
        self.shares = torch.zeros(self.num_envs, CANDIDATES, dtype=torch.long)
        return self._look()

    def _look(self) -> Tensor:
        features = self.bank.features[self.tasks[:, None], self.order, self.shares]
        left = 1.0 - self.shares.sum(1, keepdim=True) / SHARES
        return torch.cat((left, features.flatten(1)), 1)

    def action_masks(self) -> Tensor:
        """Allow every candidate a share; keep one that had some."""
        is_spent = self.shares.sum(1, keepdim=True) == SHARES
        return ~is_spent | (self.shares > 0)

    def step(
        self,
        actions: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        # All episodes have the same length: a step for each share, and one to keep a set.
        is_last = bool(self.shares[0].sum() == SHARES)
        reward = torch.zeros(self.num_envs)
        if is_last:
            shares = self.shares[self.rows, actions]
            candidates = self.order[self.rows, actions]
            reward = POINTS * self.bank.pays[self.tasks, candidates, shares]
        else:
            self.shares[self.rows, actions] += 1
        # Where all have ended, others begin.
        last = self._look()
        ended = torch.full((self.num_envs,), is_last)
        observed = self.reset()[0] if is_last else last
        return observed, reward, ended, torch.zeros_like(ended), {"final_obs": last}


# --- learning and playing ---


def play(
    agent: Agent,
    bank: Bank,
) -> tuple[Integers, Integers]:
    """Decide greedily on every task once; give the candidates, ``[T, S + 1]``, and the shares of the kept ones."""
    # An environment for each task, with the chooser's first set in the first place.
    env = Spending(bank, len(bank.features))
    observation = env.start(env.rows, torch.arange(CANDIDATES).expand(env.num_envs, -1))
    shares = np.zeros(len(bank.features), np.int64)
    chosen = np.zeros((len(bank.features), SHARES + 1), np.int64)
    for number in range(SHARES + 1):
        actions, _ = agent.predict_batch(observation.numpy(), masks=env.action_masks().numpy())
        chosen[:, number] = actions
        shares = env.shares[env.rows, torch.tensor(actions)].numpy()
        observation, *_ = env.step(torch.tensor(actions))
    return chosen, shares


def learned(
    bank: Bank,
    rng_seed: int,
    steps: int,
) -> Agent:
    """Train PPO on a bank."""
    # Nothing is hidden, so there is nothing to remember. An update is of two episodes of each environment.
    agent = Agent(
        partial(Spending, bank),
        vector="tensors",
        rng_seed=rng_seed,
        envs=ENVS,
        rollout_steps=2 * (SHARES + 1),
        policy=sizes(core="none", encoder_units=32, head_units=32),
        ppo=settings(learning_rate=2e-3, gamma=1.0, entropy_coef=0.03),
    )
    agent.train(steps)
    return agent


def more_tasks(
    work: Path,
    lessons: Lessons,
) -> Tasks:
    """Record other tasks of the pairs of training, with a test split."""
    tree, workspace = together.prepared(work / "more", [*together.OVERRIDES, *OVERRIDES])
    held_out = load_held_out(workspace.prepared)
    ground = together.held_out_ground(tree, held_out)
    curves = together.kept(work / "more.npz", lambda: together.record(ground, 1))
    # The suite adds tasks of other kinds.
    kinds = [task.kind for task in held_out.tasks]
    rows = np.flatnonzero(np.isin(kinds, TRAINED))
    pairs = [together.pair_of(kinds[row]) for row in rows]
    looks = curves.pop("looks")[rows]
    features = features_of(looks, together.SETS)
    # By choosers that do not know the pair, as on held-out tasks.
    gains = across(lessons.pairs, lessons.features, lessons.scores, pairs, features)
    curves = {name: values[:, rows] for name, values in curves.items()}
    return Tasks.of(ground, curves, gains, features)


# --- what is compared ---


def timeline(
    bank: Bank,
    task: int,
    chosen: Integers,
    gain: float,
) -> dict[str, Any]:
    """Say which candidates got a share in turn, and the validation accuracy after it."""
    # Right after a share the last epoch of the curve so far is seen.
    shares = np.zeros(CANDIDATES, np.int64)
    validation = []
    for candidate in chosen[:-1]:
        shares[candidate] += 1
        accuracy = bank.features[task, candidate, shares[candidate], bank.looks + 1]
        validation.append(f"{100 * float(accuracy):.0f}")
    return {
        "task": task,
        "candidates": " ".join(map(str, chosen)),
        "validation": " ".join(validation),
        "over_chooser": round(100 * gain, 1),
    }


def standings(
    lessons: Lessons,
    new: Tasks,
    agents: Sequence[Agent],
) -> tuple[dict[str, Values], dict[str, Any]]:
    """Measure test accuracy of what spends one training on each task, ``[T]``; of learners by seed, ``[seeds, T]``, and
    in detail.
    """
    # Rivals first; shares are of two epochs.
    plan, improvement = together.fitted(lessons)
    plays = [improvement.play(*task) for task in zip(new.expected, new.val, strict=True)]
    chooser = new.reached(new.order[:, 0])
    policies = {
        "chooser": chooser,
        "halving": new.reached(*halve(plan, new.order, new.val)),
        "expected improvement": new.reached(*np.array(plays).T),
    }
    # Learners, also without what they see.
    bank = Bank.of(new)
    sights = {
        "PPO": bank,
        "PPO, blind": bank.blind(),
        "PPO, looks of other tasks": bank.shuffled(),
    }
    by_seed: dict[str, list[float]] = {}
    for name, sight in sights.items():
        scores = np.stack([chooser + gains_of(bank, *play(agent, sight)) for agent in agents])
        policies[name] = scores
        by_seed[name] = (100 * scores.mean(1)).round(2).tolist()
    policies["best of all in hindsight"] = chooser + bank.pays.amax((1, 2)).numpy()
    # Tasks where the first learner won most and lost most.
    chosen, shares = play(agents[0], bank)
    gains = gains_of(bank, chosen, shares)
    ends = np.argsort(-gains, kind="stable")[[*range(5), *range(-5, 0)]]
    detail = {
        "by_seed": by_seed,
        "sets_tried": round(float(np.mean([len({*row}) for row in chosen])), 2),
        "timelines": [timeline(bank, int(task), chosen[task], float(gains[task])) for task in ends],
    }
    return policies, detail


def gains_of(
    bank: Bank,
    chosen: Integers,
    shares: Integers,
) -> Values:
    """Look up what was won over the chooser, ``[T]``."""
    return bank.pays[np.arange(len(chosen)), chosen[:, -1], shares].double().numpy()


def compared(
    work: Path,
    seeds: int,
    steps: int,
) -> page.Found:
    """Train PPO with several seeds, and compare it on held-out tasks and on fresh joins."""
    lessons = Lessons.of(work)
    more = more_tasks(work, lessons)
    agents = [learned(Bank.of(more), rng_seed, steps) for rng_seed in range(1, seeds + 1)]
    results: page.Found = {
        "episodes": agents[0].env_steps // (SHARES + 1),
        "groups": {},
    }
    # Tasks of the gate, then those that nothing was chosen on.
    for folder, overrides in ((work, []), (work / "fresh", FRESH)):
        tree, workspace = together.prepared(folder, [*together.OVERRIDES, *overrides])
        held_out = load_held_out(workspace.prepared)
        ground = together.held_out_ground(tree, held_out)
        curves = together.kept(
            folder / "held_out.npz", partial(together.record, ground, together.HOSTS)
        )
        policies, detail = standings(lessons, together.asked_of(lessons, ground, curves), agents)
        groups = together.groups_of([task.kind for task in held_out.tasks])
        # A single known task stands among fresh ones.
        for group, places in groups.items():
            if len(places) > 1:
                results["groups"][group] = {
                    name: together.row(values[..., places], policies["chooser"][places])
                    for name, values in policies.items()
                }
        results[folder.name if overrides else "held_out"] = detail
    return results


def main() -> None:
    parser = page.parser(__doc__, page.RESULTS / "together_bank.json")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    # Small networks are fastest with one thread.
    torch.set_num_threads(1)
    result = compared(options.work, options.seeds, options.steps)
    page.write_result(options.out, result)
    for group, policies in result["groups"].items():
        print(f"\n{group}")
        for name, numbers in policies.items():
            print(f"  {name:42} {numbers['points']} {numbers['over_chooser']}")


if __name__ == "__main__":
    main()
