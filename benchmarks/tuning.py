"""Hand rules tuned on tasks of training by successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943).

A rule is scored in an episode of every length that is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.data.batches import load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation, refuse_closed
from simic.evaluation.result import TunedRule, TunedRules
from simic.evaluation.rules import (
    NONE,
    HandRule,
    HandRules,
    Managed,
    Opening,
    opening_name,
    possible_openings,
    setting,
)
from simic.evaluation.scoring import in_populations, open_env
from simic.growth.batch.alignment import Alignments
from simic.params import Params
from simic.progress import Progress

# A namespace of its own: hosts that no other episode has seen.
TUNING_ITERATION = 1 << 45
# Hosts on which every opening is grown alone, to find orders.
OPENING_HOSTS = 64
# Hosts of the first round of halving.
FIRST_HOSTS = 16
# Of so many configurations one goes on to the next round, on so many times the hosts.
KEPT = 3
# So few configurations are the last round.
LEAST = 4

# Epochs in HOLDING.
PATIENCE = (1, 2, 3)
# Points.
THRESHOLDS = (1.0, 2.0, 4.0, 6.0, 9.0, 13.0, 18.0)
# Lengths of an order, beside all of it.
PREFIXES = (3, 6)
# How many are tried before the best is grown again.
RETURNING = (2, 3, 4, 5, 6)
# Likewise, where every host has its own order.
ALIGNED = (1, 2, 3, 4, 5)
# Of how good a seed is on the whole, beside how well it is aligned (docs/history/experiments.md).
GAIN_WEIGHT = 2.0
# A mean or a deviation below counts as this: it is divided by.
LEAST_ALIGNMENT = 1e-3

Priorities = tuple[tuple[float, float], ...]  # slope and offset of each opening


@dataclass
class Ground:
    """Hosts on tasks of training; counts every host training."""

    env: GrowthEnv
    tasks: Tensor  # [T] of training
    epochs: tuple[int, ...]  # lengths of episodes, rising
    trainings: int = 0

    @classmethod
    def open(
        cls, params: Params, prepared: Path, device: torch.device, epochs: Sequence[int], rows: int
    ) -> Self:
        """Open an environment on tasks of training.

        Args:
            params: those of the suite.
            prepared: folder of the prepared data.
            device: where to compute.
            epochs: lengths of episodes; the longest is that of the environment.
            rows: hosts side by side.
        """
        # The longest decides what an environment holds; shorter ones are asked for at a reset.
        train = params.train.model_copy(update={"episode_steps": max(epochs)})
        splits = load_split(prepared, "train", device), load_split(prepared, "val", device)
        env = open_env(train, params.rng_seed, params.runtime, splits, torch.arange(rows), device)
        tasks = torch.tensor(read_meta(prepared).of_group("train"))
        return cls(env, tasks, tuple(sorted(set(epochs))))

    def play(
        self,
        make: Callable[[Tensor], HandRules],
        hosts: Tensor,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> tuple[Tensor, list[HandRules]]:
        """Play hosts, many side by side.

        Args:
            make: an actor for the rows ``[E]`` that are played together; the last population is filled up.
            hosts: numbers of the hosts, ``[R]``.
            progress: hears how many rows are done.

        Returns:
            Scores ``[L, R]`` at each number of epochs, and the actors.
        """
        actors = list[HandRules]()

        def episode(rows: Tensor) -> Tensor:
            actors.append(make(rows))
            return self._played(actors[-1], hosts[rows])

        self.trainings += len(hosts)
        return in_populations(self.env, len(hosts), episode, progress), actors

    def ways(self, openings: Sequence[Opening], hosts: Tensor, scores: Tensor) -> list[Priorities]:
        """Derive ``priorities``; none where nothing is aligned.

        Args:
            openings: what can grow, P.
            hosts: numbers of the hosts, ``[H]``.
            scores: of openings on hosts, ``[L, H, P]``.
        """
        # A seed that does not read the input is aligned with nothing.
        if not self.env.host.reads_input:
            return []
        kinds = torch.tensor([kind for _, kind in openings])
        return priorities(self.aligned(hosts)[:, kinds], scores.mean(dim=0))

    def aligned(self, hosts: Tensor) -> Tensor:
        """Look up the alignment of each blueprint with the tasks of the hosts ``[H]``, ``[H, P]``."""
        env = self.env
        tasks = self.tasks[hosts % len(self.tasks)]
        return (
            Alignments.on(env.host, env.blueprints, env.training_data)
            .of(tasks.to(env.device))
            .cpu()
        )

    def _played(self, actor: HandRules, hosts: Tensor) -> Tensor:
        env = self.env
        scores = []
        refuse_closed(env, actor)
        tasks = self.tasks[hosts % len(self.tasks)]
        for epochs in self.epochs:  # the first epochs are the same in an episode of any length
            options = {
                "iteration": TUNING_ITERATION,
                "tasks": tasks,
                "host_ids": hosts,
                "steps": epochs,
            }
            observation, info = env.reset(options=options)
            actor.start(Episode(env.env_ids, TUNING_ITERATION, env.rng_seed, env.steps))
            for step in range(env.steps):
                observation, _, _, _, info = env.step(actor.act(self._situation(observation, step)))
            scores.append(info.score.double().cpu())
        return torch.stack(scores)

    def _situation(self, observation: Observation, step: int) -> Situation:
        state = self.env.state
        return Situation(observation, self.env.slots, state.tracker, state.alive, step)


class Alone(HandRules):
    """Grows one seed on each host and records its contribution after its first epochs."""

    def start(self, episode: Episode) -> None:
        super().start(episode)
        self.best.zero_()  # the only seed there is
        shape = len(self.rows), int(self.patience.max())
        self.contributions = torch.full(
            shape, torch.nan, device=self.rows.device
        )  # [E, patience] points

    def note(self, seed: Managed, judged: Tensor) -> None:
        """Write down this epoch of the seeds in HOLDING."""
        epoch = (seed.dwell - 1).clamp(0, self.contributions.shape[1] - 1)[:, None]
        written = self.contributions.scatter(1, epoch, seed.contribution.float()[:, None])
        # Later epochs are of a seed that was kept, and no trial any more.
        trying = seed.holding & (self.chosen == NONE) & (seed.dwell <= self.patience)
        self.contributions = torch.where(trying[:, None], written, self.contributions)


# --- configurations --------------------------------------------------------------------------------------------------


def configurations(
    orders: Sequence[Sequence[Opening]],
    openings: Sequence[Opening] = (),
    by_alignment: Sequence[Priorities] = (),
) -> list[HandRule]:
    """List every rule of both families, each once.

    Args:
        orders: of openings.
        openings: that rules by alignment take, in each host's own order.
        by_alignment: priorities of these openings.
    """
    # A dict is a set in order: short orders have equal beginnings.
    rules = dict[HandRule, None]()
    for order, patience in product(orders, PATIENCE):
        for length, threshold in product((*PREFIXES, len(order)), THRESHOLDS):
            rules[HandRule(tuple(order[:length]), patience, threshold)] = None
        for tries in RETURNING:
            rules[HandRule(tuple(order[:tries]), patience, None)] = None
    for aligned, patience in product(by_alignment, PATIENCE):
        for tries, threshold in [
            *product(ALIGNED, (None,)),
            *product((len(openings),), THRESHOLDS),
        ]:
            rules[HandRule(tuple(openings), patience, threshold, aligned, tries)] = None
    return list(rules)


def priorities(aligned: Tensor, scores: Tensor) -> list[Priorities]:
    """Derive two ways to order openings on a host, by alignments ``[H, P]`` and scores ``[H, P]`` of openings: by the
    alignment as a share of its mean, and by its z-score plus that of the opening's mean score.
    """
    aligned = aligned.double()
    scores = scores.double()
    mean = aligned.mean(dim=0)
    deviation = aligned.std(dim=0, correction=0)
    share, z = (1 / values.clamp(min=LEAST_ALIGNMENT) for values in (mean, deviation))
    gain = (scores.mean(dim=0) - scores.mean()) / scores.std(correction=0)
    # Slope times alignment plus offset: the share, and the z-score (a - mean) / deviation with the gain.
    ways = ((share, torch.zeros_like(share)), (z, GAIN_WEIGHT * gain - mean * z))
    return [tuple(zip(slope.tolist(), offset.tolist(), strict=True)) for slope, offset in ways]


def covering(scores: Tensor) -> list[int]:
    """Order the columns of ``scores [H, P]``, each the one that adds most to the best of those before it, of equals the
    first: specialists for what the others cannot do come early.
    """
    best = torch.full_like(scores[:, 0], -torch.inf)
    order = list[int]()
    for _ in range(scores.shape[1]):
        gained = torch.maximum(scores, best[:, None]).mean(dim=0)
        # What is chosen adds nothing more, but would be among equals.
        gained[order] = -torch.inf
        order.append(int(gained.argmax()))
        best = torch.maximum(best, scores[:, order[-1]])
    return order


def rounds(count: int, hosts: int) -> list[tuple[int, int]]:
    """Plan how many configurations each round of halving begins with, and on how many new hosts it plays them."""
    plan = [(count, hosts)]
    while plan[-1][0] > LEAST:
        left, met = plan[-1]
        # Three times the hosts for a third of the configurations: rounds cost alike.
        plan.append((max(LEAST, -(-left // KEPT)), met * KEPT))
    return plan


def survivors(means: Tensor, count: int) -> list[int]:
    """Select the best ``count`` rows of ``means [C, L]`` at each length, all together, in their order."""
    # At each length, as the best rule of short episodes may be poor in long ones.
    best = means.topk(min(count, len(means)), dim=0).indices
    return sorted(set(best.flatten().tolist()))


# --- the search ------------------------------------------------------------------------------------------------------


def tune(params: Params, ground: Ground, progress: Progress) -> TunedRules:
    """Find the best rule for each number of epochs: by orders from openings grown alone, then successive halving.

    Args:
        params: those of the suite.
        ground: the hosts to play on.
        progress: hears how many host trainings are done.
    """
    # Alone first: these scores give the orders that rules go by.
    openings = possible_openings(ground.env)
    hosts_alone = torch.arange(OPENING_HOSTS)
    scores, early = grown_alone(ground, openings, hosts_alone, progress)
    rules = configurations(
        orders(openings, scores, early), openings, ground.ways(openings, hosts_alone, scores)
    )
    winners, met = _halved(ground, rules, progress)
    names = [item.name for item in ground.env.blueprints]
    return TunedRules(
        tuned_for=setting(params),
        rules=tuple(
            TunedRule(
                family="return to the best" if rule.threshold is None else "in order",
                order=tuple(opening_name(opening, names) for opening in rule.order),
                patience=rule.patience,
                threshold=rule.threshold,
                priorities=tuple(
                    (round(slope, 4), round(offset, 4)) for slope, offset in rule.priorities
                ),
                tries=rule.tries,
                epochs=length,
                score=round(score, 4),
                hosts=met,
            )
            for length, (rule, score) in zip(ground.epochs, winners, strict=True)
        ),
        configurations=len(rules),
        trainings=ground.trainings,
    )


def grown_alone(
    ground: Ground, openings: Sequence[Opening], hosts: Tensor, progress: Progress
) -> tuple[Tensor, Tensor]:
    """Grow every opening alone on every host.

    Args:
        ground: where.
        openings: what can grow, P.
        hosts: numbers of the hosts, ``[H]``.
        progress: hears how many are grown.

    Returns:
        Scores ``[L, H, P]``, and contributions after the first epochs ``[H, P, patience]``, in points.
    """
    # With the longest patience, of which shorter ones can be read off.
    rules = [HandRule((opening,), max(PATIENCE), None) for opening in openings]
    rows = len(hosts) * len(openings)

    def make(part: Tensor) -> Alone:
        return Alone(ground.env.train.lifecycle, [rules[row % len(rules)] for row in part.tolist()])

    scores, actors = ground.play(
        make,
        hosts.repeat_interleave(len(openings)),
        lambda count, of: progress("openings grown alone", count, of),
    )
    early = torch.cat([actor.contributions for actor in actors if isinstance(actor, Alone)])[:rows]
    return scores.view(-1, len(hosts), len(openings)), early.view(
        len(hosts), len(openings), -1
    ).cpu()


def orders(
    openings: Sequence[Opening], scores: Tensor, contributions: Tensor
) -> list[list[Opening]]:
    """Order openings by mean score at the end, by what each adds to those before it, and by early contribution.

    Args:
        openings: what can grow, P.
        scores: as ``grown_alone`` gives them, ``[L, H, P]``.
        contributions: likewise, ``[H, P, patience]``.
    """
    gains = scores.mean(dim=0)  # [H, P]: over the lengths
    early = contributions.nanmean(dim=2).nanmean(dim=0).nan_to_num(-torch.inf)
    # Stable: of equals the first, on any machine.
    by_gain = gains.mean(dim=0).argsort(descending=True, stable=True)
    by_early = early.argsort(descending=True)
    places = [by_gain.tolist(), covering(gains), by_early.tolist()]
    return [[openings[place] for place in order] for order in places]


def _halved(
    ground: Ground, rules: Sequence[HandRule], progress: Progress
) -> tuple[list[tuple[HandRule, float]], int]:
    """Find the best rule and its mean score for each length, and on how many hosts: those after ``OPENING_HOSTS``.

    Those that are left have met the same hosts in all rounds, so that their means are of all of them.
    """
    left = list(range(len(rules)))
    total = torch.zeros(len(rules), len(ground.epochs), dtype=torch.float64)
    met = 0
    lifecycle = ground.env.train.lifecycle
    plan = rounds(len(rules), FIRST_HOSTS)
    for number, (_, count) in enumerate(plan):
        if number:
            best = survivors(total[left] / met, plan[number][0])
            left = [left[place] for place in best]
        # New hosts in each round: who was lucky on the old ones has to show it again.
        ids = torch.arange(OPENING_HOSTS + met, OPENING_HOSTS + met + count).repeat_interleave(
            len(left)
        )
        # Bound now, as the next round has others.
        rules_left = list(left)

        def make(part: Tensor, rules_left: list[int] = rules_left) -> HandRules:
            return HandRules(
                lifecycle, [rules[rules_left[row % len(rules_left)]] for row in part.tolist()]
            )

        phase = f"rules, round {number + 1} of {len(plan)}"
        scores, _ = ground.play(
            make, ids, lambda count, of, phase=phase: progress(phase, count, of)
        )
        total[left] += scores.view(-1, count, len(left)).sum(dim=1).T
        met += count
    means = total[left] / met
    return [
        (rules[left[int(best)]], float(means[best, k]))
        for k, best in enumerate(means.argmax(dim=0))
    ], met
