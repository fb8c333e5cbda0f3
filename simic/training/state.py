"""Everything that training mutates, in one place: what is not in here is lost by a kill."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.ppo import PPO
from simic.errors import SimicError
from simic.training import checkpoint
from simic.training.checkpoint import Scalar, part_of
from simic.training.ranks import ALONE, Ranks

BY_ENVIRONMENT = "reward.running"  # of the normalisers: one entry per environment, a part of them in each process


@dataclass
class Counters:
    """The part of the state that is not a tensor."""

    iteration: int = 0  # iterations done
    env_steps: int = 0  # valid environment steps
    rollbacks: int = 0
    group: int = 0  # hosts that run at once since the memory did not suffice for all; 0 = it always did
    best_score: float | None = None  # mean committed validation accuracy, points
    best_iteration: int | None = None  # iterations done when it was reached
    chain: str = ""  # sha256 over the previous link and the state after each iteration


class TrainState:
    """Policy, optimizer, normalisers and counters; tensors and scalars by path, and back. Of several processes each has
    the same state, those of all environments included.
    """

    def __init__(self, ppo: PPO, normalizers: Normalizers, ranks: Ranks = ALONE):
        self.ppo, self.normalizers, self.ranks, self.counters = ppo, normalizers, ranks, Counters()

    def tensors(self) -> dict[str, Tensor]:
        """Return CPU copies by name, ``ppo/…`` and ``normalizers/…``."""
        normalizers = self.normalizers.state_dict()
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.whole(normalizers[BY_ENVIRONMENT])
        parts = {"ppo": self.ppo.state_dict(), "normalizers": normalizers}
        return {
            f"{part}/{name}": tensor.detach().to("cpu", copy=True).contiguous()
            for part, tensors in parts.items()
            for name, tensor in tensors.items()
        }

    def scalars(self) -> dict[str, Scalar]:
        """Return the counters by name."""
        return asdict(self.counters)

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]) -> None:
        """Restore a state exactly; SimicError naming what is missing or unknown."""
        own, given = self.tensors().keys() | self.scalars().keys(), tensors.keys() | scalars.keys()
        for name in sorted(own ^ given):
            raise SimicError(f"checkpoint: {name} is {'missing' if name in own else 'unknown here'}")
        self.ppo.load_state_dict(part_of(tensors, "ppo/"))
        normalizers = part_of(tensors, "normalizers/")
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.part(normalizers[BY_ENVIRONMENT])
        self.normalizers.load_state_dict(normalizers)
        for field in fields(Counters):
            setattr(self.counters, field.name, scalars[field.name])

    def sha256(self) -> str:
        """Return the hash of all tensors, whatever came before."""
        return checkpoint.link({}, self.tensors())

    def link(self) -> str:
        """Add the present state to the hash chain; two runs are equal up to an iteration if their links are."""
        self.counters.chain = checkpoint.link(self.scalars(), self.tensors())
        return self.counters.chain
