"""Small populations in every mix of stages, and data for them."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor, nn

from simic.data.batches import Dataset
from simic.growth.batch.arena import Rows
from simic.growth.batch.forward import Backend, run_streams
from simic.growth.batch.groups import SlotState, evaluation_plan
from simic.growth.batch.population import Population
from simic.growth.batch.template import channels_last
from simic.growth.life.vocabulary import Blend, Ramp, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer
from tests import standard

FAMILIES = ("cnn", "mlp", "transformer")
CONTEXT = 6
TOKENS = 11
LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


def generator(seed: int) -> torch.Generator:
    """Test data comes from a generator of its own."""
    return torch.Generator().manual_seed(seed)


def make_data(
    samples: int = 96, seed: int = 0, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 4
) -> Dataset:
    """Learnable: the label is the brightest of ``classes`` bands of rows."""
    x = torch.randn(samples, *shape, generator=generator(seed))
    bands = x.mean((1, 3)).view(samples, classes, -1).mean(-1)
    return Dataset(x, bands.argmax(1), classes)


def make_tokens(samples: int = 96, seed: int = 0) -> Dataset:
    """Byte sequences whose next token is the sum of the last two."""
    x = torch.randint(TOKENS, (samples, CONTEXT), generator=generator(seed))
    before = torch.cat((x[:, :1] * 0, x[:, :-1]), 1)
    return Dataset(x, (x + before) % TOKENS, TOKENS)


def make_table(columns: int = 5, tasks: int = 1, samples: int = 96, seed: int = 0) -> Dataset:
    """Rows ``[tasks · samples, 1, 1, columns]`` of columns of other distributions, some values occurring often; the
    label of the even tasks is one of three by a product, of the odd ones one of two by a sum.
    """
    draw = generator(seed)
    x = torch.randn(tasks * samples, columns, generator=draw)
    x[:, 1] = (2 * x[:, 1]).round() / 2
    x[:, 2] = x[:, 2].abs().sqrt()
    odd = torch.arange(tasks).repeat_interleave(samples) % 2 == 1
    y = torch.where(
        odd, (x.sum(1) > 0).long(), 1 + (x[:, 0] * x[:, 3]).sign().long() * (x[:, 1] != 0)
    )
    classes = tuple(3 - task % 2 for task in range(tasks)) if tasks > 1 else ()
    return Dataset(x[:, None, None], y, 3, classes)


DATA = {
    "cnn": make_data(),
    "mlp": make_data(),
    "transformer": make_tokens(),
    "tables": make_table(),
}


def make_order(envs: int, batches: int, batch: int, samples: int = 96, seed: int = 0) -> Tensor:
    """Sample indices ``[E, n, B]``, other ones for each host."""
    return torch.randint(samples, (envs, batches, batch), generator=generator(seed))


def small(family: str) -> Host:
    """The smallest host of a family."""
    if family in ("mlp", "tables"):
        return Host(
            family=family, preset="baseline", widths=(16, 16, 16) if family == "mlp" else (8, 8)
        )
    return Host(family=family, preset="impaired")


def make_host(family: str) -> HostSpec:
    """The smallest."""
    return build_host(small(family), DATA[family].shape, DATA[family].classes)


def population_of(
    host: HostSpec,
    envs: int,
    backend: Backend = "vmap",
    optimizer: HostOptimizer | None = None,
    kind: type[Population] = Population,
    tasks: Tensor | None = None,
) -> Population:
    """Fresh hosts, with the blueprints of their family."""
    kinds = blueprints_of(host.family)
    optimizer = optimizer or standard.HostOptimizer()
    population = kind(host, kinds, torch.arange(envs), 3, optimizer, "cpu", backend)
    population.reset(0, tasks)
    return population


def make_population(family: str, envs: int = 8, backend: Backend = "vmap", **options) -> Population:
    return population_of(make_host(family), envs, backend, **options)


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
    }
    changes |= {"alpha": alpha, "germinations": 1}
    slots = replace(
        slots, **{k: torch.where(column, v, getattr(slots, k)) for k, v in changes.items()}
    )
    population.germinate(slots, slots.stage > 0, DATA[population.host.family])
    return slots


def mixed_slots(population: Population, seed: int = 0) -> Slots:
    """Every live stage, blueprint and operator somewhere, some down-ramps, some empty slots; seeds germinated."""
    envs = len(population)
    slots = population.host.slots
    draw = generator(seed)
    shape = (envs, slots)
    stage = torch.randint(6, shape, generator=draw)
    alpha = 0.1 + 0.8 * torch.rand(shape, generator=draw)
    alpha = torch.where(stage == Stage.BLENDING, alpha, (stage >= Stage.HOLDING).float())
    down = (stage == Stage.BLENDING) & (torch.rand(shape, generator=draw) < 0.4)
    mixed = replace(
        Slots.empty(envs, slots),
        stage=stage,
        blueprint=torch.where(
            stage > 0, torch.randint(len(population.blueprints), shape, generator=draw), -1
        ),
        operator=torch.where(stage > 0, torch.randint(3, shape, generator=draw), 0),
        alpha=alpha,
        ramp=torch.where(down, int(Ramp.DOWN), int(Ramp.HOLD)),
        germinations=(stage > 0).long(),
        age=torch.where(stage > 0, torch.randint(1, 5, shape, generator=draw), 0),
    )
    population.germinate(mixed, stage > 0, DATA[population.host.family])
    return mixed


def parameters(population: Population) -> dict[str, Tensor]:
    """All parameter rows by the name of their store."""
    return {
        name: tensor
        for name, tensor in stored(population._stores).items()
        if name.endswith("/param")
    }


def stored(stores: dict[str, Rows]) -> dict[str, Tensor]:
    """Copies of parameters, moments and steps: ``<store>/<part>``."""
    return {
        f"{name}/{part}": x.clone()
        for name, store in stores.items()
        for part, x in store.tensors.items()
    }


@torch.no_grad()
def logits_of(population: Population, slots: Slots, x: Tensor, off: Tensor | None = None) -> Tensor:
    """``[E, B, classes]`` of the live networks on ``x [B, …]``, the same for all; ``off [E, K]`` as in ``evaluate``."""
    flags = (torch.zeros_like(slots.stage, dtype=torch.bool) if off is None else off)[None].numpy()
    plan, stream_of = evaluation_plan(SlotState.read(slots), flags, slots.alpha)
    blocks = population._blocks(plan, torch.arange(len(population)))
    weights = population._weights(blocks, [block.gathered() for block in blocks])
    samples = channels_last(x[None]).expand(len(population), *[-1] * x.dim())
    return run_streams(population.backend, population.templates, weights, plan, samples)[
        stream_of[0]
    ]


class PlainHost(nn.Module):
    """One host and its seeds as plain modules under torch.optim: what the population claims to be E of."""

    def __init__(self, population: Population, slots: Slots, row: int) -> None:
        super().__init__()
        host = population.host
        state = SlotState.read(slots)
        segments, head = host.modules()
        self.segments = nn.ModuleList(segments)
        self.head = head
        self.joints = nn.ModuleList()
        self.data = DATA[host.family]
        self.isolated = host.isolated
        self.reads_input = host.reads_input
        self.stage = slots.stage[row].tolist()
        self.alpha = slots.alpha[row].tolist()
        self.operator = slots.operator[row].tolist()
        frozen = state.frozen[row].tolist()
        body = list(nn.ModuleList([*self.segments, self.head]).parameters())  # tied ones once
        self.optimizers = {"host": self._sgd(body, population.optimizer.weight_decay)}
        for k, stage in enumerate(self.stage):
            joint = nn.ModuleDict()
            if stage in LIVE:
                joint["seed"] = population.blueprints[int(slots.blueprint[row, k])].build(
                    host.seed_shapes[k]
                )
                joint["gate"] = host.gate(host.slot_shapes[k])
            self.joints.append(joint)
            if stage > Stage.GERMINATED and not frozen[k]:
                for name, module in joint.items():
                    self.optimizers[f"{name} {k}"] = self._sgd(list(module.parameters()), 0.0)
        values = population.named_parameters(slots, row)
        for name, parameter in self.named_parameters():
            parameter.data.copy_(values[name])

    def _sgd(self, members: list[nn.Parameter], decay: float) -> torch.optim.SGD:
        return torch.optim.SGD(members, 0.05, momentum=0.9, weight_decay=decay)

    def forward(self, x: Tensor) -> Tensor:
        sample = x
        for k, segment in enumerate(self.segments):
            x = segment(x)
            if self.stage[k] > Stage.GERMINATED:
                x = self._join(k, x, sample)
        return self.head(x)

    def _join(self, k: int, h: Tensor, sample: Tensor) -> Tensor:
        seed = self.joints[k]["seed"]
        a = self.alpha[k]
        inputs = h.detach() if self.stage[k] in self.isolated else h
        s = inputs + seed(sample) if self.reads_input else seed(inputs)
        if self.stage[k] == Stage.TRAINING:
            return h + (s - s.detach())  # the textbook form, with its rounding
        if self.operator[k] == Blend.MULTIPLY:
            return h * (1 + a * torch.tanh(s - inputs))
        if self.operator[k] == Blend.GATE:
            a = a * self.joints[k]["gate"](inputs).view(len(h), -1, *[1] * (h.dim() - 2))
        return h + a * (s - h)

    def learn(self, order: Tensor) -> dict[str, float]:
        """Mean over the minibatches of the loss, and of the norm of what each optimizer steps, before its clip."""
        values_by_name = defaultdict[str, list[float]](list)
        for batch in order:
            self.zero_grad()
            logits = self(self.data.x[batch])
            answers = self.data.y[batch]
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), answers.flatten())
            loss.backward()
            values_by_name["loss"].append(float(loss.detach()))
            for name, optimizer in self.optimizers.items():
                members = optimizer.param_groups[0]["params"]
                if any(p.grad is not None for p in members):
                    values_by_name[name].append(float(nn.utils.clip_grad_norm_(members, 1.0)))
                    optimizer.step()
        return {name: fmean(values) for name, values in values_by_name.items()}
