"""A grown network leaves the population as a plain module and comes back the same."""

import json
from pathlib import Path

import pytest
import torch

import simic.growth
from simic.errors import SimicError
from simic.growth.export import grown_network, load_grown, write_network
from simic.growth.vocabulary import Slots, Stage

from .worlds import DATA, FAMILIES, make_order, make_population, mixed_slots

CARD = "# A network\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_host_of_a_mixed_population_keeps_its_outputs(family: str) -> None:
    population = make_population(family)
    slots = mixed_slots(population)
    population.train_epoch(slots, DATA[family], make_order(8, 4, 16))
    logits = population.logits(slots, DATA[family].x)
    committed = population.logits(slots, DATA[family].x, slots.stage != Stage.FOSSILIZED)
    with torch.no_grad():
        for row in range(8):
            torch.testing.assert_close(
                grown_network(population, slots, row)(DATA[family].x), logits[row], rtol=0, atol=1e-6
            )
            network = grown_network(population, slots, row, committed=True)
            torch.testing.assert_close(network(DATA[family].x), committed[row], rtol=0, atol=1e-6)
            assert network.structure.params == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_gives_the_network_back(family: str, tmp_path: Path) -> None:
    population = make_population(family, 4)
    slots = mixed_slots(population)
    history = [{"step": 3, "op": "GERMINATE", "slot": 1}]
    path = write_network(grown_network(population, slots, 2), tmp_path / "grown", history, CARD)
    assert path == tmp_path / "grown"
    assert sorted(item.name for item in path.iterdir()) == [
        "README.md",
        "history.json",
        "network.pt2",
        "structure.json",
        "weights.safetensors",
    ]
    assert json.loads((path / "history.json").read_text()) == history
    assert (path / "README.md").read_text() == CARD
    state = torch.get_rng_state()
    network = simic.growth.load_grown(str(path))
    assert torch.equal(state, torch.get_rng_state())
    expected = population.logits(slots, DATA[family].x)[2]
    program = torch.export.load(path / "network.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(network(DATA[family].x), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(program(DATA[family].x), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(program(DATA[family].x[:1]), expected[:1], rtol=0, atol=1e-6)
    with pytest.raises(SimicError, match="exists already"):
        write_network(grown_network(population, slots, 2), path, history, CARD)


def test_a_damaged_directory_is_refused_by_name(tmp_path: Path) -> None:
    population = make_population("mlp", 2)
    path = write_network(grown_network(population, Slots.empty(2, 3), 0), tmp_path / "grown", [], CARD)
    with pytest.raises(SimicError, match="not a grown network"):
        load_grown(tmp_path)
    text = (path / "structure.json").read_text()
    (path / "structure.json").write_text(text.replace('"classes": 4', '"classes": 5'))
    with pytest.raises(SimicError, match=r"tensor head\.\w+ has shape"):
        load_grown(path)
    (path / "structure.json").write_text(text.replace('"classes"', '"klasses"'))
    with pytest.raises(SimicError, match=r"structure\.json: (classes|klasses)"):
        load_grown(path)
    (path / "structure.json").write_text(text)
    (path / "weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(SimicError, match="not a grown network"):
        load_grown(path)


def test_an_unknown_blueprint_is_named(tmp_path: Path) -> None:
    population = make_population("mlp", 2)
    slots = mixed_slots(population, 1)
    path = tmp_path / "grown"
    row = int((slots.stage >= Stage.HOLDING).any(1).nonzero()[0])
    write_network(grown_network(population, slots, row), path, [], CARD)
    structure = json.loads((path / "structure.json").read_text())
    structure["seeds"][0]["blueprint"] = "mine"
    (path / "structure.json").write_text(json.dumps(structure))
    with pytest.raises(SimicError, match="blueprint 'mine': not registered; known here are norm, lora, mlp_small, mlp"):
        load_grown(path)
