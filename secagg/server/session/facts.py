"""The public facts of one session on the server: who came how far, and how fast.

States of the core keep only what their round needs; what an operator and a receipt
want to know besides is gathered here while the session goes on.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from secagg.crypto.transcript import encode_set
from secagg.distributed_dp import NoisyTask
from secagg.errors import ErrorCode
from secagg.protocol import context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.ring_safety import RingRisk, graph_risk
from secagg.protocol.messages import Quorum, Released, RosterFrame, RosterProof, Round
from secagg.protocol.noise_certificate import NoiseCertificate
from secagg.protocol.outputs import (
    ComputeSum,
    DealerFailed,
    DropClient,
    ServerOutput,
    ShareDisputed,
)
from secagg.protocol.receipts.receipt import AuditReceipt, Dispute, Outcome, WrittenBy
from secagg.protocol.rounds import ROUNDS, DropReason
from secagg.protocol.server import machine as server
from secagg.protocol.server.states import RosterFixed
from secagg.server.session.progress import DroppedClient, SessionPhase, SessionProgress
from secagg.server.session.receipt import SessionReceipt
from secagg.storage.journal import RefusalNoted


class SessionFacts:
    """Gathers the facts of one session.

    Args:
        descriptor: The session.
        left_out: Who takes no part because of earlier sessions of the task.

    Attributes:
        is_spent: It uses one of the sessions that the task's budget covers.
        sessions_before: How many of them there were before it; None without a budget,
            and until the task is known that it belongs to.
    """

    def __init__(self, descriptor: SessionDescriptor, left_out: frozenset[str]) -> None:
        self._descriptor = descriptor
        self._left_out = tuple(sorted(left_out))
        self.is_spent = False
        self.sessions_before: int | None = None
        self._session_id = descriptor.session_id
        self._contexts: dict[str, bytes] = {}
        self._seconds: dict[str, float] = {}
        self._told: set[str] = set()
        self._members: tuple[str, ...] = ()
        self._sharers = 0
        self._disputed: list[ShareDisputed] = []
        self._failed: DealerFailed | None = None
        self._noise_given: Counter[int] | None = None
        self._ring: RingRisk | None = None
        self._frame: RosterFrame | None = None
        self._seen = AuditReceipt(
            writer=WrittenBy.SERVER,
            offer=descriptor.encode(),
            outcome=Outcome.ABORTED,
        )
        self._roster_proofs: Mapping[int, RosterProof] = {}
        self.dropped: list[DroppedClient] = []
        self._refused: dict[ErrorCode, set[str]] = defaultdict(set)

    @property
    def differing(self) -> AbstractSet[str]:
        """Clients that have been refused for another view (R5.3-14)."""
        return self._refused[ErrorCode.VIEW_DIFFERS]

    def note_refusal(self, refusal: RefusalNoted) -> None:
        """Note why a client was refused, from the session's records."""
        self._refused[refusal.code].add(refusal.client)

    def _unconfirmed(self, state: server.Completed | server.Failed) -> tuple[str, ...]:
        """Return who of U3 has sent a signature that does not hold, and no other."""
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
        """Note a change of state; return who was lost by it.

        Args:
            before: The state that was left.
            state: The state that was entered.
            outputs: What the state machine put out on the way.
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
            self._sharers = len(state.sharers)
            self._contexts["ctx2"] = state.ctx2
            self._roster_proofs = state.roster_proofs
            self._seen = replace(
                self._seen, sharers=state.bitmap, edge_root=state.cohort.edge_root
            )
        self.is_spent = self.is_spent or server.spends_session(state)
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
            DroppedClient(output.identity, closed, self._reason(output))
            for output in outputs
            if isinstance(output, DropClient)
        )
        # Who did not sign may answer; who does not answer either was lost once, where
        # it matters: no noise of theirs is taken back.
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

    def _reason(self, lost: DropClient) -> str:
        is_odd = lost.identity in self.differing
        if is_odd and lost.reason is DropReason.NO_INPUT:
            return DropReason.OTHER_VIEW.value
        return lost.reason.value

    def tell(self, state: server.ServerState, identity: str) -> None:
        """Note that a client has been told how the session ended."""
        if identity in state.session.accepted[Round.ADVERTISE_KEYS]:
            self._told.add(identity)

    def untold(self, state: server.ServerState) -> frozenset[str]:
        """Return who took part to the end and does not know yet how it ended."""
        return _finishers(state) - self._told

    def progress(
        self, state: server.ServerState, *, upload_bytes: int
    ) -> SessionProgress:
        """Return where the session stands."""
        now = server.progress(state)
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
            left_out=self._left_out,
            reason=reason,
        )

    def _sessions_left(self, *, is_spent: bool) -> int | None:
        before = self.sessions_before
        return None if before is None else before - is_spent

    def receipt(
        self, state: server.Completed | server.Failed, *, was_restored: bool
    ) -> SessionReceipt:
        """Return what is left of the session."""
        ctx0 = context.session_context(self._descriptor)
        sent = {which: len(of) for which, of in state.session.accepted.items()}
        return SessionReceipt(
            descriptor=self._descriptor,
            outcome=state.outcome,
            members=self._members,
            advertised=sent[Round.ADVERTISE_KEYS],
            shared=self._sharers,
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
        """Return what anybody can judge of the session without asking anybody.

        The disputes are kept as pairs: of two about one pair the first.  A client that
        lied about its own secret is in no pair by that.  Where clients sign, each pair
        comes with its dealer's signature over what it has dealt.
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
        proof = self._roster_proofs.get(dispute.dealer)
        if proof is None:
            return dispute
        return replace(dispute, evidence=proof.digest + proof.signature)

    def _noise(self, survivors: int) -> NoiseCertificate | None:
        """Return what noise the sum holds, if one was computed and has any."""
        if self._noise_given is None or not self._descriptor.parameters.noise_block:
            return None
        task = NoisyTask.from_parameters(self._descriptor.parameters)
        return task.certificate(
            clients=len(self._members),
            sharers=self._sharers,
            survivors=survivors,
            given=self._noise_given,
        )

    def _disputes(
        self, state: server.Completed | server.Failed
    ) -> tuple[tuple[str, str, int], ...]:
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
    """Return who answered in the last round in which anybody did."""
    answered = [senders for senders in state.session.accepted.values() if senders]
    return frozenset(answered[-1] if answered else ())
