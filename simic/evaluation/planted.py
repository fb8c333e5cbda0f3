"""Grade a policy on a generated task whose best growth decision is known (``simic.data.synthetic``)."""

import torch
from torch import Tensor

from simic.data.bank import SPLITS, standardised
from simic.data.batches import Dataset
from simic.data.synthetic import Planted
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.params import Train
from simic.training.learned import Learned

TASKS = 8  # draws of the generator, each with one host
PLANTED_ITERATION = 1 << 44  # a namespace of its own: hosts that no other episode has seen
SHARES = (0.6, 0.2, 0.2)  # of the samples of a task


def environment(planted: Planted, train: Train, rng_seed: int, device: torch.device) -> GrowthEnv:
    """Open draws of the task, a host on each, trained and budgeted as the task asks, else as the controller's."""
    optimizer = {"name": planted.optimizer, "learning_rate": planted.learning_rate}
    changes = {
        "host": planted.host,
        "batches_per_epoch": planted.batches_per_epoch,
        "batch_size": planted.batch_size,
        "host_optimizer": train.host_optimizer.model_copy(update=optimizer),
        "lifecycle": train.lifecycle.model_copy(update={"param_budget": planted.param_budget, "auto_advance": True}),
    }
    data = _data(planted, rng_seed, device)
    settings = train.model_copy(update=changes)
    return GrowthEnv(settings, rng_seed, data["train"], data["val"], torch.arange(TASKS), device)


def _data(planted: Planted, rng_seed: int, device: torch.device) -> dict[str, Dataset]:
    """Return train, val and test split of all draws, one after another."""
    draws: dict[str, list[Tensor]] = {}
    for task in range(TASKS):
        x, y = planted.generate(rng_seed + task, planted.samples)
        sizes = [round(share * len(x)) for share in SHARES]
        parts = zip(SPLITS, x.split(sizes), y.split(sizes), strict=True)
        arrays, *_ = standardised({split: (own, labels) for split, own, labels in parts}, tokens=False)
        for name, values in arrays.items():
            draws.setdefault(name, []).append(values if values.is_floating_point() else values.long())
    whole = {name: torch.cat(values).to(device) for name, values in draws.items()}
    classes = (planted.classes,) * TASKS
    return {split: Dataset(whole[f"x_{split}"], whole[f"y_{split}"], planted.classes, classes) for split in SPLITS}


def grade(planted: Planted, learned: Learned, rng_seed: int, device: torch.device) -> tuple[float, float, float]:
    """Let the policy play draws of the task that it was trained on, greedily. Return the shares of them on which it
    germinated the best seed first, and on which it kept it, and the mean accuracy in points on the validation splits.
    """
    env = environment(planted, learned.train, rng_seed, device)
    slot, kind = planted.slot, [item.name for item in env.blueprints].index(planted.blueprint)
    first = torch.full((TASKS, 2), -1, device=device)

    def note(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        new = (action.op == Op.GERMINATE) & (first[:, 0] < 0)
        first[new] = torch.stack((action.slot, action.blueprint), dim=1)[new]

    play(env, learned.actor(greedy=True), PLANTED_ITERATION, note, env.env_ids)
    germinated = (first == torch.tensor((slot, kind), device=device)).all(dim=1)
    kept = (env.slots.stage[:, slot] == Stage.FOSSILIZED) & (env.slots.blueprint[:, slot] == kind)
    counted = germinated, kept, env.state.measured.committed_accuracy
    first_share, kept_share, accuracy = (float(values.double().mean()) for values in counted)
    return first_share, kept_share, accuracy
