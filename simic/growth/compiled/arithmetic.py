"""Matrix products and functions of small float32 arrays that stay in a core's cache, compiled by numba."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float32]
# A float32, which type checkers take for several things.
Scalar = Any
# Sums may be taken in another order, so that they use vector registers; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
OPTIONS = {"fastmath": FAST, "error_model": "numpy"}
# Of functions that only compiled ones call: what Python would need to call them takes time to compile.
INNER = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_ZERO = np.float32(0)
_ONE = np.float32(1)
_TWO = np.float32(2)
# exp(x) = 2^n · exp(r), |r| ≤ ln 2 / 2, by the first terms of its series.
_LOG2_E = np.float32(math.log2(math.e))
# (ln 2 in two parts: n times the first has no rounding.)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(8))
# Below, e^x is denormal; above, it is infinite.
_LEAST = np.float32(-87.0)
_MOST = np.float32(88.0)
_HALF = np.float32(0.5)
# sin and cos after subtracting multiples of π / 2 in three parts.
_HALF_PIS = np.float32(2 / math.pi)
_P0 = np.float32(1.5703125)
_P1 = np.float32(4.837512969970703e-4)
_P2 = np.float32(math.pi / 2 - 1.5703125 - 4.837512969970703e-4)
_SIN = tuple(np.float32((-1) ** n / math.factorial(2 * n + 1)) for n in range(1, 5))
_COS = tuple(np.float32((-1) ** n / math.factorial(2 * n)) for n in range(1, 6))

# Numbers of a vector register: eight, of which older processors take two.
_LANES = 8
_WORD = ir.IntType(64)
_INDEX = ir.IntType(32)
_NUMBER = ir.FloatType()
_VECTOR = ir.VectorType(_NUMBER, _LANES)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
_FIRST_LANE = ir.Constant(ir.VectorType(_INDEX, _LANES), [0] * _LANES)
_POINTER = _NUMBER.as_pointer()
# Pointers to the first numbers, and steps: of a from row to row and from term to term, of b and c from row to row.
_TILE = ir.FunctionType(ir.VoidType(), [_POINTER, _WORD, _WORD, _POINTER, _WORD, _POINTER, _WORD])


def _write_tile(
    function: ir.Function,
    rows: int,
    vectors: int,
) -> None:
    """Write the body of a function that adds a product to a tile of c, all held in registers."""
    a, row_step, term_step, b, step, c, terms = function.args
    before = function.append_basic_block("before")
    loop = function.append_basic_block("terms")
    after = function.append_basic_block("after")
    builder = ir.IRBuilder(before)

    def vector_at(
        pointer: Any,
        row: Any,
        vector: int,
    ) -> Any:
        offset = builder.add(builder.mul(row, step), _WORD(vector * _LANES))
        return builder.bitcast(builder.gep(pointer, [offset]), _VECTOR.as_pointer())

    # The numbers of the tile, in registers from here to the end.
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    places = [vector_at(c, _WORD(row), vector) for row, vector in tile]
    firsts = [builder.load(place, align=4) for place in places]
    builder.branch(loop)
    # Term by term: a row of b, times a number of each row of a.
    builder.position_at_end(loop)
    term = builder.phi(_WORD)
    sums = [builder.phi(_VECTOR) for _ in tile]
    wide = [builder.load(vector_at(b, term, vector), align=4) for vector in range(vectors)]
    factors = []
    for row in range(rows):
        offset = builder.add(builder.mul(_WORD(row), row_step), builder.mul(term, term_step))
        factor = builder.load(builder.gep(a, [offset]))
        lane = builder.insert_element(_UNDEFINED, factor, _INDEX(0))
        factors.append(builder.shuffle_vector(lane, _UNDEFINED, _FIRST_LANE))
    # Both at once, where the machine can.
    fused: dict[str, Any] = {"flags": ("contract",)}
    added = [
        builder.fadd(builder.fmul(factors[row], wide[vector], **fused), total, **fused)
        for (row, vector), total in zip(tile, sums, strict=True)
    ]
    # The sums go round the loop.
    following = builder.add(term, _WORD(1))
    for phi, first, value in zip(
        (term, *sums), (_WORD(0), *firsts), (following, *added), strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)
    builder.position_at_end(after)
    for place, value in zip(places, added, strict=True):
        builder.store(value, place, align=4)
    builder.ret_void()


def _tile_of(rows: int, vectors: int) -> Callable[..., None]:
    """Make a function that adds a product of at least one term to a tile of ``rows × 8 · vectors`` numbers.

    numba itself would load and store the tile for each term: less than half as fast.
    """

    @intrinsic
    def add_tile(
        context: Any,
        a: Any,
        first_a: Any,
        row_step: Any,
        term_step: Any,
        b: Any,
        first_b: Any,
        step: Any,
        c: Any,
        first_c: Any,
        terms: Any,
    ) -> Any:
        place = types.intp
        signature = types.void(a, place, place, place, b, place, place, c, place, place)

        def generate(
            context: Any,
            builder: Any,
            signature: Any,
            arguments: Any,
        ) -> Any:
            a, b, c = (
                builder.gep(
                    context.make_array(signature.args[n])(context, builder, arguments[n]).data,
                    [arguments[n + 1]],
                )
                for n in (0, 4, 7)
            )
            _, _, row_step, term_step, _, _, step, _, _, terms = arguments
            name = f"simic_add_tile_{rows}_{vectors}"
            function = get_or_insert_function(builder.module, _TILE, name)
            if function.is_declaration:
                function.linkage = "linkonce_odr"
                # One copy: to compile many takes seconds.
                function.attributes.add("noinline")
                _write_tile(function, rows, vectors)
            builder.call(function, [a, row_step, term_step, b, step, c, terms])
            return context.get_dummy_value()

        return signature, generate

    return add_tile


# Four rows use each number of b four times.
_ROWS = 4
_add_tile = _tile_of(_ROWS, 2)
_add_row = _tile_of(1, 2)
_add_narrow_tile = _tile_of(_ROWS, 1)
_add_narrow_row = _tile_of(1, 1)


@njit(**INNER)
def _add_product(
    a: Array,
    row: int,
    term: int,
    rows: int,
    terms: int,
    b: Array,
    width: int,
    c: Array,
) -> None:
    """Add a product to ``c [rows, width]``; numbers of a row of a are ``term`` apart, rows are ``row`` apart."""
    if terms == 0:
        return
    # Two vectors wide, then one, then number by number; in each four rows, then one.
    whole = rows - rows % _ROWS
    j = 0
    while j + 2 * _LANES <= width:
        for i in range(0, whole, _ROWS):
            _add_tile(a, i * row, row, term, b, j, width, c, i * width + j, terms)
        for i in range(whole, rows):
            _add_row(a, i * row, row, term, b, j, width, c, i * width + j, terms)
        j += 2 * _LANES
    if j + _LANES <= width:
        for i in range(0, whole, _ROWS):
            _add_narrow_tile(a, i * row, row, term, b, j, width, c, i * width + j, terms)
        for i in range(whole, rows):
            _add_narrow_row(a, i * row, row, term, b, j, width, c, i * width + j, terms)
        j += _LANES
    if j < width:
        for i in range(rows):
            for k in range(terms):
                factor = a[i * row + k * term]
                for n in range(j, width):
                    c[i * width + n] += factor * b[k * width + n]


@njit(**INNER)
def add_product(
    a: Array,
    b: Array,
    c: Array,
) -> None:
    """Add ``a [n, k] @ b [k, m]`` to ``c [n, m]``."""
    rows, terms = a.shape
    _add_product(a.reshape(-1), terms, 1, rows, terms, b.reshape(-1), c.shape[1], c.reshape(-1))


@njit(**INNER)
def add_turned_product(
    a: Array,
    b: Array,
    c: Array,
) -> None:
    """Add ``a [k, n].T @ b [k, m]`` to ``c [n, m]``."""
    terms, rows = a.shape
    _add_product(a.reshape(-1), 1, rows, rows, terms, b.reshape(-1), c.shape[1], c.reshape(-1))


@njit(**INNER)
def copy(source: NDArray, target: NDArray) -> None:
    """Copy an array; numba compiles an assignment to a slice for seconds."""
    target = target.reshape(-1)
    source = source.reshape(-1)
    for i in range(len(target)):
        target[i] = source[i]


@njit(**INNER)
def clear(array: Array) -> None:
    """Set an array to 0."""
    flat = array.reshape(-1)
    for i in range(len(flat)):
        flat[i] = _ZERO


@njit(**INNER)
def dots(
    a: Array,
    b: Array,
    c: Array,
) -> None:
    """Write ``a [n, k] @ b [m, k].T`` to ``c [n, m]``: for few columns m."""
    # Along rows of both.
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            total = _ZERO
            for k in range(a.shape[1]):
                total += a[i, k] * b[j, k]
            c[i, j] = total


@njit(**INNER)
def transpose(a: Array, b: Array) -> None:
    """Write ``a.T`` to ``b``."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[j, i] = a[i, j]


@njit(inline="always", **INNER)
def exp(x: Scalar) -> Scalar:
    """Compute e^x of a float32."""
    # Comparisons let NaN through.
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    # What remains of the argument, and its series.
    n = np.floor(x * _LOG2_E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    value = _SERIES[7]
    value = value * r + _SERIES[6]
    value = value * r + _SERIES[5]
    value = value * r + _SERIES[4]
    value = value * r + _SERIES[3]
    value = value * r + _SERIES[2]
    value = value * r + _ONE
    value = value * r + _ONE
    # 2^n: n in the exponent's bits.
    return value * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(inline="always", **INNER)
def tanh(x: Scalar) -> Scalar:
    """Compute tanh of a float32."""
    return _ONE - _TWO / (exp(_TWO * x) + _ONE)


@njit(inline="always", **INNER)
def sin_cos(x: Scalar) -> tuple[Scalar, Scalar]:
    """Compute sine and cosine of a float32, to 5e-6 within ±60."""
    # What remains of the angle, within ±π / 4.
    n = np.floor(x * _HALF_PIS + _HALF)
    r = x - n * _P0 - n * _P1 - n * _P2
    # The series of both.
    square = r * r
    sin = r + r * square * (_SIN[0] + square * (_SIN[1] + square * (_SIN[2] + square * _SIN[3])))
    cos = _ONE + square * (
        _COS[0] + square * (_COS[1] + square * (_COS[2] + square * (_COS[3] + square * _COS[4])))
    )
    # The quarter of the circle.
    quarter = np.int32(n) & np.int32(3)
    swaps = (quarter & 1) == 1
    s = cos if swaps else sin
    c = sin if swaps else cos
    s = -s if quarter >= 2 else s
    c = -c if quarter == 1 or quarter == 2 else c
    return s, c
