"""One plain ``nn.Module`` as a function of a flat parameter row, so that a population is a matrix of rows.

A module is built twice under different seeds of a forked generator: tensors that come out equal are constants (zeros,
ones, 3.0) and stay; the others are redrawn from hashes, uniform in ±1/sqrt(fan_in), torch's default for linear and
convolution layers (He et al. 2015 with a = √5).
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.growth.batch.kernels import separable, stacked, vmappable
from simic.growth.networks.tabular import RowSeed
from simic.rng import uniform
from simic.transfer import upload

# Of the training split, which is in random order.
FITTED_SAMPLES = 512


@dataclass(frozen=True)
class RowLayout:
    """Shapes of a row's tensors, in order, and which of them train; the others are fitted to data once."""

    shapes: Sequence[torch.Size]
    trained: Sequence[bool]

    @property
    def sizes(self) -> list[int]:
        """Columns of each tensor."""
        return [shape.numel() for shape in self.shapes]

    @property
    def width(self) -> int:
        """Columns of a row."""
        return sum(self.sizes)

    @property
    def trained_shapes(self) -> list[torch.Size]:
        return [shape for shape, trains in zip(self.shapes, self.trained, strict=True) if trains]

    @property
    def trained_sizes(self) -> list[int]:
        return [shape.numel() for shape in self.trained_shapes]

    @property
    def params(self) -> int:
        """Columns that train."""
        return sum(self.trained_sizes)

    def trained_parts(self, rows: Tensor) -> list[Tensor]:
        """View the columns of rows ``[R, width]`` that train, by tensor."""
        parts = rows.split(self.sizes, 1)
        return [part for part, trains in zip(parts, self.trained, strict=True) if trains]

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """Unpack rows ``[R, width]`` into one contiguous tensor ``[R, *shape]`` per parameter."""
        parts = rows.split(self.sizes, 1) if self.shapes else ()
        return [
            part.reshape(len(rows), *shape).contiguous()
            for part, shape in zip(parts, self.shapes, strict=True)
        ]


class Template:
    """Names, ``layout`` and initial distribution of a module's parameters, and how to run it for many rows at once.

    ``features_last``: the module takes and gives features in the last dimension. ``borrowed`` parameters are not in the
    row: who runs it hands them in. Many rows run as one batch through stacked layers where all parts of the module have
    such a form (``kernels.stacked``), else under vmap; a module with ``vmap = False`` is run row by row.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        name: str,
        features_last: bool = False,
        borrowed: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.borrowed = list(borrowed)
        self._enter = _identity if features_last else channels_first
        self._leave = _identity if features_last else channels_last

        # The parameters of a row, and their first values.
        first = _build(build, 0)
        second = _build(build, 1)
        if next(first.buffers(), None) is not None:
            raise SimicError(
                f"{name}: modules with buffers (running statistics, constants) cannot be stacked over hosts"
            )
        parameters = {
            key: parameter for key, parameter in first.named_parameters() if key not in borrowed
        }
        self.names = list(parameters)
        self.layout = RowLayout(
            [parameter.shape for parameter in parameters.values()],
            [parameter.requires_grad for parameter in parameters.values()],
        )
        redrawn = dict(second.named_parameters())
        constants = [torch.equal(parameter, redrawn[key]) for key, parameter in parameters.items()]
        self._start, self._bound = _initial(first, parameters, constants, name)
        self._fitted_columns = self.columns(self._fitted_names()).nonzero().flatten()
        drawn = self._bound.nonzero().flatten().tolist()
        self._random = (drawn[0], drawn[-1] + 1) if drawn else (0, 0)

        # The module in its three forms: for one row, under vmap and stacked.
        self._vmap = getattr(first, "vmap", True)
        self._is_foreign = any(
            not type(m).__module__.startswith(("torch.nn.", "simic.")) for m in first.modules()
        )
        self.module = first.to("meta")
        self._single = separable(copy.deepcopy(self.module))
        self._batched = vmappable(copy.deepcopy(self.module))
        self._stacked = stacked(second.to("meta"))
        # Which part of the stacked module takes each parameter, and as what.
        self._sockets: list[tuple[nn.Module, str]] = []
        if self._stacked is not None:
            for key in (*self.names, *self.borrowed):
                owner, _, leaf = key.rpartition(".")
                self._sockets.append((self._stacked.get_submodule(owner), leaf))

    def draw(self, streams: Tensor) -> Tensor:
        """Draw fresh parameter rows ``[R, width]`` from the keys ``[R]``; what is to be fitted is 0."""
        if self._start.device != streams.device:
            self._start = upload(self._start, streams.device)
            self._bound = upload(self._bound, streams.device)
        rows = self._start.repeat(len(streams), 1)
        # Many columns are constants: what is before the first random one, and after the last, is not drawn.
        random = slice(*self._random)
        numbers = uniform(streams, (random.stop - random.start,), random.start)
        rows[:, random] += self._bound[random] * (2 * numbers - 1)
        return rows

    @property
    def fits(self) -> bool:
        """Whether something of it is fitted to data."""
        return not all(self.layout.trained)

    @torch.no_grad()
    def fit(self, samples: Tensor) -> Tensor:
        """Fit to ``samples [R, n, D]`` of R tasks the parameters that do not train, in the order of their columns."""
        assert self._stacked is not None, "fitting is for many networks at once"
        fitted = self._stacked.fit(samples)  # pyright: ignore[reportCallIssue] - who has such parameters has it
        return torch.cat([fitted[name].flatten(1) for name in self._fitted_names()], 1)

    def with_fit(self, rows: Tensor, fitted: Tensor) -> Tensor:
        """Put the result of ``fit`` into its columns of the rows ``[R, width]``."""
        rows = rows.clone()
        rows[:, upload(self._fitted_columns, rows.device)] = fitted
        return rows

    def _fitted_names(self) -> list[str]:
        return [
            name for name, trains in zip(self.names, self.layout.trained, strict=True) if not trains
        ]

    def columns(self, names: Sequence[str]) -> Tensor:
        """Tell which columns of a row belong to the named parameters, bool ``[width]``."""
        unknown = set(names) - set(self.names)
        if unknown:
            raise SimicError(f"{self.name}: no parameter {sorted(unknown)}; it has {self.names}")
        flags = [
            torch.full((size,), key in names)
            for key, size in zip(self.names, self.layout.sizes, strict=True)
        ]
        return torch.cat(flags) if flags else torch.zeros(0, dtype=torch.bool)

    def run(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """Run each row's module on its features ``[R, B, …, C]``; ``weights`` as unpacked, then the borrowed ones."""
        # For a single row vmap would cost its dispatch for nothing.
        is_single = len(x) == 1 and self._stacked is None
        if is_single or not self._vmap:
            rows = zip(by_row(weights, len(x)), x.split(1), strict=True)
            return torch.cat([self.run_one(*row) for row in rows])
        if self._stacked is None:
            return self._leave(vmap(self._call)(self._enter(x), *weights))
        return self._leave(self._run_stacked(self._stacked, weights, self._enter(x)))

    def _run_stacked(self, module: nn.Module, weights: list[Tensor], x: Tensor) -> Tensor:
        """Run all rows as one batch, ``[R, B, C, …]``; ``functional_call`` would cost as much as a small module."""
        with self._plugged(weights):
            y: Tensor = module(x.flatten(0, 1))
        return y.unflatten(0, x.shape[:2])

    @contextmanager
    def _plugged(self, weights: list[Tensor]) -> Iterator[None]:
        """Put weights into the stacked module; they are taken out again, else they would live until the next call."""
        for (owner, leaf), tensor in zip(self._sockets, weights, strict=True):
            setattr(owner, leaf, tensor)
        try:
            yield
        finally:
            for owner, leaf in self._sockets:
                setattr(owner, leaf, None)

    @property
    def row_seed(self) -> RowSeed | None:
        """The module, if it is a seed for tables whose output is φ(row) · B."""
        module = self._stacked
        if isinstance(module, RowSeed) and type(module).forward is RowSeed.forward:
            return module
        return None

    def features(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """Compute φ of a ``row_seed``, ``[R, B, F]`` of rows ``[R, B, D]``."""
        assert self.row_seed is not None
        with self._plugged(weights):
            return self.row_seed.features(x)

    def run_one(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Run the module of one row by itself, ``weights [*shape]``, on ``x [1, B, …, C]``."""
        # A user's forward may call what kernels._MapGroupNorm avoids on channels-last maps.
        h = self._enter(x)[0]
        if self._is_foreign:
            h = h.contiguous()
        y = functional_call(self._single, self._by_name(weights), (h,))
        return self._leave(y[None])

    def _call(self, x: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(self._batched, self._by_name(weights), (x,))

    def _by_name(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip((*self.names, *self.borrowed), weights, strict=True))


class Fits:
    """Fits each template to a task of the data once, when it is first asked for."""

    def __init__(self) -> None:
        # By data and template; the data stay here, so that no others can take their id.
        self._tables: dict[tuple[int, str], tuple[Dataset, Tensor, Tensor]] = {}

    def of(self, template: Template, data: Dataset, tasks: Tensor) -> Tensor:
        """Look up what a template fits to tasks.

        Args:
            template: What is fitted.
            data: The training split.
            tasks: Numbers of the tasks ``[R]``.

        Returns:
            Values of the columns that do not train, ``[R, width - params]``.
        """
        # Values of tasks that nobody asked about are never read.
        key = id(data), template.name
        if key not in self._tables:
            # Another thread may be here too: the table that is there first stays.
            is_fitted = torch.zeros(data.tasks, dtype=torch.bool, device=tasks.device)
            fitted = template.layout.width - template.layout.params
            values = torch.zeros(data.tasks, fitted, device=tasks.device)
            self._tables.setdefault(key, (data, is_fitted, values))
        _, is_fitted, values = self._tables[key]
        missing = tasks[~is_fitted[tasks]].unique()
        if len(missing):
            samples, _ = data.of_tasks(missing, slice(FITTED_SAMPLES))
            values[missing] = template.fit(samples.flatten(2))
            is_fitted[missing] = True
        return values[tasks]


def by_row(weights: Sequence[Tensor], rows: int) -> list[tuple[Tensor, ...]]:
    """Split tensors ``[R, *shape]`` into a tuple for each row; unbound at once, their gradients stack once."""
    return (
        list(zip(*(tensor.unbind(0) for tensor in weights), strict=True))
        if weights
        else [()] * rows
    )


def _identity(x: Tensor) -> Tensor:
    return x


def channels_first(x: Tensor) -> Tensor:
    """View ``[R, B, …, C]`` as the ``[R, B, C, …]`` that modules expect."""
    return x.movedim(-1, 2)


def channels_last(x: Tensor) -> Tensor:
    """Make ``[R, B, C, …]`` a contiguous ``[R, B, …, C]``: rows are indexed, convolutions are products."""
    return x.movedim(2, -1).contiguous()


def _build(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a fresh module; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed takes 0.2 ms: it speaks to GPUs too.
        torch.default_generator.manual_seed(seed)
        return build()


def _initial(
    module: nn.Module,
    parameters: dict[str, nn.Parameter],
    constants: list[bool],
    name: str,
) -> tuple[Tensor, Tensor]:
    """Make a row of constants (0 where random) and a row of half widths (0 where constant)."""
    starts = [torch.zeros(0)]
    bounds = [torch.zeros(0)]
    for (key, parameter), is_constant in zip(parameters.items(), constants, strict=True):
        flat = parameter.detach().flatten().float()
        starts.append(flat if is_constant else torch.zeros_like(flat))
        bounds.append(
            torch.full_like(flat, 0.0 if is_constant else 1 / math.sqrt(_fan_in(module, key, name)))
        )
    return torch.cat(starts), torch.cat(bounds)


def _fan_in(module: nn.Module, key: str, name: str) -> int:
    """Count the inputs of one output: of the parameter itself, or of the ``weight`` beside a bias."""
    owner, _, leaf = key.rpartition(".")
    parameter = module.get_parameter(key)
    if parameter.dim() < 2:
        parameter = getattr(module.get_submodule(owner), "weight", parameter)
    if parameter.dim() < 2:
        raise SimicError(
            f"{name}: parameter {key!r} starts at random but has {parameter.dim()} dimension(s) and no weight matrix "
            f"beside it, so its fan-in is unknown; start {leaf!r} from a constant"
        )
    return parameter[0].numel()
