"""A grown network that takes a user's samples as they are gives the answers it was trained to, in or out of simic."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine

from simic.data.own.own import own_data
from simic.data.own.readers import of_python
from simic.growth.batch.population import Population
from simic.growth.export import grown_network, load_grown, write_network
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host
from tests.standard import HostOptimizer


@pytest.mark.parametrize("kind", ["table", "nhwc"])
def test_raw_samples_give_what_standardised_ones_give(tmp_path: Path, kind: str) -> None:
    if kind == "table":
        x, y = load_wine(return_X_y=True)
        x[::7, 2] = np.nan
    else:
        x, y = load_digits(return_X_y=True)
        x = np.stack([x.reshape(-1, 8, 8)] * 3, axis=-1)
    own = own_data(of_python(x, y), {"val": 0.2, "test": 0.2}, 1)
    standardised, family = own.bank.held_out_arrays["x_test"], "tables" if kind == "table" else "cnn"
    host = build_host(Host(family=family, preset="baseline"), tuple(standardised.shape[1:]), len(own.inputs.classes))
    population = Population(host, blueprints_of(family), torch.arange(2), 1, HostOptimizer())
    population.reset(0)
    slots = Slots.empty(2, host.slots)
    slots = replace(slots, stage=torch.full_like(slots.stage, int(Stage.DORMANT)))
    network = grown_network(population, slots, 1, committed=True, inputs=own.inputs)
    raw = torch.as_tensor(own.raw["test"], dtype=own.inputs.dtype)
    with torch.no_grad():
        expected = network.body(standardised)
        assert expected.std() > 0
        write_network(network, tmp_path / "grown", [], "# A network\n")
        loaded = load_grown(tmp_path / "grown")
        program = torch.export.load(tmp_path / "grown" / "network.pt2").module()
        assert loaded.structure.inputs == own.inputs
        for outside in (network, loaded, program):
            for rows in (raw, raw[:1]):
                torch.testing.assert_close(outside(rows), expected[: len(rows)], rtol=0, atol=1e-6)
