"""The offer of one session of a task: aggregator, number and end.

Rule 1: every field enters the session's id, which every party computes for itself
        (PROTOCOL §4). Parties that were offered different sessions derive unrelated
        keys and masks.
Rule 2: `validate` refuses what no session can be. `secagg.protocol.policy` decides
        whether a client accepts this one.

A descriptor holds no secrets and reads no clock; a caller with a clock calls
`check_clock`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.transcript import hash_parts
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.graphs.bounds import client_demand
from secagg.protocol.parameters import ProtocolParameters

# The longest name that a certificate can hold.
MAX_AGGREGATOR_BYTES: Final = 255
MAX_TASK_ID_BYTES: Final = 256
MAX_NOISE_TERMS_BYTES: Final = 256  # one rational of two long numbers
# The range of a database with signed 64-bit integers: session numbers and seconds.
MAX_COUNT: Final = (1 << 63) - 1
# Largest difference between the clocks of client and server (R5.0-2), and between that
# of an issuer and those that read what it issued (R2.1-7).
CLOCK_TOLERANCE_SECONDS: Final = 3600
# The first second of the year 10000, which `datetime` cannot represent.
_END_OF_TIME: Final = 253_402_300_800


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDescriptor:
    """One session of a task, as the server offers it.

    Every party computes its id from these fields and never reads it from a message.

    Attributes:
        aggregator: Name of the server, 1 to 255 bytes of UTF-8.  A client compares it
            with the name that its connection proved, so that a server cannot relay the
            session of another server.
        task_id: Name of the task, 1 to 256 bytes of UTF-8.
        session_number: Grows with every session of the task; a client never takes part
            in a number it has seen (PROTOCOL §5.0).
        server_nonce: 32 fresh random bytes.
        session_end: Latest end of the session, in Unix seconds.  Expiry is decided by
            it and by no clock, so that all parties decide alike.
        payload_hash: SHA-256 of the payload for the clients, or b"" without one.
        parameters: The task's configuration.
        noise_terms: The session's own noise data beside the noise block, written and
            read by `secagg.distributed_dp`; b"" if the block suffices.
    """

    aggregator: str
    task_id: str
    session_number: int
    server_nonce: bytes
    session_end: int
    payload_hash: bytes
    parameters: ProtocolParameters
    noise_terms: bytes = b""

    def validate(
        self, *, demanded_bits: Callable[[int], float] = client_demand
    ) -> Self:
        """Return self if such a session can exist.

        Args:
            demanded_bits: As for `ProtocolParameters.validate`.

        Raises:
            RemoteProtocolError: BAD_CONFIG, naming the field and its range.
        """
        for what, name, most in (
            ("aggregator", self.aggregator, MAX_AGGREGATOR_BYTES),
            ("task_id", self.task_id, MAX_TASK_ID_BYTES),
        ):
            if not 1 <= len(name.encode()) <= most or "\0" in name:
                raise ErrorCode.BAD_CONFIG.error(
                    f"{what} must have 1 to {most} bytes of UTF-8 without U+0000"
                )
        for what, number in (
            ("session_number", self.session_number),
            ("session_end", self.session_end),
        ):
            if not 0 <= number <= MAX_COUNT:
                raise ErrorCode.BAD_CONFIG.error(
                    f"{what} must be at most {MAX_COUNT}, not {number}"
                )
        if len(self.payload_hash) not in {0, 32}:
            raise ErrorCode.BAD_CONFIG.error(
                f"a payload hash has 0 or 32 bytes, not {len(self.payload_hash)}"
            )
        if len(self.noise_terms) > MAX_NOISE_TERMS_BYTES:
            raise ErrorCode.BAD_CONFIG.error(
                f"noise terms have at most {MAX_NOISE_TERMS_BYTES} bytes, not "
                f"{len(self.noise_terms)}"
            )
        if self.noise_terms and not self.parameters.noise_block:  # R3.2-10
            raise ErrorCode.BAD_CONFIG.error(
                "noise_terms must be empty without a noise block, not "
                f"{len(self.noise_terms)} bytes"
            )
        self.parameters.validate(demanded_bits=demanded_bits)
        return self

    def check_clock(self, now: int) -> None:
        """Refuse a session that has ended, or that ends too far in the future (R5.0-2).

        Args:
            now: The time at the party that received the offer, in Unix seconds.

        Raises:
            RemoteProtocolError: BAD_CLOCK; one of the two clocks is wrong.
        """
        left = self.session_end - now
        most = self.parameters.deadlines.longest_session + CLOCK_TOLERANCE_SECONDS
        if not 0 < left <= most:
            raise ErrorCode.BAD_CLOCK.error(
                f"the session ends at {_time_text(self.session_end)}, and the clock "
                f"of this host reads {_time_text(now)}: {left} seconds are left, "
                f"between 1 and {most} are possible; one of the two clocks is wrong",
                kind=RemoteProtocolError,
                fix="Compare the clocks of this host and of the server.",
            )

    @property
    def configuration_hash(self) -> bytes:
        """cfg_hash of PROTOCOL §4."""
        return hash_parts(
            "configuration",
            self.parameters.encode(),
            self.payload_hash,
            self.noise_terms,
            suite=self.parameters.suite,
        )

    @property
    @lru_cache(maxsize=64)  # noqa: B019 - few are kept, and each message asks for it
    def session_id(self) -> bytes:
        """32 bytes that name the session (PROTOCOL §4)."""
        return hash_parts(
            "sid",
            self.aggregator.encode(),
            self.task_id.encode(),
            self.session_number.to_bytes(8, "big"),
            self.server_nonce,
            self.session_end.to_bytes(8, "big"),
            self.configuration_hash,
            suite=self.parameters.suite,
        )

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        writer.text(self.aggregator)
        writer.text(self.task_id)
        writer.u64(self.session_number)
        writer.fixed(self.server_nonce)
        writer.u64(self.session_end)
        writer.blob(self.payload_hash)
        writer.blob(self.noise_terms)
        writer.fixed(self.parameters.encode())
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; refuses trailing bytes.

        Raises:
            RemoteProtocolError: BAD_VERSION, BAD_CONFIG or BAD_ENCODING.
        """
        reader = Reader(data, "session descriptor")
        try:
            read = cls(
                aggregator=_read_name(reader, MAX_AGGREGATOR_BYTES),
                task_id=_read_name(reader, MAX_TASK_ID_BYTES),
                session_number=reader.u64(),
                server_nonce=reader.fixed(32),
                session_end=reader.u64(),
                payload_hash=_read_payload_hash(reader),
                noise_terms=reader.blob(max_bytes=MAX_NOISE_TERMS_BYTES),
                parameters=ProtocolParameters.decode_from(reader),
            )
            reader.end()
        except ValueError as error:
            raise ErrorCode.BAD_ENCODING.error(
                f"the session offer cannot be read: {error}",
                fix="Hand over the offer as the aggregator made it.",
            ) from None
        return read.validate()


def _read_name(reader: Reader, max_bytes: int) -> str:
    """Read a name, which is not empty."""
    name = reader.text(max_bytes=max_bytes)
    if not name:
        raise ValueError("a name is empty")
    return name


def _read_payload_hash(reader: Reader) -> bytes:
    """Read the hash of a payload: 32 bytes, or none."""
    payload_hash = reader.blob(max_bytes=32)
    if len(payload_hash) not in {0, 32}:
        raise ValueError(f"a payload hash has 0 or 32 bytes, not {len(payload_hash)}")
    return payload_hash


def _time_text(seconds: int) -> str:
    """Format a time of a peer, which may be out of the range of dates."""
    if not 0 <= seconds < _END_OF_TIME:
        return f"{seconds} Unix seconds"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
