"""An epoch of hosts for tables as few products over all of them, with the backward pass of the host written out.

It is what ``forward`` does for hosts of family ``tables`` whose seeds add φ(row) · B to the first pre-activation: the
same losses and gradients up to rounding, at less than half of the cost (docs/history/experiments.md). Features that do
not learn are computed once an epoch. It is fastest where hosts with seeds of one blueprint are neighbours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simic.growth.batch.arena import Arena
from simic.growth.batch.forward import Templates
from simic.growth.batch.groups import Flags, SlotGroups
from simic.growth.batch.template import Template
from simic.growth.life.vocabulary import Blend
from simic.growth.networks.tabular import FixedSeed
from simic.transfer import upload

# Of classes that a task does not have: their probability is 0, as by −∞, but every sum of logits stays finite.
LACKING_LOGIT = -1e30
# The gradient of relu, where a tensor of the forward pass is above 0.
_relu_backward = torch.ops.aten.threshold_backward.grad_input


def is_fusible(templates: Templates, groups: SlotGroups | None) -> bool:
    """Tell whether the seeds at the only slot of hosts for tables can run here."""
    if groups is None:
        return True
    return all(item.operator is Blend.ADD for item in groups.blended) and all(
        templates.seeds[0][kind].row_seed is not None for kind, _, _ in groups.blueprints
    )


@dataclass(frozen=True)
class HostLayers:
    """Tensors of the hosts: their parameters, or the gradients of these."""

    weight1: Tensor  # [G, H1, D]
    bias1: Tensor  # [G, H1]
    weight2: Tensor  # [G, H2, H1]
    bias2: Tensor  # [G, H2]
    weight3: Tensor  # [G, classes, H2]
    bias3: Tensor  # [G, classes]

    def first(self, x: Tensor) -> Tensor:
        """Compute the first pre-activation ``[G, B, H1]`` of rows ``[G, B, D]``."""
        return torch.baddbmm(self.bias1[:, None], x, self.weight1.mT)

    def rest(self, z: Tensor, lacking: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Go on from the first pre-activation ``z [G, B, H1]``, which becomes the first hidden layer.

        Returns:
            Both hidden layers, and logits ``[G, classes, B]``: products with few columns are slow, with few rows not.
        """
        hidden1 = z.relu_()
        hidden2 = torch.baddbmm(self.bias2[:, None], hidden1, self.weight2.mT).relu_()
        bias = self.bias3 if lacking is None else self.bias3.masked_fill(lacking, LACKING_LOGIT)
        return hidden1, hidden2, torch.baddbmm(bias[..., None], self.weight3, hidden2.mT)

    def backward(
        self, grad: Tensor, x: Tensor, hidden1: Tensor, hidden2: Tensor, grads: "HostLayers"
    ) -> Tensor:
        """Write the gradients of all parameters; give that of the first pre-activation.

        Args:
            grad: Of the logits, ``[G, classes, B]``.
            x: Rows, ``[G, B, D]``.
            hidden1: From ``rest``, like ``hidden2``.
            hidden2: The second hidden layer.
            grads: Where they are written.
        """
        torch.bmm(grad, hidden2, out=grads.weight3)
        torch.sum(grad, 2, out=grads.bias3)
        grad = torch.bmm(grad.mT, self.weight3)
        _relu_backward(grad, hidden2, 0, grad_input=grad)
        torch.bmm(grad.mT, hidden1, out=grads.weight2)
        torch.sum(grad, 1, out=grads.bias2)
        grad = torch.bmm(grad, self.weight2)
        _relu_backward(grad, hidden1, 0, grad_input=grad)
        torch.bmm(grad.mT, x, out=grads.weight1)
        torch.sum(grad, 1, out=grads.bias1)
        return grad

    def of(self, rows: Tensor) -> "HostLayers":
        """Select some hosts."""
        return HostLayers(
            **{name: tensor.index_select(0, rows) for name, tensor in vars(self).items()}
        )


class Seeds:
    """Seeds of one blueprint.

    Args:
        template: Their blueprint.
        weights: All its tensors, ``[R, *shape]``.
        hosts: Places of the hosts, ``[R]``.
        alpha: Amplitudes ``[R]``; NaN where a seed is in TRAINING: it learns and adds nothing.
    """

    def __init__(
        self, template: Template, weights: list[Tensor], hosts: Tensor, alpha: Tensor
    ) -> None:
        module = template.row_seed
        assert module is not None
        self.template = template
        self.is_fixed = isinstance(module, FixedSeed)
        # Neighbours are viewed, others copied.
        first = int(hosts[0])
        is_run = int(hosts[-1]) - first == len(hosts) - 1
        self.hosts = slice(first, first + len(hosts)) if is_run else hosts
        self.out = weights[template.names.index("out")].detach()
        # Leaves for the gradients of φ: the tensors themselves are moved in place.
        self.weights = [
            weight.detach().requires_grad_(trains and name != "out" and not self.is_fixed)
            for name, weight, trains in zip(
                template.names, weights, template.layout.trained, strict=True
            )
        ]
        acts = ~alpha.isnan()
        all_act = bool(acts.all())
        self.is_view = is_run and all_act
        self.acting = None if all_act else acts.nonzero().flatten()
        self.places = hosts if self.acting is None else hosts[self.acting]
        # A factor of φ · B that is one number costs nothing; amplitudes below 1 are one for each seed.
        self.gain = module.gain
        is_full = bool((alpha[acts] == 1).all())
        self.alpha = None if is_full else torch.where(acts, alpha, 1.0)[:, None, None]

    @torch.no_grad()
    def fixed_features(self, x: Tensor) -> Tensor | None:
        """Compute features that do not learn, ``[n, R, B, F]`` of batches ``[n, G, B, D]``; None if they do."""
        return self.template.features(self.weights, x[:, self.hosts]) if self.is_fixed else None

    def features(self, x: Tensor) -> Tensor:
        """Compute the features ``[R, B, F]`` of rows ``[G, B, D]``."""
        return self.template.features(self.weights, x[self.hosts])

    def add(self, features: Tensor, z: Tensor) -> None:
        """Add φ · B of the seeds that act, of features ``[R, B, F]``, to pre-activations ``z [G, B, H1]``."""
        out = self.out if self.alpha is None else self.out * self.alpha
        if self.is_view:
            z[self.hosts].baddbmm_(features, out, alpha=self.gain)
        # By index: what a seed in TRAINING makes, be it NaN, does not reach its host.
        elif len(self.places):
            if self.acting is not None:
                features, out = features[self.acting], out[self.acting]
            z.index_add_(0, self.places, torch.bmm(features, out), alpha=self.gain)

    def backward(self, features: Tensor, grad: Tensor, grads: list[Tensor]) -> None:
        """Write the gradients of the parameters.

        Args:
            features: As they were added.
            grad: Of the pre-activations, ``[G, B, H1]``.
            grads: By tensor that trains.
        """
        layout = self.template.layout
        names = [
            name for name, trains in zip(self.template.names, layout.trained, strict=True) if trains
        ]
        by_name = dict(zip(names, grads, strict=True))
        outgoing = grad[self.hosts]
        if self.alpha is not None:
            outgoing = outgoing * self.alpha
        out = by_name.pop("out")
        _product(features.detach().mT, outgoing, self.gain, out)
        if by_name:
            leaves = [weight for weight in self.weights if weight.requires_grad]
            of_features = _product(outgoing, self.out.mT, self.gain, torch.empty_like(features))
            inner = torch.autograd.grad(features, leaves, of_features)
            for buffer, of_leaf in zip(by_name.values(), inner, strict=True):
                buffer.copy_(of_leaf)


def _product(left: Tensor, right: Tensor, factor: float, out: Tensor) -> Tensor:
    """Write ``factor · left @ right`` into ``out``."""
    return torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


def seeds_of(
    templates: Templates, groups: SlotGroups | None, weights: list[list[Tensor]]
) -> list[Seeds]:
    """List the seeds by blueprint.

    Args:
        templates: All blueprints.
        groups: The seeds that run, in their order.
        weights: Tensors by blueprint.
    """
    if groups is None:
        return []
    alpha = groups.added
    if alpha is None:
        alpha = torch.full((len(groups.hosts),), torch.nan, device=groups.hosts.device)
        for item in groups.blended:
            alpha[item.positions] = item.alpha.to(alpha.dtype)
    return [
        Seeds(templates.seeds[0][kind], tensors, groups.hosts[first:last], alpha[first:last])
        for (kind, first, last), tensors in zip(groups.blueprints, weights, strict=True)
    ]


@dataclass(frozen=True)
class EpochResult:
    """What an epoch measured by minibatch: losses and shares of right answers ``[n, G]``, and norms by block."""

    losses: Tensor
    accuracies: Tensor
    norms: list[Tensor]


def train(
    arena: Arena,
    seeds: list[Seeds],
    x: Tensor,
    y: Tensor,
    lacking: Tensor | None,
) -> EpochResult:
    """Train hosts and seeds.

    Args:
        arena: Blocks of the hosts and of the seeds, in their order.
        seeds: By blueprint.
        x: Rows ``[n, G, B, D]``.
        y: Labels ``[n, G, B]``.
        lacking: Classes that the task of a host does not have, bool ``[G, classes]``.
    """
    host_block, *seed_blocks = arena.blocks
    layers = HostLayers(*host_block.params)
    grads = HostLayers(*host_block.grads)
    batches, hosts, samples, _ = x.shape
    classes = layers.weight3.shape[1]
    targets = x.new_zeros(batches, hosts, classes, samples).scatter_(2, y[:, :, None], 1.0)
    fixed = [part.fixed_features(x) for part in seeds]
    logits = x.new_empty(batches, hosts, classes, samples)
    norms: list[list[Tensor]] = []
    for batch, rows in enumerate(x):
        features = [
            part.features(rows) if of_epoch is None else of_epoch[batch]
            for part, of_epoch in zip(seeds, fixed, strict=True)
        ]
        with torch.no_grad():
            z = layers.first(rows)
            for part, of_part in zip(seeds, features, strict=True):
                part.add(of_part, z)
            hidden1, hidden2, logits[batch] = layers.rest(z, lacking)
            # Of the mean cross-entropy of each host: p − 1 for the answer, p for the other classes.
            grad = logits[batch].softmax(1).sub_(targets[batch]).mul_(1 / samples)
            grad = layers.backward(grad, rows, hidden1, hidden2, grads)
            for part, of_part, block in zip(seeds, features, seed_blocks, strict=True):
                part.backward(of_part, grad, block.grads)
            norms.append(arena.update())

    loss, right = (
        values.view(y.shape) for values in _scores(logits.flatten(0, 1), y.flatten(0, 1))
    )
    by_block = [torch.stack(block) for block in zip(*norms, strict=True)]
    return EpochResult(loss.mean(2), right.float().mean(2), by_block)


def _scores(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute loss in nats and right answers ``[R, B]`` of logits ``[R, classes, B]``; a network with non-finite logits
    is never right.
    """
    answers = y[:, None]
    loss = -logits.log_softmax(1).gather(1, answers)[:, 0]
    best = logits.amax(1, keepdim=True)
    right = logits.gather(1, answers) == best
    # Where classes tie, equality alone would call several answers right: the first of them is the answer.
    if y.device.type != "cpu" or int((logits == best).sum()) != y.numel():
        right = logits.argmax(1, keepdim=True) == answers
    return loss, right[:, 0] & logits.sum(1).isfinite()


@torch.no_grad()
def evaluate(
    layers: HostLayers,
    seeds: list[Seeds],
    x: Tensor,
    y: Tensor,
    lacking: Tensor | None,
    on: Flags,
) -> tuple[Tensor, Tensor]:
    """Evaluate hosts with and without their seeds, each network once.

    Args:
        layers: Of the hosts.
        seeds: Those that are on in any configuration.
        x: Rows ``[G, N, D]``.
        y: Labels ``[G, N]``.
        lacking: As of ``train``.
        on: Seeds that act in a configuration, ``[Cfg, G]``.

    Returns:
        Right answers ``[Cfg, G, N]``, and mean losses ``[Cfg, G]``.
    """
    bare = layers.first(x)
    grown = bare.clone() if on.any() else bare
    for part in seeds:
        of_batch = part.fixed_features(x[None])
        part.add(part.features(x) if of_batch is None else of_batch[0], grown)
    losses: list[Tensor] = []
    rights: list[Tensor] = []
    stream_of = np.zeros(on.shape, np.int64)
    first = 0
    for z, flags in ((bare, ~on), (grown, on)):
        hosts = np.flatnonzero(flags.any(0))
        if not len(hosts):
            continue
        rows = upload(hosts, x.device)
        if len(hosts) == len(x):
            logits, answers = layers.rest(z, lacking)[-1], y
        else:
            of_rows = None if lacking is None else lacking[rows]
            logits, answers = layers.of(rows).rest(z[rows], of_rows)[-1], y[rows]
        loss, right = _scores(logits, answers)
        losses.append(loss.mean(1))
        rights.append(right)
        place = np.zeros(on.shape[1], np.int64)
        place[hosts] = first + np.arange(len(hosts))
        stream_of = np.where(flags, place, stream_of)
        first += len(hosts)
    streams = upload(stream_of, x.device)
    return torch.cat(rights)[streams], torch.cat(losses)[streams]
