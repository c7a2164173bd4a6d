"""Shamir's t-of-n secret sharing of 32-byte secrets, in shares of 34 bytes.

Rule 1: the field has 65537 elements, and a secret has 16 limbs of 16 bits.  All limbs
        of all secrets are columns of one exact float64 matrix product.
Rule 2: every limb gets its own uniform polynomial.  Coefficients are u32 words; the
        word 2^32 - 1 is drawn again, the others are reduced.  The result is uniform,
        since 2^32 - 1 is a multiple of 65537.
Rule 3: the abscissa of a client is its roster index plus one; x = 0 is the secret and
        cannot be requested.  A threshold of one is refused: a share would be the
        secret.
Rule 4: shares are not authenticated.  A reconstructed secret counts only after it was
        checked against its dealer's advert.  If it does not match, shares beyond the
        threshold reveal which holders lied.

Batches are the interface: no loop runs over clients and limbs.

The encoding of one share:

Rule 5: a secret of 32 bytes is 16 limbs of 16 bits, big-endian, limb 0 first.  Each
        limb is shared in the field of 65537 elements.
Rule 6: a share is 16 limb values as big-endian u16 and a big-endian u16 of flags. The
        one value that needs 17 bits, 65536, is stored as 0 with flag bit i set for limb
        i.
Rule 7: a flag over a limb that is not 0 is invalid.  Decoding refuses it, so that a
        share has one encoding.

A wrong share cannot be recognised by itself; the rebuilt secret is checked.  The
location of wrong shares of one secret:

Rule 8: shares are a Reed-Solomon code word.  Of m shares with threshold t, up to ⌊(m -
        t)/2⌋ wrong ones are found, whatever their values.
Rule 9: a holder is faulty if any limb of its share is wrong.  A limb is decoded, the
        holders found are erased, and the next limb is decoded among the rest, until all
        limbs agree.
Rule 10: with more wrong shares the result itself may be wrong.  The caller always
        compares it with the dealer's commitment.

A dealer with inconsistent shares looks like many faulty holders; the protocol
distinguishes the two.

Syndrome decoding by the Berlekamp-Massey algorithm finds the same code word as the
equations of Berlekamp and Welch, in quadratic instead of cubic time.

Source: A. Shamir, How to share a secret, 1979; PROTOCOL §7.

The arithmetic of the field, on arrays:

Rule 11: 3 generates the multiplicative group, whose order is 2^16.  A non-zero element
        is stored as its discrete logarithm in a uint16.  The wrap-around of that word
        *is* the reduction modulo the order: products are sums, inverses are negations.
Rule 12: sums of products are float64 matrix products.  A product is at most 2^32, so
        that up to 2^21 of them sum exactly, in whatever order BLAS chooses.
Rule 13: matrices that depend only on public abscissae are cached if they are small, and
        built in blocks of rows if they are not.

Nothing here runs in constant time: table lookups and reductions may depend on the
values.  Only public abscissae are looked up; secrets are only multiplied.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy
from secagg.crypto.secret_bytes import SecretBytes

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


_SECRET_SIZE: Final = 32
_LIMBS: Final = 16
SHARE_SIZE: Final = 2 * _LIMBS + 2

_BIG_ENDIAN: Final = np.dtype(">u2")
_FLAG_BITS: Final = (1 << np.arange(_LIMBS)).astype(np.uint16)


class BadShareError(ValueError):
    """The bytes are not an encoding of a share.

    Their sender is at fault; continue without that holder.
    """


def limbs_of(secrets: npt.NDArray[np.uint8]) -> FieldArray:
    """Split secrets into limbs: (..., 32) bytes to (..., 16) integers below 2^16."""
    return np.ascontiguousarray(secrets).view(_BIG_ENDIAN).astype(np.int64)


def secrets_of(limbs: FieldArray) -> npt.NDArray[np.uint8]:
    """Join limbs below 2^16 to secrets: (..., 16) integers to (..., 32) bytes."""
    return np.ascontiguousarray(limbs.astype(_BIG_ENDIAN)).view(np.uint8)


def encode_shares(values: FieldArray) -> npt.NDArray[np.uint8]:
    """Encode share values.

    Args:
        values: Field elements, shape (..., 16).

    Returns:
        Shape (..., 34).
    """
    words = np.empty((*values.shape[:-1], _LIMBS + 1), _BIG_ENDIAN)
    wide = values == PRIME - 1
    # 65536 loses its 17th bit here, which leaves the 0 that rule 6 asks for.
    words[..., :_LIMBS] = values.astype(np.uint16)
    words[..., _LIMBS] = wide @ _FLAG_BITS
    return words.view(np.uint8)


def decode_shares(encoded: npt.NDArray[np.uint8]) -> FieldArray:
    """Decode shares and refuse any that is not canonical.

    Args:
        encoded: Shape (..., 34).

    Returns:
        Field elements, shape (..., 16).

    Raises:
        BadShareError: The last axis is not 34 bytes long, or a flag is set over a
            limb that is not 0.  Use `check_shares` first where one bad share must
            not spoil a batch.
    """
    words = _share_words(encoded)
    values = words[..., :_LIMBS].astype(np.int64)
    # One limb in 65537 is flagged: handle the few alone.
    flat = encoded.reshape(-1, 1, SHARE_SIZE)
    rows, _, limbs = flagged_limbs(flat)
    values.reshape(-1, _LIMBS)[rows, limbs] = PRIME - 1
    return values


def flagged_limbs(
    encoded: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Find the limbs of value 65536.

    Args:
        encoded: Shape (rows, columns, 34).

    Returns:
        Row, column and limb of each, as three arrays.

    Raises:
        BadShareError: As of `decode_shares`.
    """
    words = _share_words(encoded)
    rows, columns = np.nonzero(words[..., _LIMBS])
    flags = _flag_matrix(words[rows, columns, _LIMBS])
    which, limbs = np.nonzero(flags)
    rows, columns = rows[which], columns[which]
    if np.any(words[rows, columns, limbs]):  # R7.2-1
        raise BadShareError("a share has a flag over a limb that is not zero")
    return rows, columns, limbs


def check_shares(encoded: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return which shares are canonical.

    Args:
        encoded: Shape (..., 34).

    Returns:
        Shape (...): True if `decode_shares` would accept the share.

    Raises:
        BadShareError: The last axis is not 34 bytes long.
    """
    words = _share_words(encoded).reshape(-1, _LIMBS + 1)
    canonical = np.ones(len(words), np.bool_)
    flagged = np.flatnonzero(words[:, _LIMBS])
    chosen = words[flagged]
    broken = (chosen[:, :_LIMBS] != 0) & _flag_matrix(chosen[:, _LIMBS])
    canonical[flagged] = ~broken.any(axis=1)
    return canonical.reshape(encoded.shape[:-1])


def _share_words(encoded: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return encoded shares as words of two bytes."""
    if (
        encoded.dtype != np.uint8
        or encoded.ndim == 0
        or encoded.shape[-1] != SHARE_SIZE
    ):
        raise BadShareError(f"a share has {SHARE_SIZE} bytes")
    return np.ascontiguousarray(encoded).view(_BIG_ENDIAN)


def _flag_matrix(flags: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Spread flag words (k,) over limbs (k, 16)."""
    spread: npt.NDArray[np.bool_] = (flags[:, None] & _FLAG_BITS) != 0
    return spread


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


_MIN_THRESHOLD: Final = 2

_REDRAWN: Final = 0xFFFFFFFF
_SETS_PER_BATCH: Final = 256


def share_secrets(
    secrets: Sequence[SecretBytes],
    threshold: int,
    abscissae: npt.ArrayLike,
    entropy: Entropy,
) -> npt.NDArray[np.uint8]:
    """Share secrets among the same holders.

    Args:
        secrets: s secrets of 32 bytes.
        threshold: t, the number of shares that reconstruct, in [2, n].
        abscissae: The holders' points: n distinct integers in [1, 65536].
        entropy: Where the polynomials come from: 64·(t - 1) bytes per secret, and a
            little more in the rare case of a redraw.

    Returns:
        Shares, shape (s, n, 34): secret by secret, in the order of the holders.

    Raises:
        ValueError: An argument lies outside its range.
    """
    points = check_abscissae(abscissae)
    if not _MIN_THRESHOLD <= threshold <= points.size:
        raise ValueError(
            f"expected a threshold in [{_MIN_THRESHOLD}, {points.size}], the number of"
            f" holders, not {threshold}"
        )
    if any(len(secret) != _SECRET_SIZE for secret in secrets):
        raise ValueError(f"expected secrets of {_SECRET_SIZE} bytes")
    joined = b"".join(secret.reveal() for secret in secrets)
    rows = np.frombuffer(joined, np.uint8).reshape(-1, _SECRET_SIZE)
    columns = _LIMBS * len(rows)
    coefficients = np.empty((threshold, columns), np.int64)
    coefficients[0] = limbs_of(rows).reshape(-1)
    coefficients[1:] = _uniform(entropy, threshold - 1, columns)
    values = evaluate(points, coefficients).reshape(points.size, -1, _LIMBS)
    return encode_shares(values.transpose(1, 0, 2))


def reconstruct(
    abscissae: npt.ArrayLike, shares: npt.NDArray[np.uint8]
) -> list[SecretBytes | None]:
    """Reconstruct many secrets from the same holders.

    Args:
        abscissae: The holders' points, shape (h,): as many as the threshold; more cost
            time and must all be right.
        shares: Canonical shares, shape (h, s, 34): holder by holder.

    Returns:
        The s secrets.  None if the shares belong to no secret, because a limb is 65536.
            **Check every other one** against its dealer's advert.  If it is missing or
            does not match, use `decode_with_errors`.

    Raises:
        BadShareError: A share is not canonical; check shares as they arrive.
        ValueError: An argument has the wrong shape, or a point occurs twice.
    """
    points = check_abscissae(abscissae)
    holders = points.size
    if shares.ndim != 3 or shares.shape[::2] != (holders, SHARE_SIZE):  # noqa: PLR2004 - see Args
        raise ValueError(f"expected shares of shape ({holders}, s, {SHARE_SIZE})")
    if shares.dtype != np.uint8:
        raise ValueError("expected shares as bytes")
    weights = lagrange_at_zero(points)
    # Interpolation is linear: it works on the bytes as they are encoded.
    sums = weigh_bytes(weights, shares.reshape(holders, -1)).reshape(-1, SHARE_SIZE)
    limbs = (sums[:, : 2 * _LIMBS : 2] % PRIME << 8) + sums[:, 1 : 2 * _LIMBS : 2]
    # Weights are not zero; a sum of flags is zero only without flags.
    flagged = np.flatnonzero(sums[:, 2 * _LIMBS :].any(axis=1))
    rows, columns, places = flagged_limbs(shares[:, flagged])
    carry = weights[rows].astype(np.int64) * (PRIME - 1)
    np.add.at(limbs, (flagged[columns], places), carry)
    return _join_limbs(limbs % PRIME)


def reconstruct_sparse(
    abscissae: npt.NDArray[np.int64], shares: npt.NDArray[np.uint8]
) -> list[SecretBytes | None]:
    """Reconstruct secrets that each have their own holders.

    Args:
        abscissae: Row i holds the points of secret i's holders, shape (s, t).
        shares: Canonical shares in the same order, shape (s, t, 34).

    Returns:
        The s secrets, as `reconstruct` returns them.

    Raises:
        BadShareError: A share is not canonical; check shares as they arrive.
        ValueError: An argument has the wrong shape, or a point occurs twice in a
            row.
    """
    points = np.asarray(abscissae, np.int64)
    if points.ndim != 2 or shares.shape != (*points.shape, SHARE_SIZE):  # noqa: PLR2004 - (s, t)
        raise ValueError(f"expected points (s, t) and shares (s, t, {SHARE_SIZE})")
    if points.size:
        check_distinct(points)
    limbs = np.empty((len(points), _LIMBS), np.int64)
    # Dealers with the same holders share one row of weights.
    sets, row_of = np.unique(points, axis=0, return_inverse=True)
    weights = lagrange_at_zero_batch(sets)
    for low in range(0, len(points), _SETS_PER_BATCH):
        batch = slice(low, low + _SETS_PER_BATCH)
        values = decode_shares(shares[batch]).astype(np.float64)
        sums = np.matmul(weights[row_of[batch]][:, None, :], values)
        limbs[batch] = reduce_products(sums[:, 0, :])
    return _join_limbs(limbs)


def decode_with_errors(
    abscissae: npt.ArrayLike, shares: npt.NDArray[np.uint8], threshold: int
) -> tuple[SecretBytes, tuple[int, ...]]:
    """Reconstruct one secret although some of its shares are wrong.

    Args:
        abscissae: The holders' points, shape (m,), m >= threshold.
        shares: Canonical shares, shape (m, 34).
        threshold: t.

    Returns:
        The secret, and the points of the holders whose shares were wrong.  The answer
            is right if at most ⌊(m - t)/2⌋ shares are; **check it**.

    Raises:
        UncorrectableError: More shares are wrong; the secret cannot be rebuilt.
        BadShareError: A share is not canonical; exclude its holder.
        ValueError: An argument is outside its range.
    """
    points = check_abscissae(abscissae)
    if shares.shape != (points.size, SHARE_SIZE):
        raise ValueError(f"expected shares of shape ({points.size}, {SHARE_SIZE})")
    if not _MIN_THRESHOLD <= threshold <= points.size:
        raise ValueError(
            f"expected a threshold in [{_MIN_THRESHOLD}, {points.size}], the number of"
            f" shares, not {threshold}"
        )
    faulty = find_faulty(points, decode_shares(shares), threshold)
    chosen = np.flatnonzero(~faulty)[:threshold]
    (secret,) = reconstruct(points[chosen], shares[chosen][:, None])
    if secret is None:
        raise UncorrectableError("the shares belong to no secret")
    return secret, tuple(points[faulty].tolist())


def _uniform(entropy: Entropy, rows: int, columns: int) -> FieldArray:
    """Draw uniform field elements (rule 2; R7.1-1)."""
    wanted = rows * columns
    accepted = np.empty(0, np.uint32)
    while accepted.size < wanted:
        data = entropy.token(4 * (wanted - accepted.size))
        words = np.frombuffer(data, "<u4")
        accepted = np.concatenate([accepted, words[words != _REDRAWN]])
    return (accepted % PRIME).astype(np.int64).reshape(rows, columns)


def _join_limbs(limbs: FieldArray) -> list[SecretBytes | None]:
    """Turn limbs (s, 16) into secrets; None where a limb has 17 bits."""
    possible = np.all(limbs < PRIME - 1, axis=1)
    rows = secrets_of(limbs)
    return [
        SecretBytes(row.tobytes()) if fits else None
        for row, fits in zip(rows, possible.tolist(), strict=True)
    ]
