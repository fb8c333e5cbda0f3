"""Modules of the user's that encode a leaf of the observation, in place of what simic would do with it."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import gymnasium
import torch
from torch import Tensor, nn

from simic import rng
from simic.agent.spaces import Layout, Leaf
from simic.errors import SimicError

# Makes a module from the leaf's space: it turns float32 [N, *shape] into [N, units].
EncoderFactory = Callable[[gymnasium.Space], nn.Module]
# A picture's number, or first and last column (exclusive) among the features.
Place = int | tuple[int, int]


@dataclass(frozen=True)
class EncodedLeaf:
    """A leaf, where it stands, and what makes its module."""

    leaf: Leaf
    place: Place
    factory: EncoderFactory


class LeafEncoder(nn.Module):
    """A user's module, which reads a leaf in its own shape.

    It stays in eval mode, without dropout and with the running moments that it came with: what is learned from must be
    what acted.

    Args:
        leaf: What it reads.
        factory: Makes it.

    Raises:
        SimicError: It is no module, or turns the leaf into something else than ``[N, units]``.
    """

    def __init__(self, leaf: Leaf, factory: EncoderFactory) -> None:
        super().__init__()
        self.shape = leaf.space.shape or ()
        self.highest = 1.0 if leaf.image is None else leaf.image.highest
        module = factory(leaf.space)
        name = f"encoders[{leaf.name!r}]"
        if not isinstance(module, nn.Module):
            raise SimicError(f"{name} makes a {type(module).__name__}: must make a torch.nn.Module")
        # A copy: two policies must not learn the same weights.
        self.module = deepcopy(module).float().eval()
        # Tried out once, which also tells the width.
        try:
            with torch.no_grad():
                output = self.module(torch.zeros(2, *self.shape, dtype=torch.float32))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = " ".join(str(error).split())
            raise SimicError(
                f"{name}: its module must take float32 [N, {self._sides()}]: {reason}"
            ) from None
        is_tensor = isinstance(output, Tensor) and output.dtype == torch.float32
        if not is_tensor or output.ndim != 2 or len(output) != 2:
            kind = f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else output
            raise SimicError(
                f"{name}: its module makes {kind} of [2, {self._sides()}]: must be float32 [2, units]"
            )
        self.units = output.shape[1]

    def _sides(self) -> str:
        return ", ".join(map(str, self.shape))

    def forward(self, values: Tensor) -> Tensor:
        """Encode the columns of the leaf, ``[..., columns]``."""
        # Steps and environments become one batch.
        rows = values.reshape(-1, *self.shape).float() / self.highest
        return self.module(rows).reshape(*values.shape[:-1], self.units)

    @torch.no_grad()
    def answer(self, device: torch.device) -> float:
        """Compute the mean of what the module makes of a ramp from 0 to 1, by which another one is told from it."""
        ramp = torch.linspace(0.0, 1.0, math.prod(self.shape), device=device).view(1, *self.shape)
        return float(self.module(ramp).nan_to_num(0.0, 0.0, 0.0).mean())


def encoded_leaves(layout: Layout, factories: Mapping[str, EncoderFactory]) -> list[EncodedLeaf]:
    """Find the leaves that modules are for.

    Args:
        layout: Of the observations.
        factories: By the names of leaves: keys and places joined by dots, as "camera" or "robot.0"; "observation" where
            the space is not nested.

    Raises:
        SimicError: There is no such leaf, it holds categories, or what should make a module is no function.
    """
    if not isinstance(factories, Mapping):
        raise SimicError(f"encoders is a {type(factories).__name__}: must be a mapping by leaf")
    # All are looked at before a module is made.
    names = [leaf.name for leaf in layout.leaves]
    for name, factory in factories.items():
        if name not in names:
            raise SimicError(f"encoders: there is no leaf {name!r}; they are {', '.join(names)}")
        if isinstance(factory, nn.Module) or not callable(factory):
            raise SimicError(
                f"encoders[{name!r}] is a {type(factory).__name__}: must be a function that makes a module from the"
                " leaf's space"
            )
    # Pictures are numbered, and features counted, as their columns follow one another.
    encoded: list[EncodedLeaf] = []
    images = 0
    begin = 0
    for leaf in layout.leaves:
        end = begin + leaf.size
        place = images if leaf.kind == "image" else (begin, end)
        if leaf.name in factories:
            if leaf.kind == "categories":
                raise SimicError(
                    f"encoders: {leaf} holds categories, which have embeddings: must be a Box or MultiBinary"
                )
            encoded.append(EncodedLeaf(leaf, place, factories[leaf.name]))
        if leaf.kind == "image":
            images += 1
        else:
            begin = end
    return encoded


def make_encoders(
    leaves: Sequence[EncodedLeaf], trunk: str, rng_seed: int | None
) -> dict[Place, LeafEncoder]:
    """Make the modules of a trunk; they may draw their weights from torch's generator, which the caller restores.

    Args:
        leaves: What they are for.
        trunk: Its name.
        rng_seed: First weights are the same for the same seed, as far as torch draws them; None: they come from a file.
    """
    # Each from a seed of its own: a module that is added changes no weight of another.
    encoders: dict[Place, LeafEncoder] = {}
    for encoded in leaves:
        if rng_seed is not None:
            name = f"{trunk}.{encoded.leaf.name}".encode()
            stream = rng.key(rng_seed, rng.Purpose.POLICY_INIT, zlib.crc32(name))
            torch.default_generator.manual_seed(int(rng.bits(stream)))
        encoders[encoded.place] = LeafEncoder(encoded.leaf, encoded.factory)
    return encoders
