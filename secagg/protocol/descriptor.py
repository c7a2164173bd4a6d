"""One session of a task, as it is offered: who, which number, until when.

Rule 1: every field enters the session's id, which every party computes for itself
        (PROTOCOL §4): two parties that were offered different sessions derive keys and
        masks that have nothing in common.
Rule 2: `validate` states what no session can be; whether a client wants this one is
        said by its `secagg.protocol.policy`.

It holds no secrets and reads no clock: whoever has one asks `check_clock`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.transcript import hash_parts
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.graphs.ring_bounds import client_demand
from secagg.protocol.parameters import ProtocolParameters

# The longest that a certificate can name.
MAX_AGGREGATOR_BYTES: Final = 255
MAX_TASK_ID_BYTES: Final = 256
MAX_NOISE_TERMS_BYTES: Final = 256  # one rational of two long numbers
# What a database of signed 64-bit integers holds: sessions of a task, and seconds.
MAX_COUNT: Final = (1 << 63) - 1
# What the clocks of client and server may differ by (R5.0-2).
CLOCK_TOLERANCE_SECONDS: Final = 3600
# The first second of the year 10000, which no calendar of ours can show.
_END_OF_TIME: Final = 253_402_300_800


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDescriptor:
    """One session of a task, as the server offers it.

    Its id is recomputed by every party from these fields and never taken as given.

    Attributes:
        aggregator: Name of the server, 1 to 255 bytes of UTF-8.  A client compares it
            with the one that its connection proved, so that nobody can pass on the
            session of somebody else.
        task_id: Name of the task, 1 to 256 bytes of UTF-8.
        session_number: Grows with every session of the task; a client never takes
            part in a number it has seen (PROTOCOL §5.0).
        server_nonce: 32 fresh random bytes.
        session_end: When the session is over at the latest, in Unix seconds.  What
            expires is judged by it and by no clock, so that all parties judge alike.
        payload_hash: SHA-256 of the payload handed to the clients, or b"" if none.
        parameters: The task's configuration.
        noise_terms: What one session says of its noise beside the noise block, made
            and read by `secagg.distributed_dp`; b"" where the block says it all.
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
        """Return self if such a session can exist at all.

        Args:
            demanded_bits: See `ProtocolParameters.validate`.

        Raises:
            RemoteProtocolError: BAD_CONFIG, naming the field and its range.
        """
        for what, name, most in (
            ("aggregator", self.aggregator, MAX_AGGREGATOR_BYTES),
            ("task_id", self.task_id, MAX_TASK_ID_BYTES),
        ):
            if not 1 <= len(name.encode()) <= most or "\0" in name:
                raise RemoteProtocolError(
                    f"{what} must have 1 to {most} bytes of UTF-8 without U+0000",
                    code=ErrorCode.BAD_CONFIG,
                )
        for what, number in (
            ("session_number", self.session_number),
            ("session_end", self.session_end),
        ):
            if not 0 <= number <= MAX_COUNT:
                raise RemoteProtocolError(
                    f"{what} must be at most {MAX_COUNT}, not {number}",
                    code=ErrorCode.BAD_CONFIG,
                )
        if len(self.payload_hash) not in {0, 32}:
            raise RemoteProtocolError(
                f"a payload hash has 0 or 32 bytes, not {len(self.payload_hash)}",
                code=ErrorCode.BAD_CONFIG,
            )
        if len(self.noise_terms) > MAX_NOISE_TERMS_BYTES:
            raise RemoteProtocolError(
                f"noise terms have at most {MAX_NOISE_TERMS_BYTES} bytes, not "
                f"{len(self.noise_terms)}",
                code=ErrorCode.BAD_CONFIG,
            )
        if self.noise_terms and not self.parameters.noise_block:  # R3.2-10
            raise RemoteProtocolError(
                "noise_terms must be empty without a noise block, not "
                f"{len(self.noise_terms)} bytes",
                code=ErrorCode.BAD_CONFIG,
            )
        self.parameters.validate(demanded_bits=demanded_bits)
        return self

    def check_clock(self, now: int) -> None:
        """Refuse a session that is over already, or that would never be (R5.0-2).

        Args:
            now: The time of whoever was offered it, in Unix seconds.

        Raises:
            RemoteProtocolError: BAD_CLOCK; one of the two clocks is wrong.
        """
        left = self.session_end - now
        most = self.parameters.deadlines.longest_session + CLOCK_TOLERANCE_SECONDS
        if not 0 < left <= most:
            raise RemoteProtocolError(
                f"the session ends at {_time(self.session_end)}, and this machine's "
                f"clock reads {_time(now)}: {left} seconds are left, between 1 and "
                f"{most} are possible; one of the two clocks is wrong",
                code=ErrorCode.BAD_CLOCK,
                next_step="Compare the clocks of this machine and of the server.",
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
            aggregator = _read_name(reader, MAX_AGGREGATOR_BYTES)
            task_id = _read_name(reader, MAX_TASK_ID_BYTES)
            number = reader.u64()
            nonce = reader.fixed(32)
            session_end = reader.u64()
            payload_hash = _read_payload_hash(reader)
            noise_terms = reader.blob(max_bytes=MAX_NOISE_TERMS_BYTES)
            parameters = ProtocolParameters.decode_from(reader)
            reader.end()
        except ValueError as error:
            raise RemoteProtocolError(
                f"the session offer cannot be read: {error}",
                next_step="Hand over the offer as the aggregator made it.",
                code=ErrorCode.BAD_ENCODING,
            ) from None
        return cls(
            aggregator=aggregator,
            task_id=task_id,
            session_number=number,
            server_nonce=nonce,
            session_end=session_end,
            payload_hash=payload_hash,
            parameters=parameters,
            noise_terms=noise_terms,
        ).validate()


def _read_name(reader: Reader, max_bytes: int) -> str:
    name = reader.text(max_bytes=max_bytes)
    if not name:
        raise ValueError("a name is empty")
    return name


def _read_payload_hash(reader: Reader) -> bytes:
    payload_hash = reader.blob(max_bytes=32)
    if len(payload_hash) not in {0, 32}:
        raise ValueError(f"a payload hash has 0 or 32 bytes, not {len(payload_hash)}")
    return payload_hash


def _time(seconds: int) -> str:
    """Return a date for people, of a number that a peer may have made up."""
    if not 0 <= seconds < _END_OF_TIME:
        return f"{seconds} Unix seconds"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
