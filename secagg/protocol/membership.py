"""Membership of clients: who may take part in a session, and who is excluded later.

The server cannot invent clients.  An advert is valid under two conditions.  Its
credential was issued under the enrolment key that clients pin, and its identity key has
signed it for this session (PROTOCOL §2.1, §5.1, §5.2).

Complaints decide which clients are excluded from later attempts.

A complaint puts a pair in dispute: no other client can tell which of the two lies. The
rule assumes at most c corrupt clients, and honest clients that complain only about
corrupt ones:

* A client in dispute with more than c others is corrupt, because one of these is
  honest.
* Of every other pair one client is corrupt.  Excluding both ends of *all* pairs would
  let c colluders evict about c^2 honest clients.  A maximal matching excludes disjoint
  pairs only, each with a corrupt client in it: at most c honest clients are excluded.

Rule 1: an excluded client stays excluded for the rest of the task.  Disputes only add
        pairs, so that c colluders cost c attempts in all and not in every step.
Rule 2: a missing message is not a dispute.
Rule 3: if more clients must be corrupt than was stated, the least number that may
        explain the disputes replaces c. The accuser of two corrupt dealers is thus not
        corrupt because one was expected.

Source: PROTOCOL §5.7.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from secagg.crypto.canonical import Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.signature import IdentityKey, SignatureError, verify
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.enrolment import (
    Credential,
    EnrolmentRules,
    VerifiedCredentials,
    check_credential,
    check_signing_credential,
)
from secagg.protocol.messages import Advert
from secagg.protocol.profiles import Profile, Trust


@dataclass(frozen=True, slots=True)
class Membership:
    """A client's credential, its keys, and the revocations that it knows.

    Attributes:
        trust_domain: The client's own.
        enrolment_key: The key that this client pins, 32 bytes.
        key: The client's identity key.
        credential: Binds its name to the identity key.
        revoked: Serials of the revocation list that the offer names; the list itself
            has been checked (R2.1-0).
        list_made_at: When that list was made, in Unix seconds; None for no list.
        verified: Cache of credentials verified in earlier sessions.
    """

    trust_domain: str
    enrolment_key: bytes
    key: IdentityKey = field(repr=False, compare=False)
    credential: Credential
    revoked: frozenset[int] = frozenset()
    list_made_at: int | None = None
    verified: VerifiedCredentials | None = field(
        default=None, repr=False, compare=False
    )

    def rules(self, trust: Trust, session_end: int) -> EnrolmentRules:
        """Return the rules for all credentials of a session.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; the offer names another enrolment key
                or trust domain than this client (R5.0-3).
        """
        pinned = (self.trust_domain, self.enrolment_key)
        if (trust.trust_domain, trust.enrolment_key) != pinned:
            raise ErrorCode.POLICY_VIOLATION.error(
                "the session uses another trust domain or enrolment key than the one "
                "that this client pins",
                fix="Do not take part: that key's holder can invent clients.",
            )
        return enrolment_rules(trust, session_end, self.revoked)


@dataclass(frozen=True, slots=True)
class Member:
    """A client's credential and keys in one session.

    Attributes:
        key: Its identity key.
        credential: Binds its name to the identity key.
        rules: The rules for all credentials.
        verified: Cache of credentials verified in earlier sessions.
    """

    key: IdentityKey = field(repr=False, compare=False)
    credential: Credential
    rules: EnrolmentRules
    verified: VerifiedCredentials | None = field(
        default=None, repr=False, compare=False
    )


def enrolment_rules(
    trust: Trust, session_end: int, revoked: frozenset[int]
) -> EnrolmentRules:
    """Return what an offer requires of all credentials."""
    return EnrolmentRules(
        trust_domain=trust.trust_domain,
        enrolment_key=trust.enrolment_key,
        session_end=session_end,
        revoked=revoked,
    )


def signed_advert(
    advert: Advert, member: Member, *, ctx0: bytes, suite: CipherSuite
) -> Advert:
    """Return an advert with its client's credential and signature (PROTOCOL §5.1)."""
    enrolled = replace(advert, credential=member.credential)
    signature = member.key.sign(_advert_message(enrolled, ctx0, suite))
    return replace(enrolled, signature=signature)


def check_form(advert: Advert, profile: Profile) -> None:
    """Check that an advert has what its profile requires, and nothing else (R2.1-1).

    A profile without signatures has no room for bytes that no party checks.

    Raises:
        RemoteProtocolError: BAD_SIGNATURE in profile 1, else BAD_CREDENTIAL.
    """
    is_enrolled = advert.credential is not None and bool(advert.signature)
    is_bare = advert.credential is None and not advert.signature
    has_keys = profile.has_identities
    if is_enrolled if has_keys else is_bare:
        return
    wanted = "a credential and a signature" if has_keys else "neither"
    code = ErrorCode.BAD_CREDENTIAL if has_keys else ErrorCode.BAD_SIGNATURE
    raise code.error(
        f"an advert of profile {profile.label} has {wanted}, that of "
        f"{advert.identity!r} is of another profile",
        kind=RemoteProtocolError,
        sender=advert.identity,
    )


def check_adverts(
    adverts: Iterable[Advert],
    rules: EnrolmentRules,
    *,
    ctx0: bytes,
    suite: CipherSuite,
    verified: VerifiedCredentials | None,
) -> None:
    """Check credentials, then signatures (R5.1-8 of one advert, R5.2-6 of all).

    Args:
        adverts: In the order in which the first fault is reported; of the right form.
        rules: Of the session.
        ctx0: What each has signed, as computed by the verifying party.
        suite: Of the session.
        verified: Cache of verified credentials.

    Raises:
        RemoteProtocolError: BAD_CREDENTIAL or BAD_SIGNATURE, naming the client.
    """
    adverts = tuple(adverts)
    try:
        digests = [
            check_signing_credential(
                advert.credential, rules, identity=advert.identity, verified=verified
            )
            for advert in adverts
        ]
        _check_signatures(adverts, ctx0, suite)
    except RemoteProtocolError:
        # A check has failed.  Repeat the checks with the keys, in the order of R5.2-6,
        # so that a key that is not a point of the curve is reported as such (R2.1-5).
        for advert in adverts:
            check_credential(
                advert.credential, rules, identity=advert.identity, verified=verified
            )
        raise
    if verified is not None:
        for digest in digests:
            verified.add(digest)


def _check_signatures(
    adverts: Iterable[Advert], ctx0: bytes, suite: CipherSuite
) -> None:
    """Refuse an advert that its client has not signed for this session."""
    for advert in adverts:
        if advert.credential is None:
            raise AssertionError("its form has been checked")
        try:
            verify(
                advert.credential.identity_key,
                _advert_message(advert, ctx0, suite),
                advert.signature,
            )
        except SignatureError:
            raise ErrorCode.BAD_SIGNATURE.error(
                f"{advert.identity!r} has not signed its advert for this session",
                sender=advert.identity,
            ) from None


def _advert_message(advert: Advert, ctx0: bytes, suite: CipherSuite) -> bytes:
    tag = domain_tag("client", "advert", suite)
    writer = Writer().fixed(tag).blob(ctx0)
    return writer.blob(advert.id_part()).blob(advert.key_part()).getvalue()


def excluded(
    complaints: Iterable[tuple[str, str]],
    *,
    colluders: int,
    already: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the clients that are excluded from later attempts of a task (R5-4).

    Args:
        complaints: (accuser, accused) by identity, of all sessions of the task.
        colluders: c, as the task states it.
        already: Clients excluded before; they stay excluded, and are in no new pair.

    Returns:
        All excluded identities, `already` among them.
    """
    pairs = sorted({pair for pair in complaints if pair[0] != pair[1]})
    opponents: dict[str, set[str]] = {}
    for accuser, accused in pairs:
        opponents.setdefault(accuser, set()).add(accused)
        opponents.setdefault(accused, set()).add(accuser)
    # Each of disjoint pairs has a corrupt client.  The loop ends at no smaller bound
    # than their number: removing a client from a greedy matching shortens it by at most
    # one pair.
    bound = colluders
    while True:
        proven = {v for v, others in opponents.items() if len(others) > bound} - already
        matched = _matching(pairs, already | proven)
        if len(proven) + len(matched) <= bound:
            return already | proven | {name for pair in matched for name in pair}
        bound += 1  # more corrupt clients than that, or the proof would hold


def _matching(
    pairs: Sequence[tuple[str, str]], out: AbstractSet[str]
) -> list[tuple[str, str]]:
    """Return disjoint pairs of the remaining clients, as many as can be added.

    Greedy in a fixed order: the same disputes have the same result after a restart.
    """
    taken, matched = set(out), []
    for pair in pairs:
        if taken.isdisjoint(pair):
            taken.update(pair)
            matched.append(pair)
    return matched
