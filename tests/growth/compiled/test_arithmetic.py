"""Products and functions of the compiled loops against numpy in double precision."""

import numpy as np
import pytest
from numba import njit

from simic.growth.compiled import arithmetic
from simic.growth.compiled.arithmetic import OPTIONS


@njit(**OPTIONS)
def products(a, b, c, turned):
    arithmetic.add_product(a, b, c)
    arithmetic.add_turned_product(a, c, turned)


@njit(**OPTIONS)
def functions(x, exps, tanhs, sines, cosines):
    for i in range(len(x)):
        exps[i] = arithmetic.exp(x[i])
        tanhs[i] = arithmetic.tanh(x[i])
        sines[i], cosines[i] = arithmetic.sin_cos(x[i])


@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 29, 32, 40])
@pytest.mark.parametrize(("rows", "terms"), [(0, 3), (1, 1), (3, 0), (6, 5), (9, 33)])
def test_products_of_any_shape(rows: int, terms: int, width: int) -> None:
    generator = np.random.default_rng(0)
    a, b, c = (
        generator.normal(size=shape).astype(np.float32)
        for shape in ((rows, terms), (terms, width), (rows, width))
    )
    expected = c + a.astype(float) @ b
    turned = np.ones((terms, width), np.float32)
    products(a, b, c, turned)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turned, 1 + a.T.astype(float) @ expected, rtol=1e-4, atol=1e-4)


def test_functions() -> None:
    x = np.linspace(-60, 60, 10_001).astype(np.float32)
    measured = [np.empty_like(x) for _ in range(4)]
    functions(x, *measured)
    exps, tanhs, sines, cosines = measured
    exact = x.astype(float)
    np.testing.assert_allclose(exps, np.exp(exact), rtol=1e-6)
    np.testing.assert_allclose(tanhs, np.tanh(exact), atol=1e-6)
    np.testing.assert_allclose(sines, np.sin(exact), atol=5e-6)
    np.testing.assert_allclose(cosines, np.cos(exact), atol=5e-6)


def test_what_is_not_a_number_stays_so() -> None:
    x = np.full(9, np.nan, np.float32)
    measured = [np.empty_like(x) for _ in range(4)]
    functions(x, *measured)
    assert np.isnan(measured).all()
