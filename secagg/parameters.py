"""What a session is: the public numbers that all of its parties agree on.

Rule 1: every field enters the configuration hash, hence every key, mask and
        associated datum of the session (PROTOCOL §4): two parties that hold
        different parameters produce masks that do not cancel.
Rule 2: `validate` states what is impossible for everybody; what is merely unwelcome
        to one client is that client's `secagg.policy`.

It holds no secrets and knows nothing of differential privacy: the noise block is
opaque bytes made and read by `secagg.distributed_dp`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum, unique
from itertools import chain
from typing import Final, Self

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.primitives.canonical import Reader, Writer
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.transcript import hash_parts
from secagg.ring_odds import bits_of, client_demand, log_corrupt_holders

__all__ = [
    "MAX_CLIENTS",
    "MAX_DIMENSION",
    "MAX_NOISE_BLOCK_BYTES",
    "PROTOCOL_VERSION",
    "Graph",
    "Profile",
    "ProtocolParameters",
    "RoundDeadlines",
    "SessionDescriptor",
]

PROTOCOL_VERSION: Final = 1

# Shamir abscissae are 1..65536 without zero; one roster index each (PROTOCOL §7).
MAX_CLIENTS: Final = 65_535
# 2^30 words of eight bytes stay below the 2^36 - 32 byte limit of one mask stream.
MAX_DIMENSION: Final = 1 << 30
# Masks read words of at most eight bytes; two bits of reserve keep sums in int64.
MAX_MODULUS: Final = 1 << 62
MIN_MODULUS: Final = 2
# One client's sum is its input.
MIN_COHORT: Final = 2
# A mechanism and its budget in canonical JSON take well under one kilobyte.
MAX_NOISE_BLOCK_BYTES: Final = 4096
MAX_TASK_ID_BYTES: Final = 256
# The longest that a certificate can name.
MAX_AGGREGATOR_BYTES: Final = 255
# What a database of signed 64-bit integers can count; nobody runs as many sessions.
MAX_SESSION_NUMBER: Final = (1 << 63) - 1
# What a profile adds to the parameters; those of this release add one byte.
MAX_TAIL_BYTES: Final = 512
# Beyond this no hash of the session would resist longer.
MAX_GRAPH_BITS: Final = 128
# A week: longer rounds outlive the certificates and caches around them.
MAX_DEADLINE_SECONDS: Final = 7 * 24 * 3600


@unique
class Profile(IntEnum):
    """A named threat model (PROTOCOL §2).  Numbers are those on the wire."""

    HONEST_CURIOUS_SERVER = 1
    MALICIOUS_SERVER = 2
    MALICIOUS_SERVER_SPARSE = 3

    @property
    def label(self) -> str:
        """The name that people type, for example ``honest-curious-server``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_label(cls, label: str) -> "Profile":
        """Return the profile called `label`.

        Raises:
            ValueError: No profile has that name; the message lists them.
        """
        for profile in cls:
            if profile.label == label:
                return profile
        known = ", ".join(profile.label for profile in cls)
        raise ValueError(f"unknown profile {label!r}; known: {known}")


@unique
class Graph(StrEnum):
    """Who shares with whom (PROTOCOL §11)."""

    COMPLETE = "complete"
    RING = "ring"


# Profiles whose rows this release has.  The others are refused by name, never
# replaced by a weaker one.
SUPPORTED_PROFILES: Final = frozenset({Profile.HONEST_CURIOUS_SERVER})


@dataclass(frozen=True, slots=True)
class RoundDeadlines:
    """How long each round stays open at most, in whole seconds."""

    advertise_keys: int = 60
    share_keys: int = 60
    masked_input: int = 300
    unmasking: int = 60

    def encode_into(self, writer: Writer) -> None:
        """Append the canonical encoding."""
        for field in fields(self):
            writer.u32(getattr(self, field.name))

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode_into` wrote."""
        return cls(*(reader.u32() for _ in fields(cls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolParameters:
    """The configuration of every session of one task.

    Attributes:
        profile: Named threat model.
        suite: Named algorithms.
        modulus: m; inputs and sums live in Z_m.  2 <= m <= 2^62.
        dimension: d; entries of one vector.  1 <= d <= 2^30.
        min_clients: Smallest roster |U1| that goes on.
        max_clients: Largest roster; round 1 closes early when it is full.
        threshold: t; shares that rebuild a secret.  t >= 2; on the complete graph
            t >= colluders + 1.
        degree: k; neighbours of each client on the Harary ring, even; 0 means the
            complete graph.
        min_survivors: Smallest |U3| that is ever unmasked.
        max_dropouts: Most clients of U2 that may be missing from U3.
        colluders: c; clients of the whole roster assumed to share their secrets with
            the server.
        graph_bits: On the ring, a session is unmasked only if it is unsafe with
            probability at most 2^-graph_bits, 1 to 128; 0 on the complete graph.
        noise_block: Canonical description of the noise that every input carries,
            or b"" for a task without differential privacy.
        deadlines: Longest duration of each round.
    """

    profile: Profile = Profile.HONEST_CURIOUS_SERVER
    suite: CipherSuite = CipherSuite.AES_256_CTR
    modulus: int
    dimension: int
    min_clients: int
    max_clients: int
    threshold: int
    degree: int = 0
    min_survivors: int
    max_dropouts: int
    colluders: int = 0
    noise_block: bytes = b""
    deadlines: RoundDeadlines = RoundDeadlines()
    graph_bits: int = 0

    @property
    def graph(self) -> Graph:
        """Who shares with whom."""
        return Graph.RING if self.degree else Graph.COMPLETE

    @property
    def is_complete_graph(self) -> bool:
        """Whether every client shares with every other one."""
        return self.degree == 0

    @property
    def bits(self) -> int:
        """Bits of one packed coordinate, ceil(log2 m)."""
        return (self.modulus - 1).bit_length()

    def validate(
        self, *, demanded_bits: Callable[[int], float] = client_demand
    ) -> Self:
        """Return self if a session with these parameters can exist at all.

        Args:
            demanded_bits: What is demanded of a ring for its `graph_bits`: the server
                passes `ring_odds.server_demand`, which is a little more.

        Raises:
            RemoteProtocolError: With BAD_CONFIG; names the field, the rule and the
                nearest value that works.  Correct the task's configuration.
        """
        # The last rule takes time, and numbers that the others have judged.
        for holds, complaint in chain(
            self._rules(), self._ring_rule(demanded_bits(self.graph_bits))
        ):
            if not holds:
                raise RemoteProtocolError(
                    complaint,
                    code=ErrorCode.BAD_CONFIG,
                    next_step="Correct the configuration of the task.",
                )
        return self

    def _ring_rule(self, demanded_bits: float) -> Iterator[tuple[bool, str]]:
        """R3.2-7: on the smallest roster, whose odds are the worst."""
        if self.is_complete_graph:
            return
        bits = bits_of(
            log_corrupt_holders(
                clients=self.min_clients,
                degree=self.degree,
                threshold=self.threshold,
                colluders=self.colluders,
            )
        )
        yield (
            bits >= demanded_bits,
            (
                f"on a ring of {self.min_clients} with degree {self.degree}, "
                f"{self.colluders} colluders reach a threshold of {self.threshold} "
                f"with probability 2^-{bits:.1f}; at most 2^-{demanded_bits:.2f} is "
                "allowed: raise threshold and degree, or count on fewer colluders"
            ),
        )

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        t, k = self.threshold, self.degree
        supported = ", ".join(sorted(p.label for p in SUPPORTED_PROFILES))
        seconds = [getattr(self.deadlines, f.name) for f in fields(self.deadlines)]
        return (
            (
                self.profile in SUPPORTED_PROFILES,
                (
                    f"profile {self.profile.label} is not part of this release; "
                    f"available: {supported}"
                ),
            ),
            (
                MIN_MODULUS <= self.modulus <= MAX_MODULUS,
                f"modulus must be between 2 and 2^62, not {self.modulus}",
            ),
            (
                1 <= self.dimension <= MAX_DIMENSION,
                (
                    f"dimension must be between 1 and {MAX_DIMENSION}, "
                    f"not {self.dimension}"
                ),
            ),
            (
                MIN_COHORT <= self.min_clients <= self.max_clients <= MAX_CLIENTS,
                (
                    "need 2 <= min_clients <= max_clients <= "
                    f"{MAX_CLIENTS}, not {self.min_clients} and {self.max_clients}"
                ),
            ),
            (
                self.colluders >= 0,
                f"colluders must be at least 0, not {self.colluders}",
            ),
            # R3.2-5: one share would be the secret.
            (t >= MIN_COHORT, f"threshold must be at least 2, not {t}"),
            # R3.2-6: c corrupt holders hold c shares of every secret.
            (
                k > 0 or t >= self.colluders + 1,
                (
                    f"threshold must be at least {self.colluders + 1} (more than the "
                    f"{self.colluders} colluders), not {t}"
                ),
            ),
            (
                t <= self.min_survivors <= self.min_clients,
                (
                    "need threshold <= min_survivors <= min_clients, not "
                    f"{t}, {self.min_survivors} and {self.min_clients}"
                ),
            ),
            (
                # PROTOCOL §5: an honest party must be left beside the colluders,
                # and a sum of one honest input is that input.
                self.min_survivors >= self.colluders + 2,
                (
                    f"min_survivors must be at least {self.colluders + 2}: two clients "
                    f"beyond the {self.colluders} colluders, not {self.min_survivors}"
                ),
            ),
            (
                0 <= self.max_dropouts <= self.max_clients,
                (
                    f"max_dropouts must be between 0 and {self.max_clients}, "
                    f"not {self.max_dropouts}"
                ),
            ),
            (
                k == 0 or (k % 2 == 0 and t <= k <= self.min_clients - 2),
                (
                    "degree must be 0 (complete graph) or an even number between the "
                    f"threshold {t} and min_clients - 2 = {self.min_clients - 2}, "
                    f"not {k}"
                ),
            ),
            (
                1 <= self.graph_bits <= MAX_GRAPH_BITS if k else self.graph_bits == 0,
                (
                    f"graph_bits must be between 1 and {MAX_GRAPH_BITS} on a ring, and "
                    f"0 on the complete graph, not {self.graph_bits}"
                ),
            ),
            (
                len(self.noise_block) <= MAX_NOISE_BLOCK_BYTES,
                (
                    f"noise block has {len(self.noise_block)} bytes, "
                    f"at most {MAX_NOISE_BLOCK_BYTES} are allowed"
                ),
            ),
            (
                all(1 <= value <= MAX_DEADLINE_SECONDS for value in seconds),
                (
                    f"each round deadline must be between 1 and {MAX_DEADLINE_SECONDS} "
                    "seconds"
                ),
            ),
        )

    def encode(self) -> bytes:
        """Return the canonical encoding (PROTOCOL §3.2)."""
        writer = Writer()
        writer.u16(PROTOCOL_VERSION)
        writer.u16(self.profile)
        writer.u16(self.suite)
        writer.u64(self.modulus)
        writer.u64(self.dimension)
        for number in (
            self.min_clients,
            self.max_clients,
            self.threshold,
            self.degree,
            self.min_survivors,
            self.max_dropouts,
            self.colluders,
        ):
            writer.u32(number)
        writer.blob(self.noise_block)
        self.deadlines.encode_into(writer)
        writer.blob(Writer().u8(self.graph_bits).getvalue())
        return writer.getvalue()

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode` wrote and validate it.

        Raises:
            RemoteProtocolError: BAD_VERSION for another protocol version,
                BAD_CONFIG for values that no session can have.
            CanonicalEncodingError: The bytes are not an encoding at all.
        """
        version = reader.u16()
        if version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the peer speaks protocol version {version}, "
                f"this release speaks {PROTOCOL_VERSION}",
                code=ErrorCode.BAD_VERSION,
                next_step="Upgrade the older side.",
            )
        profile, suite = reader.u16(), reader.u16()
        try:
            named_profile, named_suite = Profile(profile), CipherSuite(suite)
        except ValueError:
            raise RemoteProtocolError(
                f"unknown profile {profile} or suite {suite:#06x}",
                code=ErrorCode.BAD_CONFIG,
            ) from None
        modulus, dimension = reader.u64(), reader.u64()
        counts = [reader.u32() for _ in range(7)]
        noise_block = reader.blob(max_bytes=MAX_NOISE_BLOCK_BYTES)
        deadlines = RoundDeadlines.decode_from(reader)
        tail = Reader(reader.blob(max_bytes=MAX_TAIL_BYTES), "tail of the parameters")
        return cls(
            profile=named_profile,
            suite=named_suite,
            modulus=modulus,
            dimension=dimension,
            min_clients=counts[0],
            max_clients=counts[1],
            threshold=counts[2],
            degree=counts[3],
            min_survivors=counts[4],
            max_dropouts=counts[5],
            colluders=counts[6],
            noise_block=noise_block,
            deadlines=deadlines,
            graph_bits=_read_tail(tail, named_profile),
        ).validate()


def _read_tail(tail: Reader, profile: Profile) -> int:
    """Read graph_bits, which is all that the tail of this release's profiles holds."""
    # The tail of another profile reads differently; it is refused by its name.
    if profile not in SUPPORTED_PROFILES:
        return 0
    graph_bits = tail.u8()
    tail.end()
    return graph_bits


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
        payload_hash: SHA-256 of the payload handed to the clients, or b"" if none.
        parameters: The task's configuration.
    """

    aggregator: str
    task_id: str
    session_number: int
    server_nonce: bytes
    payload_hash: bytes
    parameters: ProtocolParameters

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
        if not 0 <= self.session_number <= MAX_SESSION_NUMBER:
            raise RemoteProtocolError(
                f"session numbers go up to {MAX_SESSION_NUMBER}, "
                f"not {self.session_number}",
                code=ErrorCode.BAD_CONFIG,
            )
        if len(self.payload_hash) not in {0, 32}:
            raise RemoteProtocolError(
                f"a payload hash has 0 or 32 bytes, not {len(self.payload_hash)}",
                code=ErrorCode.BAD_CONFIG,
            )
        self.parameters.validate(demanded_bits=demanded_bits)
        return self

    @property
    def configuration_hash(self) -> bytes:
        """cfg_hash of PROTOCOL §4."""
        return hash_parts(
            "configuration",
            self.parameters.encode(),
            self.payload_hash,
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
        writer.blob(self.payload_hash)
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
            payload_hash = _read_payload_hash(reader)
            parameters = ProtocolParameters.decode_from(reader)
            reader.end()
        except ValueError as error:
            raise RemoteProtocolError(
                f"the session offer cannot be read: {error}",
                code=ErrorCode.BAD_ENCODING,
            ) from None
        return cls(
            aggregator=aggregator,
            task_id=task_id,
            session_number=number,
            server_nonce=nonce,
            payload_hash=payload_hash,
            parameters=parameters,
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
