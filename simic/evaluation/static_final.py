"""Was growing worth it? The network that a policy ended with, trained from the first step with every seed in place."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic.data.batches import Dataset, epoch_order
from simic.evaluation.costs import BACKWARD_AND_FORWARD, epoch_samples
from simic.evaluation.result import Fixed
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Shards, recovered
from simic.growth.life.vocabulary import Slots, Stage
from simic.params import Train

KEPT_OF_A_SEED = ("stage", "blueprint", "operator", "alpha", "alpha_target", "germinations")


@dataclass(frozen=True)
class Regime:
    """How networks are trained and scored: as the hosts of the episode ``iteration`` whose tasks are ``tasks [E]``, in
    the same order of samples.
    """

    train: Train
    data: Dataset
    test: Dataset
    tasks: Tensor
    iteration: int

    @property
    def epoch_flops_per_flop(self) -> int:
        """FLOPs of an epoch over those of one sample's forward pass."""
        return BACKWARD_AND_FORWARD * epoch_samples(self.train, len(self.data))

    def run(self, population: Population | Shards, slots: Slots, epochs: Tensor) -> list[Fixed]:
        """Fresh networks with the seeds of ``slots`` from the start, scored after each row of ``epochs [R, E]``; the
        population ends after the last. A row that has had its epochs goes on and is scored no more. Answers that are
        not finite are wrong ones.
        """
        accuracy = recovered(population, lambda: self._accuracy(population, slots, epochs))
        params = population.host.params + population.seed_params(slots).sum(dim=1)
        flops = population.host.flops_per_sample + population.seed_flops(slots).sum(dim=1)
        return [
            Fixed(
                test_accuracy_pct=tuple(round(value, 4) for value in row.double().tolist()),
                epochs=tuple(count.tolist()),
                params=tuple(params.tolist()),
                flops_per_sample=tuple(flops.tolist()),
                training_flops=tuple((count * self.epoch_flops_per_flop * flops).tolist()),
            )
            for row, count in zip(accuracy, epochs, strict=True)
        ]

    def _accuracy(self, population: Population | Shards, slots: Slots, epochs: Tensor) -> Tensor:
        """On the test split, ``[R, E]`` points."""
        present = slots.blueprint >= 0
        population.reset(self.iteration, self.tasks)
        population.germinate(slots, present, self.data)
        accuracy = torch.zeros(epochs.shape, device=epochs.device)
        for epoch in range(1, int(epochs.max()) + 1):
            self._train(population, slots, epoch)
            due = epochs == epoch
            if due.any():
                answers = population.evaluate(slots, self.test, torch.zeros_like(present)[None])
                accuracy = torch.where(due, 100.0 * answers.correct[0].float().mean(dim=1), accuracy)
        return accuracy

    def _train(self, population: Population | Shards, slots: Slots, epoch: int) -> None:
        """One epoch, as the environment's step of that number."""
        where = population.rng_seed, self.iteration, population.env_ids, epoch
        order = epoch_order(*where, len(self.data), self.train.batch_size, self.train.batches_per_epoch)
        order = order + (self.tasks * len(self.data))[:, None, None]
        population.train_epoch(slots, self.data, order)


def static_final(
    population: Population | Shards, regime: Regime, final: Slots, spent: Tensor, epochs: int
) -> tuple[Fixed, Fixed]:
    """The FOSSILIZED seeds of ``final`` present and training from the first step, with the weights that they began
    with: for as many ``epochs`` as the episode had, and for as many as ``spent`` pays.

    ``spent [E]`` int64 are the FLOPs of the policy's episode without validation; what is left of an epoch is not
    trained, but one epoch is. A host with nothing kept is the static network. The population is reset.
    """
    slots = from_the_start(final)
    flops = population.host.flops_per_sample + population.seed_flops(slots).sum(dim=1)
    affordable = (spent // (regime.epoch_flops_per_flop * flops)).clamp(min=1)
    equal = torch.full_like(affordable, epochs)
    as_long, as_dear = regime.run(population, slots, torch.stack((equal, affordable)))
    return as_long, as_dear


def from_the_start(final: Slots) -> Slots:
    """Slots that hold what is FOSSILIZED in ``final`` and nothing else; the number of the germination names the stream
    of a seed's first weights.
    """
    kept, empty = final.stage == Stage.FOSSILIZED, Slots.empty(*final.shape, device=final.stage.device)
    columns = {name: torch.where(kept, getattr(final, name), getattr(empty, name)) for name in KEPT_OF_A_SEED}
    return replace(empty, **columns)
