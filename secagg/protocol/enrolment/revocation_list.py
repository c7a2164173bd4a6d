"""The list of credentials that were taken back, and which list a client has seen.

Rule 1: a list is complete: each number holds all serials that were ever revoked.
Rule 2: numbers only grow.  A client remembers the highest that it has seen under an
        enrolment key, so that no aggregator can go back to a list without a name.
Rule 3: it remembers a list only after having read it whole: an offer that names a
        number without a list must not lock anybody out.

Source:
    PROTOCOL §2.1 (R2.1-0) and §5.0 (R5.0-3).
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.signature import (
    SIGNATURE_SIZE,
    IdentityKey,
    SignatureError,
    verify,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.enrolment.documents import (
    VERSION,
    decoded,
    enrolment_tag,
    read_name,
    read_version,
)
from secagg.protocol.profiles import Trust

MAX_REVOCATION_BYTES: Final = 4 << 20
"""Longest list: a million serials, more than twice the largest cohort each year."""

NO_DIGEST: Final = bytes(32)
"""What stands for the digest where there is no list."""

_SERIAL_BYTES: Final = 4
_LIST_TAG: Final = enrolment_tag("issuer", "revocation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationList:
    """All serials that an issuer has taken back.

    Attributes:
        trust_domain: Whose names these are.
        number: Counts the issuer's lists, from 1.
        made_at: When, in Unix seconds.
        serials: Strictly ascending.
        signature: By the enrolment key, 64 bytes; empty while it is being made.
    """

    trust_domain: str
    number: int
    made_at: int
    serials: tuple[int, ...]
    signature: bytes = b""

    def signed_by(self, enrolment_key: IdentityKey) -> Self:
        """Return the same list with this key's signature."""
        return replace(self, signature=enrolment_key.sign(_LIST_TAG + self._body()))

    @property
    def digest(self) -> bytes:
        """What an offer names the list by: SHA-256 of its bytes."""
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self._body() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; the signature is checked by `check`.

        Raises:
            RemoteProtocolError: BAD_ENCODING, also for serials out of order.
        """
        return decoded("revocation list", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        read_version(reader)
        trust_domain = read_name(reader)
        number, made_at, count = reader.u32(), reader.u64(), reader.u32()
        if number == 0:
            raise ValueError("lists are counted from 1")
        # Bounded by the bytes that are there: `fixed` refuses what is not.
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
        """Check whose list it is.

        Raises:
            RemoteProtocolError: BAD_CREDENTIAL.
        """
        if self.trust_domain != trust_domain:
            raise _bad_list(
                f"it belongs to the trust domain {self.trust_domain!r}, "
                f"not to {trust_domain!r}"
            )
        try:
            verify(enrolment_key, _LIST_TAG + self._body(), self.signature)
        except SignatureError as error:
            raise _bad_list(f"it is not signed by the enrolment key: {error}") from None

    def _body(self) -> bytes:
        writer = Writer().u8(VERSION).text(self.trust_domain).u32(self.number)
        writer.u64(self.made_at).u32(len(self.serials))
        for serial in self.serials:
            writer.u32(serial)
        return writer.getvalue()


def read_revocations(data: bytes, trust: Trust) -> RevocationList | None:
    """Read the list that an offer names, before anything is said in the session.

    Args:
        data: The list's bytes; empty where the offer names none.
        trust: Of the offer; its enrolment key is the pinned one.

    Returns:
        The list, or None where there is none.

    Raises:
        RemoteProtocolError: BAD_CREDENTIAL (R2.1-0).
    """
    if trust.revocation_number == 0:
        if data or trust.revocation_hash != NO_DIGEST:
            raise _bad_list("the offer names none, yet says something of one")
        return None
    if len(data) > MAX_REVOCATION_BYTES:
        raise _bad_list(
            f"it has {len(data)} bytes, at most {MAX_REVOCATION_BYTES} are allowed"
        )
    if sha256(data).digest() != trust.revocation_hash:
        raise _bad_list("it is missing, or not the one that the offer names")
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
    return RemoteProtocolError(
        f"the revocation list will not do: {complaint}",
        code=ErrorCode.BAD_CREDENTIAL,
        next_step="The aggregator's operator must publish the issuer's newest list.",
    )


def refuse_older(trust: Trust, *, seen: Trust) -> None:
    """Refuse a list that is older than one seen, or another of its number (R5.0-3).

    Args:
        trust: Names a list.
        seen: Names the newest that was read under the same key and trust domain.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    number = trust.revocation_number
    if number < seen.revocation_number:
        named = f"revocation list {number}" if number else "no revocation list"
        raise RemoteProtocolError(
            f"the aggregator goes by {named}, this client has seen list "
            f"{seen.revocation_number}: who was revoked since would be back",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="The aggregator's operator must publish the issuer's newest "
            "list.",
        )
    if number == seen.revocation_number and (
        trust.revocation_hash != seen.revocation_hash
    ):
        raise RemoteProtocolError(
            f"the aggregator shows another revocation list {number} than this client "
            "has seen",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="The issuer was put back from a backup, or signs for somebody "
            "else: ask who runs it before you take part.",
        )
