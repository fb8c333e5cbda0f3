"""Grade the learned policy on generated tasks whose best growth decision is known (``simic.data.synthetic``)."""

import torch
from torch import Tensor

from simic.data.bank import SPLITS, standardised
from simic.data.batches import Dataset
from simic.data.synthetic import PLANTED, Planted
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.evaluation.result import PlantedGrade
from simic.evaluation.statistics import mean_interval
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


def grade(learned: Learned, rng_seed: int, device: torch.device) -> PlantedGrade | None:
    """Grade on the planted task of its family of hosts; None where there is none, or none that it can decide: with
    other slots, or with the best seed closed by ``train.actions``.
    """
    for planted in PLANTED.values():
        if planted.host.family == learned.train.host.family:
            env = environment(planted, learned.train, rng_seed, device)
            best = planted.slot, [item.name for item in env.blueprints].index(planted.blueprint)
            specs = learned.policy.observation_spec.of_actor, learned.policy.action_spec
            fits = (env.observation_spec.of_actor, env.action_spec) == specs
            return _played(env, learned, planted, best) if fits and bool(env.openings[best]) else None
    return None


def _played(env: GrowthEnv, learned: Learned, planted: Planted, best: tuple[int, int]) -> PlantedGrade:
    first = torch.full((TASKS, 2), -1, device=env.device)

    def note(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        new = (action.op == Op.GERMINATE) & (first[:, 0] < 0)
        first[new] = torch.stack((action.slot, action.blueprint), dim=1)[new]

    play(env, learned.actor(greedy=True), PLANTED_ITERATION, note, env.env_ids)
    slots, (slot, kind) = env.slots, best
    kept = (slots.stage[:, slot] == Stage.FOSSILIZED) & (slots.blueprint[:, slot] == kind)
    germinated = (first == torch.tensor(best, device=env.device)).all(dim=1)
    return PlantedGrade(
        task=planted.name,
        slot=slot,
        blueprint=planted.blueprint,
        tasks=TASKS,
        openings=int(env.openings.sum()),
        first=float(germinated.double().mean()),
        kept=float(kept.double().mean()),
        score=mean_interval(env.state.measured.committed_accuracy.double().tolist()),
    )
