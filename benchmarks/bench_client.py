"""One client's whole session through the real state machine, round by round."""

import sys
import time

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from measurement import cpu_seconds, emit
from secagg_testing.cohorts import one_hot, parameters_for

from secagg.crypto.modular import bit_width
from secagg.protocol import packing
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import MaskAndUpload, Received
from secagg.protocol.messages import Envelope, Round, Upload
from secagg.protocol.packing import pack
from secagg.protocol.rounds import rounds_of
from secagg.simulation import InProcessSession, identity_of

# CPU seconds of a whole session at n = 100, d = 2^20, noise and rotation excluded.
TARGET_SECONDS = 0.1
TARGET_SIZE = (100, 1 << 20)


def main(*, tiny: bool = False) -> None:
    """Measure a client at a few sizes; the baseline is the bare mask keystream."""
    sizes = [(4, 64)] if tiny else [(100, 1 << 17), (100, 1 << 20), (500, 1 << 17)]
    for clients, dimension in sizes:
        seconds = _client_seconds(clients, dimension)
        total = sum(seconds.values())
        keystream = clients * _keystream_seconds(4 * dimension)
        target_met = None
        if (clients, dimension) == TARGET_SIZE:
            target_met = total <= TARGET_SECONDS
        for name, value in (*seconds.items(), ("whole session", total)):
            emit(
                f"client/{name}",
                parameters={"clients": clients, "dimension": dimension, "bits": 20},
                value=1e3 * value,
                unit="ms",
                baseline="AES-256-CTR keystream of all masks, nothing else",
                ratio=keystream / value,
                target_met=target_met if name == "whole session" else None,
            )


def _client_seconds(clients: int, dimension: int) -> dict[str, float]:
    """CPU seconds of client 0 in each round."""
    modulus = 1 << 20
    parameters = parameters_for(
        clients, dimension=dimension, threshold=2 * clients // 3 + 1
    )
    vector = one_hot(0, dimension, modulus)
    session = InProcessSession(parameters, [vector] * clients)
    seconds: dict[str, float] = {}
    for which in rounds_of(parameters.profile):
        for number in session.clients:
            begin = time.process_time()
            outputs = session.act(number, which)
            if number == 0:
                seconds[which.name.lower()] = time.process_time() - begin
            if which is Round.MASKED_INPUT_COLLECTION:
                if number == 0:
                    seconds["mask and pack"] = _mask_seconds(
                        outputs, parameters.modulus
                    )
                digest = number.to_bytes(32, "big")  # the server's part is not timed
                _record_upload(session, number, digest)
            else:
                session.send(number, outputs)
        if which is not Round.UNMASKING:
            session.close(which)
    return seconds


def _record_upload(session: InProcessSession, number: int, digest: bytes) -> None:
    state = session.clients[number]
    if not isinstance(state, client.ReadyForInput):
        raise TypeError("a client that has uploaded is ready for its input")
    named = Upload(session.packed_bytes, digest, client_machine.view(state))
    upload = Envelope.of(named)
    session.to_server(Received(upload, identity_of(number)))


def _mask_seconds(outputs: tuple[object, ...], modulus: int) -> float:
    (upload,) = (output for output in outputs if isinstance(output, MaskAndUpload))

    def mask() -> None:
        masked = packing.mask_input(upload.vector.residues, upload.job)
        pack(masked, bit_width(modulus))

    return cpu_seconds(mask, repeats=3)


def _keystream_seconds(size: int) -> float:
    """CPU seconds of one mask's keystream, in chunks that fit the cache."""
    chunk = min(size, 1 << 18)
    zeros, buffer = bytes(chunk), bytearray(chunk + 16)

    def run() -> None:
        stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
        for _ in range(max(1, size // chunk)):
            stream.update_into(zeros, buffer)

    return cpu_seconds(run)


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
