"""Arithmetic in the field of 65537 elements, on arrays.

Rule 1: 3 generates the multiplicative group, whose order is 2^16.  A non-zero element
        is stored as its discrete logarithm in a uint16.  The wrap-around of that word
        *is* the reduction modulo the order: products are sums, inverses are negations.
Rule 2: sums of products are float64 matrix products.  A product is at most 2^32, so
        that up to 2^21 of them sum exactly, in whatever order BLAS chooses.
Rule 3: matrices that depend only on public abscissae are cached if they are small, and
        built in blocks of rows if they are not.

Nothing here runs in constant time: table lookups and reductions may depend on the
values.  Only public abscissae are looked up; secrets are only multiplied.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

PRIME: Final = 65537
MAX_ABSCISSA: Final = PRIME - 1

_GENERATOR: Final = 3
_ORDER: Final = PRIME - 1

# 2^22 entries of float64 are 32 MiB: the largest matrix built at once.
_MAX_ENTRIES: Final = 1 << 22
# 2^16 entries are 512 KiB: the largest cached matrix.  A client deals once in a session
# and keeps the cache for hours; computing a larger matrix costs it milliseconds.
_KEPT_ENTRIES: Final = 1 << 16
# 2^17 entries of int64 are 1 MiB: differences that are used once stay in the cache.
_CACHED_ENTRIES: Final = 1 << 17

# Bytes are weighed in float32, 24 bits of which are exact: 128 products of a byte
# and half a weight (at most 256) stay below 2^23.
_ROWS_PER_BLOCK: Final = 128
_BYTES_PER_BLOCK: Final = 1024

FieldArray: TypeAlias = npt.NDArray[np.int64]
"""Field elements as integers in [0, 65537)."""

_Floats: TypeAlias = npt.NDArray[np.float64]
_Logs: TypeAlias = npt.NDArray[np.uint16]


def _power_table() -> npt.NDArray[np.int64]:
    """Return the powers of the generator."""
    powers = np.ones(_ORDER, np.int64)
    known = 1
    while known < _ORDER:
        factor = pow(_GENERATOR, known, PRIME)
        powers[known : 2 * known] = powers[:known] * factor % PRIME
        known *= 2
    return powers


def _log_table(powers: npt.NDArray[np.int64]) -> _Logs:
    # Entry 0 is no logarithm.  It is 0, so that the excluded factor x_j - x_j of a
    # product counts as 1 there.
    logs = np.zeros(PRIME, np.uint16)
    logs[powers] = np.arange(_ORDER, dtype=np.uint16)
    return logs


_POWERS: Final = _power_table()
_EXP: Final = _POWERS.astype(np.float64)
_LOG: Final = _log_table(_POWERS)
# Logarithms of integers in [0, 2·65537): a difference plus 65537 needs no reduction.
_LOG_TWICE: Final = np.concatenate([_LOG, _LOG])


def check_abscissae(abscissae: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return abscissae as an array if they are usable.

    Args:
        abscissae: Distinct integers in [1, 65536], shape (n,).

    Raises:
        ValueError: One is out of range or occurs twice; x = 0 would be the secret.
    """
    points = np.asarray(abscissae)
    if points.ndim != 1 or points.size == 0 or points.dtype.kind not in "iu":
        raise ValueError("expected a list of integers as abscissae")
    check_distinct(points[None, :])
    return points.astype(np.int64)


def check_distinct(points: npt.NDArray[np.integer[Any]]) -> None:
    """Check that every row of integers holds usable abscissae.

    Args:
        points: Not empty, shape (rows, n).

    Raises:
        ValueError: One is out of range or occurs twice in its row.
    """
    if int(points.min()) < 1 or int(points.max()) > MAX_ABSCISSA:
        raise ValueError(f"expected abscissae in [1, {MAX_ABSCISSA}]")
    # np.unique would take 10 ms on its first call to import unused modules.
    ordered = np.sort(points, axis=1)
    if np.any(ordered[:, 1:] == ordered[:, :-1]):
        raise ValueError("an abscissa occurs twice")


def reduce_products(sums: _Floats) -> FieldArray:
    """Reduce exact sums of products modulo 65537.

    Args:
        sums: Integers in [0, 2^53) as float64, any shape.
    """
    return sums.astype(np.int64) % PRIME


def evaluate(abscissae: npt.NDArray[np.int64], coefficients: FieldArray) -> FieldArray:
    """Evaluate polynomials at many points.

    Args:
        abscissae: Non-zero field elements, shape (n,).
        coefficients: Row j holds the coefficients of x^j, shape (t, columns).

    Returns:
        Values, shape (n, columns).
    """
    terms = coefficients.shape[0]
    right = coefficients.astype(np.float64)
    values = np.empty((abscissae.size, right.shape[1]), np.int64)
    for rows, matrix in _vandermonde_blocks(abscissae, terms):
        values[rows] = reduce_products(matrix @ right)
    return values


def lagrange_at_zero(abscissae: npt.NDArray[np.int64]) -> _Floats:
    """Return the weights that interpolate at zero, cached by the set of points.

    Args:
        abscissae: Distinct non-zero field elements, shape (h,).

    Returns:
        λ of shape (h,), integers in [1, 65536] as float64, read-only.  For every
            polynomial f of degree below h, Σ λ_j f(x_j) is f(0) modulo 65537.
    """
    return _lagrange_cached(abscissae.tobytes())


def lagrange_at_zero_batch(abscissae: npt.NDArray[np.int64]) -> _Floats:
    """Return interpolation weights for many small sets of points at once.

    Args:
        abscissae: Distinct non-zero elements within each row, shape (sets, h).

    Returns:
        Weights as of `lagrange_at_zero`, shape (sets, h).
    """
    sets, points = abscissae.shape
    weights = np.empty((sets, points), np.float64)
    batch = max(1, _CACHED_ENTRIES // (points * points))
    for low in range(0, sets, batch):
        x = abscissae[low : low + batch]
        logs = _LOG[x]
        products = _log_difference_products(x, x)
        total = logs.sum(axis=1, dtype=np.uint16)[:, None] - logs - products
        weights[low : low + batch] = _EXP[total]
    return weights


def weigh_bytes(weights: _Floats, data: npt.NDArray[np.uint8]) -> FieldArray:
    """Sum rows of bytes with weights: what interpolation does to encoded limbs.

    Bytes convert to float32 four times as fast as limbs to float64, and nothing has
    to be decoded first.

    Args:
        weights: Integers in [0, 65536] as float64, shape (h,).
        data: Shape (h, columns).

    Returns:
        Exact sums Σ_j weights_j · data_j, not reduced, shape (columns,).
    """
    whole = weights.astype(np.int64)
    halves = np.stack([whole >> 8, whole & 0xFF]).astype(np.float32)
    sums = np.zeros((2, data.shape[1]), np.int64)
    buffer = np.empty((_ROWS_PER_BLOCK, _BYTES_PER_BLOCK), np.float32)
    for top in range(0, data.shape[0], _ROWS_PER_BLOCK):
        left = np.ascontiguousarray(halves[:, top : top + _ROWS_PER_BLOCK])
        for low in range(0, data.shape[1], _BYTES_PER_BLOCK):
            columns = slice(low, low + _BYTES_PER_BLOCK)
            block = data[top : top + _ROWS_PER_BLOCK, columns]
            right = buffer[: block.shape[0], : block.shape[1]]
            np.copyto(right, block)
            sums[:, columns] += (left @ right).astype(np.int64)
    total: FieldArray = (sums[0] << 8) + sums[1]
    return total


def parity_check(
    abscissae: npt.NDArray[np.int64], values: FieldArray, degree_bound: int
) -> FieldArray:
    """Compute the syndromes of received values.

    Args:
        abscissae: Distinct non-zero field elements, shape (m,).
        values: Column c holds received values of one polynomial, shape (m, columns).
        degree_bound: t; the polynomials have degree below it, t <= m.

    Returns:
        Shape (m - t, columns).  A column is zero exactly if its values lie on a
        polynomial of degree below t.

    Source:
        The dual of a generalised Reed-Solomon code: S_k = Σ_j v_j x_j^k y_j with
        v_j = 1 / Π_{i≠j} (x_j - x_i).
    """
    checks = abscissae.size - degree_bound
    logs = _LOG[abscissae]
    multipliers = -_column_multipliers(abscissae)
    right = values.astype(np.float64)
    syndromes = np.empty((checks, values.shape[1]), np.int64)
    step = max(1, _MAX_ENTRIES // abscissae.size)
    for low in range(0, checks, step):
        orders = np.arange(low, min(low + step, checks), dtype=np.uint16)
        matrix = _EXP[orders[:, None] * logs[None, :] + multipliers]
        syndromes[low : low + step] = reduce_products(matrix @ right)
    return syndromes


def locate_roots(
    abscissae: npt.NDArray[np.int64], locator: FieldArray
) -> npt.NDArray[np.bool_]:
    """Return at which points an error locator Λ(z) = Π (1 - x_e z) has its roots.

    Args:
        abscissae: Non-zero field elements, shape (m,).
        locator: Coefficients of Λ, that of z^0 first.

    Returns:
        Shape (m,): whether Λ(1/x_j) is zero.
    """
    inverses = _POWERS[-_LOG[abscissae]]
    values = evaluate(inverses, locator[:, None])
    return np.equal(values[:, 0], 0)


def _column_multipliers(abscissae: npt.NDArray[np.int64]) -> _Logs:
    """Return log Π_{i≠j} (x_j - x_i) for every j, in blocks of rows."""
    products = np.empty(abscissae.size, np.uint16)
    step = max(1, _CACHED_ENTRIES // abscissae.size)
    for low in range(0, abscissae.size, step):
        products[low : low + step] = _log_difference_products(
            abscissae, abscissae[low : low + step]
        )
    return products


def _log_difference_products(
    points: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
) -> _Logs:
    """Return log Π_i (x_i - a_j) over the last axis, without factors that are zero.

    The sign of every factor is that of x_i - a_j.
    """
    differences = (points + PRIME)[..., None, :] - at[..., :, None]
    logs: _Logs = _LOG_TWICE.take(differences, mode="clip")  # "clip" skips a check
    products: _Logs = np.add.reduce(logs, axis=-1, dtype=np.uint16)
    return products


@lru_cache(maxsize=64)
def _lagrange_cached(abscissae: bytes) -> _Floats:
    """Return the Lagrange weights at zero for distinct abscissae."""
    x = np.frombuffer(abscissae, np.int64)
    logs = _LOG[x]
    # λ_j = Π_{i≠j} x_i / (x_i - x_j)
    total = logs.sum(dtype=np.uint16) - logs - _column_multipliers(x)
    weights: _Floats = _EXP[total]
    weights.flags.writeable = False
    return weights


def _vandermonde_blocks(
    abscissae: npt.NDArray[np.int64], terms: int
) -> Iterator[tuple[slice, _Floats]]:
    """Yield blocks of rows of the matrix x_i^j, j < terms."""
    entries = abscissae.size * terms
    if entries <= _KEPT_ENTRIES:
        yield slice(None), _vandermonde_cached(abscissae.tobytes(), terms)
        return
    if entries <= _MAX_ENTRIES:
        yield slice(None), _vandermonde(abscissae, terms)
        return
    step = max(1, _MAX_ENTRIES // terms)
    for low in range(0, abscissae.size, step):
        rows = slice(low, low + step)
        yield rows, _vandermonde(abscissae[rows], terms)


@lru_cache(maxsize=4)
def _vandermonde_cached(abscissae: bytes, terms: int) -> _Floats:
    matrix = _vandermonde(np.frombuffer(abscissae, np.int64), terms)
    matrix.flags.writeable = False
    return matrix


def _vandermonde(abscissae: npt.NDArray[np.int64], terms: int) -> _Floats:
    # terms <= 65536, so that every exponent is below the group's order.
    exponents = np.arange(terms, dtype=np.uint16)
    matrix: npt.NDArray[Any] = _EXP[_LOG[abscissae][:, None] * exponents[None, :]]
    return matrix
