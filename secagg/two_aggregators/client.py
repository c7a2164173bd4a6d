"""A client of two aggregators: checks both offers, splits its vector, sends two shares.

Rule 1: limits and names come from the client's own settings, and
        `secagg.two_aggregators.gate` checks both offers against them. The client names
        both aggregators in advance and refuses a session in which one plays both parts.
Rule 2: the vector is validated before the first call. Before anything is sent, it is
        encoded, the session is charged to the client's budget, and its number claimed.
        A session that has begun stays charged, whatever its outcome. After a restart it
        is ended, not resumed: a second encoding must not follow under the same name.
Rule 3: a sum is accepted only with a receipt that both aggregators have signed.
Rule 4: the seed is sent first and is used once. A client that has sent one share of two
        has revealed nothing.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.client.budget import peer_of
from secagg.client.calls import ClientCalls
from secagg.client.durable_client import ClientStorage, DurableClient, check_terms
from secagg.client.gate import KnownFacts
from secagg.client.open_client import OpenClient
from secagg.client.session import claimed
from secagg.client.total_ledger import TotalLedger
from secagg.crypto.entropy import SEED_SIZE, Entropy, SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import (
    AggregatorNoise,
    SumError,
    SumEstimate,
    TaskLoss,
    TwoAggregatorReport,
    loss_between_two,
)
from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.protocol.arguments import (
    as_path,
    as_vector,
    check_kind,
    check_name,
    says_how_to_open,
)
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES, SessionDescriptor
from secagg.protocol.messages import Aborted, Envelope, Fate, Released, Round
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.policy import ClientPolicy, PrivacyLimits, TotalBudget
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.workers import Workers
from secagg.storage.budget_ledger import Charge, ClaimAdversary
from secagg.storage.change import Change, Committed, NewSession, Side
from secagg.transport.connection import AggregatorConnection
from secagg.two_aggregators.gate import PairRequest, PairRules, admit_pair
from secagg.two_aggregators.messages import HelperShare, leader_share
from secagg.two_aggregators.receipt import (
    MAX_CLIENT_RECEIPT_BYTES,
    TwoAggregatorReceipt,
    verify_shared_receipt,
)
from secagg.wire.calls import Blob, message_sizes

_Answer = TypeVar("_Answer")

_OFFER_SECONDS: Final = 600.0
_RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class SharedContribution(SumEstimate):
    """The result of one session at a client: the sum with its error.

    Attributes:
        session_number: Number of the leader's session.
        inputs: Number of vectors in the sum.
        is_included: True if both aggregators have signed that this client's vector is
            in the sum. False proves nothing, because a leader can omit the proof: never
            contribute the same vector again.
        values: The estimate of the sum, shape (dim,), caller's units.
        error: How far `values` may be from the sum of the vectors, if both aggregators
            have added their noise.
        privacy: What the whole task costs this client, by its own computation.
        receipt: What both aggregators have signed, verified by this client; auditors
            can verify it again.
    """

    session_number: int
    inputs: int
    is_included: bool
    values: npt.NDArray[np.float64] = field(repr=False)
    error: SumError = field(repr=False)
    privacy: TwoAggregatorReport
    receipt: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Joined:
    """A session whose offers this client has checked."""

    leader: SessionDescriptor
    helper: SessionDescriptor
    noise: AggregatorNoise
    report: TwoAggregatorReport
    charge: Charge
    trust_domain: str | None
    deadline: float


def refuse_shared_key(leader_key: bytes, helper_key: bytes) -> None:
    """Refuse one key for both aggregators: its holder would sign for both.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if leader_key == helper_key:
        raise ErrorCode.BAD_SETTINGS.error(
            "one key cannot sign for both aggregators",
            fix="Ask each operator for the receipt key that its aggregator prints "
            "at startup.",
        )


@says_how_to_open
class TwoAggregatorClient:
    """A client of one task between two aggregators; contributes one vector at a time.

    Args:
        leader: Connection to the leader; the caller closes it.
        helper: Connection to the helper; the caller closes it.
        task: Name of the task, the same at both aggregators.
        leader_name: Name that the leader's certificate must have.
        helper_name: Name that the helper's certificate must have. The caller makes sure
            that different organisations run the two.
        privacy_limits: The privacy that this client requires.
        cohort: Suites, aggregators and cohort sizes that this client accepts.
        leader_key: The leader's receipt key, 32 bytes, from its operator.
        helper_key: The helper's receipt key, 32 bytes, from its operator. It differs
            from the leader's: a leader that could choose it would sign for both.
        state_dir: Directory of session numbers and spent budget, for this client alone.
            None keeps them in memory.
        rollback_mark: As for `secagg.Client`.
        accept_restored: As for `secagg.Client`.
        total: Total budget of this client's data over all tasks, against either
            aggregator; None limits each task by its own budget.
        clock: Source of time; the system clock by default.
        entropy: Source of seeds and jitter; the system's by default.
        workers: Threads for blocking work; those of the process by default.

    Raises:
        LocalProtocolError: There are no limits of privacy, or an argument is of another
            kind.  No waiver is taken: every sum between two has noise.
        ServiceError: BAD_SETTINGS; one key is given for both aggregators.
    """

    def __init__(  # noqa: PLR0913 - connections and limits of the client
        self,
        leader: AggregatorConnection,
        helper: AggregatorConnection,
        *,
        task: str,
        leader_name: str,
        helper_name: str,
        privacy_limits: PrivacyLimits,
        cohort: ClientPolicy,
        leader_key: bytes,
        helper_key: bytes,
        state_dir: Path | str | None = None,
        rollback_mark: Path | str | None = None,
        accept_restored: bool = False,
        total: TotalBudget | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        workers: Workers | None = None,
    ) -> None:
        check_terms(privacy_limits, cohort=None, total=total)
        for name, value, kind in (
            ("privacy_limits", privacy_limits, PrivacyLimits),
            ("cohort", cohort, ClientPolicy),
        ):
            check_kind(name, value, kind, make=f"{kind.__name__}(...)")
        check_name("a task", task, most=MAX_TASK_ID_BYTES)
        refuse_shared_key(leader_key, helper_key)
        self._connections = (leader, helper)
        self._task = task
        self._names = (leader_name, helper_name)
        self._privacy_limits = privacy_limits
        self._cohort = cohort
        self._keys = (leader_key, helper_key)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._workers = workers or Workers.of_process()
        self._state: DurableClient = PairState(
            identity=leader.identity,
            limits=privacy_limits,
            cohort=cohort,
            state_dir=as_path("state_dir", state_dir),
            rollback_mark=as_path("rollback_mark", rollback_mark),
            accept_restored=accept_restored,
            total=total,
            clock=self._clock.date,
            entropy=self._entropy,
        )
        self._leader, self._helper = (
            ClientCalls(each, self._clock, self._entropy, self._workers, watch=False)
            for each in (leader, helper)
        )

    async def __aenter__(self) -> Self:
        """Open the state.

        Raises:
            LocalProtocolError: The client is open already.
            ServiceError: STORAGE_FAILED or RESTORED_STATE.
        """
        domain = self._connections[0].trust_domain
        opened = partial(
            self._state.open, aggregator=self._names[0], trust_domain=domain
        )
        await self._workers.open(opened, self._state.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the state; the connections are the caller's."""
        await self._workers.close_later(self._state.close)

    async def _call_own_state(
        self, work: Callable[[OpenClient], Coroutine[Any, Any, _Answer]]
    ) -> _Answer:
        return await self._workers.run(self._state.call, work)

    async def contribute(self, vector: npt.ArrayLike) -> SharedContribution:
        """Contribute one vector to the next session, and return its sum.

        Args:
            vector: Real numbers of shape (dim,), caller's units. They are validated and
                copied before the first call. After it, no value in them keeps this
                client from taking part.

        Raises:
            InputError: The vector cannot be encoded, and no aggregator was called. Only
                a wrong length is found later, after the offers were fetched.
            LocalProtocolError: The client is not open, or contributes already.
            RemoteProtocolError: POLICY_VIOLATION for a session outside this client's
                limits. BAD_CONFIG for offers that form no session. BAD_CLOCK for a
                session that ends too early or too late by the local clock.
                REPLAYED_SESSION for a session number that was seen before.
            BudgetSpentError: The budget of the task is spent.
            TotalBudgetExceededError: The task does not fit into the total of the data.
            SessionAbortedError: The session ended without a sum, or too late.
            ServiceError: An aggregator or the client's disk is unavailable.
        """
        given = await self._workers.run(_copied, vector)
        with self._state.carried(self._task):
            try:
                joined = await self._join_session()
                # Each connection stays with the maker of its offer until the end
                # (R5.0-6).
                self._leader.bind(joined.leader.aggregator)
                self._helper.bind(joined.helper.aggregator)
                as_vector(given, joined.noise.dim)  # the length is no secret
                return await self._contribute_shares(joined, given)
            finally:
                self._leader.bind(None)
                self._helper.bind(None)

    async def _contribute_shares(
        self, joined: _Joined, given: npt.NDArray[Any]
    ) -> SharedContribution:
        """Charge the session, send both shares, and wait for the sum."""
        session_id = joined.leader.session_id
        seed = SecretBytes(self._entropy.token(SEED_SIZE))
        try:
            share = await self._workers.run(self._leader_share, joined, given, seed)
            seed_share = HelperShare(seed, session_id).encode()
        finally:
            seed.wipe()
        await self._call_own_state(lambda client: self._charge(client, joined))
        try:
            await self._send_shares(joined, seed_share, share)
            update = await self._leader.next_update(
                session_id,
                after=Round.MASKED_INPUT_COLLECTION,
                sizes=message_sizes(joined.leader.parameters),
                deadline=joined.deadline,
                on_wait=lambda _: joined.deadline,
            )
            return await self._fetch_outcome(joined, update)
        finally:
            await self._call_own_state(
                lambda client: client.end_shared(session_id.hex())
            )

    # --- before anything is sent ------------------------------------------------------

    async def _join_session(self) -> _Joined:
        """Wait for two offers that belong together, and check them."""
        deadline = self._clock.now() + _OFFER_SECONDS
        highest = await self._call_own_state(
            lambda client: client.highest_number(self._task)
        )
        while True:
            leader = await self._leader.next_offer(
                self._task, after_session=highest, deadline=deadline
            )
            # The helper may be at its next session already; the leader will follow.
            offered = await self._helper.next_offer(
                self._task, after_session=0, deadline=deadline
            )
            if leader.server_nonce == offered.session_id:
                return await self._check_offers(leader, offered)
            if self._clock.now() + _RETRY_SECONDS >= deadline:
                raise ErrorCode.DEADLINE.error(
                    "the two aggregators have offered no common session",
                    fix="Ask the operators whether the leader and the helper "
                    "run the same task.",
                )
            await self._clock.sleep_until(self._clock.now() + _RETRY_SECONDS)

    async def _check_offers(
        self, leader: SessionDescriptor, helper: SessionDescriptor
    ) -> _Joined:
        """Check both offers together, and return the session."""
        now, (to_leader, to_helper) = int(self._clock.date()), self._connections
        # One proxy in front of both would read both shares (R10.3-4).
        self._leader.check_transport(leader)
        self._helper.check_transport(helper)
        known, total = await self._call_own_state(
            lambda client: _facts_of(client, leader)
        )
        request = PairRequest(
            leader=leader,
            helper=helper,
            aggregators=(to_leader.aggregator, to_helper.aggregator),
            trust_domain=to_leader.trust_domain,
            now=now,
            own=PairRules(
                task=self._task,
                names=self._names,
                limits=self._privacy_limits,
                cohort=self._cohort,
                total=None if total is None else total.rules,
            ),
            known=known,
        )
        admitted = await self._workers.run(admit_pair, request)
        left = min(leader.session_end, helper.session_end) - now
        return _Joined(
            leader=admitted.leader,
            helper=admitted.helper,
            noise=admitted.noise,
            report=admitted.report,
            charge=admitted.charge,
            trust_domain=request.trust_domain,
            deadline=self._clock.now() + left,
        )

    def _leader_share(
        self, joined: _Joined, vector: npt.NDArray[Any], seed: SecretBytes
    ) -> bytes:
        """Encode a vector, and return the share for the leader."""
        session_id, parameters = joined.leader.session_id, joined.leader.parameters
        residues = joined.noise.encode(vector, session_id=session_id, seed=seed)
        share = leader_share(
            residues, seed, session_id=session_id, parameters=parameters
        )
        return pack(share, parameters.bits)

    async def _charge(self, client: OpenClient, joined: _Joined) -> None:
        """Claim data and number, and charge the session, before anything is sent."""
        offer = joined.leader
        new = NewSession(
            role=Side.CLIENT,
            task=self._task,
            number=offer.session_number,
            header=b"",
            peer=peer_of(offer.aggregator, trust_domain=joined.trust_domain),
        )
        begun = await claimed(
            Change(key=offer.session_id.hex(), create=new, charge=joined.charge),
            offer,
            store=client.store,
            total=client.total,
            trust_domain=joined.trust_domain,
        )
        if not isinstance(begun, Committed):
            raise ErrorCode.REPLAYED_SESSION.error(
                "this client has taken part in the session before",
                kind=SessionAbortedError,
                fix="Wait for the next session.",
            )

    # --- what is sent -----------------------------------------------------------------

    async def _send_shares(
        self, joined: _Joined, seed_share: bytes, share: bytes
    ) -> None:
        """Send the seed to the helper first, then the share to the leader."""
        await self._upload_share(
            self._helper, joined.helper, seed_share, joined.deadline
        )
        try:
            await self._upload_share(
                self._leader, joined.leader, share, joined.deadline
            )
        except ServiceError as error:
            # The last acknowledgement may be lost, and the sum released before the
            # retry. The outcome then says whether it includes this client.
            if error.code is not ErrorCode.UNKNOWN_SESSION:
                raise

    async def _upload_share(
        self, calls: ClientCalls, offer: SessionDescriptor, data: bytes, deadline: float
    ) -> None:
        """Upload a share from its beginning."""
        # Never resumed: an earlier upload under this name, or another process's, must
        # be refused as a different share and not be taken for this one.
        await calls.upload(
            offer.session_id,
            data,
            digest=await self._workers.sha256(data),
            offset=0,
            deadline=deadline,
            on_chunk=lambda _: None,
        )

    async def _fetch_outcome(
        self, joined: _Joined, update: Envelope
    ) -> SharedContribution:
        """Fetch sum and receipt, verify both, and return the contribution."""
        parameters, session_id = joined.leader.parameters, joined.leader.session_id
        if update.kind is Aborted:
            aborted = Aborted.decode(update.data)
            raise aborted.code.error(
                f"the leader ended the session: {aborted.reason}",
                kind=SessionAbortedError,
            )
        if update.kind is not Released:
            raise ErrorCode.UNEXPECTED_MESSAGE.error(
                "the leader sent an update of another kind of session"
            )
        released = Released.decode(update.data)
        if not parameters.min_survivors <= released.survivors <= parameters.max_clients:
            raise ErrorCode.U3_INVALID.error(
                f"the leader reports a sum of {released.survivors} vectors"
            )
        packed = await self._leader.fetch(
            session_id,
            Blob.SUM,
            max_bytes=packed_size(parameters.dimension, parameters.bits),
            digest=released.sum_hash,
            deadline=joined.deadline,
        )
        receipt = await self._leader.fetch(
            session_id,
            Blob.QUORUM,
            max_bytes=MAX_CLIENT_RECEIPT_BYTES,
            digest=None,
            deadline=joined.deadline,
        )
        await self._workers.run(self._check_receipt, joined, released, receipt)
        values = await self._workers.run(partial(_decode_sum, joined, packed))
        return SharedContribution(
            session_number=joined.leader.session_number,
            inputs=released.survivors,
            is_included=released.fate is Fate.INCLUDED,
            values=values,
            error=joined.noise.sum_error(inputs=released.survivors),
            privacy=joined.report,
            receipt=receipt,
        )

    def _check_receipt(self, joined: _Joined, sent: Released, data: bytes) -> None:
        """Compare the leader's update with what both aggregators have signed."""
        stated = TwoAggregatorReceipt.decode(data)
        leader_key, helper_key = self._keys
        verdict = verify_shared_receipt(
            data, leader_key=leader_key, helper_key=helper_key
        )
        for holds, complaint in (
            (
                (verdict.leader, verdict.helper) == (joined.leader, joined.helper),
                "it is for other offers",
            ),
            (
                stated.reader == self._connections[0].identity,
                "it is for another client",
            ),
            (
                (stated.sum_hash, verdict.survivors) == (sent.sum_hash, sent.survivors),
                "it is for another sum",
            ),
            (
                verdict.is_included == (sent.fate is Fate.INCLUDED),
                "it contradicts the leader about this client's vector",
            ),
        ):
            if not holds:
                raise ErrorCode.EQUIVOCATION.error(
                    f"the leader's receipt does not match the session: {complaint}",
                    sender=joined.leader.aggregator,
                )


class PairState(DurableClient):
    """State of a client of two aggregators, with a total against either of them."""

    def total_over(self, storage: ClientStorage) -> TotalLedger | None:
        """Return the total of the owner's data; None for no total."""
        if self.total is None:
            return None
        return TotalLedger(
            self.total,
            storage,
            against=ClaimAdversary.SERVER,
            loss_of=_loss_of,
            limits=self.rules_over(storage).noise_limits,
        )


async def _facts_of(
    client: OpenClient, leader: SessionDescriptor
) -> tuple[KnownFacts, TotalLedger | None]:
    return await client.known_facts(leader), client.total


def _copied(vector: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a validated copy, which later changes to the original do not affect."""
    return np.array(as_vector(vector, noisy=True), dtype=np.float64)


def _loss_of(offered: SessionDescriptor) -> TaskLoss:
    noise = AggregatorNoise.from_parameters(offered.parameters)
    return loss_between_two(offered.parameters.noise_block, noise.report())


def _decode_sum(joined: _Joined, packed: bytes) -> npt.NDArray[np.float64]:
    """Return a released sum in the unit of the task."""
    given = joined.leader.parameters
    residues = unpack(packed, given.dimension, given.bits, given.modulus)
    return joined.noise.decode(residues, session_id=joined.leader.session_id)
