"""Random rotations: they spread a vector evenly over its coordinates.

* A rotation is an orthonormal matrix times random signs, one sign per coordinate of
  the unrotated vector. The signs come from a public seed that all parties of the
  session know; draw a fresh one for every session.
* `inverse(forward(x))` is x up to float rounding, for vectors of any length.
* No privacy rests on a rotation. It may lose bits: the norm is measured again in fixed
  point afterwards (`dpnoise.encoding.scaling`).

| name | matrix | padding | flatness ρ |
|---|---|---|---|
| hadamard | Walsh–Hadamard | to a power of two | 1 |
| hadamard-kronecker | with factors 12 and 20 too | 20 percent at most | 1 |
| dft | real discrete Fourier transform | none | 2 |
| none | identity | none | the dimension |

A coordinate of a rotated vector of norm R is sub-Gaussian with variance at most ρR²/d,
because no squared entry of the matrix exceeds ρ/d.

Hadamard matrices, and products with their Kronecker products:

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
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from dpnoise.checks import check_integer
from dpnoise.errors import InputError, ParameterError
from dpnoise.samplers.bit_source import BitSource

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


@functools.lru_cache(maxsize=64)  # a plan asks ten thousand times
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


MAX_ROTATED_DIM: Final = 1 << 31
"""Largest number of coordinates: 16 GB of float64."""

_Vector = npt.NDArray[np.float64]
_SIGN_LABEL: Final = b"rotation/signs"
_NAMES: Final = ("hadamard", "hadamard-kronecker", "dft", "none")


class Rotation(Protocol):
    """An orthonormal map from `dim` coordinates into `encoded_dim` coordinates."""

    @property
    def dim(self) -> int:
        """Coordinates of the caller's vector."""

    @property
    def encoded_dim(self) -> int:
        """Coordinates after padding and rotation."""

    @property
    def flatness(self) -> float:
        """ρ: `encoded_dim` times the largest squared entry of the matrix."""

    def forward(self, vector: _Vector) -> _Vector:
        """Rotate: shape (dim,) to a fresh array of shape (encoded_dim,)."""

    def inverse(self, rotated: _Vector) -> _Vector:
        """Rotate back: shape (encoded_dim,) to a fresh array of shape (dim,)."""


def rotation_names() -> tuple[str, ...]:
    """The names that `make_rotation` knows."""
    return _NAMES


def encoded_dim(name: str, dim: int) -> int:
    """Number of coordinates after rotation.

    Args:
        name: One of `rotation_names()`.
        dim: Coordinates of the caller's vector, in [1, 2^31].

    Raises:
        ParameterError: Unknown name, or `dim` out of range.
    """
    check_integer("dim", dim, 1, MAX_ROTATED_DIM)
    if _require_name(name).startswith("hadamard"):
        return padded_dim(dim, paley=name == "hadamard-kronecker")
    return dim


def flatness(name: str, dim: int) -> float:
    """ρ of a rotation: `encoded_dim` times the largest squared entry of its matrix.

    Raises:
        ParameterError: Unknown name, or `dim` out of range.
    """
    check_integer("dim", dim, 1, MAX_ROTATED_DIM)
    if _require_name(name) == "none":
        return float(dim)
    return 2.0 if name == "dft" else 1.0


def make_rotation(name: str, dim: int, public_seed: bytes) -> Rotation:
    """Build the rotation of one session.

    Args:
        name: One of `rotation_names()`.
        dim: Coordinates of the caller's vector, in [1, 2^31].
        public_seed: 32 bytes that all parties of the session know.

    Raises:
        ParameterError: Unknown name, `dim` out of range, or a seed of another length.

    Source:
        [Aga21] Algorithm 1 (H·D); the transform of any length is ours.
    """
    length = encoded_dim(name, dim)
    source = BitSource(public_seed, _SIGN_LABEL)
    if name == "none":
        return _NoRotation(dim)
    if name == "dft":
        return _FourierRotation(dim, _signs(source, dim))
    # The signs carry the normalisation: one pass over the vector instead of two.
    signs = _signs(source, dim)
    signs *= 1.0 / math.sqrt(length)
    return _HadamardRotation(dim, length, kronecker_factors(length), signs)


def _require_name(name: str) -> str:
    """Return the name of a rotation, or refuse it."""
    if name not in _NAMES:
        raise ParameterError(
            f"unknown rotation {name!r}, expected one of {', '.join(_NAMES)}",
            parameter="rotation",
            value=name,
            nearest="hadamard",
        )
    return name


def _signs(source: BitSource, dim: int) -> _Vector:
    """One sign per coordinate: bit j of the stream, least significant first."""
    packed = np.frombuffer(source.bytes_at(0, -(-dim // 8)), np.uint8)
    bits = np.unpackbits(packed, count=dim, bitorder="little")
    signs = bits.astype(np.float64)
    signs *= -2.0
    signs += 1.0
    return signs


def _require_shape(name: str, vector: _Vector, size: int) -> None:
    """Refuse a vector of another shape or type."""
    if vector.shape != (size,) or vector.dtype != np.float64:
        raise InputError(
            f"{name} must be float64 of shape ({size},), "
            f"got {vector.dtype} of shape {vector.shape}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _NoRotation:
    """The identity."""

    dim: int

    @property
    def encoded_dim(self) -> int:
        return self.dim

    @property
    def flatness(self) -> float:
        return float(self.dim)

    def forward(self, vector: _Vector) -> _Vector:
        _require_shape("vector", vector, self.dim)
        return vector.copy()

    def inverse(self, rotated: _Vector) -> _Vector:
        _require_shape("rotated", rotated, self.dim)
        return rotated.copy()


@dataclass(frozen=True, slots=True, eq=False)
class _HadamardRotation:
    """Signs, then a Kronecker product of Hadamard matrices."""

    dim: int
    encoded_dim: int
    factors: tuple[int, ...]
    scaled_signs: _Vector = field(repr=False)
    flatness: ClassVar[float] = 1.0

    def forward(self, vector: _Vector) -> _Vector:
        _require_shape("vector", vector, self.dim)
        padded = np.zeros(self.encoded_dim)
        np.multiply(vector, self.scaled_signs, out=padded[: self.dim])
        return kronecker_product(self.factors, padded)

    def inverse(self, rotated: _Vector) -> _Vector:
        _require_shape("rotated", rotated, self.encoded_dim)
        back = kronecker_product(self.factors, rotated, transpose=True)[: self.dim]
        return back * self.scaled_signs


@dataclass(frozen=True, slots=True, eq=False)
class _FourierRotation:
    """Signs, then the orthonormal real discrete Fourier transform.

    Order of the coordinates: the mean, the cosines of frequency 1, 2, ..., the sines,
    and for an even length the alternating sum at the end.
    """

    dim: int
    signs: _Vector = field(repr=False)
    flatness: ClassVar[float] = 2.0

    @property
    def encoded_dim(self) -> int:
        return self.dim

    def forward(self, vector: _Vector) -> _Vector:
        """Rotate by signs and a real Fourier transform."""
        _require_shape("vector", vector, self.dim)
        spectrum = np.fft.rfft(vector * self.signs, norm="ortho")
        pairs = (self.dim - 1) // 2
        rotated = np.empty(self.dim)
        rotated[0] = spectrum[0].real
        # A frequency and its mirror image share one complex number of the half
        # spectrum: √2 restores the norm of both.
        rotated[1 : pairs + 1] = math.sqrt(2.0) * spectrum.real[1 : pairs + 1]
        rotated[pairs + 1 : 2 * pairs + 1] = (
            math.sqrt(2.0) * spectrum.imag[1 : pairs + 1]
        )
        if self.dim % 2 == 0:
            rotated[-1] = spectrum[-1].real
        return rotated

    def inverse(self, rotated: _Vector) -> _Vector:
        """Undo `forward`."""
        _require_shape("rotated", rotated, self.dim)
        pairs = (self.dim - 1) // 2
        spectrum = np.zeros(self.dim // 2 + 1, np.complex128)
        spectrum[0] = rotated[0]
        spectrum.real[1 : pairs + 1] = rotated[1 : pairs + 1] * math.sqrt(0.5)
        spectrum.imag[1 : pairs + 1] = rotated[pairs + 1 : 2 * pairs + 1] * math.sqrt(
            0.5
        )
        if self.dim % 2 == 0:
            spectrum[-1] = rotated[-1]
        return np.fft.irfft(spectrum, n=self.dim, norm="ortho") * self.signs
