"""What remains of a session: a receipt to audit it, and a report to understand it.

The facts are gathered while the session runs, since the states of the core keep only
what their round needs.  The receipt holds what must be known of a session.  The report
explains its course: the times, which clients were lost where, and what to do next.

Rule 1: a receipt holds public facts only: contexts, set sizes, names, hashes, times.
        Its bytes are JSON with sorted keys, for people and for other programs.
Rule 2: every session that ends leaves a report, also without a sum.
Rule 3: a report names clients, so only its owner may read the file.  It holds no key,
        share, entry or hash of an input.
Rule 4: no sum waits for a report.  A failure to write it is logged.
Rule 5: a report is deleted with the session's receipt.

Source:
    PROTOCOL §12: the receipt of a session.
"""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, Self

from secagg.crypto.transcript import encode_set
from secagg.distributed_dp import NoisyTask
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ComputeSum,
    DealerFailed,
    DropClient,
    ServerOutput,
    ShareDisputed,
)
from secagg.protocol.graphs.ring_safety import RingRisk, graph_risk
from secagg.protocol.messages import (
    Aborted,
    Fate,
    Quorum,
    Released,
    RosterFrame,
    RosterProof,
    Round,
)
from secagg.protocol.noise_terms import NoiseCertificate
from secagg.protocol.receipts.receipt import AuditReceipt, Dispute, Outcome, WrittenBy
from secagg.protocol.rounds import ROUNDS, DropReason
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import RosterFixed
from secagg.runtime import log_events as telemetry
from secagg.runtime.files import replace_file
from secagg.server.session.events import DroppedClient, SessionPhase, SessionProgress
from secagg.server.task.stored import folder_of
from secagg.storage.change import Side
from secagg.storage.journal import RefusalNoted
from secagg.storage.queries import ListSessions, ReadClock
from secagg.storage.rows import Retention
from secagg.storage.store import Store, StoreUnavailableError

_FORMAT: Final = 1
_UNREADABLE: Final = (
    ArithmeticError,  # of an invalid rational
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RemoteProtocolError,
)
_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_PRIVATE: Final = 0o600
# A report names every client of a session a few times; a name has at most 256 bytes.
_MAX_BYTES: Final = 64 << 20
_DAY_SECONDS: Final = 86_400.0

_NEXT_STEPS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.ROSTER_TOO_SMALL: "Check that the clients run and know this task: "
    "`secagg doctor` with a client's settings checks clock, name and certificate.",
    ErrorCode.U2_TOO_SMALL: "Give clients more time: rounds.share_keys.",
    ErrorCode.U3_TOO_SMALL: "Compare rounds.masked_input with the slowest link: "
    "upload_bytes of `secagg plan` divided by its rate.",
    ErrorCode.TOO_MANY_DROPOUTS: "Compare rounds.masked_input with the slowest link: "
    "upload_bytes of `secagg plan` divided by its rate.",
    ErrorCode.TOO_FEW_ANSWERS: "Give clients more time: rounds.unmasking; or lower "
    "cohort.threshold in a new task.",
    ErrorCode.NO_QUORUM: "Clients did not agree on who is in the sum: check whether "
    "they were lost, or whether a client was shown another list.",
    ErrorCode.RECONSTRUCTION_FAILED: "A client has lied; see which one is named.",
    ErrorCode.DISPUTED: "Ask the operators of the clients that accuse each other; one "
    "of each two lies. The next session continues without them.",
    ErrorCode.DEADLINE: "The session lasted longer than its offer allows; check the "
    "time that each round took.",
    ErrorCode.STORAGE_FAILED: "Check the disk: `secagg doctor` with the server's "
    "settings.",
    ErrorCode.INTERNAL: "If its sum has ended its aggregators, check the system's log "
    "for processes killed for lack of memory. Else report it with the server's log.",
    ErrorCode.CANCELLED: "It was ended by request; the reason names the cause.",
}
_OTHERWISE: Final = "See docs/operations.md."
_AFTER_RESTORE: Final = (
    "Do nothing: a restore or a fail-over of the database has ended it, its inputs "
    "count as summed, and the next session follows."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReceipt:
    """Holds the public facts of one session that ended on the server.

    Attributes:
        descriptor: The session as it was offered.
        outcome: How it ended.
        members: U1, in order of index; empty when AdvertiseKeys never closed.
        advertised: |U1|.
        shared: |U2|.
        uploaded: |U3|.
        signed: Number of clients that signed roster, U2 and U3; 0 in the profile for an
            honest-but-curious server.
        revealed: |U5|.
        survivors: U3 by name, from the moment it was fixed.
        was_unmasked: Whether an aborted session had rebuilt its secrets all the same.
        was_restored: Whether the state of an aborted session was restored from a backup
            while it ran. Then it is unknown whose inputs were summed.
        disputes: The disputes, by name; one of the two clients lies. Each complaint
            about a share bundle gives accuser, accused and code. Each share that did
            not belong to its dealer's secret gives dealer, holder and
            RECONSTRUCTION_FAILED.
        failed_dealer: Name of the client whose secret could not be rebuilt; else empty.
        is_failure_proven: Whether that client has dealt badly; else its holders may
            have framed it.
        ring: Bounds for the unmasking of U3 on the ring; None on the complete graph and
            before U3 was fixed.
        sessions_left: Sessions that the budget of the task covers after this one, with
            the spare ones; None without a budget.
        noise: The noise that the sum holds; None for a task without noise, and where
            nothing was unmasked.
        unconfirmed: Names of the clients of U3 that sent an invalid signature over the
            sets, and no valid one (R5.4-7).  In a task with noise the sum may then be
            wrong.
        lost: The lost clients: name, title of the round, and why in words.
        finishers: The participants of the last round in which any client took part.
        contexts: ctx0 to ctx3, as far as the session came.
        seconds: Duration of each round by its name, in this process.
    """

    descriptor: SessionDescriptor
    outcome: Released | Aborted
    members: tuple[str, ...] = ()
    advertised: int = 0
    shared: int = 0
    uploaded: int = 0
    signed: int = 0
    revealed: int = 0
    survivors: tuple[str, ...] = ()
    was_unmasked: bool = False
    was_restored: bool = False
    disputes: tuple[tuple[str, str, int], ...] = ()
    failed_dealer: str = ""
    is_failure_proven: bool = False
    ring: RingRisk | None = None
    sessions_left: int | None = None
    noise: NoiseCertificate | None = None
    unconfirmed: tuple[str, ...] = ()
    lost: tuple[tuple[str, str, str], ...] = ()
    finishers: tuple[str, ...] = ()
    contexts: tuple[bytes, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()

    @property
    def outcome_name(self) -> str:
        """`released`, or the name of the code of an abort."""
        if isinstance(self.outcome, Released):
            return "released"
        return self.outcome.code.name

    @property
    def warning(self) -> str:
        """Return why the released sum may be wrong, or ""."""
        has_noise = bool(self.descriptor.parameters.noise_block)
        is_released = isinstance(self.outcome, Released)
        if not (self.unconfirmed and has_noise and is_released):
            return ""
        return (
            "The sum may be wrong: a client in it has sent an invalid signature over "
            "the sets of clients, so its masks and noise may belong to other sets."
        )

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as JSON values."""
        descriptor, outcome = self.descriptor, self.outcome
        ended: dict[str, object]
        if isinstance(outcome, Released):
            ended = {
                "sum_sha256": outcome.sum_hash.hex(),
                "sum_bytes": outcome.size,
                "survivors": outcome.survivors,
                "kept_until": outcome.kept_until,
            }
        else:
            ended = {
                "abort_code": int(outcome.code),
                "abort_reason": outcome.reason,
                "was_unmasked": self.was_unmasked,
                "was_restored": self.was_restored,
            }
        return {
            "format": _FORMAT,
            "task_id": descriptor.task_id,
            "session_number": descriptor.session_number,
            "session_id": descriptor.session_id.hex(),
            "descriptor": descriptor.encode().hex(),
            "outcome": ended,
            "members": list(self.members),
            "sets": {
                "U1": self.advertised,
                "U2": self.shared,
                "U3": self.uploaded,
                "signed": self.signed,
                "U5": self.revealed,
            },
            "survivors": list(self.survivors),
            "disputes": [list(dispute) for dispute in self.disputes],
            "failed_dealer": self.failed_dealer,
            "ring": None if self.ring is None else self.ring.to_dict(),
            "is_failure_proven": self.is_failure_proven,
            "sessions_left": self.sessions_left,
            "noise": None if self.noise is None else self.noise.to_dict(),
            "unconfirmed": list(self.unconfirmed),
            "warning": self.warning,
            "lost": [list(each) for each in self.lost],
            "finishers": list(self.finishers),
            "contexts": [context.hex() for context in self.contexts],
            "seconds": dict(self.seconds),
        }

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps(self.to_dict(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a receipt that `encode` wrote.

        Raises:
            ServiceError: STORAGE_FAILED; the bytes are damaged or of another release.
        """
        try:
            fields = json.loads(data)
            ended = fields["outcome"]
            survivors = tuple(fields["survivors"])
            outcome: Released | Aborted
            if "sum_sha256" in ended:
                outcome = Released(
                    Fate.INCLUDED,
                    bytes.fromhex(ended["sum_sha256"]),
                    ended["sum_bytes"],
                    ended["survivors"],
                    ended["kept_until"],
                )
            else:
                outcome = Aborted(
                    Fate.NOT_INCLUDED if survivors else Fate.NEVER_FIXED,
                    ErrorCode(ended["abort_code"]),
                    ended["abort_reason"],
                )
            return cls(
                descriptor=SessionDescriptor.decode(
                    bytes.fromhex(fields["descriptor"])
                ),
                outcome=outcome,
                members=tuple(fields["members"]),
                advertised=fields["sets"]["U1"],
                shared=fields["sets"]["U2"],
                uploaded=fields["sets"]["U3"],
                signed=fields["sets"]["signed"],
                revealed=fields["sets"]["U5"],
                survivors=survivors,
                was_unmasked=ended.get("was_unmasked", False),
                was_restored=ended.get("was_restored", False),
                disputes=tuple(
                    (str(accuser), str(accused), int(code))
                    for accuser, accused, code in fields["disputes"]
                ),
                failed_dealer=str(fields["failed_dealer"]),
                ring=None
                if fields["ring"] is None
                else RingRisk.from_dict(fields["ring"]),
                is_failure_proven=bool(fields["is_failure_proven"]),
                sessions_left=None
                if fields["sessions_left"] is None
                else int(fields["sessions_left"]),
                noise=None
                if fields["noise"] is None
                else NoiseCertificate.from_dict(fields["noise"]),
                unconfirmed=tuple(map(str, fields["unconfirmed"])),
                lost=tuple(
                    (str(name), str(title), str(reason))
                    for name, title, reason in fields["lost"]
                ),
                finishers=tuple(fields["finishers"]),
                contexts=tuple(bytes.fromhex(text) for text in fields["contexts"]),
                seconds=tuple(sorted(fields["seconds"].items())),
            )
        except _UNREADABLE as error:
            raise ErrorCode.STORAGE_FAILED.error(
                f"a stored receipt cannot be read: {error}",
                fix="Use the release that wrote it.",
            ) from None


class SessionFacts:
    """Gathers the facts of one session.

    Args:
        descriptor: The session.
        excluded: Clients excluded because of earlier sessions of the task.

    Attributes:
        is_spent: Whether it uses one of the sessions that the task's budget covers.
        sessions_before: Sessions of the budget that were used before it; None without a
            budget, and until the task is known.
    """

    def __init__(self, descriptor: SessionDescriptor, excluded: frozenset[str]) -> None:
        self._descriptor = descriptor
        self._excluded = tuple(sorted(excluded))
        self.is_spent = False
        self.sessions_before: int | None = None
        self._session_id = descriptor.session_id
        self._contexts: dict[str, bytes] = {}
        self._seconds: dict[str, float] = {}
        self._notified: set[str] = set()
        self._members: tuple[str, ...] = ()
        self._share_holders = 0
        self._disputed: list[ShareDisputed] = []
        self._failed: DealerFailed | None = None
        self._noise_given: Counter[int] | None = None
        self._ring: RingRisk | None = None
        self._frame: RosterFrame | None = None
        self._seen = AuditReceipt(
            writer=WrittenBy.SERVER, offer=descriptor.encode(), outcome=Outcome.ABORTED
        )
        self._roster_proofs: Mapping[int, RosterProof] = {}
        self.dropped: list[DroppedClient] = []
        self._refused: dict[ErrorCode, set[str]] = defaultdict(set)

    @property
    def differing(self) -> AbstractSet[str]:
        """Clients that were refused for another view (R5.3-14)."""
        return self._refused[ErrorCode.VIEW_DIFFERS]

    def record_refusal(self, refusal: RefusalNoted) -> None:
        """Record why a client was refused, from the session's records."""
        self._refused[refusal.code].add(refusal.client)

    def _unconfirmed(self, state: server.Completed | server.Failed) -> tuple[str, ...]:
        """Return the clients of U3 that sent an invalid signature and no valid one."""
        signed = state.session.accepted.get(Round.CONSISTENCY_CHECK, {}).keys()
        refused = self._refused[ErrorCode.BAD_SIGNATURE]
        return tuple(sorted((refused & state.survivors) - signed))

    def enter(
        self,
        before: server.ServerState,
        state: server.ServerState,
        outputs: tuple[ServerOutput, ...],
        *,
        seconds: float,
    ) -> tuple[DroppedClient, ...]:
        """Record a change of state; return the clients that were lost by it.

        Args:
            before: The former state.
            state: The new state.
            outputs: What the state machine returned for the change.
            seconds: How long the round was open.
        """
        closed = before.ROUND
        name = "SUMMING" if isinstance(before, server.Summing) else closed.name
        self._seconds[name] = round(seconds, 3)
        if isinstance(state, RosterFixed):
            self._members = tuple(a.identity for a in state.cohort.roster.adverts)
            self._contexts["ctx1"] = state.cohort.ctx1
            self._frame = state.cohort.frame
        if isinstance(state, server.MaskedInputCollection):
            self._share_holders = len(state.share_holders)
            self._contexts["ctx2"] = state.ctx2
            self._roster_proofs = state.roster_proofs
            self._seen = replace(
                self._seen, share_holders=state.bitmap, edge_root=state.cohort.edge_root
            )
        self.is_spent = self.is_spent or server_machine.spends_session(state)
        if isinstance(state, server.ConsistencyCheck | server.Unmasking):
            survivors = encode_set(state.survivors, len(state.cohort.roster))
            parameters = self._descriptor.parameters
            self._contexts["ctx3"] = context.unmask_context(
                state.ctx2, survivors, parameters.suite
            )
            self._ring = graph_risk(parameters, state.cohort.graph, state.survivors)
            quorum = state.opening.data if state.opening.kind is Quorum else b""
            self._seen = replace(self._seen, survivors=survivors, quorum=quorum)
        lost = tuple(
            DroppedClient(output.identity, closed, self._drop_reason(output))
            for output in outputs
            if isinstance(output, DropClient)
        )
        # A client that did not sign may still answer. One that does not answer either
        # was lost once, where it matters: none of its noise is removed.
        again = {each.identity for each in lost}
        self.dropped = [each for each in self.dropped if each.identity not in again]
        self.dropped.extend(lost)
        for output in outputs:
            if isinstance(output, ShareDisputed):
                self._disputed.append(output)
            elif isinstance(output, DealerFailed):
                self._failed = output
            elif isinstance(output, ComputeSum):
                seeds = () if output.noise is None else output.noise.seeds
                self._noise_given = Counter(layer for layer, _ in seeds)
        return lost

    def _drop_reason(self, lost: DropClient) -> str:
        """Return why a client is lost; another view explains a missing input."""
        is_odd = lost.identity in self.differing
        if is_odd and lost.reason is DropReason.NO_INPUT:
            return DropReason.OTHER_VIEW.value
        return lost.reason.value

    def record_notified(self, state: server.ServerState, identity: str) -> None:
        """Record that a client was told how the session ended."""
        if identity in state.session.accepted[Round.ADVERTISE_KEYS]:
            self._notified.add(identity)

    def unacknowledged(self, state: server.ServerState) -> frozenset[str]:
        """Return the participants of the last round that do not know its end yet."""
        return _finishers(state) - self._notified

    def progress(
        self, state: server.ServerState, *, upload_bytes: int
    ) -> SessionProgress:
        """Return the session's progress."""
        now = server_machine.progress(state)
        phase, reason = SessionPhase.COLLECTING, ""
        if isinstance(state, server.Summing):
            phase = SessionPhase.SUMMING
        elif isinstance(state, server.Completed):
            phase = SessionPhase.COMPLETED
            reason = f"sum of {state.outcome.survivors} inputs released"
        elif isinstance(state, server.Failed):
            phase, reason = SessionPhase.ABORTED, state.outcome.reason
        return SessionProgress(
            session_id=self._session_id,
            task_id=self._descriptor.task_id,
            session_number=self._descriptor.session_number,
            phase=phase,
            round=now.round,
            joined=len(state.session.accepted[Round.ADVERTISE_KEYS]),
            answered=now.answered,
            expected=now.expected,
            needed=now.needed,
            dropped=tuple(self.dropped),
            upload_bytes=upload_bytes,
            sessions_left=self._sessions_left(is_spent=self.is_spent),
            excluded=self._excluded,
            reason=reason,
        )

    def _sessions_left(self, *, is_spent: bool) -> int | None:
        before = self.sessions_before
        return None if before is None else before - is_spent

    def receipt(
        self, state: server.Completed | server.Failed, *, was_restored: bool
    ) -> SessionReceipt:
        """Return the receipt of the session."""
        ctx0 = context.session_context(self._descriptor)
        sent = {which: len(of) for which, of in state.session.accepted.items()}
        return SessionReceipt(
            descriptor=self._descriptor,
            outcome=state.outcome,
            members=self._members,
            advertised=sent[Round.ADVERTISE_KEYS],
            shared=self._share_holders,
            uploaded=sent.get(Round.MASKED_INPUT_COLLECTION, 0),
            signed=sent.get(Round.CONSISTENCY_CHECK, 0),
            revealed=sent.get(Round.UNMASKING, 0),
            survivors=tuple(sorted(state.survivors)),
            was_unmasked=isinstance(state, server.Failed) and state.was_unmasked,
            was_restored=was_restored and isinstance(state, server.Failed),
            disputes=self._disputes(state),
            failed_dealer="" if self._failed is None else self._failed.dealer,
            ring=self._ring,
            is_failure_proven=self._failed is not None and self._failed.is_proven,
            sessions_left=self._sessions_left(is_spent=self.is_spent or was_restored),
            noise=self._noise(len(state.survivors)),
            unconfirmed=self._unconfirmed(state),
            lost=tuple(
                (each.identity, ROUNDS[each.round].title, each.reason)
                for each in self.dropped
            ),
            finishers=tuple(sorted(_finishers(state))),
            contexts=(ctx0, *self._contexts.values()),
            seconds=tuple(sorted(self._seconds.items())),
        )

    def audit(self, state: server.Completed | server.Failed) -> AuditReceipt:
        """Return what any party can verify of the session by itself.

        Disputes are kept as pairs: of two about one pair, the first.  A client that
        lied about its own secret is in no pair for that.  Where clients sign, each pair
        comes with its dealer's signature over what it dealt.
        """
        outcome, place = state.outcome, {n: i for i, n in enumerate(self._members)}
        pairs: dict[tuple[int, int], int] = {}
        for one, other, code in self._disputes(state):
            if one != other:
                pairs.setdefault((place[one], place[other]), code)
        noise = self._noise(len(state.survivors))
        layers = self._descriptor.parameters.noise_layers
        seen = replace(
            self._seen,
            view=None if self._frame is None else self._frame.encode(),
            certificate=b"" if noise is None or not layers else noise.encode(),
            disputes=tuple(
                self._with_evidence(Dispute(*pair, pairs[pair]))
                for pair in sorted(pairs)
            ),
        )
        if isinstance(outcome, Released):
            return replace(
                seen,
                outcome=Outcome.RELEASED,
                sum_hash=outcome.sum_hash,
                size=outcome.size,
            )
        discarded = isinstance(state, server.Failed) and state.was_unmasked
        return replace(
            seen,
            outcome=Outcome.DISCARDED if discarded else Outcome.ABORTED,
            code=outcome.code,
        )

    def _with_evidence(self, dispute: Dispute) -> Dispute:
        """Add the proof of a dispute, if there is one."""
        proof = self._roster_proofs.get(dispute.dealer)
        if proof is None:
            return dispute
        return replace(dispute, evidence=proof.digest + proof.signature)

    def _noise(self, survivors: int) -> NoiseCertificate | None:
        """Return the noise that the sum holds; None if it has none."""
        if self._noise_given is None or not self._descriptor.parameters.noise_block:
            return None
        task = NoisyTask.from_parameters(self._descriptor.parameters)
        return task.certificate(
            clients=len(self._members),
            share_holders=self._share_holders,
            survivors=survivors,
            given=self._noise_given,
        )

    def _disputes(
        self, state: server.Completed | server.Failed
    ) -> tuple[tuple[str, str, int], ...]:
        """Return complaints, and shares that could not be combined, by name."""
        said = state.session.complaints
        complaints = tuple(
            (accuser, self._members[accused], int(said[accuser, accused].code))
            for accuser, accused in sorted(said)
        )
        return complaints + tuple(
            (found.dealer, found.holder, int(ErrorCode.RECONSTRUCTION_FAILED))
            for found in self._disputed
        )


def _finishers(state: server.ServerState) -> frozenset[str]:
    """Return the clients that answered in the last round with an answer."""
    answered = [senders for senders in state.session.accepted.values() if senders]
    return frozenset(answered[-1] if answered else ())


def next_step_after(receipt: SessionReceipt) -> str:
    """Return what the operator does about a session; empty when it released its sum."""
    outcome = receipt.outcome
    if not isinstance(outcome, Aborted):
        return ""
    if receipt.was_restored:
        return _AFTER_RESTORE
    return _NEXT_STEPS.get(outcome.code, _OTHERWISE)


def report_of(
    receipt: SessionReceipt, progress: SessionProgress, *, opened: float, ended: float
) -> dict[str, object]:
    """Return the report of a session as JSON values.

    Args:
        receipt: The session's receipt.
        progress: Its progress at its end.
        opened: When it was opened, in Unix seconds.
        ended: When it ended, in Unix seconds.
    """
    descriptor, outcome = receipt.descriptor, receipt.outcome
    parameters = descriptor.parameters
    budget = None
    if parameters.noise_block:
        planned = NoisyTask.from_parameters(parameters).budget
        budget = {
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "participations": planned.participations,
            "charges": planned.charges,
            "sessions_left": receipt.sessions_left,
        }
    failed: dict[str, object] = {}
    if isinstance(outcome, Aborted):
        failed = {
            "code": int(outcome.code),
            "reason": outcome.reason,
            "next_step": next_step_after(receipt),
        }
    warning: dict[str, object] = {}
    if receipt.warning:
        warning["warning"] = receipt.warning
    return {
        "format": _FORMAT,
        "aggregator": descriptor.aggregator,
        "version": metadata.version("secagg"),
        "task": descriptor.task_id,
        "session_number": descriptor.session_number,
        "session_id": descriptor.session_id.hex(),
        "outcome": receipt.outcome_name,
        **failed,
        "opened": iso_date(opened),
        "ended": iso_date(ended),
        "seconds": round(ended - opened, 3),
        "seconds_of_rounds": dict(receipt.seconds),
        "counts": {
            "joined": receipt.advertised,
            "shared_keys": receipt.shared,
            "uploaded": receipt.uploaded,
            "signed": receipt.signed,
            "unmasked": receipt.revealed,
            "in_the_sum": 0 if failed else len(receipt.survivors),
        },
        "lost": [
            {"client": client, "round": title, "reason": reason}
            for client, title, reason in receipt.lost
        ],
        "unconfirmed": list(receipt.unconfirmed),
        **warning,
        "excluded": list(progress.excluded),
        "disputes": [
            {"accuser": accuser, "accused": accused, "code": ErrorCode(code).name}
            for accuser, accused, code in receipt.disputes
        ],
        "failed_dealer": receipt.failed_dealer,
        "upload_bytes": progress.upload_bytes,
        "budget": budget,
    }


class SessionReports:
    """The reports of an aggregator: `<directory>/<task>/<number>.json`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def record(
        self, store: Store, receipt: SessionReceipt, progress: SessionProgress
    ) -> None:
        """Write the report of a session that is over, before its end is stored.

        Args:
            store: Knows when the session was opened.
            receipt: The session's receipt.
            progress: Its progress.

        Raises:
            StoreUnavailableError: The store must be asked again.
        """
        try:
            ended = await store.read(ReadClock())
            task_id, number = progress.task_id, progress.session_number
            running = await store.read(ListSessions(role=Side.SERVER, task=task_id))
            opened = min((r.born for r in running if r.number == number), default=ended)
            report = report_of(receipt, progress, opened=opened, ended=ended)
            await asyncio.to_thread(self._write_report, task_id, number, report)
        except StoreUnavailableError:
            raise  # the session's end needs the store, too
        except Exception as error:  # noqa: BLE001 - no sum waits for a report
            telemetry.log_event(
                _LOG,
                logging.ERROR,
                telemetry.REPORT_WRITE_FAILED,
                task=progress.task_id,
                number=progress.session_number,
                reason=error,
            )

    def read(self, task_id: str, number: int) -> dict[str, object] | None:
        """Return a report, or None if no readable one exists."""
        try:
            with self._report_path(task_id, number).open("rb") as stream:
                report = json.loads(stream.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return report if isinstance(report, dict) else None

    def purge(self, policy: Retention, *, now: float) -> int:
        """Delete reports that exceed the age or number of the policy.

        Args:
            policy: What is kept, as for receipts.
            now: This moment, in Unix seconds.

        Returns:
            The number of deleted reports.
        """
        oldest = now - policy.keep_receipts_days * _DAY_SECONDS
        by_task: defaultdict[Path, list[tuple[float, Path]]] = defaultdict(list)
        for path in self._files():
            by_task[path.parent].append((path.stat().st_mtime, path))
        gone = 0
        for files in by_task.values():
            files.sort(reverse=True)
            for place, (written, path) in enumerate(files):
                if place >= policy.keep_receipts or written < oldest:
                    path.unlink(missing_ok=True)
                    gone += 1
        return gone

    def _files(self) -> Iterator[Path]:
        if self._directory.is_dir():
            yield from self._directory.glob("*/[0-9]*.json")

    def _write_report(
        self, task_id: str, number: int, report: Mapping[str, object]
    ) -> None:
        """Write a report below the folder of its task."""
        path = self._report_path(task_id, number)
        for folder in (self._directory, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        data = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
        replace_file(path, data, mode=_PRIVATE)

    def _report_path(self, task_id: str, number: int) -> Path:
        """Return the file of a session's report."""
        return self._directory / folder_of(task_id) / f"{number}.json"


def reports_in(state_dir: Path) -> SessionReports:
    """Return the reports in the state directory of an aggregator."""
    return SessionReports(state_dir / "reports")


def iso_date(seconds: float) -> str:
    """Return a moment in Unix seconds as an ISO date in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
