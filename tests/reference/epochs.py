"""Training and validation of one host in float64, minibatch after minibatch, with the textbook optimisers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.params import HostOptimizer
from tests.reference.bank import Samples
from tests.reference.life import FOSSILIZED, GATE, TRAINING, Slot
from tests.reference.networks import Anatomy, Block, Weights, logits, part_of

BETAS = (0.9, 0.99)
EPS = 1e-8
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_
LEAST_NORM = 1e-8
MOST_RATIO = 10.0
EXPLODED = 10.0  # times the clip
NAN = math.nan


@dataclass(frozen=True)
class Epoch:
    """Hold the statistics of an epoch: loss in nats, accuracy in points, gradient norms before clipping; NaN for seeds
    that took no part.
    """

    loss: float
    accuracy: float
    host_norm: float
    seed_norms: list[float]
    ratios: list[float]
    healthy: list[bool]


@dataclass
class HostTrainer:
    body: Anatomy
    weights: Weights
    slots: Sequence[Slot]
    optimizer: HostOptimizer
    task_classes: int

    def epoch(self, batches: Sequence[tuple[Tensor, Tensor]]) -> Epoch:
        blocks = self.blocks()
        losses, hits, norms = zip(*[self._step(blocks, x, y) for x, y in batches], strict=True)
        mean = {name: fmean(norm[name] for norm in norms) for name in blocks}
        host = mean["host"]
        seeds = [mean.get(f"seed.{k}", NAN) for k in range(len(self.slots))]
        ratios = []
        for k, slot in enumerate(self.slots):
            size = part_of(self.body, k, slot.seed.blueprint).params if slot.learns else 1
            ratios.append(_ratio(seeds[k], size, host, self.body.params))
        healthy = [norm <= EXPLODED * self.optimizer.max_grad_norm for norm in seeds]
        return Epoch(fmean(losses), 100.0 * fmean(hits), host, seeds, ratios, healthy)

    def blocks(self) -> dict[str, tuple[Block, bool]]:
        """Return all blocks that take part, named ``host``, ``seed.0``, ``gate.0``, …, each with whether it is frozen:
        parameters and moments stay.
        """
        blocks = {"host": (self.weights.host, False)}
        for k, slot in enumerate(self.slots):
            if slot.learns:
                blocks[f"seed.{k}"] = self.weights.seeds[k], slot.frozen
                if slot.seed.operator == GATE and slot.stage != TRAINING:
                    blocks[f"gate.{k}"] = self.weights.gates[k], slot.frozen
        return blocks

    def _step(
        self, blocks: dict[str, tuple[Block, bool]], x: Tensor, y: Tensor
    ) -> tuple[float, float, dict[str, float]]:
        """Take the step of one minibatch; return loss and share of right answers before it, and the gradients' norms
        by block.
        """
        leaves = [
            value.requires_grad_()
            for block, _ in blocks.values()
            for value in block.trained.values()
        ]
        running = [k for k, slot in enumerate(self.slots) if slot.learns]
        scores = among(logits(self.body, self.weights, self.slots, running, x), self.task_classes)
        loss = F.cross_entropy(scores, y)
        grads = iter(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
        norms = {}
        with torch.no_grad():
            for name, (block, frozen) in blocks.items():
                own = {key: next(grads) for key in block.trained}
                norms[name] = math.sqrt(
                    math.fsum(float(grad.square().sum()) for grad in own.values())
                )
                if not frozen:
                    scale = min(1.0, self.optimizer.max_grad_norm / (norms[name] + CLIP_EPS))
                    stepped(block, {key: grad * scale for key, grad in own.items()}, self.optimizer)
        for leaf in leaves:
            leaf.requires_grad_(False)
        return float(loss.detach()), float((scores.argmax(1) == y).double().mean()), norms


def _ratio(seed: float, seed_size: int, host: float, host_size: int) -> float:
    """Return the ratio of root mean square gradients, seed over host."""
    if math.isnan(seed):
        return NAN
    if min(seed, host) < LEAST_NORM:
        return 0.0
    return min(
        MOST_RATIO, (seed / math.sqrt(seed_size)) / (host / math.sqrt(host_size) + LEAST_NORM)
    )


def among(scores: Tensor, classes: int) -> Tensor:
    """Return logits with those of classes that the task does not have at −∞."""
    return scores.masked_fill(torch.arange(scores.shape[-1]) >= classes, -math.inf)


def stepped(block: Block, grads: dict[str, Tensor], optimizer: HostOptimizer) -> None:
    """Take one step in place: SGD with momentum, or AdamW (arXiv 1711.05101)."""
    rate = optimizer.learning_rate
    block.steps += 1
    for name, grad in grads.items():
        value = block.values[name]
        first = block.first.get(name, 0.0)
        second = block.second.get(name, 0.0)
        if optimizer.name == "sgd":
            block.first[name] = optimizer.momentum * first + grad + block.decay * value
            value.sub_(rate * block.first[name])
            continue
        block.first[name] = BETAS[0] * first + (1 - BETAS[0]) * grad
        block.second[name] = BETAS[1] * second + (1 - BETAS[1]) * grad**2
        unbiased = block.first[name] / (1 - BETAS[0] ** block.steps)
        spread = (block.second[name] / (1 - BETAS[1] ** block.steps)).sqrt()
        value.copy_(value - rate * block.decay * value - rate * unbiased / (spread + EPS))


On = frozenset[int]  # slots whose seeds are on


@dataclass(frozen=True)
class Answers:
    """Hold a network's answers: which samples are right ``[N]``, the mean loss in nats, and the lead of the best class
    over the next ``[N]``.
    """

    correct: Tensor
    loss: float
    lead: Tensor


@dataclass(frozen=True)
class Validation:
    """Hold accuracies in points and the loss in nats; by slot, NaN where the seed does not act (of interactions, where
    no other does). ``boost`` is the largest interaction with another seed, at least 0; ``lead`` ``[N]`` the closest
    that a sample's two best classes are in any of the three networks.
    """

    accuracy: float
    all_off_accuracy: float
    committed_accuracy: float
    loss: float
    contribution: list[float]
    contribution_se: list[float]
    interaction: list[float]
    boost: list[float]
    lead: Tensor


@torch.no_grad()
def answers(
    body: Anatomy, weights: Weights, slots: Sequence[Slot], on: On, samples: Samples, classes: int
) -> Answers:
    """Return the answers of the network with these seeds on, at their present alpha."""
    scores = among(logits(body, weights, slots, on, samples.x), classes)
    best = scores.topk(2, dim=1).values
    loss = float(F.cross_entropy(scores, samples.y))
    return Answers((scores.argmax(1) == samples.y).double(), loss, best[:, 0] - best[:, 1])


def validate(slots: Sequence[Slot], network: Callable[[On], Answers]) -> Validation:
    """Return all that a step measures. The interaction of seeds i and j is f(i and j) − f(i) − f(j) + f(none), that of
    a seed the sum over its partners.
    """
    acting = frozenset(k for k, slot in enumerate(slots) if slot.acts)
    kept = frozenset(k for k in acting if slots[k].stage == FOSSILIZED)
    main = network(acting)
    none = network(frozenset())
    committed = network(kept)
    contribution, contribution_se, interaction, boost = ([NAN] * len(slots) for _ in range(4))
    for k in acting:
        gain = main.correct - network(acting - {k}).correct
        contribution[k] = points(gain)
        contribution_se[k] = 100.0 * float(gain.std()) / math.sqrt(len(gain))
        surplus = []
        for other in sorted(acting - {k}):
            both, first, second = (
                network(frozenset(on)).correct for on in ({k, other}, {k}, {other})
            )
            surplus.append(points(both - first - second + none.correct))
        if surplus:
            interaction[k] = math.fsum(surplus)
            boost[k] = max(0.0, *surplus)
    return Validation(
        accuracy=points(main.correct),
        all_off_accuracy=points(none.correct),
        committed_accuracy=points(committed.correct),
        loss=main.loss,
        contribution=contribution,
        contribution_se=contribution_se,
        interaction=interaction,
        boost=boost,
        lead=torch.stack([main.lead, none.lead, committed.lead]).amin(dim=0),
    )


def points(values: Tensor) -> float:
    return 100.0 * float(values.mean())
