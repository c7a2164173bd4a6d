"""Revocation lists, and the newest list that a client has seen.

Rule 1: a list is complete: each number holds all serials that were ever revoked.
Rule 2: numbers only grow.  A client records the highest number that it has seen under
        an enrolment key.  Therefore no aggregator can return to an earlier list.
Rule 3: a client records a list only after it has read the whole list. Otherwise an
        offer that names a number without a list would lock clients out.

Source: PROTOCOL §2.1 (R2.1-0) and §5.0 (R5.0-3).
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
from secagg.protocol.enrolment.credential import (
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
"""The digest in an offer without a list."""

_SERIAL_BYTES: Final = 4
_LIST_TAG: Final = enrolment_tag("issuer", "revocation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationList:
    """All serials that an issuer has revoked.

    Attributes:
        trust_domain: The domain of the names.
        number: Counts the issuer's lists, from 1.
        made_at: Time of signing, in Unix seconds.
        serials: Strictly ascending.
        signature: By the enrolment key, 64 bytes; empty before it is signed.
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
        """The SHA-256 of the list's bytes, by which an offer names it."""
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
        """Decode a list; its signature is checked elsewhere."""
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
