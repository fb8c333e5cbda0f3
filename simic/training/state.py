"""Everything that training changes: policy, optimizer, scales, place in the environments, counters."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import part_of
from simic.agent.ppo import PPO
from simic.errors import SimicError
from simic.telemetry.rows import FindingRow
from simic.training import checkpoint
from simic.training.checkpoint import Scalar, cpu_copies
from simic.training.ranks import Ranks
from simic.training.task import Task

BY_ENVIRONMENT = "reward.running"  # of the normalisers: one entry per environment, a part of them in each process


@dataclass
class Counters:
    """The part of the state that is not a tensor."""

    iteration: int = 0  # iterations done
    env_steps: int = 0  # valid environment steps
    rollbacks: int = 0
    # hosts that run at once since the memory did not suffice for all; 0 = it always did
    group: int = 0
    best_score: float | None = None  # mean committed validation accuracy, points
    best_iteration: int | None = None  # iterations done when it was reached
    chain: str = ""  # sha256 over the previous link and the state after each iteration


class TrainState:
    """All tensors and scalars of a training by name, and back. Of several processes each has the same state, those of
    all environments included.
    """

    def __init__(self, ppo: PPO, normalizers: Normalizers, task: Task, ranks: Ranks):
        self.ppo = ppo
        self.normalizers = normalizers
        self.task = task
        self.ranks = ranks
        self.counters = Counters()

    def tensors(self) -> dict[str, Tensor]:
        """Copy all to the CPU by name, ``ppo/…``, ``normalizers/…`` and ``task/…``."""
        # One entry for each environment: those of all processes together, so that any number of them can go on.
        normalizers = self.normalizers.state_dict()
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.whole(normalizers[BY_ENVIRONMENT])
        parts = {
            "ppo": self.ppo.state_dict(),
            "normalizers": normalizers,
            "task": self.task.state_dict(),
        }
        return cpu_copies(parts)

    def scalars(self) -> dict[str, Scalar]:
        return asdict(self.counters)

    def load(
        self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]
    ) -> list[FindingRow]:
        """Restore a state; findings where that is not exact; SimicError naming what is missing or unknown."""
        _refuse_other_names(self.scalars(), scalars)
        inexact = self.load_tensors(tensors)
        # Counters are changed in place, since others hold them.
        for field in fields(Counters):
            setattr(self.counters, field.name, scalars[field.name])
        return [
            finding.model_copy(update={"iteration": self.counters.iteration}) for finding in inexact
        ]

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> list[FindingRow]:
        """Restore the tensors alone; findings where that is not exact."""
        # Names first: nothing is exchanged where one is missing or unknown.
        _refuse_other_names(self.tensors(), tensors)
        self.ppo.load_state_dict(part_of(tensors, "ppo/"))
        normalizers = part_of(tensors, "normalizers/")
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.part(normalizers[BY_ENVIRONMENT])
        self.normalizers.load_state_dict(normalizers)
        inexact = self.task.load_state_dict(part_of(tensors, "task/"))
        return [] if inexact is None else [inexact]

    def sha256(self) -> str:
        """Hash all tensors, whatever came before."""
        return checkpoint.link({}, self.tensors())

    def link(self) -> str:
        """Add the present state to the hash chain; two runs are equal up to an iteration if their links are."""
        # The counters hold the link before: each link vouches for all that came earlier.
        self.counters.chain = checkpoint.link(self.scalars(), self.tensors())
        return self.counters.chain


def _refuse_other_names(expected: Mapping[str, object], present: Mapping[str, object]) -> None:
    for name in sorted(expected.keys() ^ present.keys()):
        raise SimicError(
            f"checkpoint: {name} is {'missing' if name in expected else 'unknown here'}"
        )
