"""The explorer: tries seeds one after the other and keeps the one its plan says, for a controller to learn from.

Random decisions hardly ever take a seed to its end, and never prune one to try elsewhere. Of twins that keep the first,
the second and the third try one ends best; when to prune is what imitation learns from them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.envs.patient import Patient, steps_to_clear, steps_to_finish
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.params import Lifecycle

MOST_TRIES = 3
SHARE_OF_A_TRY = 0.3  # of an episode: the later a seed is judged the surer, and the last one still has time to learn


@dataclass(frozen=True)
class Tries:
    """When seeds that are tried one after the other germinate, and at which age each is judged; in steps."""

    age: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, lifecycle: Lifecycle, steps: int) -> "Tries":
        """As many tries as can be finished, at most three; none is judged before it can be measured and pruned."""
        finish, clear = steps_to_finish(lifecycle), steps_to_clear(lifecycle)
        age = max(lifecycle.min_prune_age, finish, round(SHARE_OF_A_TRY * steps) - clear)
        return cls(age, tuple(range(0, max(1, steps - finish), age + clear))[:MOST_TRIES])


class Explorer(Patient):
    """Host by host: germinates the openings ``order [E, tries, 2]`` (slot, blueprint) one after the other, prunes each
    when it is judged until the one numbered ``keep [E]``, which it keeps.
    """

    def __init__(self, lifecycle: Lifecycle, steps: int, order: Tensor, keep: Tensor) -> None:
        super().__init__(lifecycle, steps, order)
        self.keep, self.judged_at = keep, Tries.of(lifecycle, steps).age

    def _manage(self, slots: Slots, managed: Tensor, left: int) -> Tensor:
        def of(values: Tensor) -> Tensor:
            return values.gather(1, managed[:, None])[:, 0]

        contribution, holding = of(slots.contribution), of(slots.stage) == Stage.HOLDING
        due, last = of(slots.age) >= self.judged_at, self.tried.sum(dim=1) > self.keep
        another = (left > self.to_clear + self.to_finish) & ~self.tried.all(dim=1)
        helps = due & (contribution > self.lifecycle.min_contribution_pct)
        op = torch.where(self._may_advance(slots, managed), int(Op.ADVANCE), int(Op.WAIT))
        op = torch.where(due & ~last & another, int(Op.PRUNE), op)
        keep = holding & ((last & helps) | ((contribution > 0) & (left == 1)))
        return torch.where(keep, int(Op.FOSSILIZE), op)
