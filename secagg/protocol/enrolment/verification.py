"""Verification of credentials for a session.

Rule 1: no clock.  A credential is compared with the end of its session.  All parties
        agree on that number, so all honest clients decide alike.
Rule 2: server and clients run the same checks in the same order.  The server runs them
        when an advert arrives, each client when it receives the roster.
Rule 3: a cached verification is keyed by all signed bytes, the signing key and the
        signature.  Revocation and time are checked again each time (R2.1-8).

Source: PROTOCOL §2.1 (R2.1-1 to R2.1-6, R2.1-8).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from secagg.crypto.signature import (
    SignatureError,
    check_identity,
    check_identity_form,
    verify,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.enrolment.credential import Credential, is_name, not_a_name

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
    digest = _checked(credential, rules, identity, verified, check_identity)
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

    return _checked(credential, rules, identity, verified, check_key)


def _checked(
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
