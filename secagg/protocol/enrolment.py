"""Enrolment: credentials, how they are verified, and the list of those revoked.

Rule 1: the identity key itself signs the request, so that the issuer knows that the
        requester holds the key.
Rule 2: the enrolment key, which no aggregator holds, signs the credential. Clients pin
        that key, so that no aggregator can invent a name.
Rule 3: signed bytes start with a domain tag of their own.  Enrolment precedes any
        session, hence its tags name suite 0.

Whether a credential is valid for a session:

Rule 4: no clock.  A credential is compared with the end of its session.  All parties
        agree on that number, so all honest clients decide alike.
Rule 5: server and clients run the same checks in the same order.  The server runs them
        when an advert arrives, each client when it receives the roster.
Rule 6: a cached verification is keyed by all signed bytes, the signing key and the
        signature.  Revocation and time are checked again each time (R2.1-8).

Revocation lists, and the newest one that a client has seen:

Rule 7: a list is complete: each number holds all serials that were ever revoked.
Rule 8: numbers only grow.  A client records the highest number that it has seen under
        an enrolment key.  Therefore no aggregator can return to an earlier list.
Rule 9: a client records a list only after it has read the whole list. Otherwise an
        offer that names a number without a list would lock clients out.

Source: PROTOCOL §2.1 (R2.1-0 to R2.1-6, R2.1-8) and §5.0 (R5.0-3).
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Decodable, Reader, Writer
from secagg.crypto.signature import (
    IDENTITY_SIZE,
    SIGNATURE_SIZE,
    IdentityKey,
    SignatureError,
    check_identity,
    check_identity_form,
    verify,
)
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.profiles import Trust

VERSION: Final = 1
"""The first byte of every document."""

MAX_NAME_BYTES: Final = 255
"""Longest name of a client or of a trust domain that a certificate can hold."""

_REMAKE: Final = "Make it again with a release that supports this version."

# Plain enough to be a file name, a log field and a table cell.
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)


def is_name(text: str) -> bool:
    """Return whether a text may name a client or a trust domain (R2.1-2)."""
    return _NAME.fullmatch(text) is not None


def not_a_name(text: str) -> str:
    """Return the complaint about a text that is not a valid name."""
    return (
        f"{text[:60]!r} is not 1 to {MAX_NAME_BYTES} of the characters "
        "A-Z a-z 0-9 . _ -"
    )


def enrolment_tag(role: str, usage: str) -> bytes:
    """Return the domain tag of one kind of document."""
    return domain_tag(role, usage, None)


def read_version(reader: Reader) -> None:
    """Read the version that every document starts with.

    Raises:
        ValueError: Another version.
    """
    version = reader.u8()
    if version != VERSION:
        raise ValueError(f"it has version {version}, this release reads {VERSION}")


def read_name(reader: Reader) -> str:
    """Read a name.

    Raises:
        ValueError: It has other characters.
    """
    text = reader.text(max_bytes=MAX_NAME_BYTES)
    if not is_name(text):
        raise ValueError(not_a_name(text))
    return text


def _read_header(reader: Reader) -> tuple[str, str]:
    """Read version, trust domain and name; return the latter two.

    Raises:
        ValueError: Another version, or a name of other characters.
    """
    read_version(reader)
    return read_name(reader), read_name(reader)


CREDENTIAL_BYTES: Final = IDENTITY_SIZE + 8 + 8 + 4 + SIGNATURE_SIZE
"""Bytes of `Credential.encode_into`: everything but the name."""

_REQUEST_TAG: Final = enrolment_tag("client", "enrolment request")
_CREDENTIAL_TAG: Final = enrolment_tag("issuer", "credential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A name and its identity key, signed by the enrolment key.

    The trust domain is signed but not carried: a session has one, stated in its
    parameters.

    Attributes:
        name: The client's name, the same as in its certificate.
        identity_key: Ed25519 public key, 32 bytes.
        not_before: First second of validity, in Unix seconds.
        not_after: Last second of validity, in Unix seconds.
        serial: Counts the issuer's credentials, from 1.
        signature: By the enrolment key, 64 bytes; empty before it is signed.
    """

    name: str
    identity_key: bytes
    not_before: int
    not_after: int
    serial: int
    signature: bytes = b""

    def signed_by(self, enrolment_key: IdentityKey, trust_domain: str) -> Self:
        """Return the same credential with this key's signature.

        `secagg.pki.credential_issuer` decides whether it may have one.
        """
        signature = enrolment_key.sign(self.signed_bytes(trust_domain))
        return replace(self, signature=signature)

    def signed_bytes(self, trust_domain: str) -> bytes:
        """Return what the enrolment key signs."""
        writer = Writer().fixed(_CREDENTIAL_TAG).text(trust_domain).text(self.name)
        writer.fixed(self.identity_key).u64(self.not_before).u64(self.not_after)
        return writer.u32(self.serial).getvalue()

    def encode_into(self, writer: Writer) -> None:
        """Append `CREDENTIAL_BYTES` bytes: everything but the name."""
        writer.fixed(self.identity_key).u64(self.not_before).u64(self.not_after)
        writer.u32(self.serial).fixed(self.signature)

    @classmethod
    def decode_from(cls, reader: Reader, *, name: str) -> Self:
        """Read what `encode_into` wrote.

        Raises:
            CanonicalEncodingError: The data ends earlier.
        """
        return cls(
            name=name,
            identity_key=reader.fixed(IDENTITY_SIZE),
            not_before=reader.u64(),
            not_after=reader.u64(),
            serial=reader.u32(),
            signature=reader.fixed(SIGNATURE_SIZE),
        )


@dataclass(frozen=True, slots=True)
class IssuedCredential(Decodable):
    """A credential as its holder keeps it: with the trust domain.

    Attributes:
        trust_domain: The domain of the names.
        credential: The credential.
    """

    WHAT: ClassVar[str] = "credential"
    NEXT_STEP: ClassVar[str] = _REMAKE

    trust_domain: str
    credential: Credential

    def encode(self) -> bytes:
        """Return the file's bytes."""
        writer = Writer().u8(VERSION).text(self.trust_domain)
        writer.text(self.credential.name)
        self.credential.encode_into(writer)
        return writer.getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a credential with its trust domain."""
        trust_domain, name = _read_header(reader)
        return cls(trust_domain, Credential.decode_from(reader, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRequest(Decodable):
    """A client's request for a credential.

    Attributes:
        trust_domain: The domain of the names.
        name: The requested name.
        identity_key: Its Ed25519 public key, 32 bytes.
        made_at: Time of the request, in Unix seconds, by the requester's clock.
        signature: By the identity key, 64 bytes.
    """

    WHAT: ClassVar[str] = "enrolment request"
    NEXT_STEP: ClassVar[str] = _REMAKE

    trust_domain: str
    name: str
    identity_key: bytes
    made_at: int
    signature: bytes = b""

    @classmethod
    def make(
        cls, key: IdentityKey, *, trust_domain: str, name: str, made_at: int
    ) -> Self:
        """Make and sign a request.

        Raises:
            ValueError: The name has other characters, or the time exceeds 64 bits.
        """
        for text in (trust_domain, name):
            if not is_name(text):
                raise ValueError(not_a_name(text))
        request = cls(
            trust_domain=trust_domain,
            name=name,
            identity_key=key.public_bytes,
            made_at=made_at,
        )
        return replace(
            request, signature=key.sign(_REQUEST_TAG + request._signed_body())
        )

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self._signed_body() + self.signature

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a request, whose signature `check` verifies."""
        trust_domain, name = _read_header(reader)
        return cls(
            trust_domain=trust_domain,
            name=name,
            identity_key=reader.fixed(IDENTITY_SIZE),
            made_at=reader.u64(),
            signature=reader.fixed(SIGNATURE_SIZE),
        )

    def check(self) -> None:
        """Check that the requester holds the key that it names.

        Raises:
            RemoteProtocolError: BAD_SIGNATURE.
        """
        try:
            check_identity(self.identity_key)
            verify(
                self.identity_key, _REQUEST_TAG + self._signed_body(), self.signature
            )
        except SignatureError as error:
            raise ErrorCode.BAD_SIGNATURE.error(
                f"the enrolment request of {self.name!r} is not signed by the key that "
                f"it names: {error}",
                fix="Ask the client for a new request, sent whole.",
            ) from None

    def _signed_body(self) -> bytes:
        """Return the bytes that the signature covers."""
        writer = Writer().u8(VERSION).text(self.trust_domain).text(self.name)
        return writer.fixed(self.identity_key).u64(self.made_at).getvalue()


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client's signing key and its credential.

    Attributes:
        key: Signs in sessions; its representation shows the public half only.
        issued: The credential, with its trust domain.
        enrolment_key: The pinned key that signed it, 32 bytes.
    """

    key: IdentityKey
    issued: IssuedCredential
    enrolment_key: bytes


# Two full rosters of the largest cohort, at about 120 bytes each.
_MAX_REMEMBERED: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentRules:
    """What an offer states about all credentials in its session.

    Attributes:
        trust_domain: The domain of the names.
        enrolment_key: Signs credentials; at a client the pinned one, 32 bytes.
        session_end: End of the session, in Unix seconds.
        revoked: Serials of the list that the offer names.
    """

    trust_domain: str
    enrolment_key: bytes
    session_end: int
    revoked: frozenset[int] = frozenset()


class VerifiedCredentials:
    """A cache of verified credentials; it saves two thirds of a roster's checks.

    Its size is bounded; the least recently used credential is removed first.
    """

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def knows(self, digest: bytes) -> bool:
        """Return whether a credential was verified before."""
        known = digest in self._digests
        if known:
            self._digests.move_to_end(digest)
        return known

    def add(self, digest: bytes) -> None:
        """Record that a credential was verified."""
        self._digests[digest] = None
        if len(self._digests) > _MAX_REMEMBERED:
            self._digests.popitem(last=False)


def check_credential(
    credential: Credential | None,
    rules: EnrolmentRules,
    *,
    identity: str,
    verified: VerifiedCredentials | None = None,
) -> None:
    """Check one credential; the advert's own signature is checked after it.

    Args:
        credential: The credential in the advert; None if the advert has none.
        rules: Of the session.
        identity: The presenter: the name in its certificate at the server, the advert's
            name at a client.
        verified: Cache of verified credentials.

    Raises:
        RemoteProtocolError: BAD_CREDENTIAL, naming `identity` as the sender.
    """
    digest = _check_naming_client(credential, rules, identity, verified, check_identity)
    if verified is not None:
        verified.add(digest)


def check_signing_credential(
    credential: Credential | None,
    rules: EnrolmentRules,
    *,
    identity: str,
    verified: VerifiedCredentials | None = None,
    before_signature: Callable[[], None] = lambda: None,
) -> bytes:
    """Check one credential, but not whether its key is a point of the curve.

    For a caller that next verifies a signature under the key, which only a point of the
    curve passes (`check_identity_form`).  Only then may it cache the credential.

    Args:
        credential: As for `check_credential`.
        rules: Of the session.
        identity: The presenter.
        verified: Cache of verified credentials.
        before_signature: Called before the issuer's signature is verified, which is the
            costly part; an error that it raises ends the check.

    Returns:
        The argument of `VerifiedCredentials.add`, once the signature has passed.

    Raises:
        RemoteProtocolError: BAD_CREDENTIAL, naming `identity` as the sender.
    """

    def check_key(key: bytes) -> None:
        check_identity_form(key)
        before_signature()

    return _check_naming_client(credential, rules, identity, verified, check_key)


def _check_naming_client(
    credential: Credential | None,
    rules: EnrolmentRules,
    identity: str,
    verified: VerifiedCredentials | None,
    check_key: Callable[[bytes], None],
) -> bytes:
    """Check a credential; an error names the client and the next step."""
    try:
        return _check(credential, rules, identity, verified, check_key)
    except _UnfitError as error:
        raise ErrorCode.BAD_CREDENTIAL.error(
            f"invalid credential of {identity[:60]!r}: {error}",
            kind=RemoteProtocolError,
            sender=identity,
            fix=error.next_step,
        ) from None


def _check(
    credential: Credential | None,
    rules: EnrolmentRules,
    identity: str,
    verified: VerifiedCredentials | None,
    check_key: Callable[[bytes], None],
) -> bytes:
    """Check each rule of a credential, and return its digest."""
    if credential is None:  # R2.1-1
        raise _UnfitError("it is missing", "Enrol the client, or exclude it.")
    if not is_name(credential.name):  # R2.1-2
        raise _UnfitError(not_a_name(credential.name), _ENROL)
    if credential.name != identity:
        raise _UnfitError(f"it names {credential.name!r}", _ENROL)
    if rules.session_end < credential.not_before:  # R2.1-3
        raise _UnfitError(
            f"it becomes valid at {credential.not_before}, the session ends at "
            f"{rules.session_end} (Unix seconds)",
            "Compare the clocks of issuer and aggregator.",
        )
    if rules.session_end > credential.not_after:
        raise _UnfitError(
            f"it is valid until {credential.not_after}, the session ends at "
            f"{rules.session_end} (Unix seconds)",
            "Renew it: `secagg pki enrol renew`, or a new request.",
        )
    if credential.serial in rules.revoked:  # R2.1-4
        raise _UnfitError(
            f"serial {credential.serial} was revoked",
            "Make a new identity and enrol it: a revoked key stays revoked.",
        )
    return _check_signature(credential, rules, verified, check_key)


def _check_signature(
    credential: Credential,
    rules: EnrolmentRules,
    verified: VerifiedCredentials | None,
    check_key: Callable[[bytes], None],
) -> bytes:
    """Verify key and signature, unless the same credential was verified before."""
    signed = credential.signed_bytes(rules.trust_domain)
    # The first and the last part have one length, so that no separators are needed.
    digest = sha256(rules.enrolment_key + signed + credential.signature).digest()
    if verified is not None and verified.knows(digest):
        return digest
    try:
        check_key(credential.identity_key)  # R2.1-5
        verify(rules.enrolment_key, signed, credential.signature)  # R2.1-6
    except SignatureError as error:
        raise _UnfitError(str(error), _ENROL) from None
    return digest


_ENROL: Final = "Have it issued under the enrolment key that the clients pin."


class _UnfitError(Exception):
    def __init__(self, complaint: str, next_step: str) -> None:
        super().__init__(complaint)
        self.next_step = next_step


MAX_REVOCATION_BYTES: Final = 4 << 20
"""Longest list: a million serials, more than twice the largest cohort each year."""

NO_DIGEST: Final = bytes(32)
"""The digest in an offer without a list."""

_SERIAL_BYTES: Final = 4
_LIST_TAG: Final = enrolment_tag("issuer", "revocation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationList(Decodable):
    """All serials that an issuer has revoked.

    Attributes:
        trust_domain: The domain of the names.
        number: Counts the issuer's lists, from 1.
        made_at: Time of signing, in Unix seconds.
        serials: Strictly ascending.
        signature: By the enrolment key, 64 bytes; empty before it is signed.
    """

    WHAT: ClassVar[str] = "revocation list"
    NEXT_STEP: ClassVar[str] = _REMAKE

    trust_domain: str
    number: int
    made_at: int
    serials: tuple[int, ...]
    signature: bytes = b""

    def signed_by(self, enrolment_key: IdentityKey) -> Self:
        """Return the same list with this key's signature."""
        return replace(
            self, signature=enrolment_key.sign(_LIST_TAG + self._signed_body())
        )

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the list's bytes, by which an offer names it."""
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self._signed_body() + self.signature

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a list, its serials in ascending order; `check` verifies it."""
        read_version(reader)
        trust_domain = read_name(reader)
        number, made_at, count = reader.u32(), reader.u64(), reader.u32()
        if number == 0:
            raise ValueError("lists are counted from 1")
        # Bounded by the bytes that exist: `fixed` refuses to read further.
        packed = reader.fixed(count * _SERIAL_BYTES)
        serials = tuple(
            int.from_bytes(packed[i : i + _SERIAL_BYTES], "big")
            for i in range(0, len(packed), _SERIAL_BYTES)
        )
        if any(first >= second for first, second in pairwise(serials)):
            raise ValueError("its serials are not strictly ascending")
        return cls(
            trust_domain=trust_domain,
            number=number,
            made_at=made_at,
            serials=serials,
            signature=reader.fixed(SIGNATURE_SIZE),
        )

    def check(self, *, trust_domain: str, enrolment_key: bytes) -> None:
        """Check trust domain and signature of the list.

        Raises:
            RemoteProtocolError: BAD_CREDENTIAL.
        """
        if self.trust_domain != trust_domain:
            raise _bad_list(
                f"it belongs to the trust domain {self.trust_domain!r}, "
                f"not to {trust_domain!r}"
            )
        try:
            verify(enrolment_key, _LIST_TAG + self._signed_body(), self.signature)
        except SignatureError as error:
            raise _bad_list(f"it is not signed by the enrolment key: {error}") from None

    def _signed_body(self) -> bytes:
        """Return the bytes that the signature covers."""
        writer = Writer().u8(VERSION).text(self.trust_domain).u32(self.number)
        writer.u64(self.made_at).u32(len(self.serials))
        for serial in self.serials:
            writer.u32(serial)
        return writer.getvalue()


def read_revocations(data: bytes, trust: Trust) -> RevocationList | None:
    """Read the list that an offer names, before the client sends anything.

    Args:
        data: The list's bytes; empty if the offer names none.
        trust: Of the offer; its enrolment key is the pinned one.

    Returns:
        The list; None for an offer without one.

    Raises:
        RemoteProtocolError: BAD_CREDENTIAL (R2.1-0).
    """
    if trust.revocation_number == 0:
        if data or trust.revocation_hash != NO_DIGEST:
            raise _bad_list("the offer names no list, but states fields of one")
        return None
    if len(data) > MAX_REVOCATION_BYTES:
        raise _bad_list(
            f"it has {len(data)} bytes, at most {MAX_REVOCATION_BYTES} are allowed"
        )
    if sha256(data).digest() != trust.revocation_hash:
        raise _bad_list("it is missing, or is not the list that the offer names")
    try:
        revocations = RevocationList.decode(data)
    except RemoteProtocolError as error:
        raise _bad_list(str(error)) from None
    if revocations.number != trust.revocation_number:
        raise _bad_list(
            f"it is number {revocations.number}, the offer says "
            f"{trust.revocation_number}"
        )
    revocations.check(
        trust_domain=trust.trust_domain, enrolment_key=trust.enrolment_key
    )
    return revocations


def _bad_list(complaint: str) -> RemoteProtocolError:
    """Return the error of an invalid revocation list."""
    return ErrorCode.BAD_CREDENTIAL.error(
        f"invalid revocation list: {complaint}",
        kind=RemoteProtocolError,
        fix="Ask the aggregator's operator to publish the issuer's newest list.",
    )


def refuse_older(trust: Trust, *, seen: Trust) -> None:
    """Refuse a list older than the newest one seen, or a second list of its number.

    This is R5.0-3.

    Args:
        trust: Names a list.
        seen: Names the newest list that was read under the same key and trust domain.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    number = trust.revocation_number
    if number < seen.revocation_number:
        named = f"revocation list {number}" if number else "no revocation list"
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the aggregator uses {named}, this client has seen list "
            f"{seen.revocation_number}: clients revoked since would be accepted again",
            fix="Ask the aggregator's operator for the issuer's newest list.",
        )
    if number == seen.revocation_number and (
        trust.revocation_hash != seen.revocation_hash
    ):
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the aggregator shows another revocation list {number} than this client "
            "has seen",
            fix="The issuer was restored from a backup, or signs two lists of "
            "one number: ask its operator before you take part.",
        )
