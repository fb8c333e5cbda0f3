"""Optimisers of the reference are torch's, and seeds reach their hosts as they are to."""

import pytest
import torch
from torch import Tensor

from simic.certify import life, streams
from simic.certify.epochs import Block, Memory, PartLearner, stepped
from simic.certify.life import Seed, Slot
from simic.certify.networks import Weights, anatomy, host_parts, logits, part_of
from simic.params import Host, HostOptimizer
from tests import standard

BODY = anatomy(Host(family="cnn", preset="impaired", widths=(8, 8)), (1, 8, 8), 3)
X = torch.linspace(-1, 1, 6 * 64, dtype=torch.float64).sin().reshape(6, 1, 8, 8)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def world(stage: int, operator: int = life.ADD, alpha: float = 0.0) -> tuple[Weights, list[Slot]]:
    """Return a host with a bottleneck in its first slot."""
    seed = Seed(blueprint=3, operator=operator, alpha=alpha, alpha_target=1.0)
    part, host = part_of(BODY, 0, 3), {}
    for number, (lead, piece) in enumerate(host_parts(BODY)):
        host |= {lead + name: value for name, value in piece.draw(streams.key(number, 0)).items()}
    values = part.draw(streams.key(9, 0))
    values["up.weight"] += 0.1  # as if it had learned already
    return Weights(host, [values, None], [BODY.gates[0].draw(streams.key(8, 0)), None]), [
        Slot(stage, seed=seed),
        Slot(),
    ]


def learner(weights: Weights, slots: list[Slot], optimizer: HostOptimizer) -> PartLearner:
    memories = {name: Memory() for name in ("host", "seed.0", "gate.0")}
    return PartLearner(BODY, weights, slots, memories, optimizer, host_frozen=False, task_classes=3)


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


def after_an_epoch(stage: int, **how: float | int) -> tuple[dict[str, Tensor], dict[str, Tensor], PartLearner]:
    weights, slots = world(stage, **how)  # type: ignore[arg-type]
    learns = learner(weights, slots, standard.HostOptimizer(name="sgd"))
    learns.epoch([(X, Y)])
    assert weights.seeds[0] is not None
    return weights.host, weights.seeds[0], learns


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return any(not torch.equal(after[name], value) for name, value in before.items())


def test_a_seed_in_training_learns_and_leaves_its_host_as_it_would_be() -> None:
    fresh, slots = world(life.TRAINING)
    bare, _, _ = after_an_epoch(life.GERMINATED)
    host, seed, _ = after_an_epoch(life.TRAINING)
    assert moved(fresh.seeds[0] or {}, seed)
    # Rounding alone: what the host's gradient is summed from is the same.
    assert all(torch.allclose(host[name], value, rtol=0, atol=1e-15) for name, value in bare.items())
    with torch.no_grad():
        assert torch.equal(logits(BODY, fresh, slots, {0}, X), logits(BODY, fresh, slots, set(), X))


def test_a_seed_that_fades_out_stays_as_it_is() -> None:
    weights, slots = world(life.BLENDING, alpha=0.5)
    slots[0].seed.ramp = life.DOWN
    before = {name: value.clone() for name, value in (weights.seeds[0] or {}).items()}
    learns = learner(weights, slots, standard.HostOptimizer(name="sgd"))
    told = learns.epoch([(X, Y)])
    assert not moved(before, weights.seeds[0] or {}) and learns.memories["seed.0"].steps == 0
    assert told.seed_norms[0] > 0


def test_only_a_blended_seed_with_a_gate_trains_its_gate() -> None:
    for stage, operator, expected in (
        (life.TRAINING, life.GATE, False),
        (life.BLENDING, life.GATE, True),
        (life.BLENDING, life.ADD, False),
    ):
        weights, slots = world(stage, operator, 0.5)
        assert ("gate.0" in learner(weights, slots, standard.HostOptimizer()).blocks()) == expected


@pytest.mark.parametrize("operator", [life.ADD, life.MULTIPLY, life.GATE])
def test_at_alpha_0_a_seed_changes_nothing(operator: int) -> None:
    weights, slots = world(life.BLENDING, operator, 0.0)
    with torch.no_grad():
        assert torch.equal(logits(BODY, weights, slots, {0}, X), logits(BODY, weights, slots, set(), X))
