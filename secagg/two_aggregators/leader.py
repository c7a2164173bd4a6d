"""The leader: stores clients' vector shares, asks the helper, and releases noisy sums.

Rule 1: a session is bound to one of the helper's. It accepts one share from each client
        until all have sent one or the time is over, then names the clients to the
        helper.
Rule 2: the helper's answer is checked: the leader has named all its clients, there are
        enough of them, and it has one vector. Then the set, the digest of the answer
        and a noise seed are stored. Only then the leader adds up its shares over
        exactly that set.
Rule 3: nothing is released without the leader's own noise.
Rule 4: after a restart the session resumes from its last record. The helper repeats its
        answer, and the noise seed stays the same. A session restored from a backup is
        ended instead.
Rule 5: a refusal by the helper ends the session. An invalid answer is the helper's
        fault. Callers receive a different error for each.

The leader never sees a seed, nor a vector.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from secagg.client.calls import ClientCalls
from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.modular import add_into, reduce_in_place
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Aborted, Envelope, Fate, Released, Round, Upload
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.runtime import metrics
from secagg.runtime.clock import wait_set
from secagg.runtime.log_events import SESSION_ABORTED, SESSION_COMPLETED, SESSION_OPENED
from secagg.server.rpc.limits import UploadSlots
from secagg.server.session.uploads import UploadReceiver
from secagg.server.task.history import TaskHistory
from secagg.server.telemetry.measures import GaugeSample
from secagg.storage.change import NewSession, Record, Side
from secagg.storage.integrity_check import SpoolUse
from secagg.storage.queries import ListSessions, ReadTally
from secagg.storage.rows import SessionRow, SessionState, SessionTally, StoredSession
from secagg.storage.spool import SUM
from secagg.transport.connection import AggregatorConnection
from secagg.two_aggregators.leader_outcome import (
    AgreedAnswer,
    HelperAnswer,
    LeaderOutcome,
    TwoAggregatorSum,
)
from secagg.two_aggregators.messages import (
    MAX_PART_BYTES,
    AcceptedShares,
    read_names,
    sum_of_uploads,
    write_names,
)
from secagg.two_aggregators.offers import check_pair, highest_accepted
from secagg.two_aggregators.party import (
    FINAL_REFUSALS,
    POLL_SECONDS,
    UNAVAILABLE_CODES,
    Party,
    PartyOptions,
    SessionLog,
    budget_spent_error,
    no_offer_error,
    no_such_session,
    participations_given,
    refused_by_helper,
    second_upload,
    unsupported,
)
from secagg.wire.calls import (
    MAX_DESCRIPTOR_BYTES,
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Request,
    UploadChunk,
    UploadStatus,
    Wait,
)

_Read = TypeVar("_Read")

_SHARE: Final = 1
_CLOSED: Final = 2
_AGREED: Final = 3
_COUNTER_BYTES: Final = 8
# A receipt shows the signatures here, as a quorum does in other sessions.
_FETCHED: Final = frozenset({Blob.SUM, Blob.QUORUM})


@dataclass(slots=True)
class _Session:
    """The open session: it accepts shares, or computes its sum."""

    offer: SessionDescriptor
    helper: SessionDescriptor
    noise: AggregatorNoise
    log: SessionLog
    receiver: UploadReceiver
    uploads: dict[str, Upload] = field(default_factory=dict)
    lost: dict[str, Upload] = field(default_factory=dict)  # accepted, and gone since
    named: tuple[str, ...] | None = None
    agreed: AgreedAnswer | None = None
    is_full: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def accepts_shares(self) -> bool:
        """Whether the list for the helper is still open."""
        return self.named is None

    @property
    def shares_held(self) -> int:
        """Number of clients whose shares are stored."""
        return len(self.uploads)


class Leader(Party[_Session]):
    """The service of the leader; serve it with `GrpcServer`.

    Args:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        helper: Connection to the helper, with a certificate under the leader's name.
        helper_key: The helper's receipt key, 32 bytes, from its operator.
        options: See `PartyOptions`.

    Raises:
        RemoteProtocolError: BAD_CONFIG; not a task between two aggregators.
    """

    is_leader = True

    def __init__(
        self,
        task: str,
        noise: AggregatorNoise,
        *,
        helper: AggregatorConnection,
        helper_key: bytes,
        **options: Unpack[PartyOptions],
    ) -> None:
        super().__init__(task, noise, **options)
        self._helper = helper
        self._helper_key = helper_key
        self._last: tuple[bytes, LeaderOutcome] | None = None
        self._slots = UploadSlots()
        self._calls = ClientCalls(
            helper, self._clock, self._entropy, self._workers, watch=False
        )
        self._is_summing = False
        self._is_waiting = False
        self._is_over = False
        self._helper_answers: bool | None = None
        self._history: TaskHistory | None = None

    async def recover(self) -> None:
        """Load the state from the store, and delete the shares of ended sessions."""
        self._history = None  # read again when it is needed
        await super().recover()
        live = None if self._live is None else self._live.offer.session_id
        for session_id in await self._workers.run(self._storage.spool.session_ids):
            if session_id != live:
                await self._workers.run(self._storage.spool.drop_uploads, session_id)

    async def next_sum(self) -> TwoAggregatorSum:
        """Run one session, or finish one of an earlier process.

        Returns:
            Its sum, which clients can fetch from now on.

        Raises:
            SessionAbortedError: Too few shares arrived, or the helper did not answer or
                refused. Once `may_serve` is false, the helper will always refuse.
            RemoteProtocolError: The helper's answer is invalid.
            ServiceError: TASK_OVER when the task has released all its sums;
                STORAGE_FAILED: try again, nothing is lost.
            LocalProtocolError: Another call is already running a session.
        """
        if self._is_summing:
            raise ErrorCode.LOCAL_MISUSE.error("a leader computes one sum at a time")
        self._is_summing = True
        try:
            if self._must_reload:
                await self.recover()  # how far the last call came
            self._must_reload = True
            session = self._live or await self._open_session()
            await self._collect(session)
            released = await self._release(session)
            self._must_reload = False
            return released
        finally:
            self._is_summing = False

    @property
    def is_working(self) -> bool:
        """Whether a session is open, from its offer to its sum."""
        return self._is_summing and not self._is_waiting

    # --- calls ------------------------------------------------------------------------

    async def _answer_call(self, identity: str, request: Request[Any]) -> object:
        """Answer a call of a client."""
        match request:
            case GetOffer():
                self._check_task(request)
                if self._is_over:
                    raise budget_spent_error(self._task)
                await self._check_participations(identity)
                return self._usable_offer(request.after_session)
            case GetUploadStatus():
                session = self._collecting(request.session_id)
                if identity in session.uploads:
                    return session.receiver.finished()
                return await session.receiver.status(identity)
            case UploadChunk():
                return await self._receive_chunk(identity, request)
            case GetUpdate():
                return await self._answer_update(identity, request)
            case FetchChunk() if request.blob in _FETCHED:
                return await self._fetch_piece(identity, request)
            case _:
                raise unsupported(identity, request)

    async def _receive_chunk(self, identity: str, chunk: UploadChunk) -> UploadStatus:
        """Store a chunk of a client's share, while the session accepts shares."""
        session = self._collecting(chunk.session_id)
        known = session.uploads.get(identity) or session.lost.get(identity)
        if known is not None and known.digest != chunk.digest:
            raise second_upload(identity)
        if identity in session.uploads:
            return session.receiver.finished()
        if session.named is not None or session.is_full.is_set():
            raise no_such_session()
        return await session.receiver.receive(identity, chunk)

    async def _accept_share(
        self, session: _Session, name: str, envelope: Envelope
    ) -> None:
        """Store a whole share, unless the list for the helper is closed."""
        upload = Upload.decode(envelope.data)
        async with self._lock:
            if session.named is not None or session.is_full.is_set():
                raise no_such_session()
            if session.lost.pop(name, None) is None:  # else it is recorded
                await session.log.append(Record(_SHARE, name, upload.encode()))
            session.uploads[name] = upload
            if len(session.uploads) == session.offer.parameters.max_clients:
                session.is_full.set()

    async def _answer_update(
        self, identity: str, request: GetUpdate
    ) -> Envelope | Wait:
        """Return the outcome of a session, or tell the client to wait."""
        live = self._live
        if live is not None and live.offer.session_id == request.session_id:
            return Wait(POLL_SECONDS)
        ended = await self._load_outcome(request.session_id)
        if identity not in ended.held:
            raise no_such_session()
        return ended.update_for(identity)

    async def _fetch_piece(self, identity: str, request: FetchChunk) -> BlobChunk:
        """Return a piece of the released sum, or of the client's receipt."""
        ended = await self._load_outcome(request.session_id)
        if identity not in ended.held:
            raise no_such_session()
        if request.blob is Blob.SUM:
            # The spool may hold a sum of a session that was aborted before the release.
            if not isinstance(ended.outcome, Released):
                raise no_such_session()
            return await self._piece_of_sum(request)
        receipt = await self._workers.run(ended.receipt_for, identity)
        start = request.offset
        end = min(len(receipt), start + request.max_bytes)
        return BlobChunk(receipt[start:end], len(receipt))

    async def _load_outcome(self, session_id: bytes) -> LeaderOutcome:
        """Return the outcome of a session; the last one is kept in memory."""
        if self._last is None or self._last[0] != session_id:
            receipt = await self._receipt_of(session_id)
            ended = await self._workers.run(LeaderOutcome.decode, receipt)
            self._last = session_id, ended
        return self._last[1]

    # --- a session --------------------------------------------------------------------

    async def _open_session(self) -> _Session:
        """Open a session on the helper's next offer, and store both offers."""
        tally = await self._storage.store.read(ReadTally(Side.SERVER, self._task))
        facts = await self._task_history()
        if tally.spent >= self._max_sessions or facts.sums >= self._steps:
            self._is_over, self._helper_answers = True, None
            raise budget_spent_error(self._task)
        if not self.may_open:
            self._is_waiting, self._helper_answers = True, None  # not asked
            await self._may_open.wait()
            self._is_waiting = False
        parameters, date = self._noise.parameters, int(self._clock.date())
        known = int.from_bytes(tally.facts[:_COUNTER_BYTES], "big")
        try:
            self._calls.bind(None)
            self._calls.has_been_answered = False
            helper = await self._calls.next_offer(
                self._task,
                after_session=known,
                deadline=self._clock.now() + parameters.deadlines.unmasking,
            )
        except (RemoteProtocolError, ServiceError, SessionAbortedError) as error:
            refused = self._helper_error(error)
            if self._calls.has_been_answered and self._calls.failure is None:
                self._helper_answers = True  # with "wait"
                refused = no_offer_error(self._helper.aggregator)
            self._is_over = refused.code in FINAL_REFUSALS
            raise refused from None
        self._helper_answers, self._is_over = True, False
        offer = SessionDescriptor(
            aggregator=self._name,
            task_id=self._task,
            session_number=tally.highest_number + 1,
            server_nonce=helper.session_id,
            session_end=date + parameters.deadlines.longest_session,
            payload_hash=b"",
            parameters=parameters,
        )
        _compare_clocks(helper, date)
        check_pair(offer, helper)
        self._check_helper(helper, known)
        await self._delete_old_sums()  # while no client can upload to the new session
        log = None
        async with self._lock:  # a pause comes before this or after it
            if self.may_open:
                log = await SessionLog.create(
                    self._storage.store,
                    offer.session_id.hex(),
                    NewSession(
                        role=Side.SERVER,
                        task=self._task,
                        number=offer.session_number,
                        header=Writer()
                        .blob(offer.encode())
                        .blob(helper.encode())
                        .getvalue(),
                        allowed=self._max_sessions,
                    ),
                    self._measures,
                    # A session of the helper is used only once.
                    facts=_encode_history(helper.session_number, facts),
                )
        if log is None:
            return await self._open_session()
        session = self._new_session(offer, helper, log)
        self._live = session
        self._log_session(SESSION_OPENED, offer, helper_number=helper.session_number)
        await self._purge()
        return session

    async def _task_history(self) -> TaskHistory:
        """Return the sums of the task, and the clients in them."""
        if self._history is None:
            tally = await self._storage.store.read(ReadTally(Side.SERVER, self._task))
            self._history = history_in(tally)
        return self._history

    async def _check_participations(self, identity: str) -> None:
        """Refuse a client that has used all its participations.

        It saves calls only: the client's own budget enforces the limit.

        Raises:
            ServiceError: TASK_OVER.
        """
        most = self._noise.budget.participations
        given = (await self._task_history()).given.get(identity, 0)
        if given >= most:
            raise participations_given(identity, given=given, most=most)

    async def _delete_old_sums(self) -> None:
        """Delete all sums but the last; clients can no longer fetch an older one.

        Call it only while no session is open, because it deletes that one's shares too.
        """
        kept = {bytes.fromhex(row.key) for row in await self._ended_rows()}
        for session_id in await self._workers.run(self._storage.spool.session_ids):
            if session_id not in kept:
                await self._workers.run(self._storage.spool.remove, session_id)

    def _helper_error(self, error: SecAggError) -> SessionAbortedError:
        """Record whether the helper answered, and return the error of the session."""
        self._helper_answers = error.code not in UNAVAILABLE_CODES
        if isinstance(error, SessionAbortedError):  # after repeated attempts
            return error
        return refused_by_helper(error)

    async def readings(self) -> list[GaugeSample]:
        """Return the party's gauges, and whether the helper answers."""
        found = await super().readings()
        if self._helper_answers is not None:
            answers = float(self._helper_answers)
            found.append((metrics.PEER_ANSWERS, answers, {"which": "helper"}))
        return found

    async def _sums_left(self, sessions: int) -> int:
        """Return how many sums are left; those released count against the steps."""
        return min(sessions, self._steps - (await self._task_history()).sums)

    @property
    def may_serve(self) -> bool:
        """Whether the leader may serve clients: until the task is over."""
        return not self._is_over

    def _check_helper(self, helper: SessionDescriptor, known: int) -> None:
        """Refuse an offer of another aggregator, or of a number out of order."""
        if helper.aggregator != self._helper.aggregator:
            raise ErrorCode.UNAUTHENTICATED.error(
                f"{self._helper.aggregator!r} sent an offer of {helper.aggregator!r}"
            )
        if not known < helper.session_number <= highest_accepted(known):
            raise ErrorCode.BAD_CONFIG.error(
                f"the helper offers session {helper.session_number}; the last was "
                f"{known}",
                sender=helper.aggregator,
                fix="Ask the helper's operator to check its state and its clock.",
            )

    def _new_session(
        self, offer: SessionDescriptor, helper: SessionDescriptor, log: SessionLog
    ) -> _Session:
        """Return a session that receives shares."""

        async def accept(name: str, envelope: Envelope) -> None:
            await self._accept_share(session, name, envelope)

        receiver = UploadReceiver(
            offer.session_id,
            offer.parameters,
            spool=self._storage.spool,
            workers=self._workers,
            slots=self._slots,
            arrived=lambda: None,
            accept=accept,
        )
        # What clients were offered, whatever the settings say by now.
        noise = AggregatorNoise.from_parameters(offer.parameters)
        session = _Session(offer, helper, noise, log, receiver)
        return session

    def _load_session(self, stored: StoredSession) -> _Session:
        """Return a stored session with the shares that it has accepted."""
        reader = Reader(stored.header, "session")
        offer = SessionDescriptor.decode(reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES))
        helper = SessionDescriptor.decode(reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES))
        log = SessionLog.resume(self._storage.store, stored, self._measures)
        session = self._new_session(offer, helper, log)
        session.uploads, session.named = _shares_in(stored)
        for record in stored.records:
            if record.kind == _AGREED:
                session.agreed = AgreedAnswer.decode(record.body)
        if len(session.uploads) >= offer.parameters.max_clients:
            session.is_full.set()
        return session

    async def _collect(self, session: _Session) -> None:
        """Wait for shares, then fix the list of clients for the helper."""
        if session.named is not None:
            digests = {upload.digest for upload in session.uploads.values()}
            await self._read_shares(session, session.receiver.check_stored(digests))
            return
        await self._exclude_lost(session)
        deadlines = session.offer.parameters.deadlines
        # After a long downtime, time must be left to ask the helper.
        left = session.offer.session_end - deadlines.unmasking - self._clock.date()
        seconds = max(0.0, min(float(deadlines.masked_input), left))
        began = self._clock.now()
        is_full = await wait_set(self._clock, began + seconds, session.is_full)
        self._measures.closed(
            Round.MASKED_INPUT_COLLECTION, self._clock.now() - began, is_full=is_full
        )
        await self._exclude_lost(session)
        async with self._lock:
            names = tuple(sorted(session.uploads, key=str.encode))
            writer = Writer()
            write_names(writer, names)
            await session.log.append(Record(_CLOSED, None, writer.getvalue()))
            session.named = names
        least = session.offer.parameters.min_survivors
        if len(names) < least:
            reason = f"{len(names)} clients sent their share, {least} are needed"
            await self._abort(session, ErrorCode.U3_TOO_SMALL, reason)
            raise ErrorCode.U3_TOO_SMALL.error(
                reason,
                kind=SessionAbortedError,
                fix="Invite more clients, or collect for longer.",
            )

    async def _exclude_lost(self, session: _Session) -> None:
        """Take clients with a lost share off the list; they may send it again.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        await session.receiver.search(
            {name: upload.digest for name, upload in session.uploads.items()}
        )
        for name in session.receiver.missing & session.uploads.keys():
            session.lost[name] = session.uploads.pop(name)
            session.is_full.clear()

    async def _read_shares(self, session: _Session, reading: Awaitable[_Read]) -> _Read:
        """Await a read of shares; abort the session if they are permanently lost."""
        try:
            return await reading
        except ServiceError as error:
            is_in_time = self._clock.date() < session.offer.session_end
            if error.code is not ErrorCode.STORAGE_FAILED or is_in_time:
                raise
            reason = f"shares cannot be read: {error}"
            await self._abort(session, error.code, reason)
            raise error.code.error(
                reason, kind=SessionAbortedError, fix=error.next_step
            ) from None

    async def _release(self, session: _Session) -> TwoAggregatorSum:
        """Ask the helper for its answer, fix the noise, and finish the sum."""
        try:
            part = await self._request_helper(session)
        except SecAggError as error:
            await self._abort(
                session, error.code, f"the helper gave no valid answer: {error}"
            )
            raise
        async with self._lock:
            if session.agreed is None:
                seed = SecretBytes(self._entropy.token(SEED_SIZE))
                agreed = AgreedAnswer(part.answer_digest, seed)
                record = Record(_AGREED, None, agreed.encode())
                await session.log.append(record, spend=True)
                session.agreed = agreed
            elif session.agreed.answer_digest != part.answer_digest:
                reason = "the helper has sent a different answer"
                await self._abort(session, ErrorCode.EQUIVOCATION, reason)
                raise ErrorCode.EQUIVOCATION.error(
                    reason, sender=self._helper.aggregator
                )
        return await self._release_sum(session, part, session.agreed)

    async def _request_helper(self, session: _Session) -> HelperAnswer:
        """Send the list of clients, and fetch the helper's part of their sum."""
        parameters, named = session.offer.parameters, session.named or ()
        accepted = AcceptedShares(session.offer.encode(), named).encode()
        deadline = self._clock.now() + parameters.deadlines.unmasking
        try:
            self._calls.bind(session.helper.aggregator)  # R5.0-6
            await self._calls.upload(
                session.helper.session_id,
                accepted,
                digest=sha256(accepted).digest(),
                deadline=deadline,
                on_chunk=lambda _: None,
            )
        except (RemoteProtocolError, ServiceError, SessionAbortedError) as error:
            raise self._helper_error(error) from None
        vector_bytes = packed_size(parameters.dimension, parameters.bits)
        try:
            answer = await self._calls.fetch(
                session.helper.session_id,
                Blob.SUM,
                max_bytes=MAX_PART_BYTES + vector_bytes,
                digest=None,
                deadline=deadline,
            )
        except (ServiceError, SessionAbortedError) as error:
            raise self._helper_error(error) from None
        self._helper_answers = True
        return await self._workers.run(
            HelperAnswer.checked,
            answer,
            session.offer,
            session.helper,
            named,
            self._helper_key,
        )

    async def _release_sum(
        self, session: _Session, part: HelperAnswer, agreed: AgreedAnswer
    ) -> TwoAggregatorSum:
        """Add both parts and the leader's own noise, and release the sum."""
        session_id, spool = session.offer.session_id, self._storage.spool
        with self._measures.sum():
            summing = self._workers.run(self._add_shares, session, part, agreed)
            residues = await self._read_shares(session, summing)
        packed = await self._workers.run(pack, residues, session.offer.parameters.bits)
        await self._workers.run(spool.put, session_id, SUM, packed)
        outcome = Released(
            Fate.INCLUDED,
            await self._workers.sha256(packed),
            len(packed),
            len(part.names),
            0,
        )
        await self._close(session, outcome, part)
        self._log_session(SESSION_COMPLETED, session.offer, inputs=len(part.names))
        return await self._read_sum(await self._load_outcome(session_id))

    async def last_sum(self) -> TwoAggregatorSum | None:
        """Return the sum of the last session again, if that released one.

        Use it after an interruption between the release and the use of a sum.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        ended = await self._last_ended()
        if ended is None or not isinstance(ended.outcome, Released):
            return None
        return await self._read_sum(ended)

    async def last_receipt(self) -> tuple[SessionDescriptor, bytes] | None:
        """Return offer and receipt of the last session, with or without a sum.

        Returns:
            None before the first session has ended.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        ended = await self._last_ended()
        if ended is None:
            return None
        return ended.offer, ended.receipt.encode()

    async def _last_ended(self) -> LeaderOutcome | None:
        for row in await self._ended_rows():
            return await self._load_outcome(bytes.fromhex(row.key))
        return None

    async def _ended_rows(self) -> tuple[SessionRow, ...]:
        """Return the row of the last ended session, if there is one."""
        return await self._storage.store.read(
            ListSessions(
                role=Side.SERVER, task=self._task, state=SessionState.ENDED, limit=1
            )
        )

    async def describe(self, released: TwoAggregatorSum) -> dict[str, object]:
        """Return the fields of a report on a sum, as JSON values.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        tally = await self._storage.store.read(ReadTally(Side.SERVER, self._task))
        return {
            "task": self._task,
            "leader": self._name,
            "helper": self._helper.aggregator,
            **released.facts(),
            "sessions_left_in_budget": self._max_sessions - tally.spent,
        }

    async def _read_sum(self, ended: LeaderOutcome) -> TwoAggregatorSum:
        """Return the released sum from the spool."""
        given, session_id = ended.offer.parameters, ended.offer.session_id
        noise = AggregatorNoise.from_parameters(given)
        found = await self._workers.run(
            self._storage.spool.read, session_id, SUM, 0, None
        )
        if found is None:
            raise no_such_session()
        residues = unpack(found[0], given.dimension, given.bits, given.modulus)
        values = await self._workers.run(
            partial(noise.decode, residues, session_id=session_id)
        )
        return TwoAggregatorSum(
            session_number=ended.offer.session_number,
            session_id=session_id,
            inputs=len(ended.included.names),
            ended=ended.receipt.ended,
            sum_hash=await self._workers.sha256(found[0]),
            noise=noise,
            values=values,
            residues=residues,
        )

    def _add_shares(
        self, session: _Session, part: HelperAnswer, agreed: AgreedAnswer
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Add up the shares, the helper's vector and the leader's noise."""
        parameters, spool = session.offer.parameters, self._storage.spool
        modulus = parameters.modulus
        total = sum_of_uploads(
            (
                partial(
                    spool.read_upload,
                    session.offer.session_id,
                    session.uploads[name].digest,
                )
                for name in part.names
            ),
            parameters,
        )
        add_into(total, part.vector, modulus)
        reduce_in_place(total, modulus)
        return session.noise.add_noise(total, seed=agreed.noise_seed)

    async def _abort_stale(self, session: _Session) -> None:
        await self._abort(session, ErrorCode.RESTORED_STATE, "the state was restored")

    async def _resume(self, session: _Session) -> None:
        """Do nothing: `next_sum` resumes the session."""

    async def _abort(self, session: _Session, code: ErrorCode, reason: str) -> None:
        """Log why a session ends without a sum, and end it."""
        self._log_session(
            SESSION_ABORTED,
            session.offer,
            level=logging.WARNING,
            code=code.name,
            reason=reason,
        )
        await self._close(session, Aborted(Fate.NOT_INCLUDED, code, reason), None)

    async def _close(
        self,
        session: _Session,
        outcome: Released | Aborted,
        part: HelperAnswer | None,
    ) -> None:
        """Sign and store the outcome of a session, then delete its shares."""
        ended = await self._workers.run(self._signed, session, outcome, part)
        facts, stored = await self._task_history(), None
        if part is not None and isinstance(outcome, Released):
            facts = facts.with_sum(part.names)
            stored = _encode_history(session.helper.session_number, facts)
        await session.log.end(ended.encode(), facts=stored)
        self._history = facts
        self._last = session.offer.session_id, ended
        if self._live is session:
            self._live = None
        await self._workers.run(
            self._storage.spool.drop_uploads, session.offer.session_id
        )

    def _signed(
        self, session: _Session, outcome: Released | Aborted, part: HelperAnswer | None
    ) -> LeaderOutcome:
        """Return the signed outcome of a session."""
        held = tuple(sorted(session.uploads, key=str.encode))
        return LeaderOutcome.signed(
            session.offer,
            session.helper,
            held,
            part,
            outcome,
            ended=int(self._clock.date()),
            key=self._receipt_key,
        )


def _shares_in(
    stored: StoredSession,
) -> tuple[dict[str, Upload], tuple[str, ...] | None]:
    """Return the uploads that a session needs, and the names sent to the helper."""
    uploads: dict[str, Upload] = {}
    named: tuple[str, ...] | None = None
    for record in stored.records:
        if record.kind == _SHARE and record.sender is not None:
            uploads[record.sender] = Upload.decode(record.body)
        elif record.kind == _CLOSED:
            named = read_names(Reader(record.body, "names"))
            uploads = {name: uploads[name] for name in named}
    return uploads, named


USE_OF_LEADER: Final = SpoolUse(
    lambda stored: _shares_in(stored)[0],
    lambda stored: isinstance(
        LeaderOutcome.decode(stored.receipt or b"").outcome, Released
    ),
)


def _compare_clocks(offer: SessionDescriptor, date: int) -> None:
    """Refuse to open a session while one of the two clocks is wrong.

    A later attempt may succeed, once the clock is set.

    Raises:
        SessionAbortedError: BAD_CLOCK.
    """
    try:
        offer.check_clock(date)
    except RemoteProtocolError as error:
        raise error.code.error(
            f"the helper's offer: {error}",
            kind=SessionAbortedError,
            fix=error.next_step,
        ) from None


def _encode_history(helper_number: int, facts: TaskHistory) -> bytes:
    """Encode the helper's last session number and the history of the task."""
    return helper_number.to_bytes(_COUNTER_BYTES, "big") + facts.encode()


def history_in(tally: SessionTally) -> TaskHistory:
    """Return the sums of a leader's task, and the clients in them."""
    return TaskHistory.decode(tally.facts[_COUNTER_BYTES:])
