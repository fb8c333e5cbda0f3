"""How well each blueprint's untrained features align with the labels of a task, before anything is trained.

A seed that reads the row starts at φ(row) · B with B = 0. Were the error of its host the labels themselves, the
gradient of B would be the covariance C of features and labels: GradMax (Evci et al. 2022, arXiv 2201.05125) grows where
such a gradient is largest. ‖C‖² is the Hilbert-Schmidt independence criterion with linear kernels (Gretton et al. 2005)
and is too large by chance, more so the more features there are; the product of the gradients of two halves of the rows
is not.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from simic import rng
from simic.data.batches import Dataset
from simic.growth.batch.forward import Templates
from simic.growth.batch.template import Fits, Template, channels_last
from simic.growth.networks.blueprints import Blueprint
from simic.growth.networks.hosts import HostSpec
from simic.rng import Purpose
from simic.threads import OwnOfThread, share

# Of each task's training split, in two halves.
ROWS = 1024
# Always the same tasks together, so that rounding does not depend on who is asked about.
TASKS_AT_ONCE = 32


class Alignments:
    """Alignment of every blueprint with every task of the training data, computed when a task is first asked for.

    Numbers do not depend on the run: untrained features are drawn from a fixed key. Seeds must read the input: features
    of the host would change as it trains. ``templates`` gives each thread its own.
    """

    def __init__(
        self,
        templates: Callable[[], Templates],
        kinds: Sequence[Blueprint],
        data: Dataset,
        fits: Fits,
    ) -> None:
        self.data = data
        self._fits = fits
        self._templates = templates
        self._closing = [kind.closing for kind in kinds]
        self._table = torch.zeros(data.tasks, len(kinds), device=data.y.device)
        self._is_computed = torch.zeros(data.tasks, dtype=torch.bool, device=data.y.device)

    @classmethod
    def on(cls, host: HostSpec, blueprints: Sequence[Blueprint], data: Dataset) -> Self:
        """Make the alignments of a host's blueprints with the tasks of the data.

        Args:
            host: Its kind; seeds must read the input.
            blueprints: Kinds of seeds, P.
            data: The training split.
        """
        make = partial(
            Templates,
            host,
            tuple(blueprints),
            checked=True,
        )
        return cls(
            OwnOfThread(make, make()),
            blueprints,
            data,
            Fits(),
        )

    def of(self, tasks: Tensor) -> Tensor:
        """Look up alignments ``[E, P]`` with the tasks ``[E]``: each in -1…1, the largest of a task ±1."""
        # Threads share the parts, and a task that is known is not computed again.
        everyone = torch.arange(self.data.tasks, device=tasks.device).split(TASKS_AT_ONCE)
        missing = (tasks[~self._is_computed[tasks]] // TASKS_AT_ONCE).unique().tolist()
        share(self._compute, [everyone[part] for part in missing])
        return self._table[tasks]

    def _compute(self, tasks: Tensor) -> None:
        x, y = self.data.of_tasks(tasks, slice(ROWS))
        x = channels_last(x)
        by_kind = [
            self._aligned(
                kind,
                tasks,
                x,
                y,
            )
            for kind in range(len(self._closing))
        ]
        values = torch.stack(by_kind, dim=1)
        # Only how blueprints compare within a task is read, so the largest is 1.
        largest = values.abs().amax(dim=1, keepdim=True)
        self._table[tasks] = values / largest.clamp(min=torch.finfo(values.dtype).tiny)
        self._is_computed[tasks] = True

    def _aligned(self, kind: int, tasks: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the gradients of two halves of the rows, ``[R]``: what they share is not chance.

        Only those of parameters that start at 0 count.
        """
        # The untrained blueprint in each task, with the same weights, and what it fits to the data.
        template = self._templates().seeds[0][kind]
        key = rng.key(
            0,
            Purpose.ALIGNMENT,
            kind,
            device=tasks.device,
        )
        rows = template.draw(key.expand(len(tasks)))
        if template.fits:
            rows = template.with_fit(rows, self._fits.of(template, self.data, tasks))
        weights = template.layout.unpack(rows)

        # GradMax: the gradient that the parameters at 0 would get, of each half.
        halves = list(zip(x.chunk(2, 1), y.chunk(2, 1), strict=True))
        if template.row_seed is not None:
            gradients = [self._product(template, weights, *half) for half in halves]
        else:
            leaves = [
                weight.requires_grad_()
                for name, weight in zip(template.names, weights, strict=True)
                if name in self._closing[kind]
            ]
            gradients = [self._gradient(template, weights, leaves, *half) for half in halves]
        # By parameter, then all of them.
        products = [
            (first * second).flatten(1).sum(1) for first, second in zip(*gradients, strict=True)
        ]
        return torch.stack(products).sum(0)

    def _product(
        self,
        template: Template,
        weights: list[Tensor],
        x: Tensor,
        labels: Tensor,
    ) -> list[Tensor]:
        """Compute the gradient of B of a seed φ · B: the product of features and errors."""
        seed = template.row_seed
        assert seed is not None
        error = _error(
            labels, template.layout.shapes[template.names.index("out")][1], self.data.classes
        )
        features = template.features(weights, x.flatten(2))
        # Of the mean over the rows.
        factor = seed.gain / labels.shape[1]
        return [factor * torch.bmm(features.mT, error)]

    def _gradient(
        self,
        template: Template,
        weights: list[Tensor],
        leaves: list[Tensor],
        x: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, ...]:
        """Differentiate the agreement of a seed's output and the errors by the leaves."""
        out = template.run(weights, x)
        error = _error(labels, out.shape[-1], self.data.classes)
        agreement = (out[..., : error.shape[-1]] * error).sum() / labels.shape[1]
        return torch.autograd.grad(agreement, leaves)


def _error(labels: Tensor, width: int, classes: int) -> Tensor:
    """Make the errors ``[R, n, min(width, classes)]`` of a seed's output: one class of ``labels`` for each unit."""
    # As if the labels were the error; centred, since a constant is what a bias learns.
    # Classes beyond the hidden units come round again.
    error = F.one_hot(labels % width, min(width, classes)).to(torch.float32)
    return error - error.mean(1, keepdim=True)
