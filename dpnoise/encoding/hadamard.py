"""Hadamard matrices and products with their Kronecker products.

* A Hadamard matrix has entries ±1 and orthogonal rows: A·Aᵀ = n·I. Kronecker products
  of Hadamard matrices are Hadamard matrices.
* Factors have orders 2, 4, 8, 16, 32 (Sylvester, symmetric) and 12 or 20 (Paley, not
  symmetric; the inverse uses the transpose).
* A product with the big matrix is a chain of small matrix products. Factors of 32
  keep the matrix and its operands in the fastest cache, which two factors of 1024
  would not.
"""

import functools
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import ParameterError

_Matrix = npt.NDArray[np.float64]

_SYLVESTER_STEP: Final = 5  # 2^5 = 32
_PALEY_ORDERS: Final = {12: 11, 20: 19}  # order q + 1 for a prime q = 3 modulo 4
# Odd parts that one or two Paley factors offer beside powers of two. Together they
# leave at most 20 percent of padding.
_PALEY_COMBINATIONS: Final = ((), (12,), (20,), (12, 12), (12, 20), (20, 20))


@functools.cache
def hadamard_matrix(order: int) -> _Matrix:
    """A Hadamard matrix of order 1, 2, 4, 8, 16, 32, 12 or 20, read-only.

    Raises:
        ParameterError: Another order.

    Source:
        Sylvester's doubling; Paley's first construction I + S with the Jacobsthal
        matrix of the field with `order` − 1 elements.
    """
    if order in _PALEY_ORDERS:
        matrix = _paley(_PALEY_ORDERS[order])
    elif order in (1, 2, 4, 8, 16, 32):
        matrix = np.ones((1, 1))
        while len(matrix) < order:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    else:
        raise ParameterError(
            f"no Hadamard factor of order {order} is built in",
            parameter="order",
            value=order,
            nearest="32",
        )
    matrix = np.ascontiguousarray(matrix)
    matrix.setflags(write=False)
    return matrix


def padded_dim(dim: int, *, paley: bool) -> int:
    """The smallest supported length of at least `dim`.

    Args:
        dim: Number of coordinates, at least 1.
        paley: Whether factors 12 and 20 may be used; else powers of two only.
    """
    return min(math.prod(factors) for factors in _candidates(dim, paley=paley))


def kronecker_factors(length: int) -> tuple[int, ...]:
    """Orders of the factors of a supported length, their product being `length`.

    Raises:
        ParameterError: The length is not one that `padded_dim` returns.
    """
    for factors in _candidates(length, paley=True):
        if math.prod(factors) == length:
            return factors
    raise ParameterError(
        f"{length} is no product of the built-in Hadamard orders",
        parameter="length",
        value=length,
        nearest=str(padded_dim(length, paley=True)),
    )


def kronecker_product(
    factors: tuple[int, ...], vector: _Matrix, *, transpose: bool = False
) -> _Matrix:
    """Multiply the Kronecker product of Hadamard matrices with a vector.

    Args:
        factors: Orders of the factors, leftmost first.
        vector: Shape (product of the factors,).
        transpose: Multiply with the transposed matrix instead, which is the inverse up
            to the factor `vector.size`.

    Returns:
        The product, not normalised, shape of `vector`.
    """
    matrices = [hadamard_matrix(order) for order in factors]
    if transpose:
        matrices = [matrix.T for matrix in matrices]
    # The rightmost factor acts on runs of neighbours, every further one on runs that
    # are as far apart as the orders already done.
    product = vector.reshape(-1, factors[-1]) @ matrices[-1].T
    done = factors[-1]
    for order, matrix in zip(factors[-2::-1], matrices[-2::-1], strict=True):
        product = np.matmul(matrix, product.reshape(-1, order, done))
        done *= order
    return product.reshape(-1)


def _candidates(dim: int, *, paley: bool) -> list[tuple[int, ...]]:
    """For each Paley part, the factors of the smallest multiple 2^k of it ≥ dim."""
    combinations = _PALEY_COMBINATIONS if paley else _PALEY_COMBINATIONS[:1]
    candidates: list[tuple[int, ...]] = []
    for odd in combinations:
        needed = -(-dim // math.prod(odd))
        exponent = (needed - 1).bit_length()
        fives, rest = divmod(exponent, _SYLVESTER_STEP)
        sylvester = (2**rest,) * (rest > 0) + (32,) * fives
        candidates.append((odd + sylvester) or (1,))
    return candidates


def _paley(prime: int) -> _Matrix:
    """I + S, where S is skew and built from the squares modulo a prime ≡ 3 mod 4."""
    squares = {k * k % prime for k in range(1, prime)}
    character = np.array([0] + [1 if k in squares else -1 for k in range(1, prime)])
    index = np.arange(prime)
    skew = np.zeros((prime + 1, prime + 1))
    skew[0, 1:] = 1.0
    skew[1:, 0] = -1.0
    skew[1:, 1:] = character[(index[:, None] - index[None, :]) % prime]
    return skew + np.eye(prime + 1)
