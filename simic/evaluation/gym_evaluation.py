"""Measure headroom, and evaluate, on a Gymnasium environment: all players meet the same fresh episodes."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.agent.action_space import columns_of
from simic.agent.play import Decide, PlayedEpisodes, play, policy_decides
from simic.agent.spec import Observation
from simic.data.batches import data_hash
from simic.envs.actions import random_legal
from simic.envs.gym_env import EVALUATION, AnyGym, open_gym
from simic.envs.gym_rules import Rule, named
from simic.evaluation import intervals
from simic.evaluation.intervals import Interval, PairedComparison
from simic.evaluation.result import BLIND, LEARNED, SAMPLED, Actions, Frozen, read_as
from simic.params import Params
from simic.progress import Progress
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned
from simic.training.machine import Machine, describe

RANDOM = "random"
PEER = "peer"
# The schema of headroom.json and evaluation.json.
SCHEMA = "gym 3"
# Episodes of every trained policy whose actions are recorded.
RECORDED = 5
ENDPOINT = "mean undiscounted return of learned, greedy, one training: in episodes of seeds that training never saw"


class Scores(Frozen):
    """Undiscounted return and length of every episode, in the order of the evaluation seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]


class GymHeadroom(Frozen):
    """Content of headroom.json of task gym."""

    schema_version: Literal["gym 3"] = SCHEMA
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    policies: dict[str, Scores]
    # What the peer is and how long it learned, or why there is none.
    peer: str


class GymResult(Frozen):
    """One policy on all evaluation seeds."""

    mean_return: Interval
    # Of the interquartile mean, from 10 seeds on.
    iqm_return: Interval | None
    mean_length: float
    per_seed: Scores


class GymEvaluation(Frozen):
    """Content of evaluation.json of task gym; ``actions`` are those of the first episodes, step by step."""

    schema_version: Literal["gym 3"] = SCHEMA
    primary_endpoint: str = ENDPOINT
    checkpoint: str
    checkpoint_iteration: int
    # The machine that played; its group are the environments side by side.
    machine: Machine
    # Steps of environments that training took.
    env_steps: int
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    policies: dict[str, GymResult]
    comparisons: tuple[PairedComparison, ...]
    actions: dict[str, Actions]
    peer: str


def measure(params: Params, prepared: Path, progress: Progress) -> GymHeadroom:
    """Play at random, by the registered rules, and as the peer learned to.

    Args:
        params: those of the run.
        prepared: folder of the prepared data.
        progress: hears how far it is.
    """
    # What needs no learning.
    players: dict[str, Callable[[AnyGym], Decide]] = {
        RANDOM: lambda env: _random(env, params.rng_seed)
    }
    players |= {name: _by_rule(named(name)) for name in params.headroom.gym.rules}
    policies = {name: _scores(_play(params, player)) for name, player in players.items()}
    progress("random actions and rules", len(players), len(players))
    # What another implementation of PPO learns in the same environment.
    peer, description = learn_peer(params, progress)
    if peer is not None:
        policies[PEER] = peer
    return GymHeadroom(
        data_sha256=data_hash(prepared),
        rng_seed=params.rng_seed,
        eval_seeds=params.evaluate.eval_seeds,
        policies=policies,
        peer=description,
    )


def learn_peer(params: Params, progress: Progress) -> tuple[Scores | None, str]:
    """Let the peer learn with all ``peer_settings``, and play; the best on these very episodes counts, in its favour.

    Returns:
        Its scores, and a description; None and the reason where there is no peer.
    """
    # Without a peer the report says why.
    steps = params.headroom.gym.peer_steps
    if not steps:
        return None, "none: headroom.gym.peer_steps is 0"
    if importlib.util.find_spec("sb3_contrib") is None:
        return None, "none: sb3-contrib is not installed (pip install sb3-contrib)"
    from simic.evaluation.gym_peer import learned

    # Stable-Baselines3 draws from torch's global generator, which is put back.
    attempts: list[tuple[Scores, str]] = []
    all_settings = params.headroom.gym.peer_settings
    with torch.random.fork_rng(devices=[]):
        for settings in all_settings:
            name, player = learned(params, settings)
            changes = (
                ", ".join(f"{key} {value}" for key, value in settings.items()) or "its own settings"
            )
            description = (
                f"{name}, {changes}, {steps:,} environment steps, rng_seed {params.rng_seed}"
            )
            attempts.append((_scores(_play(params, player)), description))
            progress("settings of the peer", len(attempts), len(all_settings))
    return max(attempts, key=lambda attempt: sum(attempt[0].returns))


def evaluate(
    params: Params, checkpoint: Checkpoint, headroom: GymHeadroom, progress: Progress
) -> GymEvaluation:
    """Let the trained policy play the episodes of the headroom, and compare it with all players there.

    Args:
        params: those of the run.
        checkpoint: of the trained policy.
        headroom: of the same environment.
        progress: hears how many policies have played.
    """
    # Play; the actions of the first episodes are recorded.
    learned = Learned.of(checkpoint)
    results: dict[str, Scores] = {}
    actions: dict[str, Actions] = {}
    for name in params.evaluate.policies:
        parts = _play(params, lambda env, name=name: trained(learned, env, name, params.rng_seed))
        results[name] = _scores(parts)
        episodes = [episode for part in parts for episode in part.actions]
        actions[name] = as_text(episodes[:RECORDED])
        progress("played to the end", len(results), len(params.evaluate.policies))

    # Compare.
    results |= headroom.policies
    returns = {name: scores.returns for name, scores in results.items()}
    return GymEvaluation(
        checkpoint=params.evaluate.checkpoint,
        checkpoint_iteration=checkpoint.manifest.iteration,
        machine=describe(params.runtime, torch.device("cpu"), params.train.envs),
        env_steps=int(checkpoint.manifest.scalars["env_steps"] or 0),
        data_sha256=headroom.data_sha256,
        rng_seed=params.rng_seed,
        eval_seeds=params.evaluate.eval_seeds,
        policies={name: summary(scores, params.rng_seed) for name, scores in results.items()},
        comparisons=intervals.compare_with_all(LEARNED, returns, params.rng_seed),
        actions=actions,
        peer=headroom.peer,
    )


def summary(scores: Scores, rng_seed: int) -> GymResult:
    """Summarize the episodes of one policy."""
    returns = np.array(scores.returns)
    return GymResult(
        mean_return=intervals.mean_interval(returns),
        iqm_return=intervals.interquartile_interval(returns, rng_seed),
        mean_length=float(np.mean(scores.lengths)),
        per_seed=scores,
    )


def metrics(evaluation: GymEvaluation) -> str:
    """Write the few numbers that are followed from run to run, as JSON."""
    numbers = {
        f"return/{name}": result.mean_return.estimate
        for name, result in evaluation.policies.items()
    }
    numbers |= {f"over/{pair.second}": pair.difference.estimate for pair in evaluation.comparisons}
    return json.dumps(numbers, indent=2) + "\n"


def floors(path: Path) -> dict[str, float]:
    """Read the mean returns of a headroom, to show beside training's."""
    policies = read_headroom(path).policies
    return {name: sum(scores.returns) / len(scores.returns) for name, scores in policies.items()}


def read(path: Path) -> GymEvaluation:
    """Read evaluation.json; SimicError where it is missing or not of task gym."""
    return read_as(path, GymEvaluation, "an evaluation of task gym", "simic evaluate")


def read_headroom(path: Path) -> GymHeadroom:
    """Read headroom.json; SimicError where it is missing or not of task gym."""
    return read_as(path, GymHeadroom, "a headroom of task gym", "simic headroom")


def page(headroom: GymHeadroom) -> str:
    """Write a line for every player: mean return and its interval."""
    lines = [f"environment  {headroom.eval_seeds} fresh episodes each; peer: {headroom.peer}"]
    for name, scores in headroom.policies.items():
        mean = intervals.mean_interval(scores.returns)
        lines.append(f"{name:<12} {mean.estimate:.2f} [{mean.low:.2f}, {mean.high:.2f}]")
    return "\n".join(lines)


def as_text(episodes: Sequence[np.ndarray]) -> Actions:
    """Write the actions ``[T, width]`` of each episode step by step, as they are recorded."""
    return tuple(
        tuple(" ".join(map(str, step)) for step in actions.tolist()) for actions in episodes
    )


# --- who plays ---


def _play(params: Params, player: Callable[[AnyGym], Decide]) -> list[PlayedEpisodes]:
    """Play one episode for each evaluation seed, as many side by side as in training."""
    parts = []
    for env_ids in torch.arange(params.evaluate.eval_seeds).split(params.train.envs):
        with closing(open_gym(params.prepare.gym, params.rng_seed, env_ids, EVALUATION)) as env:
            parts.append(play(env, player(env)))
    return parts


def _scores(parts: Sequence[PlayedEpisodes]) -> Scores:
    return Scores(
        returns=tuple(value for part in parts for value in part.returns),
        lengths=tuple(value for part in parts for value in part.lengths),
    )


def _noise(env: AnyGym, rng_seed: int, purpose: rng.Purpose) -> Callable[[int], Tensor]:
    """Make the source of uniform numbers ``[E, width]`` for each step."""
    return lambda step: rng.uniform(
        rng.key(rng_seed, purpose, EVALUATION, env.env_ids, step), (env.action_spec.width,)
    )


def trained(learned: Learned, env: AnyGym, name: str, rng_seed: int) -> Decide:
    """Make the player of a trained policy.

    Args:
        learned: the policy.
        env: where it plays.
        name: how it plays: greedy, sampled or blind.
        rng_seed: seed of the run.
    """
    noise = _noise(env, rng_seed, rng.Purpose.ACTION) if name == SAMPLED else None
    return policy_decides(
        learned.policy, learned.normalizers, env.num_envs, noise, blind=name == BLIND
    )


def _random(env: AnyGym, rng_seed: int) -> Decide:
    """Make the player that takes every legal action with the same probability."""
    noise = _noise(env, rng_seed, rng.Purpose.BASELINE)
    return lambda observation, starts, step: random_legal(env.action_spec, observation, noise(step))


def _by_rule(rule: Rule) -> Callable[[AnyGym], Decide]:
    # A rule looks back: it gets all that its episode showed so far.
    def player(env: AnyGym) -> Decide:
        histories: list[list[np.ndarray]] = [[] for _ in range(env.num_envs)]

        def decide(observation: Observation, starts: Tensor, step: int) -> Tensor:
            actions = []
            rows = observation.numbers.cpu().numpy()
            for row, history in enumerate(histories):
                if starts[row]:
                    history.clear()
                history.append(rows[row])
                masks = {name: mask[row].cpu().numpy() for name, mask in observation.masks.items()}
                action = rule(history, masks)
                actions.append(columns_of(env.action_layout, env.action_spec, action))
            return torch.stack(actions).to(observation.features.device)

        return decide

    return player
