"""Snapshots: what hosts are put back to, each with the seeds that it keeps."""

import pytest
import torch

from simic.growth.life.vocabulary import Stage

from ..worlds import DATA, FAMILIES, make_order, make_population, mixed_slots, one_seed, parameters

BOTH = pytest.mark.parametrize("family", FAMILIES)


@BOTH
def test_restore_brings_back_the_chosen_rows_and_leaves_the_others(family: str) -> None:
    population = make_population(family)
    slots = mixed_slots(population)
    population.train_epoch(slots, DATA[family], make_order(8, 3, 16))
    old = population.state_dict()
    snapshot = population.snapshot()
    population.train_epoch(slots, DATA[family], make_order(8, 3, 16, seed=1))
    new = population.state_dict()
    rows = torch.zeros(8, dtype=torch.bool)
    rows[[2, 5]] = True
    population.restore(snapshot, rows)
    for name, tensor in population.state_dict().items():
        if "/" in name:
            assert torch.equal(tensor[rows], old[name][rows]), name
            assert torch.equal(tensor[~rows], new[name][~rows]), name
    assert not torch.equal(old["host/momentum"][~rows], new["host/momentum"][~rows])


@BOTH
def test_a_refreshed_snapshot_holds_each_host_and_its_fossils_at_their_own_time(family: str) -> None:
    """Of other seeds and of other hosts it keeps what it had: whoever restores prunes them."""
    population = make_population(family)
    slots = mixed_slots(population)
    snapshot = population.snapshot()
    first = population.snapshot_state(snapshot)
    population.train_epoch(slots, DATA[family], make_order(8, 2, 16))
    healthy = torch.arange(8) % 2 == 0
    population.refresh(snapshot, healthy, slots)
    now, merged = population.state_dict(), population.snapshot_state(snapshot)
    assert not torch.equal(now["host/param"], first["host/param"])
    fossils = 0
    for name, tensor in merged.items():
        kind, slot, *blueprint = name.split("/")[0].split(".") if "." in name else ("host", "0")
        taken = healthy
        if kind != "host":
            taken = healthy & (slots.stage[:, int(slot)] == Stage.FOSSILIZED)
            if blueprint:
                taken = taken & (slots.blueprint[:, int(slot)] == int(blueprint[0]))
            fossils += int(taken.sum())
        assert torch.equal(tensor, torch.where(taken.view(-1, *[1] * (tensor.dim() - 1)), now[name], first[name])), name
    assert fossils


def test_a_snapshot_learns_of_seeds_that_came_after_it() -> None:
    population = make_population("mlp", 3)
    snapshot = population.snapshot()
    slots = one_seed(population, Stage.FOSSILIZED, 1, alpha=1.0)
    population.refresh(snapshot, torch.tensor([True, False, True]), slots)
    seeds = parameters(population)["seed.0.1/param"].clone()
    population._stores["seed.0.1"].param.fill_(7.0)
    population.restore(snapshot, torch.tensor([True, False, False]))
    restored = parameters(population)["seed.0.1/param"]
    assert torch.equal(restored[0], seeds[0]) and (restored[1:] == 7.0).all()
