"""Where memory does not hold all hosts at once, they run in groups."""

import pytest
import torch
from torch import Tensor

from simic.growth.batch.groups import Integers
from simic.growth.batch.population import Population, TrainStats

from ..worlds import DATA, FAMILIES, make_order, make_population, mixed_slots


class Full(Population):
    """Memory for ``room`` hosts at once: a mock, since the CPU's allocator raises no such error."""

    room = 3
    refused = 0

    def _train(self, hosts: Integers, *given: object) -> TrainStats:
        self._ask(hosts)
        return super()._train(hosts, *given)  # pyright: ignore[reportArgumentType]

    def _evaluate(self, hosts: Integers, *given: object) -> tuple[Tensor, Tensor]:
        self._ask(hosts)
        return super()._evaluate(hosts, *given)  # pyright: ignore[reportArgumentType]

    def _ask(self, hosts: Integers) -> None:
        if len(hosts) > self.room:
            self.refused += 1
            raise torch.OutOfMemoryError


@pytest.mark.parametrize("family", FAMILIES)
def test_without_memory_for_all_hosts_they_run_in_groups(family: str) -> None:
    whole, full = make_population(family, 8, backend="loop"), make_population(family, 8, backend="loop", kind=Full)
    slots, order, data = mixed_slots(whole), make_order(8, 3, 16), DATA[family]
    mixed_slots(full)
    stats, same = (population.train_epoch(slots, data, order) for population in (whole, full))
    assert full.group == 2
    assert full.refused == 2  # 8, then 4
    for name, value in vars(stats).items():
        assert torch.equal(value.nan_to_num(-1), getattr(same, name).nan_to_num(-1)), name
    off = torch.zeros(1, len(whole), whole.host.slots, dtype=torch.bool)
    first, second = whole.evaluate(slots, data, off), full.evaluate(slots, data, off)
    assert torch.equal(first.correct, second.correct)
    assert torch.equal(first.loss, second.loss)
    assert full.refused == 2
    ours, theirs = full.state_dict(), whole.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items() if name != "group")
    again = make_population(family, 8, backend="loop")
    again.load_state_dict(ours)
    assert again.group == 2


def test_memory_that_does_not_hold_one_host_is_an_error() -> None:
    full = make_population("mlp", 2, kind=Full)
    full.room = 0
    with pytest.raises(torch.OutOfMemoryError):
        full.train_epoch(mixed_slots(full), DATA["mlp"], make_order(2, 1, 16))
