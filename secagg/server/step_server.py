"""The aggregator of one session as calls that take and return bytes.

It serves programs that carry the bytes themselves.  The other side is
`secagg.StepClient`.

Rule 1: the carrier proves the sender of each message; this module trusts the name.
Rule 2: no clock decides anything: the carrier ends each round.
Rule 3: an upload is added when the state machine accepts it, since U3 is exactly what
        was accepted.  One vector is held, and the digests of the uploads.
Rule 4: the receipt is that of every server: made of the same facts.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from hashlib import sha256
from time import monotonic, time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.crypto.modular import BadVectorError, add_into, reduce_in_place, zeros
from secagg.crypto.prg import add_masks
from secagg.distributed_dp import Plan, following_terms, offered_terms, subtract_layers
from secagg.errors import ErrorCode, RemoteProtocolError, SessionAbortedError
from secagg.protocol.arguments import (
    check_kind,
    check_name,
    check_names,
    check_whole,
    validates_arguments,
)
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES, SessionDescriptor
from secagg.protocol.events import (
    AbortRequested,
    ComputeSum,
    Received,
    RoundClosed,
    ServerEvent,
    SumComputed,
)
from secagg.protocol.messages import (
    KINDS,
    MAX_IDENTITY_BYTES,
    Consistency,
    Envelope,
    Round,
    Upload,
)
from secagg.protocol.packing import pack, packed_size, removal_masks, unpack
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.server.session.report import SessionFacts, SessionReceipt
from secagg.server.session.state import SessionRecord
from secagg.server.session.updates import check_uploader
from secagg.server.task.outputs import ReleasedSum, released_sum
from secagg.server.task.setup import PreparedTask
from secagg.storage.journal import RefusalNoted

_SEED_BYTES: Final = 32
_HASH: Final = "hashlib.sha256(payload).digest()"
_SIZES: Final = frozenset({0, 32})
_NAME_BYTES: Final = 1 + len(Upload(0, bytes(32), bytes(32)).encode())
# The report of a session states this for every server.
_REPORTED: Final = frozenset({ErrorCode.VIEW_DIFFERS, ErrorCode.BAD_SIGNATURE})


@validates_arguments
class StepServer:
    """Runs the aggregator of one session, in memory and on one thread.

    Nothing is stored. A carrier that was restarted opens another session, with a higher
    number, and the clients of the first lose one charge of their budgets.  The carrier
    proves the sender of each message.  `secagg.Server` with a `state_dir` survives
    restarts.

    Args:
        task: The task: a plan, or a prepared task.
        aggregator: Its own name, as the carrier proves it to clients.
        task_id: Name of the task.
        session_number: Number of the session, larger than all before it; see
            `next_session_number`.
        now: Its time in Unix seconds; the machine's by default.
        payload_hash: SHA-256 of the payload; b"" for no payload.
        invited: Names that may take part; None for all that the carrier admits.
        noise_terms: `next_noise_terms` of the session before; None for the first one.
        entropy: Randomness for the session id and the ring of a sparse graph; the
            operating system's by default.

    Attributes:
        offer: The encoded `SessionDescriptor` for clients.
        descriptor: The decoded offer.
        result: The sum, its certificate and receipts; None without a sum.
        packed_sum: The argument of `StepClient.read_sum`; None without a sum.

    Raises:
        LocalProtocolError: An argument is of the wrong kind, or a name is invalid.
        RemoteProtocolError: BAD_CONFIG; no such session can exist. BAD_CREDENTIAL for a
            prepared task without the revocation list that its parameters name.

    Example:
        server = secagg.StepServer(task, aggregator="hub", task_id="sums",
                                   session_number=1)
        server.receive("phone-7", message)
        server.close_round()
        update = server.update_for("phone-7")
    """

    def __init__(  # noqa: PLR0913 - what a session consists of for its server
        self,
        task: Plan | PreparedTask,
        *,
        aggregator: str,
        task_id: str,
        session_number: int,
        now: float | None = None,
        payload_hash: bytes = b"",
        invited: Iterable[str] | None = None,
        noise_terms: bytes | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._task = PreparedTask.of(task)
        check_name("an aggregator", aggregator, most=MAX_IDENTITY_BYTES)
        check_name("a task", task_id, most=MAX_TASK_ID_BYTES)
        session_number = check_whole("session_number", session_number, least=0)
        if (
            len(check_kind("payload_hash", payload_hash, bytes, make=_HASH))
            not in _SIZES
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"payload_hash must have 32 bytes or none, got {len(payload_hash)}",
                fix=f"Give payload_hash={_HASH}.",
            )
        if invited is not None:
            invited = check_names("invited", invited)
        parameters = self._parameters = self._task.parameters
        self._opened_at = monotonic()
        self._entropy = entropy or SystemEntropy()
        self._packed_bytes = packed_size(parameters.dimension, parameters.bits)
        self.descriptor: Final = SessionDescriptor(
            aggregator=aggregator,
            task_id=task_id,
            session_number=session_number,
            server_nonce=self._entropy.token(_SEED_BYTES),
            session_end=int(time() if now is None else now)
            + parameters.deadlines.longest_session,
            payload_hash=payload_hash,
            noise_terms=offered_terms(parameters, noise_terms or b""),
            parameters=parameters,
        )
        self.offer: Final = self.descriptor.encode()
        published = self._task.enrolment
        # The start of every server's session: it refuses another list than the offer's.
        self._state: server.ServerState = SessionRecord(
            self.descriptor,
            None if invited is None else frozenset(invited),
            revocations=b"" if published is None else published.revocations,
        ).start()
        self._facts = SessionFacts(self.descriptor, frozenset())
        self._total = zeros(parameters.dimension, parameters.modulus)
        self.result: ReleasedSum | None = None
        self.packed_sum: bytes | None = None

    @property
    def round(self) -> Round:
        """The open round; FINISHED at the end."""
        return self._state.ROUND

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, with a sum or without."""
        return server_machine.is_over(self._state)

    @property
    def is_round_full(self) -> bool:
        """Whether every client that can answer in this round has answered."""
        return server_machine.is_round_full(self._state)

    @property
    def missing(self) -> frozenset[str]:
        """Members of the roster that have not answered in the open round.

        Before the roster is fixed: the invited clients that have not joined.
        """
        state = self._state
        silent: AbstractSet[int]
        match state:
            case server.AdvertiseKeys():
                joined = state.session.accepted[Round.ADVERTISE_KEYS].keys()
                return (state.invited or frozenset()) - joined
            case server.ChooseEdges():
                silent = set(range(len(state.cohort.roster))) - state.edges.keys()
            case server.ShareKeys():
                silent = state.expected - state.bundles.keys()
            case server.MaskedInputCollection():
                silent = state.bundles.keys() - state.uploads.keys()  # of U2
            case server.ConsistencyCheck():
                silent = state.survivors - state.signatures.keys()
            case server.Unmasking():
                silent = state.survivors - state.answers.keys()
            case _:
                return frozenset()
        return frozenset(map(state.cohort.name_of, silent))

    def receive(self, sender: str, message: bytes) -> None:
        """Accept a message of a client.  The same message again changes nothing.

        Args:
            sender: Name of the client that sent it, proven by the carrier.
            message: A message of `ClientStep.messages`.

        Raises:
            RemoteProtocolError: The message is invalid, contradicts an earlier one, or
                comes too late.  The error concerns this sender alone: the session
                continues.
        """
        envelope, packed = self._decode_message(message)
        vector = None
        if envelope.kind is Upload:
            vector = self._check_vector(envelope, packed)
        try:
            is_new = self._apply_event(Received(envelope, sender))
        except RemoteProtocolError as error:
            if error.code in _REPORTED and envelope.kind in (Upload, Consistency):
                self._facts.record_refusal(RefusalNoted(sender, error.code))
            raise
        if vector is not None and is_new:
            add_into(self._total, vector, self._parameters.modulus)

    def check_view(self, sender: str, view: bytes) -> None:
        """Check a client's view before its vector is bound (R5.3-14).

        Args:
            sender: Name of the client, proven by the carrier.
            view: `ClientStep.view`.

        Raises:
            RemoteProtocolError: VIEW_DIFFERS: this client would spoil the whole sum,
                and must send nothing.  DEADLINE or UNEXPECTED_MESSAGE: no input is
                accepted now.
        """
        try:
            check_uploader(self._state, sender, view)
        except RemoteProtocolError as error:
            if error.code is ErrorCode.VIEW_DIFFERS:
                self._facts.record_refusal(RefusalNoted(sender, error.code))
            raise

    def update_for(
        self, name: str, *, after: Round | None = None, whole: bool = False
    ) -> bytes | None:
        """Return the update for a client; None while no update exists.

        Args:
            name: The client, proven by the carrier.
            after: The client's `ClientStep.round`. A client that missed the signing
                gets the sets before the signatures.
            whole: Whether it reads all adverts of a sparse graph, not only those of its
                neighbours (`ClientPolicy.whole_roster`).
        """
        state = self._state
        envelope = server_machine.update_for(state, name, after)
        # Where clients draw their neighbours, the roster was complete a round earlier.
        if (
            whole
            and isinstance(state, server.ShareKeys)
            and state.cohort.edges is None
            and state.cohort.has(name)
        ):
            envelope = state.opening
        return None if envelope is None else envelope.tagged()

    def close_round(self) -> None:
        """End the open round with the clients whose messages have arrived.

        Raises:
            LocalProtocolError: The session is over.
        """
        if self.is_over:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the session is over: it has no open round",
                fix="Read result or failure.",
            )
        is_first = self._state.ROUND is Round.ADVERTISE_KEYS
        seed = self._entropy.token(_SEED_BYTES) if is_first else b""
        self._apply_event(RoundClosed(self._state.ROUND, seed))

    def abort(self, code: ErrorCode, reason: str) -> None:
        """End the session without a sum; do nothing if it is over.

        Args:
            code: The error code.
            reason: One sentence for every client.
        """
        if not self.is_over:
            self._apply_event(AbortRequested(code, reason))

    @property
    def failure(self) -> SessionAbortedError | None:
        """Why no sum exists; None with a sum, and before the end."""
        if not isinstance(self._state, server.Failed):
            return None
        outcome = self._state.outcome
        return outcome.code.error(outcome.reason, kind=SessionAbortedError)

    @property
    def receipt(self) -> SessionReceipt | None:
        """The public facts of the session; None before its end."""
        state = self._state
        if not isinstance(state, server.Completed | server.Failed):
            return None
        return self._make_receipt(state)

    @property
    def next_noise_terms(self) -> bytes:
        """The noise terms of the task's next session.

        After a session without a sum they are those of this one.
        """
        if self.result is None:
            return self.descriptor.noise_terms
        return following_terms(
            self.descriptor, self.result.residues, inputs=self.result.inputs
        )

    def _make_receipt(self, state: server.Completed | server.Failed) -> SessionReceipt:
        """Return the receipt of the session."""
        return self._facts.receipt(state, was_restored=False)

    def _apply_event(self, event: ServerEvent) -> bool:
        """Apply an event; return whether it was new."""
        before = self._state
        step = server_machine.step(before, event)
        self._state = step.state
        if type(step.state) is not type(before):
            seconds, self._opened_at = monotonic() - self._opened_at, monotonic()
            self._facts.enter(before, step.state, step.outputs, seconds=seconds)
        for output in step.outputs:
            if isinstance(output, ComputeSum):
                self._compute(output)
        return not step.is_repeat

    def _compute(self, job: ComputeSum) -> None:
        """Remove the masks, and end the session by its sum."""
        total = self._total
        add_masks(total, removal_masks(job), job.modulus)
        subtract_layers(total, job.noise)
        residues = reduce_in_place(total, job.modulus)
        packed = pack(residues, self._parameters.bits)
        self._apply_event(SumComputed(sha256(packed).digest(), len(packed)))
        if isinstance(self._state, server.Completed):
            self.packed_sum = packed
            self.result = released_sum(
                self.descriptor,
                residues,
                privacy=self._task.report,
                receipt=self._make_receipt(self._state),
                audit=self._facts.audit(self._state).encode(),
            )

    def _decode_message(self, message: bytes) -> tuple[Envelope, bytes]:
        """Decode a message, and the vector that follows the name of an upload.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the bytes are not a message.
        """
        kind = KINDS.get(message[0]) if message else None
        if kind is None:
            raise ErrorCode.BAD_ENCODING.error("the bytes are not a message")
        if kind is not Upload:
            return Envelope(kind, message[1:]), b""
        return Envelope(kind, message[1:_NAME_BYTES]), message[_NAME_BYTES:]

    def _check_vector(
        self, envelope: Envelope, packed: bytes
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the vector of an upload, checked against its name.

        Raises:
            RemoteProtocolError: UPLOAD_CORRUPT, BAD_VECTOR or BAD_ENCODING.
        """
        named = Upload.decode(envelope.data)
        if len(packed) != self._packed_bytes or (named.size, named.digest) != (
            len(packed),
            sha256(packed).digest(),
        ):
            raise ErrorCode.UPLOAD_CORRUPT.error(
                f"an upload has {len(packed)} bytes, of {self._packed_bytes}, or does "
                "not match its name"
            )
        parameters = self._parameters
        try:
            return unpack(
                packed, parameters.dimension, parameters.bits, parameters.modulus
            )
        except BadVectorError as error:
            raise ErrorCode.BAD_VECTOR.error(str(error)) from None


def next_session_number(last: int = 0, *, now: float | None = None) -> int:
    """Return the number of the next session of a task.

    A carrier stores the last number; the clock helps one that has lost it.

    Args:
        last: Number of the last session; 0 for none, or if it is unknown.
        now: Unix seconds; the machine's time by default.
    """
    last = check_whole("last", last, least=0)
    return max(last + 1, int(1000 * (time() if now is None else now)))
