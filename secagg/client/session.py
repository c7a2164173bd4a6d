"""One session on the client: the state machine and its durable record, always in step.

Rule 1: persist, then send.  `apply` returns what to send only when the event that
        caused it is on the disk, so that a restart can never forget what left
        (PROTOCOL §12).
Rule 2: one seed per session, drawn once and stored before anything derived from it
        leaves.  A restart derives the same bytes again; nothing is answered twice in
        two ways.
Rule 3: of an input only the digest is stored.  After a restart the application
        supplies the input again, and another one is refused.
Rule 4: at the end everything is erased; the session's number stays used for good.
Rule 5: the change that binds an input charges the budget too: neither is without the
        other.
Rule 6: the change that accepts a roster counts it, before anything is shared or drawn:
        a sparse graph that was seen is one more chance that it is unsafe.
Rule 7: a session of a store that was restored from an older state is left at once:
        the client does not know what it has sent.
Rule 8: what signs for this client comes from its identity, never from the record of
        a session.  Another key than the one of its advert signs nothing in it.
Rule 9: every session leaves this client's own receipt, made of what is on the disk, so
        that it is the same after a restart.

It calls no peer: `secagg.client.open_client` drives it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from secagg.client.budget import charge_of, max_rosters_of, peer_of, settlement_of
from secagg.client.contribution import completed, extended, offer_receipt
from secagg.client.enrolment import EnrolledClient
from secagg.client.total_ledger import TotalLedger
from secagg.crypto.entropy import SEED_SIZE, Entropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import read_noise_terms
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import refund
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ClientEvent,
    ClientOutput,
    InputBound,
    InputReady,
    Received,
    SessionOffered,
)
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Roster, Round
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.receipts.receipt import AuditReceipt
from secagg.storage.change import (
    Change,
    Committed,
    Ended,
    NewSession,
    NumberTakenError,
    Outcome,
    RewrittenSession,
    SessionsSpentError,
    Side,
)
from secagg.storage.client_store import ClientRecords
from secagg.storage.journal import (
    Ending,
    StoredOffer,
    decode_answered,
    decode_client_event,
    decode_ending,
    decode_evidence,
    decode_offer,
    encode_answered,
    encode_ending,
    encode_offer,
    evidence_of,
    is_answered,
    record_of,
)
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import StoredSession

_KEYS: Final = "client/"


class ClientSession:
    """One session of one client; make it with `begin` or `of_record`.

    Attributes:
        peer: Name and trust domain of the one aggregator that is asked and believed in
            it (R5.0-6), as `peer_of` has them; a stored session is driven only where
            they are those of its connection.
        session_id: The session.
    """

    def __init__(  # noqa: PLR0913 - a session joins as many parts
        self,
        descriptor: SessionDescriptor,
        identity: str,
        state: client.ClientState,
        *,
        seed: SecretBytes | None,
        store: ClientRecords,
        policy: ClientPolicy,
        trust_domain: str | None,
        begun: StoredOffer | None = None,
        stored: StoredSession | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._state = state
        self._seed = seed
        self._store = store
        self._policy = policy
        self._trust_domain = trust_domain
        self._begun = begun
        self.peer: Final = (
            peer_of(descriptor.aggregator, trust_domain=trust_domain)
            if stored is None
            else stored.peer
        )
        self.session_id = descriptor.session_id
        self._key = record_key(identity, self.session_id)
        self._sequence = 0 if stored is None else stored.sequence
        self._chain = b"" if stored is None else stored.chain

    @classmethod
    async def begin(  # noqa: PLR0913 - a session joins as many parts
        cls,
        descriptor: SessionDescriptor,
        identity: str,
        *,
        aggregator: str,
        trust_domain: str | None,
        store: ClientRecords,
        policy: ClientPolicy,
        entropy: Entropy,
        now: int,
        membership: Membership | None = None,
        total: TotalLedger | None = None,
    ) -> Self:
        """Accept an offer: draw the seed and claim the number, durably.

        Args:
            descriptor: The offer.
            identity: The client's own name.
            aggregator: The server's name, as its connection has proven it.
            trust_domain: The server's, likewise; None where none is proven.
            store: Of this client.
            policy: Limits of the cohort.
            entropy: Where the seed comes from.
            now: Unix seconds.
            membership: The client's place among the enrolled, where the profile has
                any.
            total: Of the client's data over all tasks; the task's claim on it is
                durable before the session is.

        Raises:
            TotalBudgetExceededError: The task does not fit into the total.
            RemoteProtocolError: REPLAYED_SESSION for a number seen before;
                POLICY_VIOLATION or BAD_CONFIG when the offer is refused, or this client
                has seen too many rings of the task.  Nothing is stored.
            ServiceError: STORAGE_FAILED.
        """
        seed = SecretBytes(entropy.token(SEED_SIZE))
        offered = SessionOffered(
            descriptor, identity, aggregator, seed, now, membership
        )
        session = cls(
            descriptor,
            identity,
            client_machine.step(
                client_machine.start(read_noise_terms), offered, policy=policy
            ).state,
            seed=seed,
            store=store,
            policy=policy,
            trust_domain=trust_domain,
        )
        if isinstance(session._state, client.Failed):
            refused = session._state
            raise refused.code.error(
                refused.reason, kind=RemoteProtocolError, fix=refused.next_step
            )
        new = NewSession(
            role=Side.CLIENT,
            task=descriptor.task_id,
            peer=session.peer,
            number=descriptor.session_number,
            header=encode_offer(offered),
            allowed=max_rosters_of(descriptor),
        )
        try:
            begun = await claimed(
                Change(key=session._key, create=new),
                descriptor,
                store=store,
                total=total,
                trust_domain=trust_domain,
            )
        except SessionsSpentError:
            raise ErrorCode.POLICY_VIOLATION.error(
                f"this client has seen {new.allowed} sparse graphs of task "
                f"{descriptor.task_id!r}, and the delta of the task counts on no more",
                fix="Too many sessions have ended early. Ask the operator to run "
                "a new task, and on the complete graph if it happens again.",
            ) from None
        session._record_commit(begun)
        return session

    @classmethod
    def of_record(  # noqa: PLR0913 - a session joins as many parts
        cls,
        stored: StoredSession,
        identity: str,
        *,
        store: ClientRecords,
        policy: ClientPolicy,
        now: float,
        trust_domain: str | None,
        enrolment: EnrolledClient | None = None,
    ) -> Self:
        """Return a session as its record says it stands; the gate has not seen it.

        Raises:
            ServiceError: STORAGE_FAILED; BAD_CREDENTIAL when the session was begun with
                another identity and is not over by its own end.
        """
        begun, descriptor, state, seed = _rebuild_state(stored, policy, enrolment, now)
        return cls(
            descriptor,
            identity,
            state,
            seed=seed,
            store=store,
            policy=policy,
            trust_domain=trust_domain,
            begun=begun,
            stored=stored,
        )

    @classmethod
    def of_ended(
        cls,
        stored: StoredSession,
        descriptor: SessionDescriptor,
        ended: client.Failed,
        *,
        store: ClientRecords,
        policy: ClientPolicy,
    ) -> Self:
        """Return a session of any identity, to be erased as it is.

        Its secrets are not read.
        """
        session = cls(
            descriptor,
            "",
            ended,
            seed=None,
            store=store,
            policy=policy,
            trust_domain=None,
            stored=stored,
        )
        session._key = stored.key
        return session

    @staticmethod
    async def open_records(
        task_id: str, identity: str, *, store: ClientRecords
    ) -> list[StoredSession]:
        """Return the records of the task's sessions that are not over, newest first.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        rows = await store.read(ListSessions(role=Side.CLIENT, task=task_id))
        keys = [row.key for row in rows if _is_of(row.key, identity)]
        records = [await store.read(LoadSession(key)) for key in keys]
        return [each for each in records if each is not None and not each.ended]

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it was offered."""
        return self._descriptor

    @property
    def state(self) -> client.ClientState:
        """Where the session stands."""
        return self._state

    @property
    def joined_at(self) -> int | None:
        """When a resumed session was begun, in Unix seconds; None once it answered."""
        return None if self._begun is None else self._begun.offered.now

    @property
    def list_made_at(self) -> int | None:
        """When the revocation list of a resumed session was made; None for none."""
        return None if self._begun is None else self._begun.list_made_at

    @property
    def round(self) -> Round:
        """The last round that this client has entered."""
        if isinstance(self._state, client.Idle):
            raise ErrorCode.INTERNAL.error("a session begins with its offer")
        return self._state.ROUND

    @property
    def has_bound(self) -> bool:
        """Whether an input is bound to its masks, so that it may have left."""
        return isinstance(
            self._state,
            client.Masked | client.Signed | client.Answered,
        )

    @property
    def needs_input(self) -> bool:
        """Whether the application's input is wanted, for the first time or again."""
        return isinstance(self._state, client.ReadyForInput)

    @property
    def view(self) -> bytes:
        """What is shown before an input is bound, 32 bytes (R5.3-14)."""
        if not isinstance(self._state, client.ReadyForInput):
            raise ErrorCode.INTERNAL.error("a view is shown when the set U2 is known")
        return client_machine.view(self._state)

    @property
    def noise_secrets(self) -> NoiseSecrets:
        """What this client's noise is drawn from: the same after a restart."""
        if not isinstance(self._state, client.ReadyForInput) or self._seed is None:
            raise ErrorCode.INTERNAL.error("noise is drawn when the set U2 is known")
        return client_machine.noise_secrets(self._state, self._seed)

    def pending_outputs(self) -> tuple[ClientOutput, ...]:
        """Return what must be sent, perhaps again."""
        return client_machine.pending_outputs(self._state)

    async def apply(
        self,
        event: ClientEvent,
        *,
        first: Callable[[client.ClientState, tuple[ClientOutput, ...]], None]
        | None = None,
    ) -> tuple[ClientOutput, ...]:
        """Apply an event; returns when it is durable.

        Args:
            event: What has happened.
            first: Called before the change is committed, with the state that it
                enters and what is to be sent then; what it raises stops the change.

        Returns:
            What to send now.

        Raises:
            LocalProtocolError: The application is at fault; nothing has changed.
            BudgetSpentError: The task's budget does not cover this input.
            NoiseChangedError: The task has changed its noise.
            ServiceError: STORAGE_FAILED; nothing may be sent.  Drop this object and
                resume from the store.
        """
        # Key agreement with every neighbour, or the digest of a long vector.
        step = client_machine.step(self._state, event, policy=self._policy)
        if first is not None:
            first(step.state, step.outputs)
        if not step.is_repeat:
            if not client_machine.is_over(step.state):  # the end is written by `end_as`
                await self._commit(await self._change_of(event, step.state))
            self._state = step.state
            if isinstance(step.state, client.Answered):
                self._wipe_seed()
        return step.outputs

    async def end_as(self, ended: client.Completed | client.Failed) -> bytes:
        """End the session in a given way, wherever it stands, and erase it.

        What becomes of its charge is settled in the same change.

        Returns:
            The receipt (`secagg.protocol.receipts`), which stays.
        """
        self._wipe_seed()
        stored = await self._store.read(LoadSession(self._key))
        if stored is None:
            raise ErrorCode.INTERNAL.error("a session that was begun has a record")
        if stored.receipt is not None:
            return decode_ending(stored.receipt).audit
        audit = completed(
            self._stored_receipt(stored),
            self._descriptor,
            ended,
            has_answered=is_answered(stored.header),
        ).encode()
        await self._commit(
            Change(
                key=self._key,
                end=encode_ending(Ending(ended, audit)),
                settle=settlement_of(self.descriptor, ended.charge),
            )
        )
        return audit

    def _stored_receipt(
        self, stored: StoredSession, *newest: ClientEvent
    ) -> AuditReceipt:
        """Return what this client can show, from what is on its disk."""
        if is_answered(stored.header):
            return decode_evidence(stored.records[0])
        events = (*map(decode_client_event, stored.records), *newest)
        return extended(offer_receipt(self._descriptor), self._descriptor, events)

    async def _change_of(self, event: ClientEvent, state: client.ClientState) -> Change:
        """Return the change that stores an event, with what it charges."""
        if isinstance(event, InputReady) and isinstance(state, client.Masked):
            return Change(
                key=self._key,
                records=(record_of(InputBound(state.bound_input)),),
                charge=charge_of(self.descriptor, trust_domain=self._trust_domain),
            )
        if isinstance(state, client.Answered):
            # The seed and what was received are overwritten on the disk: from here on
            # nothing but the answer itself is needed (PROTOCOL §12), and what is public
            # of the session to show it.
            stored = await self._store.read(LoadSession(self._key))
            if stored is None:
                raise ErrorCode.INTERNAL.error("a session that was begun has a record")
            seen = self._stored_receipt(stored, event)
            answered = RewrittenSession(
                encode_answered(self.descriptor, state), (evidence_of(seen),)
            )
            return Change(key=self._key, reseal=answered)
        # A roster was accepted: its graph counts, even if nothing comes of it.
        is_roster = isinstance(event, Received) and event.envelope.kind is Roster
        return Change(
            key=self._key,
            records=(record_of(event),),
            spend=is_roster and not self.descriptor.parameters.is_complete_graph,
        )

    def _wipe_seed(self) -> None:
        if self._seed is not None:
            self._seed.wipe()
            self._seed = None

    async def _commit(self, change: Change) -> None:
        """Commit a change that follows the last one."""
        answer = await self._store.commit(
            replace(change, expect=self._sequence, previous=self._chain)
        )
        if change.end is None or not isinstance(answer, Ended):
            self._record_commit(answer)

    def _record_commit(self, answer: Outcome) -> None:
        if not isinstance(answer, Committed):
            raise ErrorCode.INTERNAL.error("another object drives this session")
        self._sequence, self._chain = answer.sequence, answer.chain


async def claimed(
    change: Change,
    offered: SessionDescriptor,
    *,
    store: ClientRecords,
    total: TotalLedger | None,
    trust_domain: str | None,
) -> Outcome:
    """Claim data and number of a session that the gate has admitted, durably.

    The one way into a session, before anything of it leaves.

    Args:
        change: Begins it; between two aggregators it charges it as well.
        offered: The session; between two aggregators, the leader's.
        store: Of the client.
        total: Of its data over all tasks; None for no total.
        trust_domain: Of the aggregator, as the connection has proven it.

    Raises:
        TotalBudgetExceededError: The task does not fit into the total.
        RemoteProtocolError: REPLAYED_SESSION for a number seen before.
        SessionsSpentError: No further session may begin.
        ServiceError: STORAGE_FAILED.
    """
    if total is not None:
        await total.claim(offered, trust_domain=trust_domain)
    try:
        return await store.commit(change)
    except NumberTakenError as error:
        raise ErrorCode.REPLAYED_SESSION.error(
            f"the server offers session {offered.session_number} of task "
            f"{offered.task_id!r}; numbers up to {error.highest} were seen before",
            fix="Tell the operator: the server has lost its state or lies.",
        ) from None


UNKNOWN_PAST: Final = client.Failed(
    ErrorCode.RESTORED_STATE,
    "this client's state was restored from an older one",
    refund.ChargeOutcome.KEPT,
)


_IDENTITY_LOST: Final = client.Failed(
    ErrorCode.BAD_CREDENTIAL,
    "the session was begun with another identity, and has lasted too long",
    refund.ChargeOutcome.KEPT,
)


def _rebuild_state(
    stored: StoredSession,
    policy: ClientPolicy,
    enrolment: EnrolledClient | None,
    now: float,
) -> tuple[
    StoredOffer | None, SessionDescriptor, client.ClientState, SecretBytes | None
]:
    """Return what a session began with, its offer, state and seed.

    Neither beginning nor seed are there once it has answered.
    """
    if is_answered(stored.header):
        return None, *decode_answered(stored.header), None
    begun = decode_offer(stored.header)
    own = None if enrolment is None else enrolment.identity
    if not begun.fits(own):
        if not stored.restored:
            _check_is_over(begun.offered.descriptor, now)
        return begun, begun.offered.descriptor, _IDENTITY_LOST, begun.offered.seed
    offered = begun.resumed(own, None if enrolment is None else enrolment.verified)
    state = client_machine.step(
        client_machine.start(read_noise_terms), offered, policy=policy
    ).state
    for record in stored.records:
        if client_machine.is_over(state):
            break  # the policy is stricter than when the session was accepted
        state = client_machine.step(
            state, decode_client_event(record), policy=policy
        ).state
    return begun, offered.descriptor, state, offered.seed


def _check_is_over(descriptor: SessionDescriptor, now: float) -> None:
    """Refuse to continue under another identity while the session may need ours."""
    if now < descriptor.session_end:
        raise ErrorCode.BAD_CREDENTIAL.error(
            f"session {descriptor.session_number} of task {descriptor.task_id!r} was "
            "begun with another identity than this client has now",
            fix="Start the client with the identity of that time; from Unix "
            f"second {descriptor.session_end} on the session is left instead.",
        )


def record_key(identity: str, session_id: bytes) -> str:
    """Return under which name a client's session is stored."""
    return _key_prefix(identity) + session_id.hex()


def _is_of(key: str, identity: str) -> bool:
    # A name may hold slashes, and begin with the whole of another one.
    prefix = _key_prefix(identity)
    return key.startswith(prefix) and "/" not in key[len(prefix) :]


def bound_input_of(stored: StoredSession) -> bytes:
    """Return the digest of the input that an open session has bound, or b"".

    Nothing is bound any more in one that has answered: its seed is gone.
    """
    if is_answered(stored.header):
        return b""
    for event in map(decode_client_event, reversed(stored.records)):
        if isinstance(event, InputBound):
            return event.digest
    return b""


def offer_of(stored: StoredSession) -> SessionDescriptor:
    """Return the offer of an open session, without going through its records."""
    if is_answered(stored.header):
        return decode_answered(stored.header)[0]
    return decode_offer(stored.header).offered.descriptor


def is_record_key(key: str) -> bool:
    """Whether a session is stored under it that one aggregator has offered."""
    return key.startswith(_KEYS)


def _key_prefix(identity: str) -> str:
    return f"{_KEYS}{identity}/"
