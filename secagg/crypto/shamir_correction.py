"""Location of wrong shares of one secret.

Rule 1: shares are a Reed-Solomon code word.  Of m shares with threshold t, up to ⌊(m -
        t)/2⌋ wrong ones are found, whatever their values.
Rule 2: a holder is faulty if any limb of its share is wrong.  A limb is decoded, the
        holders found are erased, and the next limb is decoded among the rest, until all
        limbs agree.
Rule 3: with more wrong shares the result itself may be wrong.  The caller always
        compares it with the dealer's commitment.

A dealer with inconsistent shares looks like many faulty holders; the protocol tells the
two apart.

Source: Syndrome decoding by the Berlekamp-Massey algorithm.  It finds the same code
word as the equations of Berlekamp and Welch, in quadratic instead of cubic time.
PROTOCOL §7.3.
"""

import numpy as np
import numpy.typing as npt

from secagg.crypto.prime_field import (
    PRIME,
    FieldArray,
    locate_roots,
    parity_check,
)


class UncorrectableError(ValueError):
    """More shares are wrong than their number allows to locate.

    The dealer or too many holders are at fault; the secret cannot be recovered.
    """


def find_faulty(
    abscissae: npt.NDArray[np.int64], values: FieldArray, threshold: int
) -> npt.NDArray[np.bool_]:
    """Find the holders whose values are wrong.

    Args:
        abscissae: Distinct elements of [1, 65536], shape (m,), m >= threshold.
        values: Limb values of one secret, one row per holder, shape (m, limbs).
        threshold: t; the values belong to polynomials of degree below t.

    Returns:
        Shape (m,), True for holders whose row is wrong somewhere.  The others agree
        on all limbs and are at least t.

    Raises:
        UncorrectableError: Too many rows are wrong.
    """
    kept = np.arange(abscissae.size)
    while True:
        syndromes = parity_check(abscissae[kept], values[kept], threshold)
        inconsistent = np.flatnonzero(syndromes.any(axis=0))
        if not inconsistent.size:
            faulty = np.ones(abscissae.size, np.bool_)
            faulty[kept] = False
            return faulty
        wrong = _wrong_positions(abscissae[kept], syndromes[:, inconsistent[0]])
        kept = kept[~wrong]


def _wrong_positions(
    abscissae: npt.NDArray[np.int64], syndromes: FieldArray
) -> npt.NDArray[np.bool_]:
    """Locate the wrong values of one limb from its syndromes."""
    locator = _error_locator(syndromes)
    errors = locator.size - 1
    if not 0 < errors <= syndromes.size // 2:
        raise UncorrectableError("too many shares are wrong")
    wrong = locate_roots(abscissae, locator)
    if int(wrong.sum()) != errors:
        raise UncorrectableError("too many shares are wrong")
    return wrong


def _error_locator(syndromes: FieldArray) -> FieldArray:
    """Return the shortest recurrence of the syndromes, Λ_0 = 1 first.

    Source:
        J. Massey, Shift-register synthesis and BCH decoding, 1969, Algorithm 2.
    """
    size = syndromes.size + 1
    current = np.zeros(size, np.int64)
    previous = np.zeros(size, np.int64)
    current[0] = previous[0] = 1
    length, shift, last = 0, 1, 1
    for index in range(syndromes.size):
        # At most 2^15 products below 2^34 each: no overflow.
        recent = syndromes[index - length : index + 1][::-1]
        discrepancy = int(current[: length + 1] @ recent) % PRIME
        if discrepancy == 0:
            shift += 1
            continue
        factor = discrepancy * pow(last, -1, PRIME) % PRIME
        updated = current.copy()
        updated[shift:] -= factor * previous[: size - shift]
        updated %= PRIME
        if 2 * length <= index:
            length, previous, last, shift = index + 1 - length, current, discrepancy, 1
        else:
            shift += 1
        current = updated
    return current[: length + 1]
