"""The modules of the reference have the sizes that are documented, and begin as they are to."""

import pytest
import torch

from simic.certify import streams
from simic.certify.bank import NoReference
from simic.certify.modules import BLUEPRINTS, gate
from simic.certify.networks import anatomy
from tests.standard import Host

# Exact parameters at C = 8, 16, 32 (docs of each blueprint).
SIZES = {
    "norm": (17, 33, 65),
    "attention": (40, 144, 544),
    "depthwise": (152, 432, 1376),
    "bottleneck": (720, 864, 1152),
    "conv_small": (80, 288, 1088),
    "conv_light": (592, 2336, 9280),
    "conv_heavy": (1184, 4672, 18560),
}


@pytest.mark.parametrize("name", SIZES)
def test_blueprints_have_their_documented_sizes(name: str) -> None:
    found = tuple(BLUEPRINTS["cnn"][name]((channels, 4, 4)).params for channels in (8, 16, 32))
    assert found == SIZES[name]


@pytest.mark.parametrize("family", BLUEPRINTS)
def test_with_closing_parameters_at_zero_a_seed_is_the_identity(family: str) -> None:
    shape = (16,) if family == "mlp" else (16, 4, 4)
    x = torch.linspace(-1, 2, 3 * 16 * (1 if family == "mlp" else 16), dtype=torch.float64).reshape(3, *shape)
    for name, build in BLUEPRINTS[family].items():
        part = build(shape)
        values = part.draw(streams.key(7, 0))
        for closed in part.closing:
            values[closed].zero_()
        if part.closing:
            assert torch.equal(part.run(values, x), x), name


def test_a_gate_is_one_amplitude_for_each_sample() -> None:
    part = gate((16, 4, 4))
    amplitude = part.run(part.draw(streams.key(1, 0)), torch.ones(5, 16, 4, 4, dtype=torch.float64))
    assert amplitude.shape == (5, 1) and ((amplitude > 0) & (amplitude < 1)).all()


def test_rows_and_names_agree() -> None:
    part = BLUEPRINTS["cnn"]["bottleneck"]((8, 4, 4))
    values = part.draw(streams.key(3, 0))
    row = torch.cat([value.flatten() for value in values.values()])
    assert all(torch.equal(part.unflatten(row)[name], value) for name, value in values.items())


def test_a_host_counts_what_it_has() -> None:
    body = anatomy(Host(family="cnn", preset="impaired"), (1, 16, 16), 10)
    # 1×1 convolutions 1→4→8→16, their norms, a classifier: 4 + 32 + 128, 2·28, 170.
    assert body.params == 164 + 56 + 170
    # 2 FLOPs for each multiply-add: 256 · 4, 64 · 32, 16 · 128, 160.
    assert body.flops == 2 * (1024 + 2048 + 2048 + 160)
    assert body.shapes == ((4, 8, 8), (8, 4, 4), (16, 2, 2))


def test_unknown_hosts_are_refused() -> None:
    with pytest.raises(NoReference, match="transformer"):
        anatomy(Host(family="transformer"), (16,), 256)
