"""A user's network as a host: what it answers is what it answered, and what does not fit is one line."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from simic.errors import SimicError
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.own import load_network, own_host

from ..worlds import logits_of, population_of

IMAGE = (1, 8, 8)


class Cut(nn.Module):
    """With a list of segments, a batch norm that has seen data and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(6)
        norm.running_mean, norm.running_var = torch.linspace(-1, 1, 6), torch.linspace(0.5, 2, 6)
        first = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), norm, nn.ReLU())
        self.segments = nn.ModuleList([first, nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU())])
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 36, 4))

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = segment(x)
        return self.head(x)


def images() -> nn.Module:
    parts = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(*parts)


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 4))


@pytest.mark.parametrize(
    ("build", "shape", "family", "slots"),
    [
        (Cut, IMAGE, "adapted_cnn", [(6, 8, 8), (8, 6, 6)]),
        (images, IMAGE, "adapted_cnn", [(8, 6, 6), (8, 6, 6), (8, 3, 3), (8, 1, 1)]),
        (rows, (1, 1, 20), "mlp", [(12,), (12,)]),
    ],
    ids=["segments", "sequential", "rows"],
)
def test_every_host_answers_as_the_network_in_evaluation_mode(build, shape, family, slots) -> None:
    torch.manual_seed(0)
    network = build()
    population = population_of(own_host(network, shape, 4, "mine"), 3)
    host = population.host
    assert (host.family, list(host.slot_shapes), host.frozen) == (family, slots, True)
    assert host.params == sum(parameter.numel() for parameter in network.parameters())
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    assert network.training, "the user's own is left as it was"
    with torch.no_grad():
        expected = network.eval()(x.flatten(1) if shape[:2] == (1, 1) else x)
    network.train()
    found = logits_of(population, Slots.empty(3, host.slots), x)
    for row in found:
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


class Other(Cut):
    """Its forward does more than its segments."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) + 1


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.get_buffer("mask")


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Linear(64, 4), "Linear cannot be cut: must be an nn.Sequential, or have a list `segments`"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), "answers with 5 logits, the data have 4 classes"),
        (nn.Sequential(nn.Flatten(), nn.Linear(60, 4)), r"fails on samples \[1, 8, 8\]"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(128, 4)), "must be a tensor"),
        (nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))), "must have at least two segments"),
        (Other(), "its segments one after another do not give what the network gives"),
        (nn.Sequential(Buffered(), nn.Flatten(), nn.Linear(64, 4)), "Buffered keeps the buffer 'mask'"),
        (
            nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 4)),
            "BatchNorm2d without running statistics normalises each minibatch by itself",
        ),
        (nn.Sequential(nn.Conv2d(1, 1, 7), nn.Flatten(), nn.Linear(4, 4)), "mine, slot 0 .* at least 8 are needed"),
    ],
)
def test_what_does_not_fit_is_one_line(network: nn.Module, words: str) -> None:
    with pytest.raises(SimicError, match=words) as caught:
        own_host(network, IMAGE, 4, "mine")
    assert "\n" not in str(caught.value)


FILE = """
from torch import nn
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))
number = 3
def make():
    return network
def fail():
    raise ValueError("no weights\\nhere")
"""


def test_a_network_is_found_by_its_name_and_what_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own_network_by_name.py"
    path.write_text(FILE)
    network = load_network(f"{path}:network")
    assert isinstance(network, nn.Sequential) and load_network(f"{path}:make") is network
    for name, words in (
        ("number", "number is int: must be an nn.Module, or a function"),
        ("missing", "missing is missing: must be"),
        ("fail", "ValueError: no weights here"),
    ):
        with pytest.raises(SimicError, match=words) as caught:
            load_network(f"{path}:{name}")
        assert "\n" not in str(caught.value)
    with pytest.raises(SimicError, match="no such file"):
        load_network(f"{tmp_path}/nowhere.py:network")
