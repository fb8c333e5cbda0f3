"""An epoch of hosts for tables as few products over all of them, with the backward pass of the host written out.

It is what ``forward`` does for hosts of family ``tables`` whose seeds add φ(row) · B to the first pre-activation: the
same losses and gradients up to rounding, at less than half of the cost (docs/history/experiments.md). Features that do
not learn are computed once an epoch. It is fastest where hosts with seeds of one blueprint are neighbours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.growth.batch.arena import Arena
from simic.growth.batch.forward import Templates
from simic.growth.batch.groups import Flags, SlotGroups
from simic.growth.batch.template import Template
from simic.growth.life.vocabulary import Blend
from simic.growth.networks.tabular import FixedSeed
from simic.transfer import upload

# Of classes that a task does not have: their probability is 0, as by −∞, but every sum of logits stays finite.
LACKING_LOGIT = -1e30
# Numbers that are held of samples and fixed features at once: an epoch of the default hosts, little of a large table.
MOST_NUMBERS = 2**24
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
        # In place: nothing else reads the pre-activations.
        hidden1 = z.relu_()
        hidden2 = torch.baddbmm(self.bias2[:, None], hidden1, self.weight2.mT)
        hidden2.relu_()
        # By the bias: no pass over the logits is needed.
        bias = self.bias3
        if lacking is not None:
            bias = bias.masked_fill(lacking, LACKING_LOGIT)
        logits = torch.baddbmm(bias[..., None], self.weight3, hidden2.mT)
        return hidden1, hidden2, logits

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        hidden1: Tensor,
        hidden2: Tensor,
        grads: "HostLayers",
    ) -> Tensor:
        """Write the gradients of all parameters; give that of the first pre-activation.

        Args:
            grad: Of the logits, ``[G, classes, B]``.
            x: Rows, ``[G, B, D]``.
            hidden1: From ``rest``, like ``hidden2``.
            hidden2: The second hidden layer.
            grads: Where they are written.
        """
        # Third layer, second, first; relu passes what was above 0.
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

    def logits(self, z: Tensor, lacking: Tensor | None, rows: Tensor) -> Tensor:
        """Compute logits ``[R, classes, B]`` of some hosts from the pre-activations of all, which may be changed."""
        if len(rows) == len(z):
            _, _, logits = self.rest(z, lacking)
            return logits
        of_rows = None if lacking is None else lacking[rows]
        _, _, logits = self.of(rows).rest(z[rows], of_rows)
        return logits

    def of(self, rows: Tensor) -> "HostLayers":
        """Select some hosts."""
        selection = {name: tensor.index_select(0, rows) for name, tensor in vars(self).items()}
        return HostLayers(**selection)


class Seeds:
    """Seeds of one blueprint.

    Args:
        template: Their blueprint.
        weights: All its tensors, ``[R, *shape]``.
        hosts: Places of the hosts, ``[R]``.
        alpha: Amplitudes ``[R]``; NaN where a seed is in TRAINING: it learns and adds nothing.
    """

    def __init__(
        self,
        template: Template,
        weights: list[Tensor],
        hosts: Tensor,
        alpha: Tensor,
    ) -> None:
        module = template.row_seed
        assert module is not None
        # Fixed features have nothing to learn, so an epoch computes them once.
        self.template = template
        self.is_fixed = isinstance(module, FixedSeed)
        # Neighbours are viewed, others copied.
        first = int(hosts[0])
        is_run = int(hosts[-1]) - first == len(hosts) - 1
        self.hosts = slice(first, first + len(hosts)) if is_run else hosts
        self.out = weights[template.names.index("out")].detach()
        self.width = self.out.shape[0] * self.out.shape[1]  # features of a sample of all of them
        # Leaves for the gradients of φ: the tensors themselves are moved in place.
        self.weights = [
            weight.detach().requires_grad_(trains and name != "out" and not self.is_fixed)
            for name, weight, trains in zip(
                template.names, weights, template.layout.trained, strict=True
            )
        ]
        # Those that act; None: all of them.
        acts = ~alpha.isnan()
        all_act = bool(acts.all())
        self.is_view = is_run and all_act
        self.acting = None if all_act else acts.nonzero().flatten()
        self.places = hosts if self.acting is None else hosts[self.acting]
        # A factor of φ · B that is one number costs nothing; amplitudes below 1 are one for each seed.
        self.gain = module.gain
        is_full = bool((alpha[acts] == 1).all())
        self.alpha: Tensor | None = None
        if not is_full:
            self.alpha = torch.where(acts, alpha, 1.0)[:, None, None]

    @torch.no_grad()
    def fixed_features(self, x: Tensor) -> Tensor | None:
        """Compute features that do not learn, ``[n, R, B, F]`` of batches ``[n, G, B, D]``; None if they do."""
        if not self.is_fixed:
            return None
        return self.template.features(self.weights, x[:, self.hosts])

    def features(self, x: Tensor) -> Tensor:
        """Compute the features ``[R, B, F]`` of rows ``[G, B, D]``."""
        return self.template.features(self.weights, x[self.hosts])

    def add(self, features: Tensor, z: Tensor) -> None:
        """Add φ · B of the seeds that act, of features ``[R, B, F]``, to pre-activations ``z [G, B, H1]``."""
        # Amplitudes are of seeds, so they scale B, which is smaller than the features.
        out = self.out if self.alpha is None else self.out * self.alpha
        # Into the pre-activations themselves, where they are neighbours.
        if self.is_view:
            z[self.hosts].baddbmm_(features, out, alpha=self.gain)
        # By index: what a seed in TRAINING makes, be it NaN, does not reach its host.
        elif len(self.places):
            if self.acting is not None:
                features = features[self.acting]
                out = out[self.acting]
            output = torch.bmm(features, out)
            z.index_add_(0, self.places, output, alpha=self.gain)

    def backward(self, features: Tensor, grad: Tensor, grads: list[Tensor]) -> None:
        """Write the gradients of the parameters.

        Args:
            features: As they were added.
            grad: Of the pre-activations, ``[G, B, H1]``.
            grads: By tensor that trains.
        """
        # The buffers by the name of what they belong to.
        layout = self.template.layout
        names = [
            name for name, trains in zip(self.template.names, layout.trained, strict=True) if trains
        ]
        by_name = dict(zip(names, grads, strict=True))
        # What reaches the seeds; in TRAINING as if they had added.
        outgoing = grad[self.hosts]
        if self.alpha is not None:
            outgoing = outgoing * self.alpha
        # Of B: a product with the features.
        out = by_name.pop("out")
        _product(features.detach().mT, outgoing, self.gain, out)
        # Of what is inside of φ, if anything is: by autograd, whatever the blueprint.
        if not by_name:
            return
        leaves = [weight for weight in self.weights if weight.requires_grad]
        of_features = torch.empty_like(features)
        _product(outgoing, self.out.mT, self.gain, of_features)
        inner = torch.autograd.grad(features, leaves, of_features)
        for buffer, of_leaf in zip(by_name.values(), inner, strict=True):
            buffer.copy_(of_leaf)


def _product(left: Tensor, right: Tensor, factor: float, out: Tensor) -> None:
    """Write ``factor · left @ right`` into ``out``."""
    torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


def seeds_of(
    templates: Templates,
    groups: SlotGroups | None,
    weights: list[list[Tensor]],
) -> list[Seeds]:
    """List the seeds by blueprint.

    Args:
        templates: All blueprints.
        groups: The seeds that run, in their order.
        weights: Tensors by blueprint.
    """
    if groups is None:
        return []
    # NaN stays where a seed is in TRAINING.
    alpha = torch.full_like(groups.hosts, torch.nan, dtype=torch.float32)
    for item in groups.blended:
        alpha[item.positions] = item.alpha.to(alpha.dtype)
    return [
        Seeds(
            template=templates.seeds[0][kind],
            weights=tensors,
            hosts=groups.hosts[first:last],
            alpha=alpha[first:last],
        )
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
    data: Dataset,
    order: Tensor,
    lacking: Tensor | None,
) -> EpochResult:
    """Train hosts and seeds.

    Args:
        arena: Blocks of the hosts and of the seeds, in their order.
        seeds: By blueprint.
        data: The training split.
        order: Its rows, ``[G, n, B]``.
        lacking: Classes that the task of a host does not have, bool ``[G, classes]``.
    """
    # As many minibatches at once as memory should hold.
    hosts, _, samples = order.shape
    columns = data.x[0].numel()
    numbers = hosts * columns + sum(part.width for part in seeds if part.is_fixed)
    at_once = max(1, MOST_NUMBERS // (samples * numbers))
    logits: list[Tensor] = []
    norms: list[list[Tensor]] = []
    labels: list[Tensor] = []
    # Batches first, so that each is one contiguous block.
    for rows in order.transpose(0, 1).split(at_once):
        chosen = rows.flatten()
        x = data.x.flatten(1).index_select(0, chosen)
        y = data.y.index_select(0, chosen)
        labels.append(y.view(-1, samples))
        _train_batches(
            arena,
            seeds,
            x.view(*rows.shape, columns),
            y.view(rows.shape),
            lacking,
            logits,
            norms,
        )

    # What the epoch measured.
    answers = data.y.index_select(0, order.transpose(0, 1).flatten()).view(-1, order.shape[2])
    loss, right = (
        values.view(len(logits), len(order), -1) for values in _scores(torch.cat(logits), answers)
    )
    by_block = [torch.stack(block) for block in zip(*norms, strict=True)]
    return EpochResult(loss.mean(2), right.float().mean(2), by_block)


def _train_batches(
    arena: Arena,
    seeds: list[Seeds],
    x: Tensor,
    y: Tensor,
    lacking: Tensor | None,
    logits: list[Tensor],
    norms: list[list[Tensor]],
) -> None:
    """Make a step for each minibatch; append its logits ``[G, classes, B]``, and the norms of its gradients by block.

    Args:
        arena: As of ``train``, like ``seeds`` and ``lacking``.
        seeds: By blueprint.
        x: Rows ``[n, G, B, D]``.
        y: Labels ``[n, G, B]``.
        lacking: Classes that are no answers.
        logits: Are appended to, like ``norms``.
        norms: Of each minibatch.
    """
    host_block, *seed_blocks = arena.blocks
    layers = HostLayers(*host_block.params)
    grads = HostLayers(*host_block.grads)
    batches, hosts, samples, _ = x.shape
    # One-hot, beside the logits: classes before samples.
    targets = x.new_zeros(batches, hosts, layers.weight3.shape[1], samples)
    targets.scatter_(2, y[:, :, None], 1.0)
    fixed = [part.fixed_features(x) for part in seeds]
    for batch, rows in enumerate(x):
        # Features outside of no_grad: those that learn need their graph.
        features = [
            part.features(rows) if of_all is None else of_all[batch]
            for part, of_all in zip(seeds, fixed, strict=True)
        ]
        with torch.no_grad():
            # Forward.
            z = layers.first(rows)
            for part, of_part in zip(seeds, features, strict=True):
                part.add(of_part, z)
            hidden1, hidden2, of_batch = layers.rest(z, lacking)
            logits.append(of_batch)

            # Backward, from the mean cross-entropy of each host: p − 1 for the answer, p for the other classes.
            probability = of_batch.softmax(1)
            grad = probability.sub_(targets[batch]).mul_(1 / samples)
            grad = layers.backward(grad, rows, hidden1, hidden2, grads)
            for part, of_part, block in zip(seeds, features, seed_blocks, strict=True):
                part.backward(of_part, grad, block.grads)
            norms.append(arena.update())


def _scores(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute loss in nats and right answers ``[R, B]`` of logits ``[R, classes, B]``; a network with non-finite logits
    is never right.
    """
    answers = y[:, None]
    log_probability = logits.log_softmax(1)
    loss = -log_probability.gather(1, answers)[:, 0]
    # Comparing with the largest logit is faster than argmax over few classes.
    best = logits.amax(1, keepdim=True)
    right = logits.gather(1, answers) == best
    # Where classes tie, equality alone would call several answers right: the first of them is the answer.
    if y.device.type != "cpu" or int((logits == best).sum()) != y.numel():
        right = logits.argmax(1, keepdim=True) == answers
    # One number that is not finite makes their sum so.
    finite = logits.sum(1).isfinite()
    return loss, right[:, 0] & finite


@torch.no_grad()
def evaluate(
    layers: HostLayers,
    seeds: list[Seeds],
    data: Dataset,
    tasks: Tensor,
    lacking: Tensor | None,
    on: Flags,
) -> tuple[Tensor, Tensor]:
    """Evaluate hosts with and without their seeds, each network once.

    Args:
        layers: Of the hosts.
        seeds: Those that are on in any configuration.
        data: What they are evaluated on, N samples of each task.
        tasks: Of the hosts, ``[G]``.
        lacking: As of ``train``.
        on: Seeds that act in a configuration, ``[Cfg, G]``.

    Returns:
        Right answers ``[Cfg, G, N]``, and mean losses ``[Cfg, G]``.
    """
    # The networks: hosts that are bare in a configuration, then hosts that are grown in one.
    bare = (~on).any(0)
    grown = on.any(0)
    number_bare = np.cumsum(bare) - 1
    number_grown = bare.sum() + np.cumsum(grown) - 1
    network_of = upload(np.where(on, number_grown, number_bare), tasks.device)
    networks = (
        upload(np.flatnonzero(bare), tasks.device),
        upload(np.flatnonzero(grown), tasks.device),
    )

    # As many samples at once as memory should hold.
    samples = data.x.view(data.tasks, len(data), -1)
    labels = data.y.view(data.tasks, len(data))
    numbers = len(tasks) * (samples.shape[2] + layers.weight1.shape[1])
    numbers += sum(part.width for part in seeds)
    at_once = max(1, MOST_NUMBERS // numbers)
    parts = [
        _answers(
            layers,
            seeds,
            x.index_select(0, tasks),
            y.index_select(0, tasks),
            lacking,
            networks,
        )
        for x, y in zip(samples.split(at_once, 1), labels.split(at_once, 1), strict=True)
    ]
    losses, rights = zip(*parts, strict=True)
    loss = torch.cat(losses, 1).mean(1)
    right = torch.cat(rights, 1)
    return right[network_of], loss[network_of]


def _answers(
    layers: HostLayers,
    seeds: list[Seeds],
    x: Tensor,
    y: Tensor,
    lacking: Tensor | None,
    networks: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute loss and right answers ``[bare + grown, B]`` of some samples.

    Args:
        layers: As of ``evaluate``, like ``seeds`` and ``lacking``.
        seeds: By blueprint.
        x: Rows ``[G, B, D]``.
        y: Labels ``[G, B]``.
        lacking: Classes that are no answers.
        networks: Hosts to run without their seeds, and with them.
    """
    # Both share the first product.
    bare, grown = networks
    z = layers.first(x)
    with_seeds = z.clone() if len(bare) and len(grown) else z
    for part in seeds:
        features = part.fixed_features(x[None])
        part.add(part.features(x) if features is None else features[0], with_seeds)
    answers = [
        _scores(layers.logits(features, lacking, rows), y[rows])
        for features, rows in ((z, bare), (with_seeds, grown))
        if len(rows)
    ]
    losses, rights = zip(*answers, strict=True)
    return torch.cat(losses), torch.cat(rights)
