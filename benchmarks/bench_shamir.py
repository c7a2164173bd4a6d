"""Secret sharing, reconstruction and the decoding of errors."""

import sys
from functools import partial

import numpy as np
from measurement import cpu_seconds, emit

from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    decode_with_errors,
    reconstruct,
    reconstruct_sparse,
    share_secrets,
)

# The order of the base point of Curve25519: a prime above 2^252. Any such prime is
# suitable.
_PRIME = (1 << 252) + 27742317777372353535851937790883648493

_PROMISED_CLIENTS = 1000
_SHARE_SECONDS = 0.003
_RECONSTRUCT_SECONDS = 0.015


def share_plainly(threshold: int, points: list[int]) -> list[int]:
    """Share one secret with Python integers: the baseline."""
    coefficients = [
        int.from_bytes(SystemEntropy().token(40), "big") % _PRIME
        for _ in range(threshold)
    ]
    shares = []
    for x in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % _PRIME
        shares.append(value)
    return shares


def reconstruct_plainly(points: list[int], shares: list[int]) -> int:
    """Interpolate one secret at zero with Python integers: the baseline."""
    total = 0
    for j, x in enumerate(points):
        top = bottom = 1
        for i, other in enumerate(points):
            if i != j:
                top = top * other % _PRIME
                bottom = bottom * (other - x) % _PRIME
        total += shares[j] * top * pow(bottom, -1, _PRIME)
    return total % _PRIME


def main(*, tiny: bool = False) -> None:
    """Measure at n = 100 and n = 1000, t = ⌊2n/3⌋ + 1, and on sparse graphs."""
    for clients in (12,) if tiny else (100, 1000):
        _complete(clients)
    for threshold in (5,) if tiny else (66, 133):
        _sparse(20 if tiny else 1000, threshold)


def _complete(clients: int) -> None:
    threshold = 2 * clients // 3 + 1
    parameters: dict[str, object] = {"clients": clients, "threshold": threshold}
    promised = clients == _PROMISED_CLIENTS
    entropy = SystemEntropy()
    points = np.arange(1, clients + 1)
    secrets = [SecretBytes(entropy.token(32)) for _ in range(2)]
    share = partial(share_secrets, secrets, threshold, points, entropy)
    seconds = cpu_seconds(share)
    plain = cpu_seconds(partial(share_plainly, threshold, points.tolist()), repeats=1)
    emit(
        "shamir/share two secrets",
        parameters=parameters,
        value=1e3 * seconds,
        unit="ms",
        baseline="Python integers",
        ratio=2 * plain / seconds,
        target_met=seconds <= _SHARE_SECONDS if promised else None,
    )
    dealt = share()
    # As many dealers as clients; equal secrets cost as much as different ones.
    table = np.repeat(dealt[:1], clients, axis=0).transpose(1, 0, 2)[:threshold].copy()
    holders = points[:threshold]
    seconds = cpu_seconds(partial(reconstruct, holders, table))
    numbers = share_plainly(threshold, holders.tolist())
    plain = cpu_seconds(
        partial(reconstruct_plainly, holders.tolist(), numbers), repeats=1
    )
    emit(
        "shamir/reconstruct all secrets, one holder set",
        parameters=parameters,
        value=1e3 * seconds,
        unit="ms",
        baseline="one secret, Python integers",
        ratio=plain / seconds,
        target_met=seconds <= _RECONSTRUCT_SECONDS if promised else None,
    )
    errors = (clients - threshold) // 2
    broken = dealt[0].copy()
    broken[:errors, 3] ^= 0x40
    seconds = cpu_seconds(
        partial(decode_with_errors, points, broken, threshold), repeats=2
    )
    clean = cpu_seconds(
        partial(decode_with_errors, points, dealt[0], threshold), repeats=2
    )
    emit(
        "shamir/decode one secret with as many errors as possible",
        parameters={**parameters, "errors": errors},
        value=1e3 * seconds,
        unit="ms",
        baseline="the same without errors",
        ratio=clean / seconds,
    )


def _sparse(dealers: int, threshold: int) -> None:
    ring = np.arange(dealers)[:, None] + np.arange(threshold)[None, :]
    points = ring % dealers + 1
    shares = np.zeros((dealers, threshold, 34), np.uint8)
    seconds = cpu_seconds(partial(reconstruct_sparse, points, shares))
    table = shares.transpose(1, 0, 2).copy()
    one_set = cpu_seconds(partial(reconstruct, points[0], table))
    emit(
        "shamir/reconstruct all secrets, every one with its own holders",
        parameters={"clients": dealers, "threshold": threshold},
        value=1e3 * seconds,
        unit="ms",
        baseline="one holder set",
        ratio=one_set / seconds,
    )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
