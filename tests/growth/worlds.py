"""Small populations in every mix of stages, and data for them."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.growth.batch.groups import SlotState, evaluation_plan
from simic.growth.batch.population import Population, _same_for_all
from simic.growth.life.vocabulary import Blend, Ramp, Slots, Stage
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer

FAMILIES = ("cnn", "mlp", "transformer")
IMAGE, CONTEXT, TOKENS = (1, 8, 8), 6, 11
LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


def generator(seed: int) -> torch.Generator:
    """Test data comes from a generator of its own."""
    return torch.Generator().manual_seed(seed)


def make_data(samples: int = 96, seed: int = 0, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 4) -> Dataset:
    """Learnable: the label is the brightest of ``classes`` bands of rows."""
    x = torch.randn(samples, *shape, generator=generator(seed))
    bands = x.mean((1, 3)).view(samples, classes, -1).mean(-1)
    return Dataset(x, bands.argmax(1), classes)


def make_tokens(samples: int = 96, seed: int = 0) -> Dataset:
    """Byte sequences whose next token is the sum of the last two."""
    x = torch.randint(TOKENS, (samples, CONTEXT), generator=generator(seed))
    before = torch.cat((x[:, :1] * 0, x[:, :-1]), 1)
    return Dataset(x, (x + before) % TOKENS, TOKENS)


DATA = {"cnn": make_data(), "mlp": make_data(), "transformer": make_tokens()}


def make_order(envs: int, batches: int, batch: int, samples: int = 96, seed: int = 0) -> Tensor:
    """Sample indices ``[E, n, B]``, other ones for each host."""
    return torch.randint(samples, (envs, batches, batch), generator=generator(seed))


def make_host(family: str, preset: str = "impaired") -> HostSpec:
    if family == "transformer":
        return build_host(Host(family=family, preset=preset), (CONTEXT,), TOKENS)
    return build_host(Host(family=family, preset=preset), IMAGE, 4)


def runnable(family: str) -> tuple[Blueprint, ...]:
    """The family's blueprints that a CPU can run; those that it cannot come last."""
    kinds = blueprints_of(family)
    found = tuple(item for item in kinds if item.unavailable(torch.device("cpu")) is None)
    assert kinds[: len(found)] == found
    return found


def make_population(
    family: str,
    envs: int = 8,
    backend: str = "vmap",
    optimizer: HostOptimizer | None = None,
    preset: str = "impaired",
    kind: type[Population] = Population,
) -> Population:
    optimizer = optimizer or HostOptimizer()
    host, kinds = make_host(family, preset), runnable(family)
    population = kind(host, kinds, torch.arange(envs), 3, optimizer, "cpu", backend)
    population.reset(0)
    return population


def one_seed(
    population: Population,
    stage: Stage,
    kind: int | Tensor,
    operator: Blend = Blend.ADD,
    alpha: float = 0.0,
    slot: int = 0,
) -> Slots:
    """A seed in every host, germinated: the same blueprint, or that of ``kind [E]``."""
    slots = Slots.empty(len(population), population.host.slots)
    column = torch.arange(population.host.slots) == slot
    changes = {
        "stage": int(stage),
        "blueprint": torch.as_tensor(kind).view(-1, 1),
        "operator": int(operator),
        "alpha": alpha,
        "germinations": 1,
    }
    slots = replace(slots, **{k: torch.where(column, v, getattr(slots, k)) for k, v in changes.items()})
    population.germinate(slots, slots.stage > 0)
    return slots


def mixed_slots(population: Population, seed: int = 0) -> Slots:
    """Every live stage, blueprint and operator somewhere, some down-ramps, some empty slots; seeds germinated."""
    envs, slots = len(population), population.host.slots
    draw = generator(seed)
    shape = (envs, slots)
    stage = torch.randint(6, shape, generator=draw)
    alpha = 0.1 + 0.8 * torch.rand(shape, generator=draw)
    alpha = torch.where(stage == Stage.BLENDING, alpha, (stage >= Stage.HOLDING).float())
    down = (stage == Stage.BLENDING) & (torch.rand(shape, generator=draw) < 0.4)
    mixed = replace(
        Slots.empty(envs, slots),
        stage=stage,
        blueprint=torch.where(stage > 0, torch.randint(len(population.blueprints), shape, generator=draw), -1),
        operator=torch.where(stage > 0, torch.randint(3, shape, generator=draw), 0),
        alpha=alpha,
        ramp=torch.where(down, int(Ramp.DOWN), int(Ramp.HOLD)),
        germinations=(stage > 0).long(),
    )
    population.germinate(mixed, stage > 0)
    return mixed


def parameters(population: Population) -> dict[str, Tensor]:
    """All parameter rows by the name of their store."""
    return {name: tensor for name, tensor in population.state_dict().items() if name.endswith("/param")}


@torch.no_grad()
def logits_of(population: Population, slots: Slots, x: Tensor, off: Tensor | None = None) -> Tensor:
    """``[E, B, classes]`` of the live networks on ``x [B, …]``, the same for all; ``off [E, K]`` as in ``evaluate``."""
    flags = (torch.zeros_like(slots.stage, dtype=torch.bool) if off is None else off)[None].numpy()
    plan, stream_of = evaluation_plan(SlotState.read(slots), flags, slots.alpha)
    weights = population._evaluation_weights(plan, slice(0, len(population)))
    return population._run(population.templates, weights, plan, _same_for_all(x, len(population)))[stream_of[0]]
