"""The sessions of one open client: every rule of a client but those of its network.

Its coroutines wait for the store and the gate alone, and for nothing where both answer
at once.  `secagg.client.durable_client` makes one call after the other.  `StepClient`
and `Client` carry bytes to it and from it; `secagg.client.step_client` says the rules
by which the calls go.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from secagg.client.admission import Admission
from secagg.client.budget import DataUsage, merge_charges, peer_of
from secagg.client.contribution import (
    Contribution,
    SessionOutcome,
    check_hash_of_sum,
    check_size_of_sum,
    contribution_of,
    read_residues,
)
from secagg.client.gate import AdmittedSession, KnownFacts, Need, SessionInfo
from secagg.client.session import (
    UNKNOWN_PAST,
    ClientSession,
    bound_input_of,
    is_record_key,
    offer_of,
    record_key,
)
from secagg.client.total_ledger import TotalLedger
from secagg.crypto.entropy import Entropy
from secagg.crypto.transcript import ClientBitmap
from secagg.distributed_dp import NoisyTask, Unusable, encode_or_zeros
from secagg.distributed_dp.units import encode_integers
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol import refund
from secagg.protocol.arguments import check_kind
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    AbortRequested,
    ClientOutput,
    InputReady,
    MaskAndUpload,
    NoisyVector,
    PlainVector,
    Received,
    Send,
)
from secagg.protocol.graphs.ring_safety import is_worst_case_safe
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Envelope,
    Message,
    Released,
    Round,
    Upload,
)
from secagg.protocol.packing import mask_input, pack
from secagg.runtime import log_events as telemetry
from secagg.storage.budget_ledger import BudgetKey, ChargeState, Settlement, budget_of
from secagg.storage.change import Change, Side
from secagg.storage.changes import purge_once
from secagg.storage.client_store import ClientStore
from secagg.storage.journal import Ending, decode_ending, is_answered
from secagg.storage.queries import ListCharges, ListSessions, LoadSession, ReadTally
from secagg.storage.rows import Retention, StoredSession

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)

_OF_THE_AGGREGATOR: Final = "the bytes of the aggregator"

HEARING_SECONDS: Final = 30
"""How long a client listens after the end of a session for what has become of it."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientStep:
    """What one call of `StepClient.step` has come to.

    Attributes:
        messages: Send these, in this order.  Sending them again does no harm.
        needs: Call again with these.  Empty: wait for the next update.
        is_over: The session is over for this client.
        session: The session as this client has admitted it; None while a revocation
            list is needed for that.
        round: The last round that this client has entered: for
            `StepServer.update_for(after=)`.  None before it has joined.
        view: With a need for the vector: 32 bytes to show to the aggregator before the
            vector is given (R5.3-14); else empty.
        shortened_by: Length of the vector that was bound in this call over what
            clipping left of it, 1.0 if it fitted; None for any other call.  Tell it to
            the owner alone.
        replaced: Why zeros were bound in this call, as a clause; None for the vector.
            It may say something about the data: tell it to the owner alone.
        contribution: When the session is over; without `values`, see `read_sum`.
    """

    messages: tuple[bytes, ...] = field(default=(), repr=False)
    needs: frozenset[Need] = frozenset()
    is_over: bool = False
    session: SessionInfo | None = None
    round: Round | None = None
    view: bytes = field(default=b"", repr=False)
    shortened_by: float | None = field(default=None, repr=False)
    replaced: str | None = field(default=None, repr=False)
    contribution: Contribution | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GivenVector:
    """What a call hands in for the session besides an update.

    Attributes:
        vector: As the caller gave it, or why it is missing.
        payload_hash: Of what the vector was made from.
        reveals_selection: It was asked for only where a secret selection has won, so
            that what became of it must not be told.
    """

    vector: object = field(repr=False)
    payload_hash: bytes
    reveals_selection: bool = False


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a client stands in a task.

    Attributes:
        offer: The encoded offer of the session that is open; b"" for none.
        highest_number: Highest number of a session that it has joined; 0 for none.
    """

    offer: bytes
    highest_number: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedInput:
    """The input of a session, and what its owner is told of it.

    Attributes:
        vector: Residues, with their share of the noise.
        shortened_by: As in `ClientStep`.
        replaced: As in `ClientStep`.
    """

    vector: PlainVector | NoisyVector = field(repr=False)
    shortened_by: float | None = field(default=None, repr=False)
    replaced: str | None = field(default=None, repr=False)


# (session, what was given, digest of the input that was bound before or b"")
Encode = Callable[[ClientSession, GivenVector, bytes], EncodedInput]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A session in the store that is not over, and was not checked again yet.

    Attributes:
        offer: The session.
        peer: Its aggregator, as `peer_of` has it.
        round: The last round that this client has entered.
        has_bound: An input is bound, and may have left.
    """

    offer: SessionDescriptor
    peer: str
    round: Round
    has_bound: bool


@dataclass(slots=True, eq=False)
class _Live:
    """A session that is not over, as this object drives it."""

    session: ClientSession
    info: SessionInfo
    is_certain: bool
    shortened_by: float | None = None
    replaced: str | None = None


class OpenClient:
    """The state of one client while it is open.

    Args:
        identity: The client's name.
        tasks: That it takes part in; None for all.
        store: Of the client.
        admission: Asks the gate.
        entropy: Where seeds come from.
        encode: Makes the input of a session from what was given for it.
        keep_upload: Keep masked inputs in files.
        retention: How long receipts stay.

    Attributes:
        store: Of the client.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        identity: str,
        *,
        tasks: frozenset[str] | None,
        store: ClientStore,
        admission: Admission,
        entropy: Entropy,
        encode: Encode,
        keep_upload: bool,
        retention: Retention,
    ) -> None:
        self.store: Final = store
        self._identity = identity
        self._aggregator = self._peer = ""
        self._is_of_one = False
        self._trust_domain: str | None = None
        self._tasks = tasks
        self._admission = admission
        self._entropy = entropy
        self._encode = encode
        self._keep_upload = keep_upload
        self._retention = retention
        self._read_last: tuple[bytes, SessionDescriptor] | None = None
        self._live: dict[bytes, _Live] = {}
        # When open sessions end by themselves, in Unix seconds, by their key.
        self._ends: dict[str, int] = {}
        self._bound: set[bytes] = set()

    def bind_to(
        self, aggregator: str, trust_domain: str | None, *, for_good: bool = False
    ) -> None:
        """Take part in the sessions of this aggregator from now on (R5.0-6).

        Args:
            aggregator: Its name, as the carrier has proven it.
            trust_domain: Of it, likewise; None where the carrier proves none.
            for_good: The owner has named it: no other one is met after it.

        Raises:
            RemoteProtocolError: UNAUTHENTICATED; the owner has named another one.
        """
        peer = peer_of(aggregator, trust_domain=trust_domain)
        if self._is_of_one and peer != self._peer:
            raise ErrorCode.UNAUTHENTICATED.error(
                f"the client's owner has named {self._peer!r}, and {peer!r} answers",
                fix="Check where the connection leads.",
            )
        if peer != self._peer:
            self._live.clear()  # what is open lies in the store
        self._aggregator, self._trust_domain = aggregator, trust_domain
        self._peer, self._is_of_one = peer, for_good or self._is_of_one

    async def begin(self) -> None:
        """Read which sessions are open, end those whose time is over, and tidy up.

        Raises:
            ServiceError: STORAGE_FAILED or STATE_DAMAGED.
        """
        if self._admission.total is not None:
            await self._admission.total.open()
        for row in await self.store.read(ListSessions(role=Side.CLIENT)):
            if not is_record_key(row.key):  # of two aggregators: it is never resumed
                await self.end_shared(row.key)
                continue
            stored = await self._load_record(row.key)
            self._ends[row.key] = _end_of(stored)
            if bound_input_of(stored):
                self._bound.add(offer_of(stored).session_id)
        await self._end_expired()
        self.store.delete_other_uploads(self._bound)
        await self.purge_receipts()

    async def purge_receipts(self) -> None:
        """Remove the receipts that have been kept for long enough."""
        await purge_once(self.store, self._retention, _LOG)

    async def end_shared(self, key: str) -> None:
        """End a session between two aggregators, unless it is over; keep its charge.

        Args:
            key: Under which it is stored: its id in hexadecimal digits.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        stored = await self.store.read(LoadSession(key))
        if stored is None or stored.ended:
            return
        session_id, state = bytes.fromhex(key), ChargeState.KEPT
        kept = Settlement(task=stored.task, session_id=session_id, state=state)
        await self.store.commit(
            Change(
                key=key,
                expect=stored.sequence,
                previous=stored.chain,
                settle=kept,
                end=b"",
            )
        )

    # --- what a carrier asks ----------------------------------------------------------

    async def step(
        self,
        offered: SessionDescriptor,
        envelope: Envelope | None = None,
        given: GivenVector | None = None,
        *,
        revocations: bytes | None = None,
        concludes: bool = True,
    ) -> ClientStep:
        """Take part in a session; see `StepClient.step`.

        Args:
            offered: The session.
            envelope: What the aggregator has for this client now; None for nothing.
            given: The vector, when it is needed.
            revocations: Bytes of the revocation list that the offer names.
            concludes: Erase a session that has released its sum.  Without it
                `conclude` does that, when the sum is there.
        """
        await self._begin_call(offered)
        known = await self._find_joined(offered) or await self._join_session(
            offered, revocations
        )
        if isinstance(known, Need):
            return ClientStep(needs=frozenset({known}))
        if isinstance(known, Ending):
            return self._report_end(offered, known)
        try:
            return await self._apply(known, envelope, given, concludes=concludes)
        except (RemoteProtocolError, SessionAbortedError) as error:
            await self._end_session(known.session, error)
            raise

    async def check(
        self, offered: SessionDescriptor, revocations: bytes | None = None
    ) -> SessionInfo | Need:
        """Check an offer, or say what is needed; see `StepClient.check_offer`."""
        await self._begin_call(offered)
        known = await self._find_joined(offered)
        if isinstance(known, _Live):
            return known.info
        admitted = await self._check_offer(offered, revocations)
        return admitted if isinstance(admitted, Need) else admitted.info

    @property
    def total(self) -> TotalLedger | None:
        """What all tasks together may cost the owner's data; None for no total."""
        return self._admission.total

    async def known_facts(self, offered: SessionDescriptor) -> KnownFacts:
        """Return what the store knows that an offer is checked by."""
        highest = await self.highest_number(offered.task_id)
        return await self._admission.known_facts(offered, highest_number=highest)

    async def highest_number(self, task: str) -> int:
        """Return the highest number of a task that this client has seen; 0 for none."""
        query = ReadTally(Side.CLIENT, task, peer=self._peer)
        return (await self.store.read(query)).highest_number

    async def is_in_session(self, task: str) -> bool:
        """Return whether a session of the task was joined and is not over."""
        records = await ClientSession.open_records(
            task, self._identity, store=self.store
        )
        return any(not each.restored for each in records)

    async def unfinished_sessions(self, task: str) -> tuple[StoredPart, ...]:
        """Return the sessions of a task that are not over, the newest first.

        More than one only where they are of different aggregators (R5.0-6).

        Raises:
            RemoteProtocolError: The client's rules have become stricter than the
                newest of them, and it is left.
            ServiceError: BAD_CREDENTIAL; it was begun with another identity.
        """
        found: list[StoredPart] = []
        for stored in await ClientSession.open_records(
            task, self._identity, store=self.store
        ):
            session = self._session_of(stored, self._live_of(offer_of(stored)))
            if stored.restored:
                await self._end_unknown(session)
                continue
            if client_machine.is_over(session.state):
                error = await self._concluded_error(session)
                if not found:
                    raise error
                continue
            found.append(
                StoredPart(
                    session.descriptor, stored.peer, session.round, session.has_bound
                )
            )
        return tuple(found)

    async def is_selected(self, offered: SessionDescriptor) -> bool:
        """Return whether a secret selection takes the vector of a session.

        Raises:
            LocalProtocolError: The session does not need a vector.
        """
        live = self._live.get(offered.session_id)
        if live is None or not live.session.needs_input:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a selection is read where a vector is needed",
                fix="Call step until it needs one.",
            )
        task = NoisyTask.of_session(offered)
        return task.is_selected(live.session.noise_secrets)

    async def conclude(
        self, offered: SessionDescriptor, packed: bytes | None
    ) -> SessionOutcome:
        """End a session that has released its sum to this client.

        Args:
            offered: The session.
            packed: The sum of the released hash; None where it is not wanted.

        Raises:
            RemoteProtocolError: BAD_VECTOR; it is no vector of the session.
            LocalProtocolError: This object does not drive the session any more.
        """
        parameters = offered.parameters
        residues = None if packed is None else read_residues(packed, parameters)
        live = self._live.get(offered.session_id)
        if live is None:  # a call for another task has ended it meanwhile
            outcome = await self._completed_before(offered)
        else:
            outcome = await self._conclude_completed(live)
        return replace(outcome, residues=residues)

    async def _completed_before(self, offered: SessionDescriptor) -> SessionOutcome:
        """Return the outcome of a session that has released its sum."""
        known = await self._find_joined(offered)
        if not isinstance(known, Ending) or isinstance(known.state, client.Failed):
            raise ErrorCode.LOCAL_MISUSE.error(
                "the session has released no sum to this client",
                fix="Continue it: call contribute again, or step with its "
                "updates until it is over.",
            )
        return _outcome_of(offered, known)

    async def contribution(self, outcome: SessionOutcome) -> Contribution:
        """Return what the owner of the client gets for a session."""
        left = await self.sessions_left(outcome.descriptor.task_id)
        return contribution_of(
            outcome, report_of=self._admission.rules.report_of, sessions_left=left
        )

    async def place(self, task: str) -> TaskPlace:
        """Return where this client stands in a task."""
        records = await ClientSession.open_records(
            task, self._identity, store=self.store
        )
        offers = [offer_of(each) for each in records if each.peer == self._peer]
        offer = offers[0].encode() if offers else b""
        return TaskPlace(offer, await self.highest_number(task))

    async def read_sum(self, offered: SessionDescriptor, packed: bytes) -> Contribution:
        """Read a released sum; see `StepClient.read_sum`."""
        outcome = await self._completed_before(offered)
        released, parameters = outcome.released, offered.parameters
        check_size_of_sum(released, parameters)
        check_hash_of_sum(released, packed)
        residues = read_residues(packed, parameters)
        return await self.contribution(replace(outcome, residues=residues))

    async def leave(
        self,
        offered: SessionDescriptor,
        error: RemoteProtocolError | SessionAbortedError | ServiceError,
    ) -> bool:
        """Leave a session for good; nothing happens in one that is over.

        Args:
            offered: The session, of whichever aggregator.
            error: Why.

        Returns:
            Whether this client has ever joined it.
        """
        key = record_key(self._identity, offered.session_id)
        stored = await self.store.read(LoadSession(key))
        if stored is not None and not stored.ended:
            live = self._live.get(offered.session_id)
            await self._end_session(self._session_of(stored, live), error)
        return stored is not None

    async def data_use(self) -> DataUsage | None:
        """Return what is claimed of the data; None without a total."""
        total = self._admission.total
        return None if total is None else await total.use()

    async def sessions_left(self, task: str) -> int | None:
        """Return how many more sessions the budget of a task covers."""
        proven, own = self._trust_domain, self._admission.enrolment
        key = BudgetKey(
            trust_domain=proven or "", aggregator=self._aggregator, task=task
        )
        issued = None if own is None else own.identity.issued.trust_domain
        rows = await self.store.read(ListCharges(task))
        charges = merge_charges(rows, key, proven, issued)
        if not charges:
            return None
        last = charges[-1]
        return budget_of(charges, key, allowed=last.allowed, refunds=last.refunds).left

    # --- which session ----------------------------------------------------------------

    def read(self, offer: bytes) -> SessionDescriptor:
        """Decode an offer; the same bytes are decoded once.

        Raises:
            LocalProtocolError: It is not bytes.
            RemoteProtocolError: BAD_ENCODING.
        """
        check_kind("offer", offer, bytes, make=_OF_THE_AGGREGATOR)
        if self._read_last is None or self._read_last[0] != offer:
            self._read_last = offer, SessionDescriptor.decode(offer)
        return self._read_last[1]

    async def _begin_call(self, offered: SessionDescriptor) -> None:
        """Refuse an offer of another task; end what is past, but of this session.

        Raises:
            RemoteProtocolError: BAD_CONFIG; this client takes part in other tasks.
        """
        if self._tasks is not None and offered.task_id not in self._tasks:
            raise ErrorCode.BAD_CONFIG.error(
                f"the session is of task {offered.task_id!r}, and this client takes "
                "part in others",
                fix="Give the name of the task in tasks, if its owner agrees: "
                "each task has a budget of its own.",
            )
        await self._end_expired(but=offered.session_id)

    def _live_of(self, offered: SessionDescriptor) -> _Live | None:
        """Return a session that this object drives; None for one to be resumed.

        One whose sum was released and never fetched is resumed from its answer.
        """
        live = self._live.get(offered.session_id)
        if live is not None and client_machine.is_over(live.session.state):
            del self._live[offered.session_id]
            return None
        return live

    async def _find_joined(self, offered: SessionDescriptor) -> _Live | Ending | None:
        """Return a session that this client has joined; None for any other.

        Raises:
            RemoteProtocolError: UNAUTHENTICATED; it is another aggregator's.  Any
                other code: the client's rules have become stricter, and it is left.
            SessionAbortedError: It is left: its time is over, or the state was
                restored while it was open.
            ServiceError: BAD_CREDENTIAL; it was begun with another identity.
        """
        live = self._live_of(offered)
        if live is not None:
            return live
        stored = await self.store.read(
            LoadSession(record_key(self._identity, offered.session_id))
        )
        if stored is None:
            return None
        if stored.peer != self._peer:
            raise ErrorCode.UNAUTHENTICATED.error(
                f"the session was begun with {stored.peer!r}, and {self._peer!r} is "
                "asked now",
                fix="Continue with the aggregator that has offered it.",
            )
        if stored.receipt is not None:
            return decode_ending(stored.receipt)
        session = self._resume_session(stored)
        if stored.restored:
            await self._end_unknown(session)
            raise UNKNOWN_PAST.code.error(UNKNOWN_PAST.reason, kind=SessionAbortedError)
        if client_machine.is_over(session.state):  # the owner's rules are stricter now
            raise await self._concluded_error(session)
        try:
            admitted = await self._admission.check_again(
                session, aggregator=self._aggregator, trust_domain=self._trust_domain
            )
        except (RemoteProtocolError, SessionAbortedError) as error:
            await self._end_session(session, error)
            raise
        return self._track(session, admitted)

    def _session_of(self, stored: StoredSession, live: _Live | None) -> ClientSession:
        return self._resume_session(stored) if live is None else live.session

    def _resume_session(self, stored: StoredSession) -> ClientSession:
        """Return a stored session, ready to continue."""
        return ClientSession.of_record(
            stored,
            self._identity,
            store=self.store,
            policy=self._admission.rules.policy,
            now=self._admission.date(),
            trust_domain=self._trust_domain,
            enrolment=self._admission.enrolment,
        )

    async def _end_unknown(self, session: ClientSession) -> None:
        await session.end_as(UNKNOWN_PAST)
        self._discard_session(session.descriptor)

    def _track(self, session: ClientSession, admitted: AdmittedSession) -> _Live:
        """Keep a session as live from now on."""
        is_certain = session.descriptor.parameters.is_complete_graph
        live = _Live(session, admitted.info, is_certain)
        self._live[session.session_id] = live
        return live

    async def _check_offer(
        self, offered: SessionDescriptor, revocations: bytes | None
    ) -> AdmittedSession | Need:
        """Have the gate check an offer."""
        if revocations is not None:
            check_kind("revocations", revocations, bytes, make=_OF_THE_AGGREGATOR)
        return await self._admission.check(
            offered,
            aggregator=self._aggregator,
            trust_domain=self._trust_domain,
            highest_number=await self.highest_number(offered.task_id),
            revocations=revocations,
        )

    async def _join_session(
        self, offered: SessionDescriptor, revocations: bytes | None
    ) -> _Live | Need:
        """Join a session that is offered, or say what is needed to decide."""
        admitted = await self._check_offer(offered, revocations)
        if isinstance(admitted, Need):
            return admitted
        await self._end_earlier(offered)
        await self._admission.record(offered, revocations)
        session = await ClientSession.begin(
            offered,
            self._identity,
            aggregator=self._aggregator,
            trust_domain=self._trust_domain,
            store=self.store,
            policy=self._admission.rules.policy,
            entropy=self._entropy,
            now=int(self._admission.date()),
            membership=admitted.membership,
            total=self._admission.total,
        )
        key = record_key(self._identity, offered.session_id)
        self._ends[key] = offered.session_end
        _log_session(telemetry.SESSION_OPENED, offered)
        return self._track(session, admitted)

    # --- what happens in it -----------------------------------------------------------

    async def _apply(
        self,
        live: _Live,
        envelope: Envelope | None,
        given: GivenVector | None,
        *,
        concludes: bool,
    ) -> ClientStep:
        """Apply an update or a vector to a session, and return what to send."""
        session, kind = live.session, None if envelope is None else envelope.kind
        if self._is_silent(session, kind):
            return ClientStep(session=live.info, round=session.round)
        if envelope is not None:
            before = session.state
            await session.apply(Received(envelope))
            if isinstance(session.state, client.Completed):
                return await self._conclude_released(live, concludes=concludes)
            if client_machine.is_over(session.state):
                raise await self._concluded_error(session, envelope)
            if isinstance(session.state, client.Answered):
                self._record_answer(live, before)
        messages = self._encode_messages(session, session.pending_outputs())
        done = ClientStep(messages, session=live.info, round=session.round)
        if not session.needs_input:
            return done
        return await self._make_upload(live, done, given)

    def _record_answer(self, live: _Live, before: client.ClientState) -> None:
        """Forget the seed, and whether the graph of the answer is certainly safe."""
        if isinstance(before, client.Answered):
            return
        self._seed_is_gone(live.session)
        parameters, state = live.session.descriptor.parameters, live.session.state
        if (
            isinstance(before, client.Masked)
            and isinstance(state, client.Answered)
            and not parameters.is_complete_graph
        ):
            # What an answer may have shown to any colluders.
            delivered = before.delivered
            answered = ClientBitmap(state.survivors, delivered.roster_size)
            is_safe = is_worst_case_safe(parameters, delivered.graph, answered)
            live.is_certain = live.is_certain if is_safe is None else is_safe

    async def _make_upload(
        self, live: _Live, done: ClientStep, given: GivenVector | None
    ) -> ClientStep:
        """Return the upload of a session; what is bound already is not made again."""
        session = live.session
        bound = _bound_input(session.state)
        kept = self.store.upload(session.session_id, bound) if bound else None
        if kept is not None:
            return replace(done, messages=(*done.messages, kept))
        if given is None:
            return replace(done, needs=frozenset({Need.VECTOR}), view=session.view)
        self._check_payload(session.descriptor, given)
        encoded = self._encode(session, given, bound)
        uploads: list[bytes] = []

        def store(state: client.ClientState, outputs: tuple[ClientOutput, ...]) -> None:
            uploads.extend(self._encode_messages(session, outputs))
            if self._keep_upload:
                (upload,) = uploads
                self.store.store_upload(session.session_id, _bound_input(state), upload)

        await session.apply(InputReady(encoded.vector), first=store)
        self._bound.add(session.session_id)
        # Its fate is listened for, whatever is called meanwhile for another task.
        key = record_key(self._identity, session.session_id)
        self._ends[key] = session.descriptor.session_end + HEARING_SECONDS
        live.shortened_by, live.replaced = encoded.shortened_by, encoded.replaced
        return replace(
            done,
            messages=(*done.messages, *uploads),
            shortened_by=encoded.shortened_by,
            replaced=encoded.replaced,
        )

    @staticmethod
    def _check_payload(offered: SessionDescriptor, given: GivenVector) -> None:
        """Refuse a vector that was made from another payload."""
        if isinstance(given.vector, Unusable):
            return
        if offered.payload_hash and not given.payload_hash:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the session hands out a payload, and the vector was given without the "
                "hash of what it was made from",
                fix="Give payload_hash=sha256(payload).digest(), computed from "
                "the payload that was used.",
            )
        if given.payload_hash != offered.payload_hash:
            raise ErrorCode.PAYLOAD_MISMATCH.error(
                "the vector was made from another payload than the session's",
                fix="Fetch the payload of this session; if its hash differs "
                "again, tell the operator.",
            )

    def _is_silent(self, session: ClientSession, kind: type[Message] | None) -> bool:
        """Whether nothing is left to say in a session but what becomes of it (R5-7).

        Raises:
            SessionAbortedError: DEADLINE; its end has passed, and no input is bound
                whose fate the aggregator may still tell.
        """
        if kind in (Aborted, Released) or isinstance(session.state, client.Answered):
            return False
        late = self._admission.date() - session.descriptor.session_end
        if late < 0:
            return False
        if kind is None and session.has_bound and late < HEARING_SECONDS:
            return True
        raise _past_end_error(session.descriptor)

    def _encode_messages(
        self, session: ClientSession, outputs: tuple[ClientOutput, ...]
    ) -> tuple[bytes, ...]:
        """Return the messages of a step as bytes; a vector is masked and packed."""
        said: list[bytes] = []
        for output in outputs:
            if isinstance(output, Send):
                said.append(output.envelope.tagged())
            elif isinstance(output, MaskAndUpload):
                bits = session.descriptor.parameters.bits
                packed = pack(mask_input(output.vector.residues, output.job), bits)
                named = Upload(len(packed), sha256(packed).digest(), output.view)
                said.append(Envelope.of(named).tagged() + packed)
        return tuple(said)

    # --- its end ----------------------------------------------------------------------

    async def _conclude_released(self, live: _Live, *, concludes: bool) -> ClientStep:
        """Return the last step of a session with a sum."""
        contribution = None
        if concludes:
            outcome = await self._conclude_completed(live)
            # Never computed here: the call has changed something.
            privacy = live.info.privacy
            contribution = contribution_of(
                outcome,
                report_of=lambda task: privacy or self._admission.rules.report_of(task),
            )
        return ClientStep(
            is_over=True,
            session=live.info,
            round=Round.FINISHED,
            contribution=contribution,
        )

    async def _conclude_completed(self, live: _Live) -> SessionOutcome:
        """Erase a session that has completed, and return its outcome."""
        session = live.session
        if not isinstance(session.state, client.Completed):
            raise ErrorCode.INTERNAL.error(
                "a session that has released a sum has completed"
            )
        ending = Ending(session.state, await self._erase_session(session))
        self._discard_session(session.descriptor)
        _log_session(telemetry.SESSION_COMPLETED, session.descriptor)
        return replace(
            _outcome_of(session.descriptor, ending),
            is_certain=live.is_certain,
            shortened_by=live.shortened_by,
            replaced=live.replaced,
        )

    def _report_end(self, offered: SessionDescriptor, ending: Ending) -> ClientStep:
        """Say how a session has ended, the same every time."""
        if isinstance(ending.state, client.Failed):
            raise _aborted_error(ending.state.code, ending.state.reason)
        contribution = contribution_of(
            _outcome_of(offered, ending), report_of=self._admission.rules.report_of
        )
        privacy = contribution.privacy
        noisy = None if privacy is None else NoisyTask.of_session(offered)
        dimension = offered.parameters.dimension if noisy is None else noisy.dim
        return ClientStep(
            is_over=True,
            session=SessionInfo(offered, dimension, privacy),
            round=Round.FINISHED,
            contribution=contribution,
        )

    async def _concluded_error(
        self, session: ClientSession, last: Envelope | None = None
    ) -> SecAggError:
        """End a session that has failed; return what its caller is told.

        Args:
            session: The session.
            last: What the aggregator has sent last; None where the client's own rules
                end the session.
        """
        state = session.state
        if not isinstance(state, client.Failed):
            raise ErrorCode.INTERNAL.error("a session that has not failed has no error")
        await self._erase_session(session)
        self._discard_session(session.descriptor)
        _log_session(
            telemetry.SESSION_ABORTED, session.descriptor, code=state.code.name
        )
        if state.code is ErrorCode.SESSION_OVER or _is_final(state, last):  # R5.6-4
            return _aborted_error(state.code, state.reason)
        return state.code.error(
            state.reason, kind=RemoteProtocolError, fix=state.next_step
        )

    async def _end_session(
        self,
        session: ClientSession,
        error: RemoteProtocolError | SessionAbortedError | ServiceError,
    ) -> None:
        """End a session for this client, unless that has been done."""
        if record_key(self._identity, session.session_id) not in self._ends:
            return
        if not client_machine.is_over(session.state):
            await session.apply(AbortRequested(error.code, str(error)))
        await self._erase_session(session)
        self._discard_session(session.descriptor)
        _log_session(
            telemetry.SESSION_ABORTED, session.descriptor, code=error.code.name
        )

    async def _end_earlier(self, offered: SessionDescriptor) -> None:
        """End the open session of a task whose next one is joined."""
        records = await ClientSession.open_records(
            offered.task_id, self._identity, store=self.store
        )
        why = ErrorCode.SESSION_OVER.error(
            "a later session of the task was offered", kind=SessionAbortedError
        )
        for stored in records:
            if stored.peer != self._peer:
                continue
            await self._end_stored(stored, why)

    async def _end_expired(self, *, but: bytes = b"") -> None:
        """End all sessions whose time is over, of every task and name."""
        now, kept = self._admission.date(), record_key(self._identity, but)
        for key, end in tuple(self._ends.items()):
            if now < end or key == kept:
                continue
            stored = await self._load_record(key)
            await self._end_stored(stored, _past_end_error(offer_of(stored)))

    async def _end_stored(
        self, stored: StoredSession, why: SessionAbortedError
    ) -> None:
        """End a session, by its record alone where no object drives it.

        Without the object its charge is kept.
        """
        offered = offer_of(stored)
        is_own = stored.key == record_key(self._identity, offered.session_id)
        if is_own and (live := self._live.get(offered.session_id)) is not None:
            await self._end_session(live.session, why)
            return
        ended = client.Failed(why.code, str(why), refund.ChargeOutcome.KEPT)
        session = ClientSession.of_ended(
            stored,
            offered,
            ended,
            store=self.store,
            policy=self._admission.rules.policy,
        )
        await self._erase_session(session)
        self._ends.pop(stored.key, None)
        self._drop_upload(offered.session_id)
        _log_session(telemetry.SESSION_ABORTED, offered, code=why.code.name)

    @staticmethod
    async def _erase_session(session: ClientSession) -> bytes:
        """Erase a session that is over; return its receipt."""
        if not isinstance(session.state, client.Completed | client.Failed):
            raise ErrorCode.INTERNAL.error("a session that is not over is not erased")
        return await session.end_as(session.state)

    async def _load_record(self, key: str) -> StoredSession:
        """Return the stored session of a key, which has not ended."""
        stored = await self.store.read(LoadSession(key))
        if stored is None or stored.ended:
            raise ErrorCode.INTERNAL.error("a session that is open has a record")
        return stored

    def _seed_is_gone(self, session: ClientSession) -> None:
        """Remove what only the seed protected, now that it is erased."""
        key = record_key(self._identity, session.session_id)
        self._ends[key] = _outcome_deadline(session.descriptor)
        self._drop_upload(session.session_id)

    def _discard_session(self, offered: SessionDescriptor) -> None:
        self._live.pop(offered.session_id, None)
        self._ends.pop(record_key(self._identity, offered.session_id), None)
        self._drop_upload(offered.session_id)

    def _drop_upload(self, session_id: bytes) -> None:
        self._bound.discard(session_id)
        self.store.delete_other_uploads(self._bound)


def _end_of(stored: StoredSession) -> int:
    """Return when an open session ends by itself, in Unix seconds."""
    offered = offer_of(stored)
    if is_answered(stored.header):
        return _outcome_deadline(offered)
    has_bound = bool(bound_input_of(stored))
    return offered.session_end + (HEARING_SECONDS if has_bound else 0)


def _outcome_deadline(offered: SessionDescriptor) -> int:
    # No seed is left of a session that was answered, and its sum may come later: the
    # removal of masks is the aggregator's, and takes no part of any round.
    return offered.session_end + offered.parameters.deadlines.longest_session


def _past_end_error(offered: SessionDescriptor) -> SessionAbortedError:
    """Return the error of a session that is over by its own end."""
    return _aborted_error(
        ErrorCode.DEADLINE,
        f"session {offered.session_number} of task {offered.task_id!r} is over by its "
        "own end",
    )


def _aborted_error(code: ErrorCode, reason: str) -> SessionAbortedError:
    fix = "Take part in the next session of the task."
    return code.error(reason, kind=SessionAbortedError, fix=fix)


def encode_input(
    session: ClientSession, given: GivenVector, bound: bytes
) -> EncodedInput:
    """Return the input of a session: with noise, where the task has any.

    Args:
        session: That needs an input.
        given: What its owner has given.
        bound: Digest of the input that was bound before, or b"".

    Raises:
        InputError: In a task without noise: the vector cannot be used.
    """
    descriptor = session.descriptor
    if not descriptor.parameters.noise_block:
        if isinstance(given.vector, Unusable):
            raise ErrorCode.BAD_INPUT.error(
                f"there is no vector: {given.vector.reason}",
                fix="Give one while the session lasts, or leave it.",
            )
        whole = encode_integers(given.vector, descriptor.parameters)
        return EncodedInput(whole, shortened_by=1.0)
    task = NoisyTask.of_session(descriptor)
    found = encode_or_zeros(
        task,
        given.vector,
        session_id=session.session_id,
        secrets=session.noise_secrets,
        bound=bound,
    )
    vector = found.encoded.vector
    if given.reveals_selection and task.selection_rate != 1:
        return EncodedInput(vector)
    if found.replaced is None:
        return EncodedInput(vector, shortened_by=found.encoded.shortened_by)
    _log_session(
        telemetry.ZEROS_GIVEN,
        descriptor,
        level=logging.WARNING,
        task=descriptor.task_id,
        reason=found.replaced.kind.value,
    )
    return EncodedInput(vector, replaced=found.replaced.reason)


def _outcome_of(offered: SessionDescriptor, ending: Ending) -> SessionOutcome:
    """Return a session that has released a sum, as its receipt has it."""
    if not isinstance(ending.state, client.Completed):
        raise ErrorCode.INTERNAL.error("a session that has failed has released no sum")
    # Whether a ring was cut is found when a client answers, and not stored.
    return SessionOutcome(
        offered,
        ending.state.outcome,
        is_certain=offered.parameters.is_complete_graph,
        audit=ending.audit,
    )


def _is_final(state: client.Failed, last: Envelope | None) -> bool:
    """Whether a session has ended as the aggregator says, and not by its fault."""
    if last is None or last.kind is not Aborted:
        return False
    try:
        stated = Aborted.decode(last.data)
    except RemoteProtocolError:
        return False
    return (stated.code, stated.reason) == (state.code, state.reason)


def _bound_input(state: client.ClientState) -> bytes:
    return state.bound_input if isinstance(state, client.Masked) else b""


def parse_update(update: bytes) -> Envelope | None:
    """Read an update; None for none.

    Raises:
        LocalProtocolError: It is not bytes.
        RemoteProtocolError: BAD_ENCODING; the bytes are no message.
    """
    check_kind("update", update, bytes, make=_OF_THE_AGGREGATOR)
    if not update:
        return None
    kind = KINDS.get(update[0])
    if kind is None:
        raise ErrorCode.BAD_ENCODING.error("the bytes are no message")
    return Envelope(kind, update[1:])


def _log_session(
    name: str,
    offered: SessionDescriptor,
    *,
    level: int = logging.INFO,
    **facts: str,
) -> None:
    """Log one event of a session."""
    telemetry.log_event(
        _LOG, level, name, session=offered.session_id.hex()[:16], **facts
    )
