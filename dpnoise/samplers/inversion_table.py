"""One exact sampler for every integer law: inversion of a 256-bit table, lazily.

    thresholds  F_0 ≤ F_1 ≤ ... ≤ F_(n−1)       F_j = 2^256 · P(X ≤ first + j), rounded
    draw        U uniform in [0, 2^256);  k = number of F_j ≤ U;  return first + k

The 256 bits are read only as far as they matter:

    cell  = leading 16 (or 20) bits of coordinate i             # stream "cells"
    value = guide[cell]
    if value is AMBIGUOUS:                    # some threshold lies in this cell
        u = cell and the next bits, 64 in all                   # stream "refinement"
        k = number of t_j ≤ u, where t_j = ⌊F_j / 2^192⌋
        if some t_j = u:                      # about one draw in 2^64 / n
            U = u followed by 192 further bits                  # stream "refinement"
            k = number of F_j ≤ U
        value = first + k

u > t_j implies U ≥ F_j, and u < t_j implies U < F_j, so that only equality needs more
bits: the result is the one that all 256 bits would have given.

* Coordinate i reads word i of the stream "cells" (16 bits; with 12 000 thresholds or
  more, 32 bits whose leading 20 count) and bytes 32·i to 32·i + 31 of the stream
  "refinement": the first 8 as one word whose leading 48 (or 44) bits count, then 24 as
  three words. Both streams come from the caller's seed. A draw is thus a function of
  (table, seed, label, i) alone, whatever the chunks, the order or the platform.
* Preconditions, checked when a table is made: thresholds in order, tails below 2^-136.
* Postcondition: the total variation distance of one draw from the law, given perfect
  bits, is at most `distance_bound`. Accountants charge (1 + e^ε) times the sum of it
  over all draws of a release to δ.
* Work is done in blocks, so memory beyond the result does not grow with the count.

Limits: `draw` is not constant-time. Table look-ups leave traces in caches, and
ambiguous cells take longer. An observer of the caches of a client's machine during a
draw may learn about its noise. `draw_fixed_steps` gives the same samples by a sequence
of memory accesses that does not depend on them. Its time grows with the number of
thresholds.
"""

import hashlib
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import CertificateError, ParameterError
from dpnoise.samplers.bit_source import BitSource
from dpnoise.samplers.tail_bounds import CDF_BITS, TAIL_BITS, Weights, rounded_tails

MAX_COORDINATE: Final = 1 << 48
"""Coordinates of one label lie below 2^48: 32 bytes each stay inside the stream."""

_BLOCK: Final = 1 << 16  # samples per block: words, cells and results stay in L2
_FIXED_STEPS_BLOCK: Final = 1 << 13
_BYTE_MAX: Final = 255
_THRESHOLD_BYTES: Final = CDF_BITS // 8
_NARROW_BITS: Final = 16
_WIDE_BITS: Final = 20
_INT16_REACH: Final = 30_000
# Above this many thresholds a 16-bit guide would send too many draws the long way.
_WIDE_FROM: Final = 12_000
_DIGEST_DOMAIN: Final = b"dpnoise/v1/inversion-table"

_Guide = npt.NDArray[np.int16 | np.int32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InversionTable:
    """An exact sampler of one integer law; build it with a `..._table` function.

    Attributes:
        name: The law, such as "skellam".
        parameters: Its exact parameters.
        variance: For Skellam and binomial the exact variance of the law. For
            the others, whose variance is irrational, the exact variance of the table.
        first: The smallest outcome.
        last: The largest outcome.
        distance_bound: Upper bound of the total variation distance per draw.
        digest: SHA-256 over name, parameters, first outcome and all thresholds. Two
            parties with equal digests draw equal noise from equal seeds.
    """

    name: str
    parameters: tuple[Fraction, ...]
    variance: Fraction
    first: int
    last: int
    distance_bound: float
    digest: bytes
    _thresholds: bytes = field(repr=False)
    _leading: npt.NDArray[np.uint64] = field(repr=False)
    _guide: _Guide = field(repr=False)
    _guide_bits: int = field(repr=False)
    _below: npt.NDArray[np.int32] = field(repr=False)

    @classmethod
    def from_law(
        cls,
        name: str,
        parameters: tuple[Fraction, ...],
        law: Callable[[int], Weights],
        *,
        variance: Fraction | None,
    ) -> "InversionTable":
        """Build the table of a law from enclosures of its weights.

        Args:
            name: Name of the law; part of the digest.
            parameters: Exact parameters; part of the digest.
            law: Weights at a given precision, see `enclosure.rounded_tails`.
            variance: Variance of the law, or None to take the table's own.

        Raises:
            CertificateError: The thresholds could not be decided. This is a defect.
        """
        tails = rounded_tails(name, law)
        whole = 1 << CDF_BITS
        first = tails.centre - len(tails.left)
        thresholds = [*reversed(tails.left), *(whole - tail for tail in tails.right)]
        # Clamping X to [first, last] moves it with probability `outside` at most; the
        # clamped law has these thresholds but for the rounding, one unit each.
        distance = tails.outside + len(thresholds)
        if tails.outside >= 1 << (CDF_BITS - TAIL_BITS):
            raise CertificateError(f"the tails of {name} exceed 2^-{TAIL_BITS}")
        if any(a > b for a, b in itertools.pairwise(thresholds)):
            raise CertificateError(f"the thresholds of {name} are out of order")
        if variance is None:
            variance = _table_variance(first, thresholds)
        packed = b"".join(t.to_bytes(_THRESHOLD_BYTES, "big") for t in thresholds)
        leading = np.frombuffer(packed, ">u8")[:: _THRESHOLD_BYTES // 8]
        leading = leading.astype(np.uint64)
        guide, guide_bits, below = _make_guide(first, leading)
        for array in (leading, guide, below):
            array.setflags(write=False)
        return cls(
            name=name,
            parameters=parameters,
            variance=variance,
            first=first,
            last=first + len(thresholds),
            distance_bound=_float_up(distance),
            digest=_digest(name, parameters, first, packed),
            _thresholds=packed,
            _leading=leading,
            _guide=guide,
            _guide_bits=guide_bits,
            _below=below,
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{float(parameter):.6g}" for parameter in self.parameters)
        return f"InversionTable({self.name}: {shown}; [{self.first}, {self.last}])"

    @property
    def num_thresholds(self) -> int:
        """Number of thresholds; the table has one outcome more."""
        return self._leading.size

    def threshold(self, index: int) -> int:
        """`2^256 · P(X ≤ first + index)`, rounded towards the nearer end of [0, 1].

        Args:
            index: Position in [0, num_thresholds).

        Raises:
            ParameterError: The index is out of range.
        """
        if not 0 <= index < self.num_thresholds:
            raise ParameterError(
                f"index must lie in [0, {self.num_thresholds}), got {index}",
                parameter="index",
                value=index,
            )
        low = index * _THRESHOLD_BYTES
        return int.from_bytes(self._thresholds[low : low + _THRESHOLD_BYTES], "big")

    def draw(
        self, seed: bytes, label: bytes, count: int, *, start: int = 0
    ) -> npt.NDArray[np.int64]:
        """Draw independent samples at coordinates `start` to `start + count − 1`.

        Args:
            seed: 32 bytes, secret if the noise is to protect anything.
            label: What the draws are for, 1 to 240 bytes. Reuse of a seed and a label
                reuses the noise.
            count: Number of samples, at least 0.
            start: First coordinate.

        Returns:
            Samples, shape (count,). Drawing a range in pieces gives the same samples.

        Raises:
            ParameterError: Bad seed, label or range.
        """
        require_coordinates(start, count)
        samples = np.empty(count, np.int64)
        self.fill_from(*_streams(seed, label), samples, start=start)
        return samples

    def add_to(
        self,
        vector: npt.NDArray[np.int64],
        seed: bytes,
        label: bytes,
        *,
        start: int = 0,
    ) -> None:
        """Add the samples of coordinates `start` onwards to `vector`, in place.

        The same samples as `draw`, without a second vector of them.

        Args:
            vector: Integers, one per coordinate, shape (count,). The caller keeps them
                far enough from ±2^63.
            seed: See `draw`.
            label: See `draw`.
            start: First coordinate.

        Raises:
            ParameterError: Bad seed, label or range.
        """
        require_coordinates(start, vector.size)
        cells, refinement = _streams(seed, label)
        for low in range(0, vector.size, _BLOCK):
            part = vector[low : low + _BLOCK]
            part += self._block(cells, refinement, start + low, part.size)

    def draw_fixed_steps(
        self, seed: bytes, label: bytes, count: int, *, start: int = 0
    ) -> npt.NDArray[np.int64]:
        """Draw what `draw` draws, with accesses that do not depend on the samples.

        Every coordinate reads all its bits and is compared with every threshold. What
        remains visible is a tie in the leading 64 bits, which has a chance of
        `num_thresholds`/2^64 per draw. The time is about a nanosecond per coordinate
        and threshold: more than a hundred times that of `draw` at a variance of 100.

        Args:
            seed: See `draw`.
            label: See `draw`.
            count: See `draw`.
            start: See `draw`.

        Returns:
            The samples of `draw`, shape (count,).

        Raises:
            ParameterError: Bad seed, label or range.
        """
        require_coordinates(start, count)
        cells, refinement = _streams(seed, label)
        samples = np.empty(count, np.int64)
        for offset in range(0, count, _FIXED_STEPS_BLOCK):
            part = samples[offset : offset + _FIXED_STEPS_BLOCK]
            first = start + offset
            words = refinement.uint64(4 * first, 4 * part.size).reshape(-1, 4)
            leading = self._leading_bits(cells, first, part.size).astype(np.uint64)
            prefix = self._prefix(leading, words[:, 0])
            part[:], above = _count_all(self._leading, prefix)
            for index in np.flatnonzero(part != above):
                low, high = int(above[index]), int(part[index])
                further = words[index, 1:]
                part[index] = self._break_tie(low, high, prefix[index], *further)
            part += self.first
        return samples

    def fill_from(
        self,
        cells: BitSource,
        refinement: BitSource,
        samples: npt.NDArray[np.int64],
        *,
        start: int = 0,
    ) -> None:
        """Fill `samples` from explicit streams: the deterministic half of `draw`.

        Args:
            cells: The stream of leading bits.
            refinement: The stream of further bits.
            samples: Overwritten, shape (count,).
            start: First coordinate.
        """
        for low in range(0, samples.size, _BLOCK):
            part = samples[low : low + _BLOCK]
            part[:] = self._block(cells, refinement, start + low, part.size)

    def _block(
        self, cells: BitSource, refinement: BitSource, start: int, count: int
    ) -> _Guide:
        """Samples of one block, in the guide's narrow integer type."""
        leading = self._leading_bits(cells, start, count)
        # Not guide[leading]: `take` converts the index three times as fast. Every index
        # is in range by its width, so that clipping never acts.
        values = self._guide.take(leading, mode="clip")
        ambiguous = np.flatnonzero(values == _ambiguous(values.itemsize))
        if ambiguous.size:
            values[ambiguous] = self._refine(
                refinement,
                leading[ambiguous].astype(np.uint64),
                ambiguous.astype(np.uint64) + np.uint64(start),
            )
        return values

    def _leading_bits(
        self, cells: BitSource, start: int, count: int
    ) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
        """The guide cells of a range of coordinates."""
        if self._guide_bits == _NARROW_BITS:
            return cells.uint16(start, count)
        return cells.uint32(start, count) >> np.uint32(32 - _WIDE_BITS)

    def _prefix(
        self, leading: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint64]:
        """The leading 64 bits of the uniform numbers."""
        bits = np.uint64(self._guide_bits)
        return (leading << (np.uint64(64) - bits)) | (words >> bits)

    def _break_tie(self, low: int, high: int, *words: np.uint64) -> int:
        """Number of F_j ≤ U where only the thresholds from low to high − 1 are open."""
        uniform = 0
        for word in words:
            uniform = (uniform << 64) | int(word)
        return bisect_right(range(high), uniform, low, key=self.threshold)

    def _refine(
        self,
        refinement: BitSource,
        leading: npt.NDArray[np.uint64],
        coordinates: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int64]:
        """Outcomes of coordinates whose guide cell holds a threshold."""
        blocks = coordinates * np.uint64(2)
        words = refinement.block_words(blocks)
        prefix = self._prefix(leading, words[:, 0])
        # Nearly every such cell holds one threshold: compare with that one, and search
        # only where there are more.
        cell = leading.astype(np.intp)
        counts = self._below[cell].astype(np.intp)
        several = np.flatnonzero(self._below[cell + 1] - counts > 1)
        counts += self._leading[counts] <= prefix
        counts[several] = self._leading.searchsorted(prefix[several], side="right")
        equal = (self._leading[counts - 1] == prefix) & (counts > 0)
        for index in np.flatnonzero(equal):
            second = refinement.block_words(blocks[index : index + 1] + np.uint64(1))
            low = int(self._leading.searchsorted(prefix[index], side="left"))
            counts[index] = self._break_tie(
                low, int(counts[index]), prefix[index], words[index, 1], *second[0]
            )
        return counts + self.first


def _streams(seed: bytes, label: bytes) -> tuple[BitSource, BitSource]:
    """The two streams of a draw."""
    return BitSource(seed, label + b"/cells"), BitSource(seed, label + b"/refinement")


def require_coordinates(start: int, count: int) -> None:
    """Check a range of coordinates.

    Raises:
        ParameterError: It leaves [0, 2^48).
    """
    if start < 0 or count < 0 or start + count > MAX_COORDINATE:
        parameter, value = ("count", count) if count < 0 else ("start", start)
        raise ParameterError(
            f"coordinates lie in [0, 2^48), got start {start} and count {count}",
            parameter=parameter,
            value=value,
        )


def _make_guide(
    first: int, leading: npt.NDArray[np.uint64]
) -> tuple[_Guide, int, npt.NDArray[np.int32]]:
    """The guide, its bits, and the number of thresholds below the start of each cell.

    The guide holds the outcome of every cell of leading bits, or the least value of its
    type: AMBIGUOUS.
    """
    reach = max(abs(first), abs(first + leading.size))
    dtype = np.dtype(np.int16 if reach < _INT16_REACH else np.int32)
    bits = _NARROW_BITS if leading.size < _WIDE_FROM else _WIDE_BITS
    # A threshold that equals the start of a cell lies inside it.
    holding = leading >> np.uint64(64 - bits)
    starts = np.arange((1 << bits) + 1, dtype=np.uint64)
    below = holding.searchsorted(starts, side="left").astype(np.int32)
    guide: _Guide = (below[:-1] + first).astype(dtype)
    guide[holding.astype(np.intp)] = _ambiguous(dtype.itemsize)
    return guide, bits, below


def _ambiguous(itemsize: int) -> int:
    """The least value of a signed type of so many bytes, which no outcome takes."""
    return -(1 << (8 * itemsize - 1))


def _count_all(
    leading: npt.NDArray[np.uint64], prefix: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many thresholds each prefix reaches, and how many it exceeds."""
    reached = np.zeros(prefix.size, np.int64)
    exceeded = np.zeros(prefix.size, np.int64)
    for low in range(0, leading.size, _BYTE_MAX):
        # Counting up to 255 in bytes touches an eighth of the memory.
        some_reached = np.zeros(prefix.size, np.uint8)
        some_exceeded = np.zeros(prefix.size, np.uint8)
        for threshold in leading[low : low + _BYTE_MAX]:
            some_reached += (prefix >= threshold).view(np.uint8)
            some_exceeded += (prefix > threshold).view(np.uint8)
        reached += some_reached
        exceeded += some_exceeded
    return reached, exceeded


def _table_variance(first: int, thresholds: list[int]) -> Fraction:
    """Exact variance of the sampled law: its cells are multiples of 2^-256."""
    whole = 1 << CDF_BITS
    mean = square = previous = 0
    for outcome, threshold in enumerate([*thresholds, whole], start=first):
        mean += outcome * (threshold - previous)
        square += outcome * outcome * (threshold - previous)
        previous = threshold
    return Fraction(square, whole) - Fraction(mean, whole) ** 2


def _float_up(distance: int) -> float:
    """A count of 2^-256 as a float, rounded up."""
    return math.nextafter(math.ldexp(float(distance), -CDF_BITS), math.inf)


def _digest(
    name: str, parameters: tuple[Fraction, ...], first: int, packed: bytes
) -> bytes:
    """Bind everything that a draw depends on, each part preceded by its length."""
    texts = [name.encode(), *(str(parameter).encode() for parameter in parameters)]
    state = hashlib.sha256(_DIGEST_DOMAIN)
    for part in (*texts, first.to_bytes(8, "big", signed=True), packed):
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()
