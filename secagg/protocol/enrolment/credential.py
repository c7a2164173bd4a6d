"""Credentials, which bind a name to an identity key; requests, names and tags of them.

Rule 1: the identity key itself signs the request, so that the issuer knows that the
        requester holds the key.
Rule 2: the enrolment key, which no aggregator holds, signs the credential. Clients pin
        that key, so that no aggregator can invent a name.
Rule 3: signed bytes start with a domain tag of their own.  Enrolment precedes any
        session, hence its tags name suite 0.

`secagg.protocol.enrolment.verification` decides whether a credential is valid for a
session.

Source: PROTOCOL §2.1.

"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.signature import (
    IDENTITY_SIZE,
    SIGNATURE_SIZE,
    IdentityKey,
    SignatureError,
    check_identity,
    verify,
)
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode

_Value = TypeVar("_Value")

VERSION: Final = 1
"""The first byte of every document."""

MAX_NAME_BYTES: Final = 255
"""Longest name of a client or of a trust domain that a certificate can hold."""

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


def decoded(what: str, data: bytes, read: Callable[[Reader], _Value]) -> _Value:
    """Decode a whole document.

    Args:
        what: The kind of document, for the error.
        data: Its bytes.
        read: Decodes the fields; may raise ValueError.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    reader = Reader(data, what)
    try:
        value = read(reader)
        reader.end()
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(
            f"{what} is malformed: {error}",
            fix="Make it again with a release that supports this version.",
        ) from None
    return value


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
class IssuedCredential:
    """A credential as its holder keeps it: with the trust domain.

    Attributes:
        trust_domain: The domain of the names.
        credential: The credential.
    """

    trust_domain: str
    credential: Credential

    def encode(self) -> bytes:
        """Return the file's bytes."""
        writer = Writer().u8(VERSION).text(self.trust_domain)
        writer.text(self.credential.name)
        self.credential.encode_into(writer)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decoded("credential", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        trust_domain, name = _read_header(reader)
        return cls(trust_domain, Credential.decode_from(reader, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRequest:
    """A client's request for a credential.

    Attributes:
        trust_domain: The domain of the names.
        name: The requested name.
        identity_key: Its Ed25519 public key, 32 bytes.
        made_at: Time of the request, in Unix seconds, by the requester's clock.
        signature: By the identity key, 64 bytes.
    """

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
        return replace(request, signature=key.sign(_REQUEST_TAG + request._body()))

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self._body() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; the signature is checked by `check`.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decoded("enrolment request", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a request; its signature is checked elsewhere."""
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
            verify(self.identity_key, _REQUEST_TAG + self._body(), self.signature)
        except SignatureError as error:
            raise ErrorCode.BAD_SIGNATURE.error(
                f"the enrolment request of {self.name!r} is not signed by the key that "
                f"it names: {error}",
                fix="Ask the client for a new request, sent whole.",
            ) from None

    def _body(self) -> bytes:
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
