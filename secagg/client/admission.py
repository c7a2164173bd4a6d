"""What a client asks the gate, from what its store knows, and what it keeps of it.

Rule 1: every way into a session asks here: an offer before anything of it is stored,
        and a stored session before anything of it is said.
Rule 2: a revocation list is remembered when the gate has admitted a session by it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import (
    AdmittedSession,
    GateRequest,
    GateStage,
    KnownFacts,
    Need,
    OwnRules,
    admit,
    is_claimed,
)
from secagg.client.session import ClientSession
from secagg.client.total_ledger import TotalLedger
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.storage.client_store import ClientRecords
from secagg.storage.queries import ListCharges


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Asks the gate on behalf of one client.

    Attributes:
        store: Of the client.
        rules: What its owner has settled, but for enrolment and total.
        enrolment: Who it is among the enrolled; None for a client that is not.
        total: Of its data over all tasks; None for no total.
        date: Returns the client's time, in Unix seconds.
    """

    store: ClientRecords
    rules: OwnRules
    enrolment: EnrolledClient | None
    total: TotalLedger | None
    date: Callable[[], float]

    async def check(
        self,
        offered: SessionDescriptor,
        *,
        aggregator: str,
        trust_domain: str | None,
        highest_number: int,
        revocations: bytes | None = None,
    ) -> AdmittedSession | Need:
        """Return a session that is offered, if the client may take part in it.

        Args:
            offered: The session.
            aggregator: Name of its server, as the carrier has proven it.
            trust_domain: Of the server, likewise; None where none is proven.
            highest_number: Highest number of aggregator and task that was seen.
            revocations: The list that the offer names; None for one that was read
                before, or has to be fetched.

        Returns:
            The session; or what is needed to decide.

        Raises:
            RemoteProtocolError: The code of the first rule that is broken.
            ServiceError: STORAGE_FAILED.
        """
        if revocations is None:
            revocations = self._list_at_hand(offered)
        request = GateRequest(
            offer=offered,
            stage=GateStage.OFFER,
            aggregator=aggregator,
            trust_domain=trust_domain,
            now=int(self.date()),
            own=self._own_rules(),
            known=await self.known_facts(offered, highest_number=highest_number),
            revocations=revocations,
        )
        return admit(request)

    async def record(
        self, offered: SessionDescriptor, revocations: bytes | None
    ) -> None:
        """Remember the list of a session that was admitted, before it is joined.

        Raises:
            ServiceError: STORAGE_FAILED; the advert must not leave.
        """
        trust = offered.parameters.trust
        if trust is not None and self.enrolment is not None:
            if revocations is None:
                revocations = self._list_at_hand(offered)
            await self.enrolment.record(trust, revocations or b"", store=self.store)

    async def check_again(
        self, session: ClientSession, *, aggregator: str, trust_domain: str | None
    ) -> AdmittedSession:
        """Check a stored session: limits may have become stricter meanwhile.

        Args:
            session: Not over.
            aggregator: Name of the server that is asked, as the carrier has proven it.
            trust_domain: Of the server, likewise; None where none is proven.

        Raises:
            RemoteProtocolError: The code of the first rule that is broken.
            SessionAbortedError: DEADLINE; it is over by its own end.
            ServiceError: STORAGE_FAILED.
        """
        offered = session.descriptor
        known = replace(
            await self.known_facts(offered, highest_number=0),
            list_made_at=session.list_made_at,
            is_bound=session.has_bound,
        )
        request = GateRequest(
            offer=offered,
            stage=GateStage.RESUME,
            aggregator=aggregator,
            trust_domain=trust_domain,
            now=int(self.date()),
            own=self._own_rules(),
            known=known,
            joined_at=session.joined_at,
        )
        admitted = admit(request)
        if not isinstance(admitted, AdmittedSession):
            raise ErrorCode.INTERNAL.error("the gate needs what a stored session has")
        if self.total is not None and not is_claimed(request):
            await self.total.claim(offered, trust_domain=trust_domain)
        return admitted

    def _own_rules(self) -> OwnRules:
        """Return the owner's rules with enrolment and total as they are now."""
        return replace(
            self.rules,
            enrolment=None if self.enrolment is None else self.enrolment.rules(),
            total=None if self.total is None else self.total.rules,
        )

    async def known_facts(
        self, offered: SessionDescriptor, *, highest_number: int
    ) -> KnownFacts:
        """Return what the store knows that a session is checked by."""
        total, enrolment = self.total, self.enrolment
        return KnownFacts(
            highest_number=highest_number,
            charges=await self.store.read(ListCharges(offered.task_id)),
            claims=() if total is None else await total.claims(),
            holder=b"" if total is None else await total.holder(),
            newest_list=None
            if enrolment is None
            else await enrolment.newest_list(self.store),
        )

    def _list_at_hand(self, offered: SessionDescriptor) -> bytes | None:
        """Return the revocation list that an offer names, if it was read before."""
        trust = offered.parameters.trust
        if trust is None or self.enrolment is None:
            return None
        return self.enrolment.list_of(trust)
