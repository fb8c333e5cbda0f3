"""A grown network leaves the population as a plain module and comes back the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.datasets import load_digits, load_wine

import simic.growth
from simic import durable
from simic.data.own.own_data import own_data
from simic.data.own.readers import of_python
from simic.errors import SimicError
from simic.growth.grown_network import (
    GrownNetwork,
    SeedRecord,
    grown_network,
    load_grown,
    write_network,
)
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks import blueprints
from simic.growth.networks.hosts import build_host
from simic.params import Host

from .worlds import (
    DATA,
    FAMILIES,
    logits_of,
    make_order,
    make_population,
    make_table,
    mixed_slots,
    one_seed,
    population_of,
)

CARD = "# A network\n"
TABLES = blueprints.blueprints_of("tables")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grown_network_keeps_its_outputs_in_memory_and_in_a_directory(
    family: str, tmp_path: Path
) -> None:
    population = make_population(family)
    slots = mixed_slots(population)
    x = DATA[family].x
    population.train_epoch(slots, DATA[family], make_order(8, 4, 16))
    logits = logits_of(population, slots, x)
    committed = logits_of(population, slots, x, slots.stage != Stage.FOSSILIZED)
    with torch.no_grad():
        for row in range(8):
            live = grown_network(population, slots, row)(x)
            torch.testing.assert_close(live, logits[row], rtol=0, atol=1e-6)
            network = grown_network(population, slots, row, committed=True)
            torch.testing.assert_close(network(x), committed[row], rtol=0, atol=1e-6)
            assert network.structure.params == sum(p.numel() for p in network.parameters())
    # The live network of one host, written.
    history = [{"step": 3, "op": "GERMINATE", "slot": 1}]
    path = write_network(grown_network(population, slots, 2), tmp_path / "grown", history, CARD)
    assert path == tmp_path / "grown"
    written = {"README.md", "history.json", "network.pt2", "structure.json", "weights.safetensors"}
    assert {item.name for item in path.iterdir()} == written
    assert json.loads((path / "history.json").read_text()) == history
    assert (path / "README.md").read_text() == CARD
    state = torch.get_rng_state()
    network = simic.growth.load_grown(str(path))
    assert torch.equal(state, torch.get_rng_state())
    program = torch.export.load(path / "network.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(network(x), logits[2], rtol=0, atol=1e-6)
        torch.testing.assert_close(program(x), logits[2], rtol=0, atol=1e-6)
        torch.testing.assert_close(program(x[:1]), logits[2, :1], rtol=0, atol=1e-6)
    with pytest.raises(SimicError, match="already exists"):
        write_network(grown_network(population, slots, 2), path, history, CARD)


@pytest.mark.parametrize("kind", range(len(TABLES)), ids=[item.name for item in TABLES])
def test_every_seed_for_tables_is_exported(kind: int, tmp_path: Path) -> None:
    population = make_population("tables", 2)
    slots = one_seed(population, Stage.FOSSILIZED, kind, alpha=1.0)
    population.train_epoch(slots, DATA["tables"], make_order(2, 30, 16))
    write_network(grown_network(population, slots, 1, committed=True), tmp_path / "grown", [], CARD)
    program = torch.export.load(tmp_path / "grown" / "network.pt2").module()
    x = make_table(seed=8).x
    expected, bare = (logits_of(population, state, x)[1] for state in (slots, Slots.empty(2, 1)))
    with torch.no_grad():
        torch.testing.assert_close(program(x), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, bare, atol=1e-3), (
        "a seed that does nothing would show nothing"
    )


def test_a_damaged_directory_is_refused_by_name(tmp_path: Path) -> None:
    population = make_population("mlp", 2)
    slots = one_seed(population, Stage.FOSSILIZED, 0, alpha=1.0)
    path = write_network(grown_network(population, slots, 0), tmp_path / "grown", [], CARD)
    with pytest.raises(SimicError, match=r"structure\.json: no such file"):
        load_grown(tmp_path)
    file = path / "structure.json"
    text = file.read_text()
    structure = durable.checked(file.read_bytes())
    file.write_text(text.replace('"classes": 4', '"classes": 5'))
    message = r"structure\.json: damaged: its checksum does not match; bring the folder back"
    with pytest.raises(SimicError, match=message):
        load_grown(path)
    unknown = {"seeds": [{**structure["seeds"][0], "blueprint": "mine"}]}
    for forged, words in (
        ({"classes": 5}, r"tensor head\.\w+ has shape"),
        ({"klasses": 4}, r"structure\.json: klasses"),
        # Of these, gigabytes: told by the weights, before there is memory for any.
        ({"classes": 10**9}, r"tensor head\.\w+ has shape"),
        ({"input_shape": [1, 1, 10**10]}, r"tensor segments\.\S+ has shape"),
        ({"input_shape": [1, 10**10, 10**10]}, "no network can be built"),
        (unknown, "blueprint 'mine': not registered; known here are norm, lora, mlp_small, mlp"),
    ):
        file.write_bytes(durable.with_checksum(structure | forged))
        with pytest.raises(SimicError, match=words):
            load_grown(path)
    file.write_text(text)
    content = bytearray((path / "weights.safetensors").read_bytes())
    tensors = load(bytes(content))
    next(iter(tensors.values())).fill_(torch.nan)
    hashes = {"weights.safetensors": durable.sha256_of(save(tensors))}
    (path / "weights.safetensors").write_bytes(save(tensors))
    file.write_bytes(durable.with_checksum(structure | {"sha256": structure["sha256"] | hashes}))
    with pytest.raises(SimicError, match="holds numbers that are not finite"):
        load_grown(path)
    file.write_text(text)
    content[-2] ^= 1
    (path / "weights.safetensors").write_bytes(content)
    with pytest.raises(
        SimicError, match=r"weights\.safetensors: damaged: its sha256 is not the one"
    ):
        load_grown(path)


class Untraceable(torch.nn.Module):
    """Decides by a value, which no graph can hold."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight if float(x.detach().sum()) > 0 else x


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(blueprints, "_REGISTRY", dict(blueprints._REGISTRY))
    population = make_population("mlp", 2)
    structure = grown_network(population, Slots.empty(2, 3), 0).structure
    blueprints.blueprint("untraceable", family="mlp")(Untraceable)
    record = SeedRecord(
        slot=0, blueprint="untraceable", stage="FOSSILIZED", operator="ADD", alpha=1.0, params=1
    )
    network = GrownNetwork.fresh(structure.model_copy(update={"seeds": (record,)}), population.host)
    with pytest.raises(
        SimicError, match=r"torch\.export cannot write a network with untraceable"
    ) as caught:
        write_network(network, tmp_path / "grown", [], CARD)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["table", "nhwc"])
def test_raw_samples_give_what_standardised_ones_give(tmp_path: Path, kind: str) -> None:
    if kind == "table":
        x, y = load_wine(return_X_y=True)
        x[::7, 2] = np.nan
    else:
        x, y = load_digits(return_X_y=True)
        x = np.stack([x.reshape(-1, 8, 8)] * 3, axis=-1)
    data = own_data(of_python(x, y), {"val": 0.2, "test": 0.2}, 1)
    standardised = data.bank.held_out_arrays["x_test"]
    family = "tables" if kind == "table" else "cnn"
    host = build_host(
        Host(family=family, preset="baseline"),
        tuple(standardised.shape[1:]),
        len(data.inputs.classes),
    )
    network = grown_network(
        population_of(host, 2), Slots.empty(2, host.slots), 1, committed=True, inputs=data.inputs
    )
    raw = torch.as_tensor(data.raw["test"], dtype=data.inputs.dtype)
    with torch.no_grad():
        expected = network.body(standardised)
        assert expected.std() > 0
        write_network(network, tmp_path / "grown", [], "# A network\n")
        loaded = load_grown(tmp_path / "grown")
        program = torch.export.load(tmp_path / "grown" / "network.pt2").module()
        assert loaded.structure.inputs == data.inputs
        for outside in (network, loaded, program):
            for rows in (raw, raw[:1]):
                torch.testing.assert_close(outside(rows), expected[: len(rows)], rtol=0, atol=1e-6)
