"""Play a sample of the evaluation again: some hosts of a run of growth, some episodes of a Gymnasium environment."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.agent.play import play as play_gym
from simic.data.batches import load_held_out
from simic.envs.gym_env import EVALUATION, open_gym
from simic.envs.play import Actor, Episode, Situation, play
from simic.envs.records import StepInfo
from simic.errors import SimicError
from simic.evaluation import gym
from simic.evaluation.policies import actors
from simic.evaluation.result import BLIND, PerSeed
from simic.evaluation.scoring import (
    EVALUATION_ITERATION,
    Turn,
    at_once,
    committed,
    decisions,
    of_rows,
    open_env,
    rows_at_once,
    score_rows,
)
from simic.growth.life.vocabulary import Action
from simic.params import Params
from simic.telemetry.columns import Array
from simic.training.learned import Learned

Values = dict[str, Array]


@dataclass(frozen=True)
class ReplayedHosts:
    """Hold which hosts of which policies were computed together: their last bits depend on the company.

    ``policies`` share an environment of ``hosts`` rows each; ``rows`` of it form the group.
    """

    policies: tuple[str, ...]
    hosts: int
    rows: range

    def rows_of(self, place: int) -> range:
        """Return the rows that the policy at a place has in this group."""
        first = place * self.hosts
        return range(max(first, self.rows.start), min(first + self.hosts, self.rows.stop))


def choose_population(params: Params, hosts: int, group: int, sample: int) -> ReplayedHosts:
    """Choose by hash one group of hosts that can be played again alone; SimicError where there is none.

    Args:
        params: of the run.
        hosts: that each policy played.
        group: how many rows were computed together.
        sample: the hash that chooses.
    """
    names = params.evaluate.policies
    size = policies_at_once(params, hosts)
    candidates = [
        ReplayedHosts(tuple(names[first : first + size]), hosts, range(start, min(start + group, size * hosts)))
        for first in range(0, len(names), size)
        for start in range(0, size * hosts, group)
    ]
    candidates = [population for population in candidates if _complete(population)]
    if not candidates:
        raise SimicError("the blind policy saw the mean of hosts that were shared out to several groups")
    return candidates[sample % len(candidates)]


def policies_at_once(params: Params, hosts: int) -> int:
    """Return how many policies shared an environment, each on so many hosts."""
    return at_once(hosts, len(params.evaluate.policies), rows_at_once(params))


def _complete(population: ReplayedHosts) -> bool:
    """Tell whether a policy has rows in the group, and the blind one all or none of its own: it sees their mean."""
    counts = {name: len(population.rows_of(place)) for place, name in enumerate(population.policies)}
    return any(counts.values()) and counts.get(BLIND, 0) in (0, population.hosts)


class InGroup:
    """Let several policies decide the rows of one group as they did when all rows were there."""

    def __init__(self, policies: Sequence[Actor], population: ReplayedHosts) -> None:
        self.policies = policies
        self.population = population

    def start(self, episode: Episode) -> None:
        host_ids = torch.arange(self.population.hosts, device=episode.env_ids.device)
        for actor in self.policies:
            actor.start(replace(episode, env_ids=host_ids))

    def act(self, situation: Situation) -> Action:
        start, hosts = self.population.rows.start, self.population.hosts
        decisions: list[Action] = []
        for place, actor in enumerate(self.policies):
            rows = self.population.rows_of(place)
            if not rows:
                continue
            # The bits of a product depend on how many rows it has, so a present host stands in for each absent one.
            every = range(place * hosts, (place + 1) * hosts)
            stand_ins = torch.tensor([(row if row in rows else rows.start) - start for row in every])
            present = slice(rows.start - every.start, rows.stop - every.start)
            decisions.append(of_rows(actor.act(of_rows(situation, stand_ins)), present))
        decided = sum(map(len, (decision.op for decision in decisions)))
        if left := len(self.population.rows) - decided:  # rows that no policy had: they never grow
            decisions.append(Action.wait(left, situation.slots.stage.device))
        return Action(*(torch.cat(head) for head in zip(*decisions, strict=True)))


def replay_hosts(
    params: Params, prepared: Path, learned: Learned, population: ReplayedHosts, tasks: Sequence[int], steps: int,
    device: torch.device,
) -> Values:  # fmt: skip
    """Play the hosts of a group again.

    Args:
        params: of the run, for one process.
        prepared: folder of the prepared data.
        learned: the policy that was evaluated.
        population: the group.
        tasks: the held-out task of each host ``[H]``.
        steps: decisions of an episode.
        device: on which they were played.

    Returns:
        Scores and actions of each policy, by ``policy.column``.
    """
    held_out = load_held_out(prepared, device)
    count, hosts = len(population.rows), population.hosts
    splits = held_out.train, held_out.val
    env = open_env(params.train, params.rng_seed, params.runtime, splits, torch.arange(count), device)
    turns: list[Turn] = []

    def keep(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        turns.append(Turn(situation, action, reward, info))

    with closing(env):
        named = actors(params, env, learned)
        group = InGroup([named[name] for name in population.policies], population)
        host_ids = torch.tensor([row % hosts for row in population.rows])
        play(env, group, EVALUATION_ITERATION, keep, torch.tensor(tasks)[host_ids], host_ids, steps)
        reached = committed(env, held_out.test)
        values: Values = {}
        for place, name in enumerate(population.policies):
            rows = population.rows_of(place)
            if rows:
                local = slice(rows.start - population.rows.start, rows.stop - population.rows.start)
                own = [of_rows(turn, local) for turn in turns]
                score = score_rows(env, local, own, reached[:, local])
                values |= _columns(name, score, decisions(own))
    return values


def _columns(name: str, seeds: PerSeed, actions: Sequence[Sequence[str]]) -> Values:
    columns = {f"{name}.{field}": np.array(values) for field, values in vars(seeds).items()}
    return columns | {f"{name}.actions": np.array([" / ".join(host) for host in actions])}


def recorded_hosts(
    population: ReplayedHosts, seeds: Mapping[str, PerSeed], actions: Mapping[str, Sequence[Sequence[str]]]
) -> Values:
    """Return what evaluation.json has of the hosts of a group, by ``policy.column``."""
    values: Values = {}
    for place, name in enumerate(population.policies):
        rows = population.rows_of(place)
        if rows:
            hosts = slice(rows.start - place * population.hosts, rows.stop - place * population.hosts)
            part = PerSeed(**{field: column[hosts] for field, column in vars(seeds[name]).items()})
            values |= _columns(name, part, actions[name][hosts])
    return values


# --- Gymnasium -------------------------------------------------------------------------------------------------------


def chosen_episodes(params: Params, sample: int) -> range:
    """Return the evaluation seeds, played side by side, that a hash chooses."""
    together = params.train.envs
    starts = range(0, params.evaluate.eval_seeds, together)
    start = starts[sample % len(starts)]
    return range(start, min(start + together, params.evaluate.eval_seeds))


def replay_episodes(params: Params, learned: Learned, seeds: range) -> Values:
    """Play these evaluation seeds again with every policy; return returns, lengths and actions."""
    values: Values = {}
    for name in params.evaluate.policies:
        env = open_gym(params.prepare.gym, params.rng_seed, torch.tensor(seeds), EVALUATION)
        with closing(env):
            played = play_gym(env, gym.trained(learned, env, name, params.rng_seed))
        values[f"{name}.returns"] = np.array(played.returns)
        values[f"{name}.lengths"] = np.array(played.lengths)
        actions = gym.as_text(played.actions)
        values[f"{name}.actions"] = np.array([" / ".join(episode) for episode in actions[: _recorded(seeds)]])
    return values


def recorded_episodes(evaluation: gym.GymEvaluation, names: Sequence[str], seeds: range) -> Values:
    """Return what evaluation.json has of these evaluation seeds."""
    values: Values = {}
    for name in names:
        scores = evaluation.policies[name].per_seed
        values[f"{name}.returns"] = np.array(scores.returns[seeds.start : seeds.stop])
        values[f"{name}.lengths"] = np.array(scores.lengths[seeds.start : seeds.stop])
        actions = evaluation.actions[name][seeds.start : seeds.start + _recorded(seeds)]
        values[f"{name}.actions"] = np.array([" / ".join(episode) for episode in actions])
    return values


def _recorded(seeds: range) -> int:
    """Return of how many of these episodes the actions were recorded."""
    return max(0, min(gym.RECORDED, seeds.stop) - seeds.start)
