"""Threat models by name, and the parameters that each adds to a session.

Rule 1: the parameters of a profile are its *tail*, an object of a class of its own.
        The class names the profile, so that parameters of one profile with the numbers
        of another cannot be written down.
Rule 2: exactly the rounds that a profile lacks last 0 seconds.

Profiles hold no secrets.  `secagg.protocol.parameters` checks a session as a whole.

Source: PROTOCOL §2 and §3.2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, unique
from types import MappingProxyType
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import CanonicalEncodingError, Reader, Writer
from secagg.errors import ErrorCode
from secagg.protocol.arguments import check_member

# No hash of the session would resist longer.
MAX_GRAPH_BITS: Final = 128
# A week: longer rounds outlive the certificates and caches around them.
MAX_DEADLINE_SECONDS: Final = 7 * 24 * 3600
# The longest name that a certificate can hold.
_MAX_TRUST_DOMAIN_BYTES: Final = 255
_KEY_BYTES: Final = 32
_HASH_BYTES: Final = 32


@unique
class Profile(IntEnum):
    """A named threat model (PROTOCOL §2).  Numbers are those on the wire."""

    HONEST_CURIOUS_SERVER = 1
    MALICIOUS_SERVER = 2
    MALICIOUS_SERVER_SPARSE = 3

    @classmethod
    def _missing_(cls, value: object) -> None:
        """Refuse a value that is not a profile; name the closest label of a text."""
        if isinstance(value, str):
            check_member("profile", value, cls)

    @property
    def label(self) -> str:
        """The name in settings, for example ``honest-curious-server``."""
        return self.name.lower().replace("_", "-")

    @property
    def has_identities(self) -> bool:
        """Whether clients sign with enrolled keys, and sets are agreed by signature."""
        return self is not Profile.HONEST_CURIOUS_SERVER

    @property
    def is_experimental(self) -> bool:
        """Whether its security argument has not been reviewed.

        Output that names the profile states this (docs/choosing-a-graph.md).
        """
        return self is Profile.MALICIOUS_SERVER_SPARSE

    @property
    def absent_rounds(self) -> frozenset[str]:
        """Names, as in `RoundDeadlines`, of the rounds that the profile lacks."""
        return _ABSENT_ROUNDS[self]

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


_ABSENT_ROUNDS: Final[Mapping[Profile, frozenset[str]]] = {
    Profile.HONEST_CURIOUS_SERVER: frozenset({"choose_edges", "consistency"}),
    Profile.MALICIOUS_SERVER: frozenset({"choose_edges"}),
    Profile.MALICIOUS_SERVER_SPARSE: frozenset(),
}

# Profiles that this release can run.  It refuses another by name and never replaces it
# by a weaker one.
SUPPORTED_PROFILES: Final = frozenset(Profile)


def check_supported(profile: Profile) -> None:
    """Refuse a profile that this release does not have (R2-1, R3.2-2).

    Raises:
        RemoteProtocolError: BAD_CONFIG; names those that it has.
    """
    if profile not in SUPPORTED_PROFILES:
        supported = ", ".join(sorted(p.label for p in SUPPORTED_PROFILES))
        raise ErrorCode.BAD_CONFIG.error(
            f"profile {profile.label} is not part of this release; "
            f"available: {supported}",
            fix="Correct the configuration of the task.",
        )


@dataclass(frozen=True, slots=True)
class RoundDeadlines:
    """How long each round stays open at most, in whole seconds.

    A round that the profile does not have lasts 0 seconds.
    """

    advertise_keys: int = 60
    choose_edges: int = 0
    share_keys: int = 60
    masked_input: int = 300
    consistency: int = 0
    unmasking: int = 60

    @classmethod
    def of(cls, profile: Profile, **seconds: int) -> Self:
        """Return the deadlines of a profile: a minute for each round, five for inputs.

        Args:
            profile: Determines the rounds.
            seconds: Other durations, by the round's name; those of rounds that the
                profile lacks are ignored.
        """
        check_member("profile", profile, Profile)
        chosen = {"choose_edges": 60, "consistency": 60} | seconds
        absent = profile.absent_rounds
        return cls(**{name: chosen[name] for name in chosen if name not in absent})

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield name and seconds of every round, in order."""
        for each in fields(self):
            yield each.name, getattr(self, each.name)

    @property
    def longest_session(self) -> int:
        """Seconds of all rounds, with the one extension that uploads may cause."""
        return sum(seconds for _, seconds in self) + self.masked_input

    def encode_into(self, writer: Writer) -> None:
        """Append the canonical encoding."""
        for _, seconds in self:
            writer.u32(seconds)

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode_into` wrote."""
        return cls(*(reader.u32() for _ in fields(cls)))


@dataclass(frozen=True, slots=True)
class Trust:
    """The issuer of credentials, in the profiles with identities.

    Attributes:
        trust_domain: Name of the domain of server and clients, 1 to 255 bytes.
        enrolment_key: Ed25519 key that signs credentials, 32 bytes; clients pin it.
        revocation_number: Number of the revocation list that counts; 0 without a list.
        revocation_hash: SHA-256 of that list; zeros without a list.
    """

    trust_domain: str
    enrolment_key: bytes
    revocation_number: int = 0
    revocation_hash: bytes = bytes(_HASH_BYTES)

    @property
    def issuer(self) -> tuple[str, bytes]:
        """Trust domain and key, which all lists of an issuer share."""
        return self.trust_domain, self.enrolment_key

    def rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each rule and the complaint if it is violated (R3.2-3)."""
        size = len(self.trust_domain.encode())
        yield (
            1 <= size <= _MAX_TRUST_DOMAIN_BYTES,
            f"trust_domain must have 1 to {_MAX_TRUST_DOMAIN_BYTES} bytes, not {size}",
        )
        yield (
            self.revocation_number > 0 or not any(self.revocation_hash),
            "revocation_hash must be zero where revocation_number is 0",
        )

    def encode_into(self, writer: Writer) -> None:
        """Append the canonical encoding."""
        writer.text(self.trust_domain).fixed(self.enrolment_key)
        writer.u32(self.revocation_number).fixed(self.revocation_hash)

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode_into` wrote.

        Raises:
            CanonicalEncodingError: It was cut short, or the trust domain is empty.
        """
        trust_domain = reader.text(max_bytes=_MAX_TRUST_DOMAIN_BYTES)
        if not trust_domain:
            raise CanonicalEncodingError("the trust domain is empty")
        return cls(
            trust_domain,
            reader.fixed(_KEY_BYTES),
            reader.u32(),
            reader.fixed(_HASH_BYTES),
        )


@dataclass(frozen=True, slots=True)
class HonestCuriousParameters:
    """The parameters of `honest-curious-server`.

    Attributes:
        graph_bits: A session on the ring is unmasked only if it is unsafe with
            probability at most 2^-graph_bits; 1 to 128.  0 on the complete graph.
    """

    PROFILE: ClassVar[Profile] = Profile.HONEST_CURIOUS_SERVER
    trust: ClassVar[None] = None

    graph_bits: int = 0

    def rules(self) -> Iterator[tuple[bool, str]]:
        """Yield nothing: the rules depend on the graph."""
        return iter(())

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().u8(self.graph_bits).getvalue()

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode` wrote."""
        return cls(reader.u8())


@dataclass(frozen=True, slots=True)
class MaliciousParameters:
    """The parameters of `malicious-server`.

    Attributes:
        trust: The issuer of credentials.
    """

    PROFILE: ClassVar[Profile] = Profile.MALICIOUS_SERVER
    graph_bits: ClassVar[int] = 0

    trust: Trust

    def rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each rule and the complaint if it is violated."""
        return self.trust.rules()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        self.trust.encode_into(writer)
        return writer.getvalue()

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode` wrote."""
        return cls(Trust.decode_from(reader))


@dataclass(frozen=True, slots=True)
class SparseParameters:
    """The parameters of `malicious-server-sparse`.

    Attributes:
        trust: The issuer of credentials.
        graph_bits: As of `HonestCuriousParameters`, 1 to 128.
        in_cap: Most clients that may choose the same neighbour.
        quorum: Q; signatures on one U3 that a client requires before it unmasks.
    """

    PROFILE: ClassVar[Profile] = Profile.MALICIOUS_SERVER_SPARSE

    trust: Trust
    graph_bits: int
    in_cap: int
    quorum: int

    def rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each rule and the complaint if it is violated."""
        return self.trust.rules()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        self.trust.encode_into(writer)
        writer.u8(self.graph_bits).u32(self.in_cap).u32(self.quorum)
        return writer.getvalue()

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode` wrote."""
        return cls(Trust.decode_from(reader), reader.u8(), reader.u32(), reader.u32())


Tail = HonestCuriousParameters | MaliciousParameters | SparseParameters

TAILS: Final[Mapping[Profile, type[Tail]]] = MappingProxyType(
    {
        tail.PROFILE: tail
        for tail in (HonestCuriousParameters, MaliciousParameters, SparseParameters)
    }
)
