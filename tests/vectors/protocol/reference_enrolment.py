"""§2.1: credentials, who asks for them, who signs them, and which are revoked."""

import hashlib
import itertools
import re
from dataclasses import dataclass

from reference import (
    BAD_CREDENTIAL,
    BAD_ENCODING,
    UNAUTHENTICATED,
    Decoder,
    Refused,
    Trust,
    tag,
    text,
    u32,
    u64,
)
from reference_signature import holds, identity_key, is_admitted_key

NO_SUITE = 0
BAD_CERTIFICATE = 64  # it travels nowhere
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


# --- §10.1 and §10.2 ------------------------------------------------------------------

URI = (
    r"(?:secagg|spiffe)://([a-z0-9._-]{1,255})/(client|server)/([A-Za-z0-9._-]{1,255})"
)
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
RESERVED = ".secagg.internal"


def named_by(uris: list[str], dns: list[str]) -> tuple[str, str, str]:
    """R10.1-2: trust domain, role and name."""
    found = re.fullmatch(URI, uris[0], re.ASCII) if len(uris) == 1 else None
    if found is None:
        raise Refused(BAD_CERTIFICATE)
    domain, role, name = found.groups()
    own = {f"{name}.{domain}.server{RESERVED}"} if role == "server" else set()
    reserved = {text.lower() for text in dns if RESERVED in text.lower()}
    if name in {".", ".."} or RESERVED in name.lower() or reserved != own:
        raise Refused(BAD_CERTIFICATE)
    if role == "server" and re.fullmatch(LABEL, name, re.ASCII) is None:
        raise Refused(BAD_CERTIFICATE)
    return domain, role, name


def meet(uris: list[str], dns: list[str], own_domain: str, told: str | None) -> str:
    """R10.1-3: whom a client has reached."""
    domain, role, name = named_by(uris, dns)
    if role != "server" or domain != own_domain or told not in {None, name}:
        raise Refused(BAD_CERTIFICATE)
    return name


def caller(uris: list[str], dns: list[str], own_domain: str) -> str:
    """R10.1-4: who calls a server."""
    try:
        domain, role, name = named_by(uris, dns)
    except Refused:
        raise Refused(UNAUTHENTICATED) from None
    if role != "client" or domain != own_domain:
        raise Refused(UNAUTHENTICATED)
    return name


def read_files(
    seed: bytes, credential: bytes, name: str, trust: Trust, now: int
) -> None:
    """R10.2-1."""
    if len(seed) != 32:
        raise Refused(BAD_CREDENTIAL)
    decoder = Decoder(credential)
    if decoder.number(1) != 1:
        raise Refused(BAD_ENCODING)
    domain, whose = read_name(decoder), read_name(decoder)
    found = Credential.read(decoder)
    decoder.end()
    fits = (domain, whose) == (trust.trust_domain, name)
    if not fits or found.key != identity_key(seed):
        raise Refused(BAD_CREDENTIAL)
    check_credential(found, name, trust, now, frozenset())
