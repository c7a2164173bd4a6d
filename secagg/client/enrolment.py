"""What a client with an identity makes of the enrolment that an offer names.

Rule 1: before anything is fetched or said, the offer is held to the pinned key and to
        the newest revocation list that this client has read (R5.0-1, R5.0-3).
Rule 2: a list is remembered after it was read whole, and before the advert leaves: an
        offer that names a number without a list locks nobody out (R2.1-0, R5.0-5).
Rule 3: this client's own credential is judged as others will judge it.
"""

from dataclasses import dataclass, field

from secagg.enrolment.identity_files import ClientIdentity
from secagg.enrolment.revocation import read_revocations
from secagg.enrolment.rules import (
    EnrolmentRules,
    VerifiedCredentials,
    check_credential,
    check_revocation_age,
    judge_trust,
)
from secagg.profiles import Trust
from secagg.storage.book import Book

__all__ = ["ClientEnrolment"]


@dataclass(frozen=True, slots=True, eq=False)
class ClientEnrolment:
    """Who this client is, and by whose word it knows the others.

    Attributes:
        identity: Its key, credential and pinned enrolment key.
        max_revocation_seconds: Oldest revocation list that it goes by; None for no
            limit.
        verified: Credentials that it has verified, over all of its sessions.
    """

    identity: ClientIdentity
    max_revocation_seconds: float | None = None
    verified: VerifiedCredentials = field(
        default_factory=VerifiedCredentials, repr=False
    )

    async def judge(self, trust: Trust, book: Book) -> None:
        """Judge what an offer says of enrolment, before its list is fetched.

        Args:
            trust: Of the offer's parameters.
            book: Of this client.

        Raises:
            RemoteProtocolError: UNAUTHENTICATED or POLICY_VIOLATION.
            ServiceError: STORAGE_FAILED.
        """
        issued = self.identity.issued
        judge_trust(
            trust,
            pinned_domain=issued.trust_domain,
            pinned_key=self.identity.enrolment_key,
            seen=await book.seen_revocations(
                self.identity.enrolment_key, issued.trust_domain
            ),
            demands_list=self.max_revocation_seconds is not None,
        )

    async def rules(
        self,
        trust: Trust,
        revocations: bytes,
        *,
        session_end: int,
        now: float,
        book: Book,
    ) -> EnrolmentRules:
        """Read the list of an offer that was judged; then the advert may leave.

        Args:
            trust: Of the offer's parameters.
            revocations: The list's bytes; empty where the offer names none.
            session_end: Of the offer, in Unix seconds.
            now: This client's Unix seconds; they judge the list's age alone.
            book: Of this client; remembers the list.

        Returns:
            What every credential of the session is judged by.

        Raises:
            RemoteProtocolError: BAD_CREDENTIAL for a list that does not fit, and for
                an own credential that nobody would accept; POLICY_VIOLATION for a list
                that is too old.
            ServiceError: STORAGE_FAILED; the advert must not leave.
        """
        found = read_revocations(revocations, trust)
        if found is not None:
            await book.see_revocations(trust)
        if self.max_revocation_seconds is not None:
            check_revocation_age(
                found, now=now, max_age_seconds=self.max_revocation_seconds
            )
        rules = EnrolmentRules(
            trust_domain=trust.trust_domain,
            enrolment_key=trust.enrolment_key,
            session_end=session_end,
            revoked=frozenset() if found is None else frozenset(found.serials),
        )
        own = self.identity.issued.credential
        check_credential(own, rules, identity=own.name, verified=self.verified)
        return rules
