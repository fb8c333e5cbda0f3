"""Hosts: exact sizes, slot shapes, refusals."""

from itertools import pairwise

import pytest

from simic.errors import SimicError
from simic.growth.networks.hosts import build_host
from simic.growth.networks.layers import norm_groups
from tests.standard import Host


def test_the_group_rule() -> None:
    # the largest of 32, 16, 8, 4, 2 dividing C with C/g ≥ 16, else 1
    table = {4: 1, 16: 1, 24: 1, 32: 2, 48: 2, 64: 4, 96: 4, 128: 8, 256: 16, 512: 32, 1024: 32}
    assert {channels: norm_groups(channels) for channels in table} == table
    for (low, small), (high, large) in pairwise(sorted(table.items())):
        assert low < high
        assert small <= large


def test_a_norm_over_too_few_values_is_refused_with_slot_and_shape() -> None:
    # widths 4, 1 on 1×8×8: the second block norms 1 × 4×4 = 16 values, but its slot has 1 × 2×2 = 4
    with pytest.raises(SimicError, match=r"slot 1 has shape \(1, 2, 2\).* over 4 values"):
        build_host(Host(widths=(4, 1)), (1, 8, 8), 10)
    with pytest.raises(SimicError, match=r"slot 0 has shape \(7,\)"):
        build_host(Host(family="mlp", preset="baseline", widths=(7,)), (1, 8, 8), 10)
    build_host(Host(family="mlp", preset="baseline", widths=(8,)), (1, 8, 8), 10)


def test_bad_inputs_are_refused() -> None:
    with pytest.raises(SimicError, match="input shape"):
        build_host(Host(), (64,), 10)
    with pytest.raises(SimicError, match="classes = 1"):
        build_host(Host(), (1, 8, 8), 1)
    with pytest.raises(SimicError, match="compares columns: there must be at least two"):
        build_host(Host(family="tables", preset="baseline"), (1, 1, 1), 2)
    with pytest.raises(SimicError, match="kernel_size = 3"):
        build_host(Host(family="mlp", kernel_size=3), (1, 8, 8), 10)
