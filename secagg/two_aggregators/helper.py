"""The helper: stores clients' seeds, and answers for one set of each session.

Rule 1: a session begins when the leader asks for one. It accepts one seed from each
        client, bound to one session of the leader.
Rule 2: the set is an intersection: the clients that the leader names, and whose seed is
        stored here. A second list for the same session is always refused. The same list
        gets the same bytes, since set and noise seed are stored before they are used.
Rule 3: the helper does not answer for fewer than `min_survivors` clients, after the
        session's end or beyond the budget of the task, whatever the leader asks.
Rule 4: a session keeps the noise of its offer, even if the settings were changed before
        it was resumed.
Rule 5: a session restored from a backup is not resumed, because nothing shows what it
        has already answered.

The helper never sees the leader's shares, nor a vector.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeVar, Unpack

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.packing import pack
from secagg.protocol.parameters import MAX_CLIENTS
from secagg.runtime.log_events import SESSION_ABORTED, SESSION_COMPLETED, SESSION_OPENED
from secagg.storage.change import NewSession, Record, Side
from secagg.storage.integrity_check import SpoolUse
from secagg.storage.queries import ReadTally
from secagg.storage.rows import StoredSession
from secagg.storage.spool import SUM
from secagg.two_aggregators.messages import (
    MAX_ACCEPTED_BYTES,
    AcceptedShares,
    HelperShare,
    NoisyShare,
    read_names,
    sum_of_seeds,
    write_names,
)
from secagg.two_aggregators.offers import MAX_AHEAD, check_pair, highest_accepted
from secagg.two_aggregators.party import (
    Party,
    PartyOptions,
    SessionLog,
    no_such_session,
    second_upload,
    unsupported,
)
from secagg.two_aggregators.receipt import COMMITMENT_BYTES, NameList, PartStatement
from secagg.wire.calls import (
    MAX_DESCRIPTOR_BYTES,
    Blob,
    FetchChunk,
    GetOffer,
    GetUploadStatus,
    Request,
    UploadChunk,
    UploadStatus,
    Wait,
)

_Result = TypeVar("_Result")

_SHARE: Final = 1
_AGREED: Final = 2


@dataclass(frozen=True, slots=True)
class _Agreed:
    """The set and the noise seed, stored before anything is computed from them."""

    digest: bytes
    leader_offer: bytes
    roster: bytes
    noise_seed: SecretBytes
    names: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().fixed(self.digest).blob(self.leader_offer)
        writer.fixed(self.roster).fixed(self.noise_seed.reveal())
        write_names(writer, self.names)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> "_Agreed":
        """Read what `encode` wrote."""
        reader = Reader(data, "set agreed on")
        digest = reader.fixed(32)
        offer = reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES)
        roster = reader.fixed(COMMITMENT_BYTES)
        seed = SecretBytes(reader.fixed(SEED_SIZE))
        return cls(digest, offer, roster, seed, read_names(reader))


@dataclass(slots=True)
class _Session:
    """The open session: it accepts shares, or computes its answer."""

    offer: SessionDescriptor
    noise: AggregatorNoise
    log: SessionLog
    shares: dict[str, HelperShare] = field(default_factory=dict)
    agreed: _Agreed | None = None

    @property
    def accepts_shares(self) -> bool:
        """Whether no set is fixed yet."""
        return self.agreed is None

    @property
    def shares_held(self) -> int:
        """Number of clients whose shares are stored."""
        return len(self.shares)


class Helper(Party[_Session]):
    """The service of the helper; serve it with `GrpcServer`.

    Args:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        leader: The leader's name, in its offers and in the certificate of its calls.
        options: See `PartyOptions`.

    Raises:
        RemoteProtocolError: BAD_CONFIG; not a task between two aggregators.
    """

    is_leader = False

    def __init__(
        self,
        task: str,
        noise: AggregatorNoise,
        *,
        leader: str,
        **options: Unpack[PartyOptions],
    ) -> None:
        super().__init__(task, noise, **options)
        self._leader = leader
        self._in_work: set[asyncio.Future[Any]] = set()

    async def _answer_call(self, identity: str, request: Request[Any]) -> object:
        """Answer a call of the leader or of a client."""
        is_leader = identity == self._leader
        match request:
            case GetOffer():
                return await self._complete(
                    self._answer_offer(request, is_leader=is_leader)
                )
            case GetUploadStatus() if is_leader:
                return await self._list_status(request.session_id)
            case GetUploadStatus():
                session = self._collecting(request.session_id)
                return _share_status(is_here=identity in session.shares)
            case UploadChunk() if is_leader:
                return await self._complete(self._receive_list(request))
            case UploadChunk():
                return await self._complete(self._receive_share(identity, request))
            case FetchChunk() if is_leader and request.blob is Blob.SUM:
                return await self._piece_of_sum(request)
            case _:
                raise unsupported(identity, request)

    async def _complete(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Finish a call even if its caller hangs up: the store may have changed."""
        task = asyncio.ensure_future(work)
        self._in_work.add(task)
        task.add_done_callback(self._in_work.discard)
        return await asyncio.shield(task)

    # --- sessions ---------------------------------------------------------------------

    async def _answer_offer(
        self, request: GetOffer, *, is_leader: bool
    ) -> SessionDescriptor | Wait:
        """Return the offer of the open session, or open one for the leader."""
        self._check_task(request)
        if is_leader:
            async with self._writing():
                await self._open_session(request.after_session)
        return self._usable_offer(request.after_session)

    async def _open_session(self, after_session: int) -> None:
        """Open a session, unless one is open that the leader has not used."""
        live, date = self._live, int(self._clock.date())
        if live is not None:
            is_usable = (
                live.agreed is None
                and live.offer.session_end > date
                # A leader that runs the new settings would refuse the old ones.
                and live.offer.parameters == self._noise.parameters
            )
            if is_usable and live.offer.session_number > after_session:
                return
            await self._end_session(live)
        if not self.may_open:
            return  # the leader is told to wait
        tally = await self._storage.store.read(ReadTally(Side.SERVER, self._task))
        # Twice, for an honest leader whose clock was ahead when it accepted a number.
        if after_session > highest_accepted(tally.highest_number) + MAX_AHEAD:
            raise ErrorCode.BAD_CONFIG.error(
                f"session {after_session} of this task is beyond any that was opened",
                sender=self._leader,
                fix="Ask the leader's operator to check its state and its clock.",
            )
        parameters = self._noise.parameters
        offer = SessionDescriptor(
            aggregator=self._name,
            task_id=self._task,
            session_number=max(tally.highest_number, after_session) + 1,
            server_nonce=self._entropy.token(32),
            session_end=date + parameters.deadlines.longest_session,
            payload_hash=b"",
            parameters=parameters,
        )
        # No leader fetches an older answer: it is at its next session.
        for session_id in await self._workers.run(self._storage.spool.session_ids):
            await self._workers.run(self._storage.spool.remove, session_id)
        log = await SessionLog.create(
            self._storage.store,
            offer.session_id.hex(),
            NewSession(
                role=Side.SERVER,
                task=self._task,
                number=offer.session_number,
                header=offer.encode(),
                allowed=self._max_sessions,
            ),
            self._measures,
        )
        self._live = _Session(offer, self._noise, log)
        await self._purge()
        self._log_session(SESSION_OPENED, offer)

    async def _abort_stale(self, session: _Session) -> None:
        self._log_aborted(session, ErrorCode.RESTORED_STATE, "the state was restored")
        await session.log.end(b"")

    async def _resume(self, session: _Session) -> None:
        if session.agreed is not None:
            await self._end_session(session)

    def _load_session(self, stored: StoredSession) -> _Session:
        """Return a stored session with the shares that it has accepted."""
        offer = SessionDescriptor.decode(stored.header)
        # What clients were offered, whatever the settings say by now.
        noise = AggregatorNoise.from_parameters(offer.parameters)
        session = _Session(
            offer, noise, SessionLog.resume(self._storage.store, stored, self._measures)
        )
        for record in stored.records:
            if record.kind == _SHARE and record.sender is not None:
                session.shares[record.sender] = HelperShare.decode(record.body)
            elif record.kind == _AGREED:
                session.agreed = _Agreed.decode(record.body)
        return session

    # --- from clients -----------------------------------------------------------------

    async def _receive_share(self, identity: str, chunk: UploadChunk) -> UploadStatus:
        """Store the share of a client, while the session accepts shares."""
        share = HelperShare.decode(chunk.data)
        if chunk.offset or sha256(chunk.data).digest() != chunk.digest:
            raise ErrorCode.UPLOAD_CORRUPT.error(
                "a share for the helper must be one chunk with its digest",
                kind=ServiceError,
                fix="Send the share again.",
                retry_after_seconds=0.0,
                next_offset=0,
            )
        async with self._writing():
            session = self._collecting(chunk.session_id)
            known = session.shares.get(identity)
            if known is None:
                if session.agreed is not None or len(session.shares) >= MAX_CLIENTS:
                    raise no_such_session()
                await session.log.append(Record(_SHARE, identity, share.encode()))
                session.shares[identity] = share
            elif known != share:
                raise second_upload(identity)
        return _share_status(is_here=True)

    # --- from the leader --------------------------------------------------------------

    async def _list_status(self, session_id: bytes) -> UploadStatus:
        """Return how much of the leader's list has arrived."""
        if await self._digest_of(session_id) is not None:
            return UploadStatus(0, complete=True)
        received = await self._workers.run(
            self._storage.spool.received, session_id, self._leader
        )
        # The last byte is requested again, because only a chunk triggers the answer.
        return UploadStatus(max(0, received - 1))

    async def _receive_list(self, chunk: UploadChunk) -> UploadStatus:
        """Store the leader's list; a whole list fixes the set and ends the session."""
        if chunk.total_size > MAX_ACCEPTED_BYTES:
            raise second_upload(self._leader)
        session_id, spool = chunk.session_id, self._storage.spool
        async with self._writing():
            known = await self._digest_of(session_id)
            if known is not None and known != chunk.digest:
                raise second_upload(self._leader)
            live = self._live
            if live is not None and live.agreed is not None:
                await self._end_session(live)  # its answer could not be written
            elif known is None:
                session = self._collecting(session_id)
                received = await self._workers.run(
                    spool.append,
                    session_id,
                    self._leader,
                    chunk.digest,
                    offset=chunk.offset,
                    total_size=chunk.total_size,
                    data=chunk.data,
                )
                if received < chunk.total_size:
                    return UploadStatus(received)
                await self._agree(session, chunk.digest, chunk.total_size)
                await self._end_session(session)
        return UploadStatus(chunk.total_size, complete=True)

    async def _agree(self, session: _Session, digest: bytes, size: int) -> None:
        """Fix the set and the noise seed of a session, permanently."""
        session_id, spool = session.offer.session_id, self._storage.spool
        await self._workers.run(spool.commit, session_id, self._leader, digest)
        data = await self._workers.run(spool.read_upload, session_id, digest, 0, size)
        await self._workers.run(spool.discard, session_id, self._leader, digest)
        accepted = AcceptedShares.decode(data)
        named = SessionDescriptor.decode(accepted.offer)
        check_pair(named, session.offer)
        if named.aggregator != self._leader:
            raise ErrorCode.BAD_CONFIG.error(
                f"the list holds an offer of {named.aggregator!r}", sender=self._leader
            )
        now = self._clock.date()
        if now >= min(named.session_end, session.offer.session_end):
            raise ErrorCode.SESSION_OVER.error(
                "the session is over", sender=self._leader, fix="Open another session."
            )
        names = tuple(
            name
            for name in accepted.names
            if name in session.shares
            and session.shares[name].session_id == named.session_id
        )
        most = session.offer.parameters.max_clients
        least = session.offer.parameters.min_survivors
        if not least <= len(names) <= most:
            raise ErrorCode.U3_TOO_SMALL.error(
                f"both aggregators hold shares of {len(names)} clients, "
                f"{least} to {most} are needed",
                sender=self._leader,
                fix="Open another session, or collect for longer.",
            )
        agreed = _Agreed(
            digest,
            accepted.offer,
            NameList(
                accepted.names, named.session_id, named.parameters.suite
            ).commitment,
            SecretBytes(self._entropy.token(SEED_SIZE)),
            names,
        )
        await session.log.append(Record(_AGREED, None, agreed.encode()), spend=True)
        session.agreed = agreed

    async def _end_session(self, session: _Session) -> None:
        """Compute the answer, if a set is fixed, and erase all seeds."""
        agreed = session.agreed
        if agreed is not None:
            with self._measures.sum():
                answer = await self._workers.run(self._noisy_share, session, agreed)
            await self._workers.run(
                self._storage.spool.put, session.offer.session_id, SUM, answer
            )
        await session.log.end(b"" if agreed is None else agreed.digest)
        self._live = None
        if agreed is None:
            reason = "the leader did not use it"
            self._log_aborted(session, ErrorCode.CANCELLED, reason)
        else:
            self._log_session(
                SESSION_COMPLETED, session.offer, inputs=len(agreed.names)
            )

    def _log_aborted(self, session: _Session, code: ErrorCode, reason: str) -> None:
        """Log that a session has ended without a sum."""
        level, offer = logging.WARNING, session.offer
        self._log_session(
            SESSION_ABORTED, offer, level=level, code=code.name, reason=reason
        )

    def _noisy_share(self, session: _Session, agreed: _Agreed) -> bytes:
        """Return the sum of the chosen shares with noise, signed."""
        parameters = session.offer.parameters
        leader = SessionDescriptor.decode(agreed.leader_offer)
        total = sum_of_seeds(
            [session.shares[name].seed for name in agreed.names],
            session_id=leader.session_id,
            parameters=parameters,
        )
        noisy = session.noise.add_noise(total, seed=agreed.noise_seed)
        packed = pack(noisy, parameters.bits)
        survivors = NameList(agreed.names, leader.session_id, parameters.suite)
        statement = PartStatement(
            agreed.leader_offer,
            session.offer.encode(),
            agreed.roster,
            survivors.commitment,
            sha256(packed).digest(),
        )
        return NoisyShare(
            leader.session_id,
            agreed.names,
            self._receipt_key.public_bytes,
            self._receipt_key.sign(statement.to_sign(parameters.suite)),
            packed,
        ).encode()

    async def _digest_of(self, session_id: bytes) -> bytes | None:
        """Return the digest of the list that a session has answered, if any.

        Raises:
            ServiceError: UNKNOWN_SESSION; the session ended without an answer.
        """
        live = self._live
        if live is not None and live.offer.session_id == session_id:
            return None if live.agreed is None else live.agreed.digest
        return await self._receipt_of(session_id)


def _share_status(*, is_here: bool) -> UploadStatus:
    return UploadStatus(HelperShare.SIZE if is_here else 0, complete=is_here)


# Clients' shares are in the store itself, and the leader's list is read at once.
USE_OF_HELPER: Final = SpoolUse(
    lambda _: {}, lambda stored: bool(stored.receipt), removes_sum_at_offer=True
)
