"""The sessions of one open client: what a call of `StepClient` does, step by step.

Its coroutines wait for the store and the gate alone, and for nothing where both answer
at once.  `secagg.client.step_client` makes one call after the other, and says the rules
by which they go.
"""

import logging
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from secagg.client.admission import Admission
from secagg.client.budget import peer_of
from secagg.client.contribution import (
    Contribution,
    Residues,
    check_hash_of_sum,
    check_size_of_sum,
    contribution_of,
    read_residues,
)
from secagg.client.data_usage import DataUsage
from secagg.client.gate import AdmittedSession, Need, SessionInfo
from secagg.client.session import (
    UNKNOWN_PAST,
    ClientSession,
    bound_input_of,
    offer_of,
    record_key,
)
from secagg.client.storage import ClientStorage
from secagg.crypto.entropy import Entropy
from secagg.distributed_dp import NoisyTask, Unusable, encode_or_zeros
from secagg.distributed_dp.plain_sums import encode_integers
from secagg.errors import (
    ErrorCode,
    InputError,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    SessionAbortedError,
)
from secagg.protocol import refund
from secagg.protocol.client import machine as client
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
from secagg.protocol.masking import mask_input
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Envelope,
    Message,
    Released,
    Round,
    Upload,
)
from secagg.protocol.packing import pack
from secagg.protocol.vectors import as_vector
from secagg.runtime import log_events as telemetry
from secagg.storage.budget_ledger import BudgetKey, budget_of
from secagg.storage.change import Role
from secagg.storage.client_store import ClientStore
from secagg.storage.journal import Ending, decode_ending, is_answered
from secagg.storage.queries import ListCharges, ListSessions, LoadSession, ReadTally
from secagg.storage.retention import purge_once
from secagg.storage.rows import Retention, StoredSession

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)


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
            clipping left of it, 1.0 if it fitted; None for any other call, and where a
            secret selection would be told by it.  Tell it to the owner alone.
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
    """

    vector: object = field(repr=False)
    payload_hash: bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
    """A session that is not over, as this object drives it."""

    session: ClientSession
    info: SessionInfo


class OpenClient:
    """The state of one client while it is open.

    Args:
        identity: The client's name.
        aggregator: Whose sessions it takes part in.
        trust_domain: Of the aggregator; None where the carrier proves none.
        tasks: That it takes part in; None for all.
        store: Of the client.
        storage: The same, with what follows from it.
        admission: Asks the gate.
        entropy: Where seeds come from.
        keep_upload: Keep masked inputs in files.

    Attributes:
        store: Of the client.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        identity: str,
        *,
        aggregator: str,
        trust_domain: str | None,
        tasks: frozenset[str] | None,
        store: ClientStore,
        storage: ClientStorage,
        admission: Admission,
        entropy: Entropy,
        keep_upload: bool,
    ) -> None:
        self.store: Final = store
        self._identity = identity
        self._aggregator = aggregator
        self._trust_domain = trust_domain
        self._tasks = tasks
        self._peer = peer_of(aggregator, trust_domain=trust_domain)
        self._storage = storage
        self._admission = admission
        self._entropy = entropy
        self._keep_upload = keep_upload
        self._live: dict[bytes, _Live] = {}
        # When open sessions end by themselves, in Unix seconds, by their key.
        self._ends: dict[str, int] = {}
        self._bound: set[bytes] = set()

    async def begin(self, retention: Retention) -> None:
        """Read which sessions are open, end those whose time is over, and tidy up.

        Raises:
            ServiceError: STORAGE_FAILED or STATE_DAMAGED.
        """
        if self._admission.total is not None:
            await self._admission.total.open()
        for row in await self.store.read(ListSessions(role=Role.CLIENT)):
            stored = await self._record(row.key)
            self._ends[row.key] = _end_of(stored)
            if bound_input_of(stored):
                self._bound.add(offer_of(stored).session_id)
        await self._end_past()
        self.store.keep_uploads(self._bound)
        await purge_once(self.store, retention, _LOG)

    # --- what a carrier asks ----------------------------------------------------------

    async def step(
        self,
        offer: bytes,
        update: bytes,
        given: GivenVector | None,
        *,
        revocations: bytes | None,
    ) -> ClientStep:
        """Take part in a session; see `StepClient.step`."""
        offered, envelope = self._read(offer), _opened(update)
        await self._end_past(but=offered.session_id)
        known = await self._known(offered) or await self._joined(offered, revocations)
        if isinstance(known, Need):
            return ClientStep(needs=frozenset({known}))
        if isinstance(known, Ending):
            return self._told(offered, known)
        try:
            return await self._driven(known, envelope, given)
        except (RemoteProtocolError, SessionAbortedError) as error:
            await self._leave(known.session, error)
            raise

    async def check_offer(
        self, offer: bytes, *, revocations: bytes | None
    ) -> SessionInfo:
        """Check an offer; see `StepClient.check_offer`."""
        offered = self._read(offer)
        await self._end_past(but=offered.session_id)
        known = await self._known(offered)
        if isinstance(known, _Live):
            return known.info
        admitted = await self._checked(offered, revocations)
        if isinstance(admitted, Need):
            raise LocalProtocolError(
                "the offer names a revocation list, and it was not given",
                next_step="Fetch the list and give it as revocations.",
            )
        return admitted.info

    async def read_sum(self, offer: bytes, packed: bytes) -> Contribution:
        """Read a released sum; see `StepClient.read_sum`."""
        offered = SessionDescriptor.decode(offer)
        known = await self._known(offered)
        if not isinstance(known, Ending) or isinstance(known.state, client.Failed):
            raise LocalProtocolError(
                "the session has released no sum to this client",
                next_step="Give the session's updates to step until it is over.",
            )
        released, parameters = known.state.outcome, offered.parameters
        check_size_of_sum(released, parameters)
        check_hash_of_sum(released, packed)
        found = self._contribution(
            offered, released, known.audit, residues=read_residues(packed, parameters)
        )
        return replace(found, sessions_left=await self.sessions_left(offered.task_id))

    async def leave(self, offer: bytes, reason: str) -> None:
        """Leave a session; see `StepClient.leave`."""
        known = await self._known(SessionDescriptor.decode(offer))
        if known is None:
            raise LocalProtocolError(
                "this client has never joined the session",
                next_step="Call step with its offer first.",
            )
        if isinstance(known, _Live):
            error = ErrorCode.CANCELLED.error(reason, kind=SessionAbortedError)
            await self._leave(known.session, error)

    async def data_use(self) -> DataUsage | None:
        """Return what is claimed of the data; None without a total."""
        total = self._admission.total
        return None if total is None else await total.use()

    async def sessions_left(self, task: str) -> int | None:
        """Return how many more sessions the budget of a task covers."""
        key = BudgetKey(
            trust_domain=self._trust_domain or "",
            aggregator=self._aggregator,
            task=task,
        )
        rows = await self.store.read(ListCharges(task))
        charges = [row for row in rows if row.budget == key]
        if not charges:
            return None
        last = charges[-1]
        return budget_of(charges, key, allowed=last.allowed, refunds=last.refunds).left

    # --- which session ----------------------------------------------------------------

    def _read(self, offer: bytes) -> SessionDescriptor:
        """Read an offer of a task that this client takes part in.

        Raises:
            RemoteProtocolError: BAD_ENCODING, or BAD_CONFIG for another task.
        """
        offered = SessionDescriptor.decode(offer)
        if self._tasks is not None and offered.task_id not in self._tasks:
            raise ErrorCode.BAD_CONFIG.error(
                f"the session is of task {offered.task_id!r}, and this client takes "
                "part in others",
                fix="Give the name of the task in tasks, if its owner agrees: "
                "each task has a budget of its own.",
            )
        return offered

    async def _known(self, offered: SessionDescriptor) -> _Live | Ending | None:
        """Return a session that this client has joined; None for any other.

        Raises:
            RemoteProtocolError: UNAUTHENTICATED; it is another aggregator's.  Any
                other code: the client's rules have become stricter, and it is left.
            SessionAbortedError: It is left: its time is over, or the state was
                restored while it was open.
            ServiceError: BAD_CREDENTIAL; it was begun with another identity.
        """
        live = self._live.get(offered.session_id)
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
        session = await self._resumed(stored)
        if client.is_over(session.state):  # the owner's rules have become stricter
            raise await self._concluded_error(session, by_server=False)
        try:
            admitted = await self._admission.check_again(
                session, aggregator=self._aggregator, trust_domain=self._trust_domain
            )
        except (RemoteProtocolError, SessionAbortedError) as error:
            await self._leave(session, error)
            raise
        live = self._live[offered.session_id] = _Live(session, admitted.info)
        return live

    async def _resumed(self, stored: StoredSession) -> ClientSession:
        session = ClientSession.of_record(
            stored,
            self._identity,
            store=self.store,
            workers=self._admission.workers,
            policy=self._admission.rules.policy,
            now=self._admission.date(),
            trust_domain=self._trust_domain,
            enrolment=self._admission.enrolment,
        )
        if stored.restored:
            await session.end_as(UNKNOWN_PAST)
            self._forget(session)
            raise SessionAbortedError(UNKNOWN_PAST.reason, code=UNKNOWN_PAST.code)
        return session

    async def _checked(
        self, offered: SessionDescriptor, revocations: bytes | None
    ) -> AdmittedSession | Need:
        tally = await self.store.read(
            ReadTally(Role.CLIENT, offered.task_id, peer=self._peer)
        )
        return await self._admission.check(
            offered,
            aggregator=self._aggregator,
            trust_domain=self._trust_domain,
            highest_number=tally.highest_number,
            revocations=revocations,
        )

    async def _joined(
        self, offered: SessionDescriptor, revocations: bytes | None
    ) -> _Live | Need:
        """Join a session that is offered, or say what is needed to decide."""
        admitted = await self._checked(offered, revocations)
        if isinstance(admitted, Need):
            return admitted
        await self._end_earlier(offered)
        await self._admission.remember(offered, revocations)
        session = await ClientSession.begin(
            offered,
            self._identity,
            aggregator=self._aggregator,
            trust_domain=self._trust_domain,
            store=self.store,
            workers=self._admission.workers,
            policy=self._admission.rules.policy,
            entropy=self._entropy,
            now=int(self._admission.date()),
            membership=admitted.membership,
            total=self._admission.total,
        )
        key = record_key(self._identity, offered.session_id)
        self._ends[key] = offered.session_end
        _log(telemetry.SESSION_OPENED, offered)
        live = self._live[offered.session_id] = _Live(session, admitted.info)
        return live

    # --- what happens in it -----------------------------------------------------------

    async def _driven(
        self, live: _Live, envelope: Envelope | None, given: GivenVector | None
    ) -> ClientStep:
        session, kind = live.session, None if envelope is None else envelope.kind
        self._check_end(session, kind)
        if envelope is not None:
            had_answered = isinstance(session.state, client.Answered)
            await session.apply(Received(envelope))
            if isinstance(session.state, client.Completed):
                return await self._completed(live)
            if client.is_over(session.state):
                raise await self._concluded_error(session, by_server=kind is Aborted)
            if isinstance(session.state, client.Answered) and not had_answered:
                self._seed_is_gone(session)
        messages = self._messages(session, session.pending_outputs())
        done = ClientStep(messages, session=live.info, round=session.round)
        if not session.needs_input:
            return done
        return await self._input(live, done, given)

    async def _input(
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
        vector, shortened_by, replaced = self._encoded(session, given.vector, bound)
        uploads: list[bytes] = []

        def keep(state: client.ClientState, outputs: tuple[ClientOutput, ...]) -> None:
            uploads.extend(self._messages(session, outputs))
            if self._keep_upload:
                (upload,) = uploads
                self.store.put_upload(session.session_id, _bound_input(state), upload)

        await session.apply(InputReady(vector), first=keep)
        self._bound.add(session.session_id)
        return replace(
            done,
            messages=(*done.messages, *uploads),
            shortened_by=shortened_by,
            replaced=replaced,
        )

    def _encoded(
        self, session: ClientSession, given: object, bound: bytes
    ) -> tuple[PlainVector | NoisyVector, float | None, str | None]:
        """Return the input of a session, by how much it was shortened, why zeros."""
        descriptor = session.descriptor
        if not descriptor.parameters.noise_block:
            if isinstance(given, Unusable):
                raise InputError(
                    f"there is no vector: {given.reason}",
                    next_step="Give one while the session lasts, or leave it.",
                )
            return encode_integers(as_vector(given), descriptor.parameters), 1.0, None
        task = NoisyTask.of_session(descriptor)
        found = encode_or_zeros(
            task,
            given,
            session_id=session.session_id,
            secrets=session.noise_secrets,
            bound=bound,
        )
        if found.replaced is not None:
            _log(
                telemetry.ZEROS_GIVEN,
                descriptor,
                level=logging.WARNING,
                reason=found.replaced.kind.value,
            )
            return found.encoded.vector, None, found.replaced.reason
        is_drawn = task.selection_rate != 1
        shortened_by = None if is_drawn else found.encoded.shortened_by
        return found.encoded.vector, shortened_by, None

    @staticmethod
    def _check_payload(offered: SessionDescriptor, given: GivenVector) -> None:
        if isinstance(given.vector, Unusable):
            return
        if offered.payload_hash and not given.payload_hash:
            raise LocalProtocolError(
                "the session hands out a payload, and the vector was given without the "
                "hash of what it was made from",
                next_step="Give payload_hash=sha256(payload).digest(), computed from "
                "the payload that was used.",
            )
        if given.payload_hash != offered.payload_hash:
            raise ErrorCode.PAYLOAD_MISMATCH.error(
                "the vector was made from another payload than the session's",
                fix="Fetch the payload of this session; if its hash differs "
                "again, tell the operator.",
            )

    def _check_end(self, session: ClientSession, kind: type[Message] | None) -> None:
        """Say nothing in a session after its end but an answer (R5-7).

        Raises:
            SessionAbortedError: DEADLINE.
        """
        if kind in (Aborted, Released) or isinstance(session.state, client.Answered):
            return
        if self._admission.date() >= session.descriptor.session_end:
            raise _past(session.descriptor)

    def _messages(
        self, session: ClientSession, outputs: tuple[ClientOutput, ...]
    ) -> tuple[bytes, ...]:
        said: list[bytes] = []
        for output in outputs:
            if isinstance(output, Send):
                said.append(_closed(output.envelope))
            elif isinstance(output, MaskAndUpload):
                bits = session.descriptor.parameters.bits
                packed = pack(mask_input(output.vector.residues, output.job), bits)
                named = Upload(len(packed), sha256(packed).digest(), output.view)
                said.append(_closed(Envelope.of(named)) + packed)
        return tuple(said)

    # --- its end ----------------------------------------------------------------------

    async def _completed(self, live: _Live) -> ClientStep:
        session = live.session
        audit = await self._erased(session)
        self._forget(session)
        _log(telemetry.SESSION_COMPLETED, session.descriptor)
        state = session.state
        if not isinstance(state, client.Completed):
            raise InternalError("a session that has released a sum has completed")
        return self._told(session.descriptor, Ending(state, audit))

    def _told(self, offered: SessionDescriptor, ending: Ending) -> ClientStep:
        """Say how a session has ended, the same every time."""
        if isinstance(ending.state, client.Failed):
            raise SessionAbortedError(
                ending.state.reason,
                code=ending.state.code,
                next_step="Take part in the next session of the task.",
            )
        contribution = self._contribution(offered, ending.state.outcome, ending.audit)
        task = contribution.privacy
        noisy = None if task is None else NoisyTask.of_session(offered)
        dimension = offered.parameters.dimension if noisy is None else noisy.dim
        return ClientStep(
            is_over=True,
            session=SessionInfo(offered, dimension, contribution.privacy),
            round=Round.FINISHED,
            contribution=contribution,
        )

    def _contribution(
        self,
        offered: SessionDescriptor,
        released: Released,
        audit: bytes,
        *,
        residues: Residues | None = None,
    ) -> Contribution:
        # Whether a ring was cut is found when a client answers, and not stored.
        return contribution_of(
            offered,
            released,
            audit=audit,
            residues=residues,
            report_of=self._storage.report_of,
            is_certain=offered.parameters.is_complete_graph,
        )

    async def _concluded_error(
        self, session: ClientSession, *, by_server: bool
    ) -> SecAggError:
        """End a session that has failed; return what its caller is told."""
        state = session.state
        if not isinstance(state, client.Failed):
            raise InternalError("a session that has not failed has no error")
        await self._erased(session)
        self._forget(session)
        _log(telemetry.SESSION_ABORTED, session.descriptor, code=state.code.name)
        if by_server or state.code is ErrorCode.SESSION_OVER:  # R5.6-4
            return SessionAbortedError(
                state.reason,
                code=state.code,
                next_step="Take part in the next session of the task.",
            )
        return RemoteProtocolError(state.reason, code=state.code)

    async def _leave(
        self, session: ClientSession, error: RemoteProtocolError | SessionAbortedError
    ) -> None:
        """End a session for this client, unless that has been done."""
        if record_key(self._identity, session.session_id) not in self._ends:
            return
        if not client.is_over(session.state):
            await session.apply(AbortRequested(error.code, str(error)))
        await self._erased(session)
        self._forget(session)
        _log(telemetry.SESSION_ABORTED, session.descriptor, code=error.code.name)

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
            session_id = offer_of(stored).session_id
            live = self._live.get(session_id)
            if live is not None:
                await self._leave(live.session, why)
            else:
                await self._end_record(stored, why)

    async def _end_past(self, *, but: bytes = b"") -> None:
        """End all sessions whose time is over, of every task and name."""
        now, kept = self._admission.date(), record_key(self._identity, but)
        for key, end in tuple(self._ends.items()):
            if now < end or key == kept:
                continue
            stored = await self._record(key)
            offered = offer_of(stored)
            is_own = key == record_key(self._identity, offered.session_id)
            live = self._live.get(offered.session_id) if is_own else None
            if live is not None:
                await self._leave(live.session, _past(offered))
            else:
                await self._end_record(stored, _past(offered))

    async def _end_record(
        self, stored: StoredSession, why: SessionAbortedError
    ) -> None:
        """End a session by its record alone; its charge is kept."""
        offered = offer_of(stored)
        ended = client.Failed(why.code, str(why), refund.Charge.KEPT)
        session = ClientSession.of_ended(
            stored,
            offered,
            ended,
            store=self.store,
            workers=self._admission.workers,
            policy=self._admission.rules.policy,
        )
        await self._erased(session)
        self._ends.pop(stored.key, None)
        self._bound.discard(offered.session_id)
        self.store.keep_uploads(self._bound)
        _log(telemetry.SESSION_ABORTED, offered, code=why.code.name)

    @staticmethod
    async def _erased(session: ClientSession) -> bytes:
        """Erase a session that is over; return its receipt."""
        if not isinstance(session.state, client.Completed | client.Failed):
            raise InternalError("a session that is not over is not erased")
        return await session.end_as(session.state)

    async def _record(self, key: str) -> StoredSession:
        stored = await self.store.read(LoadSession(key))
        if stored is None or stored.ended:
            raise InternalError("a session that is open has a record")
        return stored

    def _seed_is_gone(self, session: ClientSession) -> None:
        """Remove what only the seed protected, now that it is erased."""
        key = record_key(self._identity, session.session_id)
        self._ends[key] = _heard_until(session.descriptor)
        self._bound.discard(session.session_id)
        self.store.keep_uploads(self._bound)

    def _forget(self, session: ClientSession) -> None:
        self._live.pop(session.session_id, None)
        self._ends.pop(record_key(self._identity, session.session_id), None)
        self._bound.discard(session.session_id)
        self.store.keep_uploads(self._bound)


def _end_of(stored: StoredSession) -> int:
    """Return when an open session ends by itself, in Unix seconds."""
    offered = offer_of(stored)
    if is_answered(stored.header):
        return _heard_until(offered)
    return offered.session_end


def _heard_until(offered: SessionDescriptor) -> int:
    # No seed is left of a session that was answered, and its sum may come later: the
    # removal of masks is the aggregator's, and takes no part of any round.
    return offered.session_end + offered.parameters.deadlines.longest_session


def _past(offered: SessionDescriptor) -> SessionAbortedError:
    return ErrorCode.DEADLINE.error(
        f"session {offered.session_number} of task {offered.task_id!r} is over by its "
        "own end",
        fix="Take part in the next session of the task.",
        kind=SessionAbortedError,
    )


def _bound_input(state: client.ClientState) -> bytes:
    return state.bound_input if isinstance(state, client.Masked) else b""


def _closed(envelope: Envelope) -> bytes:
    return bytes([envelope.kind.KIND]) + envelope.data


def _opened(update: bytes) -> Envelope | None:
    """Read an update; None for none.

    Raises:
        RemoteProtocolError: BAD_ENCODING; the bytes are no message.
    """
    if not update:
        return None
    kind = KINDS.get(update[0])
    if kind is None:
        raise ErrorCode.BAD_ENCODING.error("the bytes are no message")
    return Envelope(kind, update[1:])


def _log(
    name: str,
    offered: SessionDescriptor,
    *,
    level: int = logging.INFO,
    **facts: str,
) -> None:
    telemetry.log_event(
        _LOG, level, name, session=offered.session_id.hex()[:16], **facts
    )
