"""Assemble a training from its params and prepared data: the task and the state that learns it."""

from pathlib import Path

import torch
from torch import Tensor

from simic import threads
from simic.agent.learner import build_learner
from simic.agent.normalization import REWARD_CLIP
from simic.data.batches import load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import MODES
from simic.errors import SimicError
from simic.params import Params, Runtime
from simic.training import worker_layout
from simic.training.growth_task import GrowthTask
from simic.training.gym_task import GymTask, opened
from simic.training.ranks import ALONE, Ranks
from simic.training.state import TrainState


def runtime_for(params: Params, ranks: Ranks) -> Runtime:
    """Choose where training can run: Gymnasium's own environments are on the CPU; SimicError where they cannot."""
    if not params.prepare.is_gym:
        return params.runtime
    if ranks.size > 1:
        raise SimicError(
            "prepare.task = 'gym': trains in one process; start simic train without torchrun"
        )
    # An environment on tensors chooses its device itself.
    if params.prepare.gym.vector == "tensors":
        return params.runtime
    if params.runtime.device == "cuda":
        raise SimicError(
            "runtime.device = 'cuda': Gymnasium's environments are on the CPU; use cpu or auto"
        )
    return params.runtime.model_copy(update={"device": "cpu"})


def hosts_together(
    params: Params, device: torch.device, ranks: Ranks = ALONE, group: int | None = None
) -> int:
    """Choose how many hosts of this process are computed together; in one of torchrun's it is all of them.

    Args:
        params: The whole of params.yaml.
        device: Where hosts are.
        ranks: The processes of torchrun.
        group: As an earlier life of the run had them; None: chosen anew.
    """
    # Torchrun has shared them out already; those of Gymnasium have processes of their own.
    if ranks.size > 1 or params.prepare.is_gym:
        threads.set_count(1)
        return len(ranks.env_ids(params.train.envs))
    return worker_layout.hosts_together(params.runtime, params.train.envs, device, group)


def assemble(
    params: Params,
    prepared_dir: Path,
    device: torch.device,
    ranks: Ranks = ALONE,
    group: int | None = None,
) -> TrainState:
    """Assemble the state of a training before its first iteration, with its task.

    Args:
        params: The whole of params.yaml.
        prepared_dir: The prepared data.
        device: Where policy and environments are.
        ranks: The processes of torchrun.
        group: Hosts that are computed together; by default as ``hosts_together`` says.
    """
    train = params.train
    # The environments of this process.
    env_ids = ranks.env_ids(train.envs)
    if params.prepare.is_gym:
        env = opened(params, prepared_dir, env_ids.to(device))
        reward_clip = REWARD_CLIP
    else:
        group = group or hosts_together(params, device, ranks)
        env = _growth_env(params, prepared_dir, device, env_ids, group)
        # Without a clip where shaping is paid: it would no longer telescope. Outliers are the audit's to find.
        reward_clip = None if "shaping" in MODES[train.reward.mode] else REWARD_CLIP
    # The learner, on what the environments show and take.
    learner = build_learner(
        env.action_spec,
        env.observation_spec,
        train.policy,
        train.ppo,
        params.rng_seed,
        env.num_envs,
        # With a horizon, a run that is made longer goes on with the schedules that it began with.
        total_updates=train.horizon or train.iterations,
        device=device,
        reward_clip=reward_clip,
        reduce=ranks.reduce,
        all_env_ids=torch.arange(train.envs),
    )
    task = GrowthTask(env) if isinstance(env, GrowthEnv) else GymTask(params, learner.policy, env)
    return TrainState(learner.ppo, learner.normalizers, task, ranks)


def _growth_env(
    params: Params, prepared_dir: Path, device: torch.device, env_ids: Tensor, group: int
) -> GrowthEnv:
    """Open the environments of this process."""
    meta = read_meta(prepared_dir)
    names, kinds = meta.kinds()
    return GrowthEnv(
        params.train,
        params.rng_seed,
        load_split(prepared_dir, "train", device),
        load_split(prepared_dir, "val", device),
        env_ids,
        device,
        params.runtime.backend,
        train_tasks=len(meta.of_group("train")),
        kinds=kinds if len(names) > 1 else [],  # of one kind there is nothing to tell
        group=group,
    )
