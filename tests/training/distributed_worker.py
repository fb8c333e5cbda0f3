"""One of several processes that learn together on a world of tensors."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from simic import params
from simic.agent.normalization import Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import collect
from simic.training.ranks import Ranks, joined
from tests import standard
from tests.agent.worlds import SEEN, TensorWorld, episodes, make_policy

ENVS, STEPS = 8, 6
CASES = {  # the core, and changed settings
    "per_head": (
        "lstm",
        {"ratio": "per_head", "entropy_scale": {"op": 2.0}, "learning_rate_schedule": "linear"},
    ),
    "no_memory": ("none", {}),
    "stops": ("lstm", {"target_kl": 1e-3}),
}


def learn(ranks: Ranks, case: str) -> dict:
    """Three updates with every scale; what all processes must agree on."""
    core, changes = CASES[case]
    settings = standard.PPOParams(
        **({"learning_rate": 1e-2, "minibatches": 3, "target_kl": 0.05} | changes)
    )
    policy = make_policy(core).double()
    env_ids = torch.arange(ENVS)
    ppo = PPO(policy, settings, 1, total_updates=3, reduce=ranks.reduce, all_env_ids=env_ids)
    local_ids = ranks.env_ids(ENVS)
    world = TensorWorld(local_ids.tolist(), episodes(ENVS, STEPS).ends)
    normalizers = Normalizers(ObservationNormalizer(SEEN), RewardNormalizer(len(local_ids), 0.9))
    metrics = []
    for iteration in range(3):
        rollout, _ = collect(world, policy, normalizers, iteration, 1, STEPS)
        experience = rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        rewards = normalizers.update(*experience, ranks.reduce)
        rollout = with_advantages(rollout, rewards, 0.9, 0.8)
        metrics.append(asdict(ppo.update(rollout, iteration)))
    scales = normalizers.state_dict()
    scales["reward.running"] = ranks.whole(scales["reward.running"])
    weights = torch.cat(
        [parameter.detach().double().flatten() for parameter in policy.parameters()]
    )
    return {
        "weights": weights.tolist(),
        "scales": {name: tensor.tolist() for name, tensor in scales.items()},
        "metrics": metrics,
        "learning_rate": ppo.learning_rate(),
    }


def learn_all(out: Path) -> None:
    """Write what this process has learned in every case."""
    torch.set_num_threads(1)
    with joined(params.Runtime(device="cpu")) as ranks:
        results = {case: learn(ranks, case) for case in CASES}
        out.with_suffix(f".{ranks.rank}").write_text(json.dumps(results))
