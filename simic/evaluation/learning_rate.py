"""A baseline runs at its own best setting: the hosts' learning rate is chosen for each policy, on validation."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from torch import Tensor

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, Situation, play
from simic.envs.records import StepInfo
from simic.evaluation.costs import Meter
from simic.growth.batch.shards import recovered
from simic.growth.life.vocabulary import Action
from simic.params import Train

FACTORS = (0.4, 1.0, 2.5)  # of the learning rate that the params give


@dataclass(frozen=True)
class ChosenRate:
    """``tried`` learning rates with their mean committed validation accuracies in points, and what trying them cost:
    host trainings, and FLOPs without validation.
    """

    learning_rate: float
    tried: tuple[float, ...]
    val_accuracy_pct: tuple[float, ...]
    host_trainings: int
    training_flops: int


def best_learning_rate(
    train: Train,
    make: Callable[[Train], GrowthEnv],
    actor: Callable[[GrowthEnv], Actor],
    tasks: Tensor,
    iteration: int,
) -> ChosenRate:
    """The learning rate of hosts with which ``actor`` ends best on ``tasks [E]``, which are tasks of training;
    ``make`` builds the environment of given params. Of equals, the first.
    """
    rates = tuple(round(factor * train.host_optimizer.learning_rate, 10) for factor in FACTORS)
    scores, flops = [], 0
    for rate in rates:
        optimizer = train.host_optimizer.model_copy(update={"learning_rate": rate})
        env = make(train.model_copy(update={"host_optimizer": optimizer}))
        with closing(env):
            score, spent = _episode(env, actor(env), tasks, iteration)
        scores.append(score)
        flops += spent
    best = max(range(len(rates)), key=scores.__getitem__)
    return ChosenRate(rates[best], rates, tuple(scores), len(rates) * len(tasks), flops)


def _episode(env: GrowthEnv, actor: Actor, tasks: Tensor, iteration: int) -> tuple[float, int]:
    """Mean committed validation accuracy at its end, and what its training cost."""

    def played() -> Meter:
        meter = Meter.of(env)

        def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
            meter.add(info)

        play(env, actor, iteration, add, tasks)
        return meter

    meter = recovered(env.population, played)
    return float(env.state.measured.committed_accuracy.double().mean()), int(meter.training.sum())
