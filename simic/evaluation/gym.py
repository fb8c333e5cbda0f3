"""Headroom and evaluation of a Gymnasium environment: everyone plays the same fresh episodes to their end."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.agent.play import Decide, PlayedEpisodes, play, policy_decides
from simic.agent.spec import Observation
from simic.data.batches import data_hash
from simic.envs.actions import random_legal
from simic.envs.gym_env import EVALUATION, AnyGym, open_gym
from simic.envs.gym_rules import Rule, named
from simic.evaluation import statistics
from simic.evaluation.result import BLIND, LEARNED, SAMPLED, Actions, Frozen, read_as
from simic.evaluation.statistics import Interval, PairedComparison
from simic.params import Params
from simic.progress import Progress
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned
from simic.training.machine import Machine, describe

RANDOM, PEER = "random", "peer"
SCHEMA = "gym 3"  # of headroom.json and evaluation.json
RECORDED = 5  # episodes of each trained policy whose actions are kept
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
    peer: str  # what it is and how long it learned, or why nobody did


class GymResult(Frozen):
    """One policy on all evaluation seeds."""

    mean_return: Interval
    iqm_return: Interval | None  # from 10 seeds on
    mean_length: float
    per_seed: Scores


class GymEvaluation(Frozen):
    """Content of evaluation.json of task gym; ``actions`` are those of the first episodes, step by step."""

    schema_version: Literal["gym 3"] = SCHEMA
    primary_endpoint: str = ENDPOINT
    checkpoint: str
    checkpoint_iteration: int
    machine: Machine  # that played; its group are the environments side by side
    env_steps: int  # that its training took
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    policies: dict[str, GymResult]
    comparisons: tuple[PairedComparison, ...]
    actions: dict[str, Actions]
    peer: str


def measure(params: Params, prepared: Path, told: Progress) -> GymHeadroom:
    """Play at random, by the registered rules, and as the peer learned to."""
    asked = params.headroom.gym
    players: dict[str, Callable[[AnyGym], Decide]] = {RANDOM: lambda env: _random(env, params.rng_seed)}
    for name in asked.rules:
        players[name] = _by_rule(named(name))
    played = {name: _scores(_played(params, player)) for name, player in players.items()}
    told("random actions and rules", len(players), len(players))
    peer, said = learn_peer(params, told)
    if peer is not None:
        played[PEER] = peer
    return GymHeadroom(
        data_sha256=data_hash(prepared),
        rng_seed=params.rng_seed,
        eval_seeds=params.evaluate.eval_seeds,
        policies=played,
        peer=said,
    )


def learn_peer(params: Params, told: Progress) -> tuple[Scores | None, str]:
    """Let the peer learn with each of ``peer_settings`` and play; say what it was. The best on these very episodes
    counts, which favours it.
    """
    asked = params.headroom.gym
    if not asked.peer_steps:
        return None, "none: headroom.gym.peer_steps is 0"
    if importlib.util.find_spec("sb3_contrib") is None:
        return None, "none: sb3-contrib is not installed (pip install sb3-contrib)"
    from simic.evaluation.gym_peer import learned

    tried: list[tuple[Scores, str]] = []
    with torch.random.fork_rng(devices=[]):
        for settings in asked.peer_settings:
            name, player = learned(params, settings)
            how = ", ".join(f"{key} {value}" for key, value in settings.items()) or "its own settings"
            said = f"{name}, {how}, {asked.peer_steps:,} environment steps, rng_seed {params.rng_seed}"
            tried.append((_scores(_played(params, player)), said))
            told("settings of the peer", len(tried), len(asked.peer_settings))
    return max(tried, key=lambda each: sum(each[0].returns))


def evaluate(params: Params, kept: Checkpoint, headroom: GymHeadroom, told: Progress) -> GymEvaluation:
    """Let the trained policy play the episodes of the headroom, and compare it with everyone there."""
    learned, results, actions = Learned.of(kept), dict[str, Scores](), dict[str, Actions]()
    for done, name in enumerate(params.evaluate.policies, start=1):
        parts = _played(params, lambda env, name=name: trained(learned, env, name, params.rng_seed))
        results[name] = _scores(parts)
        actions[name] = as_text([episode for part in parts for episode in part.actions][:RECORDED])
        told("played to the end", done, len(params.evaluate.policies))
    results |= headroom.policies
    returns = {name: scores.returns for name, scores in results.items()}
    return GymEvaluation(
        checkpoint=params.evaluate.checkpoint,
        checkpoint_iteration=kept.manifest.iteration,
        machine=describe(params.runtime, torch.device("cpu"), params.train.envs),
        env_steps=int(kept.manifest.scalars["env_steps"] or 0),
        data_sha256=headroom.data_sha256,
        rng_seed=params.rng_seed,
        eval_seeds=params.evaluate.eval_seeds,
        policies={name: summary(scores, params.rng_seed) for name, scores in results.items()},
        comparisons=statistics.compare_with_all(LEARNED, returns, params.rng_seed),
        actions=actions,
        peer=headroom.peer,
    )


def summary(scores: Scores, rng_seed: int) -> GymResult:
    """Summarize the episodes of one policy."""
    returns = np.array(scores.returns)
    return GymResult(
        mean_return=statistics.mean_interval(returns),
        iqm_return=statistics.interquartile_interval(returns, rng_seed),
        mean_length=float(np.mean(scores.lengths)),
        per_seed=scores,
    )


def metrics(evaluation: GymEvaluation) -> str:
    """Return the few numbers that are followed from run to run, as JSON."""
    numbers = {f"return/{name}": result.mean_return.estimate for name, result in evaluation.policies.items()}
    numbers |= {f"over/{each.second}": each.difference.estimate for each in evaluation.comparisons}
    return json.dumps(numbers, indent=2) + "\n"


def said(evaluation: GymEvaluation) -> tuple[str, str]:
    """Return the result and the comparison in a sentence each."""
    learned = evaluation.policies.get(LEARNED)
    if learned is None:
        return "the trained policy was not evaluated", "none"
    others = [
        f"{each.difference.estimate:+.2f} [{each.difference.low:+.2f}, {each.difference.high:+.2f}] over {each.second}"
        for each in evaluation.comparisons
        if each.second not in (SAMPLED, BLIND)
    ]
    score = learned.mean_return
    return (
        f"return {score.estimate:.2f} [{score.low:.2f}, {score.high:.2f}] in {evaluation.eval_seeds} fresh episodes",
        "; ".join(others) or "with nobody",
    )


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
    """Return a line for everyone who played: mean return and its interval."""
    lines = [f"environment  {headroom.eval_seeds} fresh episodes each; peer: {headroom.peer}"]
    for name, scores in headroom.policies.items():
        mean = statistics.mean_interval(scores.returns)
        lines.append(f"{name:<12} {mean.estimate:.2f} [{mean.low:.2f}, {mean.high:.2f}]")
    return "\n".join(lines)


def as_text(episodes: Sequence[np.ndarray]) -> Actions:
    """Write the actions ``[T, heads]`` of each episode step by step, as they are recorded."""
    return tuple(tuple(" ".join(map(str, step)) for step in actions.tolist()) for actions in episodes)


# --- who plays ---


def _played(params: Params, player: Callable[[AnyGym], Decide], namespace: int = EVALUATION) -> list[PlayedEpisodes]:
    """Play one episode for each evaluation seed, as many side by side as in training."""
    played = []
    for env_ids in torch.arange(params.evaluate.eval_seeds).split(params.train.envs):
        env = open_gym(params.prepare.gym, params.rng_seed, env_ids, namespace)
        try:
            played.append(play(env, player(env)))
        finally:
            env.close()
    return played


def _scores(parts: Sequence[PlayedEpisodes]) -> Scores:
    """Return the returns and lengths of all episodes."""
    returns, lengths = (tuple(x for part in parts for x in getattr(part, name)) for name in ("returns", "lengths"))
    return Scores(returns=returns, lengths=lengths)


def _noise(env: AnyGym, rng_seed: int, purpose: rng.Purpose) -> Callable[[int], Tensor]:
    """Return uniform numbers ``[E, heads]`` for each step."""
    heads = len(env.action_spec.heads)
    return lambda step: rng.uniform(rng.key(rng_seed, purpose, EVALUATION, env.env_ids, step), (heads,))


def trained(learned: Learned, env: AnyGym, name: str, rng_seed: int) -> Decide:
    """Return who decides as the trained policy of that name: greedy, sampled or blind."""
    noise = _noise(env, rng_seed, rng.Purpose.ACTION) if name == SAMPLED else None
    return policy_decides(learned.policy, learned.normalizers, env.num_envs, noise, blind=name == BLIND)


def _random(env: AnyGym, rng_seed: int) -> Decide:
    """Return who takes each legal choice with the same probability."""
    noise = _noise(env, rng_seed, rng.Purpose.BASELINE)
    return lambda observation, starts, step: random_legal(env.action_spec, observation, noise(step))


def _by_rule(rule: Rule) -> Callable[[AnyGym], Decide]:
    def player(env: AnyGym) -> Decide:
        histories: list[list[np.ndarray]] = [[] for _ in range(env.num_envs)]
        first = [head.first for head in env.action_spec.heads]

        def decide(observation: Observation, starts: Tensor, step: int) -> Tensor:
            taken = []
            for row, history in enumerate(histories):
                if starts[row]:
                    history.clear()
                history.append(observation.features[row].cpu().numpy())
                masks = {name: mask[row].cpu().numpy() for name, mask in observation.masks.items()}
                taken.append(np.atleast_1d(rule(history, masks)) - first)
            return torch.from_numpy(np.stack(taken).astype(np.int64)).to(observation.features.device)

        return decide

    return player
