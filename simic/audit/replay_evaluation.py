"""Play a sample of the evaluation again: some hosts of a run of growth, some episodes of a Gymnasium environment."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.agent.play import Decide, PlayedEpisodes
from simic.agent.play import play as play_gym
from simic.agent.spec import Observation
from simic.data.batches import load_held_out
from simic.envs.gym_env import EVALUATION, AnyGym, open_gym
from simic.envs.play import Actor, Episode, Situation, play
from simic.envs.records import StepInfo
from simic.errors import SimicError
from simic.evaluation import gym_evaluation
from simic.evaluation.policies import actors
from simic.evaluation.result import BLIND, LEARNED, Evaluation, PerSeed
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
from simic.training import checkpoint, machine
from simic.training.learned import Learned
from simic.training.machine import Machine

Values = dict[str, Array]


@dataclass(frozen=True)
class RunFiles:
    """Name the folders of a run that a replay reads."""

    prepared: Path
    telemetry: Path
    checkpoints: Path


def _learned(
    params: Params, files: RunFiles, evaluated_on: Machine, device: torch.device
) -> Learned:
    """Read the published weights; SimicError where this machine is not the one that evaluated them."""
    # The group is taken over and not compared: this process computes the rows of one group in one piece.
    present = machine.describe(params.runtime, device, evaluated_on.group)
    if changes := evaluated_on.differences(present):
        listed = ", ".join(f"{name} {text}" for name, text in changes.items())
        raise SimicError(f"evaluated on another machine: {listed}")
    return Learned.of(
        checkpoint.read_published(files.checkpoints, params.evaluate.checkpoint), device
    )


# --- growth ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayedHosts:
    """Hold which hosts of which policies were computed together: their last bits depend on the company.

    ``policies`` share an environment, each in a row for each of ``tasks``; ``rows`` of it form the group.
    """

    policies: tuple[str, ...]
    tasks: tuple[int, ...]
    rows: range
    steps: int  # of an episode

    def rows_of(self, place: int) -> range:
        """Select the rows that the policy at a place has in this group."""
        # Policies lie one behind the other, so that a group may end within one and begin within the next.
        hosts = len(self.tasks)
        first = place * hosts
        return range(max(first, self.rows.start), min(first + hosts, self.rows.stop))

    @property
    def is_complete(self) -> bool:
        """Tell whether a policy has rows in the group, and the blind one all or none of its own: it sees their mean."""
        counts = {name: len(self.rows_of(place)) for place, name in enumerate(self.policies)}
        return any(counts.values()) and counts.get(BLIND, 0) in (0, len(self.tasks))


def choose_population(params: Params, evaluation: Evaluation, sample: int) -> ReplayedHosts | None:
    """Choose by hash one group of hosts that can be played again alone; None where there is none.

    Args:
        params: of the run.
        evaluation: its hosts, and how many of their rows were computed together.
        sample: the hash that chooses.
    """
    # The same functions that dealt out the rows in the evaluation, so that groups begin and end where they did then.
    names = params.evaluate.policies
    hosts = len(evaluation.rows)
    group = evaluation.machine.group
    size = at_once(hosts, len(names), rows_at_once(params))
    # The groups of every environment that policies shared.
    populations = [
        ReplayedHosts(
            policies=tuple(names[first : first + size]),
            tasks=evaluation.rows,
            rows=range(start, min(start + group, size * hosts)),
            steps=evaluation.episode_steps,
        )
        for first in range(0, len(names), size)
        for start in range(0, size * hosts, group)
    ]
    # By hash among all that can be played again: nobody can choose what is examined.
    complete = [population for population in populations if population.is_complete]
    return complete[sample % len(complete)] if complete else None


class InGroup:
    """Let several policies decide the rows of one group as they did when all rows were there."""

    def __init__(self, policies: Sequence[Actor], population: ReplayedHosts) -> None:
        self.policies = policies
        self.population = population

    def start(self, episode: Episode) -> None:
        # Policies draw by host id: each must see the ids of its own hosts, from 0, as it did beside the others.
        host_ids = torch.arange(len(self.population.tasks), device=episode.env_ids.device)
        for actor in self.policies:
            actor.start(replace(episode, env_ids=host_ids))

    def act(self, situation: Situation) -> Action:
        # A policy gets as many rows as it had in the evaluation, and only the decisions of rows in the group are kept.
        start = self.population.rows.start
        hosts = len(self.population.tasks)
        decisions: list[Action] = []
        for place, actor in enumerate(self.policies):
            rows = self.population.rows_of(place)
            if not rows:
                continue
            # The bits of a product depend on how many rows it has, so a present host stands in for each absent one.
            every = range(place * hosts, (place + 1) * hosts)
            stand_ins = torch.tensor(
                [(row if row in rows else rows.start) - start for row in every]
            )
            present = slice(rows.start - every.start, rows.stop - every.start)
            decisions.append(of_rows(actor.act(of_rows(situation, stand_ins)), present))
        decided = sum(len(decision.op) for decision in decisions)
        if left := len(self.population.rows) - decided:  # rows that no policy had: they never grow
            decisions.append(Action.wait(left, situation.slots.stage.device))
        return Action(*(torch.cat(head) for head in zip(*decisions, strict=True)))


def replay_hosts(
    params: Params, files: RunFiles, evaluated_on: Machine, population: ReplayedHosts
) -> Values:
    """Play the hosts of a group again.

    Args:
        params: of the run, for one process.
        files: of the run.
        evaluated_on: the machine of the evaluation.
        population: the group.

    Returns:
        Scores and actions of each policy, by ``policy.column``.
    """
    # Before anything is loaded: the settings of torch decide the bits of all that follows.
    device = machine.configure(params.runtime)
    learned = _learned(params, files, evaluated_on, device)
    held_out = load_held_out(files.prepared, device)
    rows = population.rows
    env = open_env(
        params.train,
        params.rng_seed,
        params.runtime,
        (held_out.train, held_out.val),
        torch.arange(len(rows)),
        device,
    )
    # Scores need every turn of an episode, and the environment keeps none of them.
    turns: list[Turn] = []

    def keep(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        turns.append(Turn(situation, action, reward, info))

    # Play.
    policies = actors(params, env, learned)
    group = InGroup([policies[name] for name in population.policies], population)
    host_ids = torch.tensor([row % len(population.tasks) for row in rows])
    tasks = torch.tensor(population.tasks)[host_ids]
    play(env, group, EVALUATION_ITERATION, keep, tasks, host_ids, population.steps)
    # Score the rows of each policy.
    scores = committed(env, held_out.test)
    values: Values = {}
    for place, name in enumerate(population.policies):
        if policy_rows := population.rows_of(place):
            local = slice(policy_rows.start - rows.start, policy_rows.stop - rows.start)
            policy_turns = [of_rows(turn, local) for turn in turns]
            score = score_rows(env, local, policy_turns, scores[:, local])
            values |= _columns(name, score, decisions(policy_turns))
    return values


def _columns(name: str, seeds: PerSeed, actions: Sequence[Sequence[str]]) -> Values:
    columns = {f"{name}.{field}": np.array(values) for field, values in vars(seeds).items()}
    return columns | {f"{name}.actions": _joined(actions)}


def _joined(actions: Sequence[Sequence[str]]) -> Array:
    return np.array([" / ".join(episode) for episode in actions], dtype=str)


def recorded_hosts(evaluation: Evaluation, population: ReplayedHosts) -> Values:
    """Collect what evaluation.json has of the hosts of a group; what is missing there makes a difference."""
    values: Values = {}
    for place, name in enumerate(population.policies):
        rows = population.rows_of(place)
        # Per-host values in the file begin at 0 for each policy; rows of the group count through all policies.
        if rows and name in evaluation.policies:
            first = place * len(population.tasks)
            hosts = slice(rows.start - first, rows.stop - first)
            seeds = evaluation.policies[name].per_seed
            part = PerSeed(**{field: column[hosts] for field, column in vars(seeds).items()})
            values |= _columns(name, part, evaluation.actions.get(name, ())[hosts])
    return values


# --- Gymnasium -------------------------------------------------------------------------------------------------------


def chosen_episodes(params: Params, sample: int) -> range:
    """Choose by hash evaluation seeds that were played side by side."""
    # Seeds that were played side by side share products of one size, so a sample must be a whole batch of them.
    together = params.train.envs
    starts = range(0, params.evaluate.eval_seeds, together)
    start = starts[sample % len(starts)]
    return range(start, min(start + together, params.evaluate.eval_seeds))


def replay_episodes(params: Params, files: RunFiles, evaluated_on: Machine, seeds: range) -> Values:
    """Play evaluation seeds again with every policy.

    Args:
        params: of the run, for one process.
        files: of the run.
        evaluated_on: the machine of the evaluation.
        seeds: that were played side by side.

    Returns:
        Returns, lengths and actions of each policy, by ``policy.column``.
    """
    learned = _learned(params, files, evaluated_on, machine.configure(params.runtime))
    # Every policy on the same seeds, each in an environment of its own, as the evaluation played them.
    values: Values = {}
    for name in params.evaluate.policies:
        episodes = _play(
            params,
            seeds,
            lambda env, name=name: gym_evaluation.trained(learned, env, name, params.rng_seed),
        )
        values[f"{name}.returns"] = np.array(episodes.returns)
        values[f"{name}.lengths"] = np.array(episodes.lengths)
        # The evaluation records the actions of its first episodes only: later seeds have none to compare.
        values[f"{name}.actions"] = _joined(
            gym_evaluation.as_text(episodes.actions)[
                : max(0, gym_evaluation.RECORDED - seeds.start)
            ]
        )
    return values


def _play(params: Params, seeds: range, player: Callable[[AnyGym], Decide]) -> PlayedEpisodes:
    with closing(
        open_gym(params.prepare.gym, params.rng_seed, torch.tensor(seeds), EVALUATION)
    ) as env:
        return play_gym(env, player(env))


def recorded_episodes(
    evaluation: gym_evaluation.GymEvaluation, names: Sequence[str], seeds: range
) -> Values:
    """Collect what evaluation.json has of these evaluation seeds; what is missing there makes a difference.

    Args:
        evaluation: of the run, as recorded.
        names: the policies that should be there.
        seeds: the places of the episodes in each list, counted from 0.
    """
    values: Values = {}
    for name in names:
        # A policy that is missing leaves a gap in the names, which is a difference; actions are compared in any case.
        if name in evaluation.policies:
            scores = evaluation.policies[name].per_seed
            values[f"{name}.returns"] = np.array(scores.returns[seeds.start : seeds.stop])
            values[f"{name}.lengths"] = np.array(scores.lengths[seeds.start : seeds.stop])
        values[f"{name}.actions"] = _joined(
            evaluation.actions.get(name, ())[seeds.start : seeds.stop]
        )
    return values


def environment_repeats(params: Params, files: RunFiles) -> bool:
    """Tell whether the environment observes and pays the same where equal actions are taken from equal seeds."""
    learned = Learned.of(checkpoint.read_published(files.checkpoints, params.evaluate.checkpoint))
    seeds = range(min(params.train.envs, params.evaluate.eval_seeds))

    # Bytes of observations, since an environment that differs in the last bit already does not repeat itself.
    def watch(player: Callable[[AnyGym], Decide]) -> tuple[list[bytes], list[Tensor], list[float]]:
        observations: list[bytes] = []
        actions: list[Tensor] = []

        def watched(env: AnyGym) -> Decide:
            decide = player(env)

            def act(observation: Observation, starts: Tensor, step: int) -> Tensor:
                observations.append(observation.numbers.numpy(force=True).tobytes())
                actions.append(decide(observation, starts, step))
                return actions[-1]

            return act

        return observations, actions, _play(params, seeds, watched).returns

    # Once with the policy; then its actions without it, so that a difference can only come from the environment.
    observations, actions, returns = watch(
        lambda env: gym_evaluation.trained(learned, env, LEARNED, params.rng_seed)
    )
    # The same actions again, the final one where an episode has become longer.
    repetition = watch(
        lambda env: lambda observation, starts, step: actions[min(step, len(actions) - 1)]
    )
    return repetition[0] == observations and repetition[2] == returns
