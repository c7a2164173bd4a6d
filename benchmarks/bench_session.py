"""A whole session on a ring, both sides: its cost beyond bare cryptography.

The mean is over all clients that took part, including lost ones, who do less; the
baseline is a client that stays.  The server is counted over all rounds.  The session is
that of
`secagg simulate --clients 100 --dimension 100000 --degree 14 --threshold 8
--modulus-bits 32`, once without losses and once with a fifth of the clients lost.
"""

import sys
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from measurement import cpu_seconds, emit
from secagg_testing.cohorts import parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.simulation import LossPlan, plan_losses, simulate_session
from secagg.simulation.measurement import CostReport

_REPEATS: Final = 5


def main(*, tiny: bool = False) -> None:
    """Measure sessions; the baseline is the keystream and the key agreements alone."""
    clients, dimension, degree = (12, 64, 8) if tiny else (100, 100_000, 14)
    parameters = parameters_for(
        clients,
        dimension=dimension,
        threshold=degree // 2 + 1,
        degree=degree,
        min_clients=degree + 2,
        modulus=1 << 32,
    )
    keystream = _keystream_seconds(4 * dimension)
    agreement = _agreement_seconds()
    for rate in (0.0, 0.2):
        losses = plan_losses(clients, rate, _entropy())
        unmasked = losses.count(Round.MASKED_INPUT_COLLECTION)
        survivors = clients - len(losses.losses) + losses.count(Round.UNMASKING)
        sides = {
            # Two agreements per neighbour, for bundle and mask; one mask of its own.
            "client": degree * (2 * agreement + keystream) + keystream,
            # Self masks of clients that stayed, pairwise masks of those that did not.
            "server": survivors * keystream
            + unmasked * degree * (agreement + keystream),
        }
        spent = _spent(parameters, clients, losses)
        for side, baseline in sides.items():
            emit(
                f"session/{side}",
                parameters={
                    "clients": clients,
                    "dimension": dimension,
                    "degree": degree,
                    "bits": 32,
                    "lost": len(losses.losses),
                },
                value=1e3 * spent[side],
                unit="ms, mean of all clients" if side == "client" else "ms",
                baseline="key agreements and keystream of the same masks, nothing else",
                ratio=baseline / spent[side],
            )


def _spent(
    parameters: ProtocolParameters, clients: int, losses: LossPlan
) -> dict[str, float]:
    """Least CPU seconds of either side over a few sessions."""

    def run() -> CostReport:
        session = simulate_session(
            parameters, clients=clients, losses=losses, entropy=_entropy()
        )
        if not session.is_exact:
            raise RuntimeError("the sum is wrong")
        return session.costs

    costs = [run() for _ in range(_REPEATS)]
    return {
        "client": min(each.client_cpu_seconds_mean for each in costs),
        "server": min(sum(each.server_cpu_seconds.values()) for each in costs),
    }


def _keystream_seconds(size: int) -> float:
    """CPU seconds of one mask's keystream, in chunks that fit the cache."""
    chunk = min(size, 1 << 18)
    zeros, buffer = bytes(chunk), bytearray(chunk + 16)

    def run() -> None:
        stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
        for low in range(0, size, chunk):
            stream.update_into(zeros[: size - low], buffer)

    return cpu_seconds(run)


def _agreement_seconds() -> float:
    """CPU seconds of one X25519 agreement."""
    entropy = _entropy()
    own, peer = KeyPair.generate(entropy), KeyPair.generate(entropy)
    return cpu_seconds(lambda: own.agree(peer.public_bytes), repeats=50)


def _entropy() -> SeededEntropy:
    return SeededEntropy(SecretBytes(bytes(31) + b"\x07"), b"session benchmark")


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
