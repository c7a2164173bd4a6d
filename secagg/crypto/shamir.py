"""Shamir's t-of-n secret sharing of 32-byte secrets.

Rule 1: the field has 65537 elements, a secret has 16 limbs of 16 bits, and all limbs of
        all secrets are columns of one exact float64 matrix product.
Rule 2: every limb gets its own uniform polynomial.  Coefficients are u32 words; the
        word 2^32 - 1 is drawn again, the others are reduced. 2^32 - 1 is a multiple of
        65537, so that the result is uniform.
Rule 3: the abscissa of a client is its roster index plus one; x = 0 is the secret and
        cannot be requested.  A threshold of one is refused: a share would be the
        secret.
Rule 4: shares are not authenticated.  A reconstructed secret counts only after it was
        checked against its dealer's advert.  If it does not match, shares beyond the
        threshold reveal which holders lied.

Batches are the interface: no loop runs over clients and limbs.

Source: A. Shamir, How to share a secret, 1979; PROTOCOL §7.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy
from secagg.crypto.prime_field import (
    PRIME,
    FieldArray,
    check_abscissae,
    check_distinct,
    evaluate,
    lagrange_at_zero,
    lagrange_at_zero_batch,
    reduce_products,
    weigh_bytes,
)
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir_codec import (
    LIMBS,
    SECRET_SIZE,
    SHARE_SIZE,
    decode_shares,
    encode_shares,
    flagged_limbs,
    limbs_of,
    secrets_of,
)
from secagg.crypto.shamir_correction import UncorrectableError, find_faulty

MIN_THRESHOLD: Final = 2

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
    if not MIN_THRESHOLD <= threshold <= points.size:
        raise ValueError(
            f"expected a threshold in [{MIN_THRESHOLD}, {points.size}], the number of"
            f" holders, not {threshold}"
        )
    if any(len(secret) != SECRET_SIZE for secret in secrets):
        raise ValueError(f"expected secrets of {SECRET_SIZE} bytes")
    joined = b"".join(secret.reveal() for secret in secrets)
    rows = np.frombuffer(joined, np.uint8).reshape(-1, SECRET_SIZE)
    columns = LIMBS * len(rows)
    coefficients = np.empty((threshold, columns), np.int64)
    coefficients[0] = limbs_of(rows).reshape(-1)
    coefficients[1:] = _uniform(entropy, threshold - 1, columns)
    values = evaluate(points, coefficients).reshape(points.size, -1, LIMBS)
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
        The s secrets.  None if the shares belong to no secret, because a limb came out
            as 65536.  **Check every other one** against its dealer's advert; if it is
            missing or does not match, use `decode_with_errors`.

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
    limbs = (sums[:, : 2 * LIMBS : 2] % PRIME << 8) + sums[:, 1 : 2 * LIMBS : 2]
    # Weights are not zero; a sum of flags is zero only without flags.
    flagged = np.flatnonzero(sums[:, 2 * LIMBS :].any(axis=1))
    rows, columns, places = flagged_limbs(shares[:, flagged])
    carry = weights[rows].astype(np.int64) * (PRIME - 1)
    np.add.at(limbs, (flagged[columns], places), carry)
    return _join(limbs % PRIME)


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
    limbs = np.empty((len(points), LIMBS), np.int64)
    # Dealers with the same holders share one row of weights.
    sets, row_of = np.unique(points, axis=0, return_inverse=True)
    weights = lagrange_at_zero_batch(sets)
    for low in range(0, len(points), _SETS_PER_BATCH):
        batch = slice(low, low + _SETS_PER_BATCH)
        values = decode_shares(shares[batch]).astype(np.float64)
        sums = np.matmul(weights[row_of[batch]][:, None, :], values)
        limbs[batch] = reduce_products(sums[:, 0, :])
    return _join(limbs)


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
    if not MIN_THRESHOLD <= threshold <= points.size:
        raise ValueError(
            f"expected a threshold in [{MIN_THRESHOLD}, {points.size}], the number of"
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


def _join(limbs: FieldArray) -> list[SecretBytes | None]:
    """Turn limbs (s, 16) into secrets; None where a limb has 17 bits."""
    possible = np.all(limbs < PRIME - 1, axis=1)
    rows = secrets_of(limbs)
    return [
        SecretBytes(row.tobytes()) if fits else None
        for row, fits in zip(rows, possible.tolist(), strict=True)
    ]
