"""What a client has of the enrolment: its files, and the lists that it has read.

Rule 1: a list is remembered after the gate has admitted a session that goes by it, and
        before the advert leaves: an offer that names a number without a list locks no
        client out (R2.1-0, R5.0-5).
Rule 2: a list is fetched once, not for every session that names it.
Rule 3: a credential that was renewed for the same key is accepted with the next offer.

Whether an offer is believed says `secagg.client.gate`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from secagg.client.gate import OwnEnrolment
from secagg.errors import SecAggError
from secagg.protocol.enrolment import ClientIdentity, VerifiedCredentials
from secagg.protocol.profiles import Trust
from secagg.storage.changes import RecordRevocations
from secagg.storage.client_store import ClientRecords
from secagg.storage.queries import ReadRevocations


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEnrolment:
    """What a client has of the enrolment; `secagg pki` makes the files.

    Attributes:
        seed: File of the client's private key, ``identity.seed``.
        credential: File of what the issuer has signed for that key.
        enrolment_key: Public key of the issuer, ``ed25519:`` and 64 digits, as the
            issuer says it and not as the aggregator does; no other one is believed.
        max_revocation_days: Oldest revocation list that the client goes by; None for
            no limit.
    """

    seed: Path
    credential: Path
    enrolment_key: str
    max_revocation_days: float | None = None


class EnrolledIdentity:
    """Who a client is among the enrolled, as `StepClient` takes it.

    `load_enrolled` makes it from files, `InProcessEnrolment.enrol` without any.
    """

    __slots__ = ()


@dataclass(slots=True, eq=False)
class EnrolledClient(EnrolledIdentity):
    """Who this client is, and by whose word it knows the others.

    Attributes:
        identity: Its key, credential and pinned enrolment key.
        max_revocation_seconds: Oldest revocation list that it goes by; None for no
            limit.
        verified: Credentials that it has verified, over all of its sessions.
        reload: Reads the identity again; None for one that lies in no files.
    """

    identity: ClientIdentity
    max_revocation_seconds: float | None = None
    verified: VerifiedCredentials = field(
        default_factory=VerifiedCredentials, repr=False
    )
    reload: Callable[[], ClientIdentity] | None = field(default=None, repr=False)
    _read: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False)

    def rules(self) -> OwnEnrolment:
        """Return what an offer is checked by, with the credential as it is now."""
        self._use_renewed()
        return OwnEnrolment(
            identity=self.identity,
            max_revocation_seconds=self.max_revocation_seconds,
            verified=self.verified,
        )

    async def newest_list(self, store: ClientRecords) -> Trust | None:
        """Return what names the newest list that this client has read.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return await store.read(
            ReadRevocations(
                self.identity.enrolment_key, self.identity.issued.trust_domain
            )
        )

    def _use_renewed(self) -> None:
        """Use a renewed credential of the same key."""
        if self.reload is None:
            return
        try:
            found = self.reload()
        except SecAggError:
            return  # half a file, or none: the session is checked with the one before
        if found.key.public_bytes == self.identity.key.public_bytes:
            self.identity = found

    def list_of(self, trust: Trust) -> bytes | None:
        """Return the list that an offer names, unless it has to be fetched."""
        if trust.revocation_number == 0:
            return b""
        return self._read.get(trust.revocation_hash)

    async def record(
        self, trust: Trust, revocations: bytes, *, store: ClientRecords
    ) -> None:
        """Remember the list of a session that the gate has admitted.

        Args:
            trust: Of the offer.
            revocations: The list's bytes; empty where the offer names none.
            store: Of this client.

        Raises:
            ServiceError: STORAGE_FAILED; the advert must not leave.
        """
        if trust.revocation_number:
            await store.commit(RecordRevocations(trust))
            self._read.clear()  # numbers only grow
            self._read[trust.revocation_hash] = revocations
