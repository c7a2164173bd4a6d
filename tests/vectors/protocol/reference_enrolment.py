"""§2.1: credentials, who asks for them, who signs them, and which are revoked."""

import hashlib
import itertools
import re
from dataclasses import dataclass

from reference import (
    BAD_CREDENTIAL,
    BAD_ENCODING,
    Decoder,
    Refused,
    Trust,
    tag,
    text,
    u32,
    u64,
)
from reference_signature import holds, is_admitted_key

NO_SUITE = 0
MAX_LIST_BYTES = 4 * 2**20
NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


def read_name(decoder: Decoder) -> str:
    name = decoder.text(255)
    if NAME.fullmatch(name) is None:
        raise Refused(BAD_ENCODING)
    return name


@dataclass(frozen=True)
class Request:
    """What a client asks the issuer to sign."""

    trust_domain: str
    name: str
    key: bytes
    made_at: int
    signature: bytes = b""

    def unsigned(self) -> bytes:
        names = text(self.trust_domain) + text(self.name)
        return b"\1" + names + self.key + u64(self.made_at)

    def signed_bytes(self) -> bytes:
        return tag("client", "enrolment request", NO_SUITE) + self.unsigned()

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @staticmethod
    def decode(data: bytes) -> "Request":
        decoder = Decoder(data)
        if decoder.number(1) != 1:
            raise Refused(BAD_ENCODING)
        request = Request(
            read_name(decoder),
            read_name(decoder),
            decoder.take(32),
            decoder.number(8),
            decoder.take(64),
        )
        decoder.end()
        return request


@dataclass(frozen=True)
class Credential:
    """What stands behind the identity in an advert of form 1."""

    key: bytes
    not_before: int
    not_after: int
    serial: int
    signature: bytes = bytes(64)

    def encode(self) -> bytes:
        return self.key + self._terms() + self.signature

    def _terms(self) -> bytes:
        return u64(self.not_before) + u64(self.not_after) + u32(self.serial)

    def signed_bytes(self, trust_domain: str, name: str) -> bytes:
        names = text(trust_domain) + text(name)
        return tag("issuer", "credential", NO_SUITE) + names + self.key + self._terms()

    @staticmethod
    def read(decoder: Decoder) -> "Credential":
        return Credential(
            decoder.take(32),
            decoder.number(8),
            decoder.number(8),
            decoder.number(4),
            decoder.take(64),
        )


@dataclass(frozen=True)
class Revocations:
    """The list of serials that no longer count."""

    trust_domain: str
    number: int
    made_at: int
    serials: tuple[int, ...]
    signature: bytes = b""

    def unsigned(self) -> bytes:
        head = b"\1" + text(self.trust_domain) + u32(self.number) + u64(self.made_at)
        rows = b"".join(u32(serial) for serial in self.serials)
        return head + u32(len(self.serials)) + rows

    def signed_bytes(self) -> bytes:
        return tag("issuer", "revocation", NO_SUITE) + self.unsigned()

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @staticmethod
    def decode(data: bytes) -> "Revocations":
        decoder = Decoder(data)
        if len(data) > MAX_LIST_BYTES or decoder.number(1) != 1:
            raise Refused(BAD_ENCODING)
        head = read_name(decoder), decoder.number(4), decoder.number(8)
        serials = []
        for _ in range(decoder.number(4)):
            serials.append(decoder.number(4))  # noqa: PERF401 - the count is a claim
        revocations = Revocations(*head, tuple(serials), decoder.take(64))
        decoder.end()
        ascending = all(a < b for a, b in itertools.pairwise(serials))
        if revocations.number == 0 or not ascending:
            raise Refused(BAD_ENCODING)
        return revocations


def read_revocations(data: bytes, trust: Trust) -> frozenset[int]:
    """R2.1-0; no bytes where there is no list."""
    if trust.revocation_number == 0:
        if data:
            raise Refused(BAD_CREDENTIAL)
        return frozenset()
    if hashlib.sha256(data).digest() != trust.revocation_hash:
        raise Refused(BAD_CREDENTIAL)
    try:
        revocations = Revocations.decode(data)
    except Refused:
        raise Refused(BAD_CREDENTIAL) from None
    fits = (
        revocations.number == trust.revocation_number
        and revocations.trust_domain == trust.trust_domain
        and holds(
            trust.enrolment_key, revocations.signed_bytes(), revocations.signature
        )
    )
    if not fits:
        raise Refused(BAD_CREDENTIAL)
    return frozenset(revocations.serials)


def check_credential(
    credential: Credential,
    name: str,
    trust: Trust,
    session_end: int,
    revoked: frozenset[int],
) -> None:
    """R2.1-2 to R2.1-6."""
    valid = (
        NAME.fullmatch(name) is not None
        and credential.not_before <= session_end <= credential.not_after
        and credential.serial not in revoked
        and is_admitted_key(credential.key)
        and holds(
            trust.enrolment_key,
            credential.signed_bytes(trust.trust_domain, name),
            credential.signature,
        )
    )
    if not valid:
        raise Refused(BAD_CREDENTIAL)
