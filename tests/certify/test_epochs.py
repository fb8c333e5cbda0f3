"""Optimisers of the reference are torch's, and seeds reach their hosts as they are to."""

import pytest
import torch
from torch import Tensor

from simic.certify import life, streams
from simic.certify.epochs import Block, Memory, PartLearner, stepped
from simic.certify.life import Seed, Slot
from simic.certify.networks import Weights, anatomy, host_parts, logits, part_of
from simic.params import Host
from tests import standard

BODY = anatomy(Host(family="cnn", preset="impaired", widths=(8, 8)), (1, 8, 8), 3)
X = torch.linspace(-1, 1, 6 * 64, dtype=torch.float64).sin().reshape(6, 1, 8, 8)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def learner(stage: int, operator: int = life.ADD, alpha: float = 0.0) -> PartLearner:
    """Return a host with a bottleneck in its first slot."""
    host, seed = {}, part_of(BODY, 0, 3).draw(streams.key(9, 0))
    for number, (lead, piece) in enumerate(host_parts(BODY)):
        host |= {lead + name: value for name, value in piece.draw(streams.key(number, 0)).items()}
    seed["up.weight"] += 0.1  # as if it had learned already
    weights = Weights(host, [seed, None], [BODY.gates[0].draw(streams.key(8, 0)), None])
    slots = [Slot(stage, seed=Seed(blueprint=3, operator=operator, alpha=alpha, alpha_target=1.0)), Slot()]
    memories = {name: Memory() for name in ("host", "seed.0", "gate.0")}
    return PartLearner(
        BODY, weights, slots, memories, standard.HostOptimizer(name="sgd"), host_frozen=False, task_classes=3
    )


def answers(of: PartLearner, on: set[int]) -> Tensor:
    with torch.no_grad():
        return logits(BODY, of.weights, of.slots, on, X)


def seed_of(of: PartLearner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in (of.weights.seeds[0] or {}).items()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return any(not torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_are_those_of_torch(name: str) -> None:
    optimizer = standard.HostOptimizer(name=name, learning_rate=0.1, weight_decay=0.01)  # pyright: ignore[reportArgumentType]
    value = torch.linspace(-1, 1, 5, dtype=torch.float64)
    theirs = value.clone().requires_grad_()
    torchs = (
        torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
        if name == "sgd"
        else torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01, betas=(0.9, 0.99))
    )
    block = Block({"w": value}, Memory(), decay=0.01)
    for n in range(4):
        grad = (value.detach() * (n + 1)).cos()
        theirs.grad = grad.clone()
        torchs.step()
        stepped(block, {"w": grad}, optimizer)
        assert torch.allclose(value, theirs.detach(), rtol=0, atol=1e-15)


def test_a_seed_in_training_learns_and_leaves_its_host_as_it_would_be() -> None:
    bare, trains = learner(life.GERMINATED), learner(life.TRAINING)
    assert torch.equal(answers(trains, {0}), answers(trains, set()))
    fresh = seed_of(trains)
    bare.epoch([(X, Y)])
    trains.epoch([(X, Y)])
    assert moved(fresh, seed_of(trains))
    # Rounding alone: what the host's gradient is summed from is the same.
    host = trains.weights.host
    assert all(torch.allclose(host[name], value, rtol=0, atol=1e-15) for name, value in bare.weights.host.items())


def test_a_seed_that_fades_out_stays_as_it_is() -> None:
    fades = learner(life.BLENDING, alpha=0.5)
    fades.slots[0].seed.ramp = life.DOWN
    before, told = seed_of(fades), fades.epoch([(X, Y)])
    assert not moved(before, seed_of(fades)) and fades.memories["seed.0"].steps == 0
    assert told.seed_norms[0] > 0


@pytest.mark.parametrize(
    ("stage", "operator", "trains"),
    [(life.TRAINING, life.GATE, False), (life.BLENDING, life.GATE, True), (life.BLENDING, life.ADD, False)],
)
def test_only_a_blended_seed_with_a_gate_trains_its_gate(stage: int, operator: int, trains: bool) -> None:
    assert ("gate.0" in learner(stage, operator, 0.5).blocks()) == trains


@pytest.mark.parametrize("operator", [life.ADD, life.MULTIPLY, life.GATE])
def test_at_alpha_0_a_seed_changes_nothing(operator: int) -> None:
    blends = learner(life.BLENDING, operator, 0.0)
    assert torch.equal(answers(blends, {0}), answers(blends, set()))
