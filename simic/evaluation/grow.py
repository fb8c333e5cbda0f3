"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue

from simic.data.batches import load_split, load_test, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.baselines import Actor, Episode, Situation
from simic.evaluation.policies import BASELINES, LearnedActor, refuse_other_task
from simic.growth.export import export_network
from simic.growth.vocabulary import Action, Op
from simic.params import Train
from simic.training.learned import Learned


@dataclass(frozen=True)
class Grown:
    """What was exported; accuracies in points, of the committed network."""

    path: Path
    host: int
    val_accuracy_pct: float
    test_accuracy_pct: float
    host_params: int
    params: int


def grow(train: Train, rng_seed: int, prepared: Path, policy: str | Learned, hosts: int, out: Path) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy.

    ``policy`` is a trained one or the name of a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: exists already; choose another --out or remove it")
    training, validation = load_split(prepared, "train"), load_split(prepared, "val")
    env = GrowthEnv(train, rng_seed, training, validation, torch.arange(hosts))
    decisions, params = _play(env, _actor(policy, env))
    score = env.state.measured.committed_accuracy
    best = int(score.nan_to_num(-1.0).argmax())
    accuracy, _ = env.committed(load_test(prepared))
    meta = read_meta(prepared)
    # The network was trained on standardised inputs: whoever uses it needs these two.
    preprocessing: JsonValue = {"input": "(x - mean) / std", "mean": [*meta.mean], "std": [*meta.std]}
    history: list[JsonValue] = [{"preprocessing": preprocessing}, *decisions[best]]
    export_network(env.population, env.slots, best, out, history, committed=True)
    return Grown(
        path=out,
        host=best,
        val_accuracy_pct=float(score[best]),
        test_accuracy_pct=float(accuracy[best]),
        host_params=env.host.params,
        params=params[best],
    )


def _actor(policy: str | Learned, env: GrowthEnv) -> Actor:
    if isinstance(policy, Learned):
        refuse_other_task(policy, env)
        return LearnedActor(policy, greedy=True)
    if policy not in BASELINES:
        raise SimicError(f"policy {policy!r}: must be learned, a policy's directory, or one of {', '.join(BASELINES)}")
    return BASELINES[policy](env)


def _play(env: GrowthEnv, actor: Actor) -> tuple[list[list[JsonValue]], list[int]]:
    """One episode; per host, what was decided with the accuracy then, and the committed network's parameters."""
    observation, _ = env.reset(options={"iteration": 0})
    actor.start(Episode(env.env_ids, 0, env.rng_seed))
    histories: list[list[JsonValue]] = [[] for _ in range(env.num_envs)]
    params: list[int] = []
    for step in range(env.steps):
        action = actor.act(Situation(observation, env.slots, env.state.tracker, step))
        observation, _, _, _, info = env.step(action)
        live, params = info.live_accuracy.tolist(), info.committed_params.tolist()
        for row, history in enumerate(histories):
            history.append({"step": step + 1, "live_accuracy_pct": round(live[row], 3), **_decision(env, action, row)})
    return histories, params


def _decision(env: GrowthEnv, action: Action, row: int) -> dict[str, JsonValue]:
    op = Op(int(action.op[row]))
    if op is Op.WAIT:
        return {}
    took_effect = int(env.state.effective_op[row]) == op
    found: dict[str, JsonValue] = {"op": op.name, "slot": int(action.slot[row]), "took_effect": took_effect}
    if op is Op.GERMINATE:
        found["blueprint"] = env.blueprints[int(action.blueprint[row])].name
    return found
