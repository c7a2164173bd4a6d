"""Verification of receipts without network, state or secrets.

Rule 1: everything that follows from other bytes is recomputed, by the code that clients
        run; nothing derivable is read from the receipt.
Rule 2: the steps and their order are those of R5.8-1; the error names the first that
        fails.
Rule 3: noise is verified together with the sets.  A client that follows the protocol
        answers no session whose noise it would not add.
Rule 4: the verdict states what holds and no more: that a quorum has signed roster and
        sets, or that the writer states them (R5.8-2).  It cannot tell whether a sum is
        right.

The comparison of receipts with one session id:

Rule 5: a session's id covers its offer and nothing after it.  A server that lies can
        show two rosters under one id, two sets over one roster, or two sums over one
        set.  Each receipt may pass by itself; only a comparison of two reveals it.
Rule 6: the comparison covers what every party of a session must know alike.  It is
        limited to fields that both receipts have: a client that left early lacks some.

Source: PROTOCOL §5.8.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from hashlib import sha256
from itertools import combinations, pairwise
from typing import Final, Protocol

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import context
from secagg.protocol.agreement import Signers, check_bundle_signature, check_quorum
from secagg.protocol.client.checks import (
    check_edge_bounds,
    check_layers,
    check_noise_suffices,
    check_overlap,
    check_ring,
    check_ring_survivors,
    check_share_holders,
    check_shown_adverts,
    check_size,
    check_survivors,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import read_revocations
from secagg.protocol.graphs.neighbours import SharingGraph, sharing_graph
from secagg.protocol.membership import check_adverts, enrolment_rules
from secagg.protocol.messages import DIGEST_BYTES, Advert, Quorum, Roster, RosterFrame
from secagg.protocol.noise_terms import (
    NoiseCertificate,
    NoiseCost,
    NoiseTerms,
    no_noise,
    noise_terms,
)
from secagg.protocol.packing import packed_size
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Dispute,
    Outcome,
    RosterCommitment,
    WrittenBy,
)


class NoiseVerifier(Protocol):
    """Verifies the noise of a session from its offer, as clients do.

    `secagg.distributed_dp.TaskNoiseVerifier` is one.
    """

    def check_block(self, offer: SessionDescriptor) -> None:
        """Refuse a noise block or noise terms that no client accepts (BAD_CONFIG)."""
        ...

    def terms(self, parameters: ProtocolParameters, share_holders: int) -> NoiseTerms:
        """Return what |U2| determines about the noise."""
        ...

    def cost(self, offer: SessionDescriptor) -> NoiseCost:
        """Compute what the noise costs; refuse an epsilon above the block's."""
        ...

    def certificate(
        self,
        parameters: ProtocolParameters,
        clients: int,
        share_holders: int,
        survivors: int,
    ) -> NoiseCertificate:
        """Return the noise that a sum over such sets must hold."""
        ...


@unique
class VerificationStep(StrEnum):
    """The steps of a verifier, in this order."""

    ENCODING = "encoding"
    DIGEST = "digest"
    OFFER = "offer"
    VIEW = "view"
    CREDENTIALS = "credentials"
    SETS = "sets"
    QUORUM = "quorum"
    SIGNATURES = "signatures"
    """Between two aggregators, in place of a quorum."""
    OUTCOME = "outcome"
    CLAIM = "claim"
    CERTIFICATE = "certificate"


@unique
class Finding(StrEnum):
    """What a receipt that passes shows."""

    AGREED = "agreed"
    """A quorum of enrolled clients has signed roster, U2 and U3."""
    STATED = "stated"
    """The writer of the receipt states them."""
    NO_SUM = "no sum"
    """No set U3 was ever fixed."""


class ReceiptError(RemoteProtocolError):
    """A receipt fails a step of its verification.

    Attributes:
        step: The first that failed.
    """

    def __init__(
        self,
        step: VerificationStep,
        message: str,
        *,
        code: ErrorCode,
        next_step: str = "",
    ) -> None:
        super().__init__(f"{step}: {message}", code=code, next_step=next_step)
        self.step = step


@dataclass(frozen=True, slots=True)
class Verdict:
    """The facts that a receipt proves or states.

    Attributes:
        finding: Which party vouches for it.
        receipt: Its fields.
        descriptor: The offer.
        ctx1: Covers offer and roster, 32 bytes; empty without a view.
        clients: n; 0 without a view.
        names: By roster index; empty if the writer has not read the whole roster.
        share_holders: U2 as roster indices.
        survivors: U3 as roster indices.
        signers: The signers, as roster indices.
        cost: The cost of the task to a client; None without noise.
    """

    finding: Finding
    receipt: AuditReceipt
    descriptor: SessionDescriptor
    ctx1: bytes
    clients: int
    names: tuple[str, ...]
    share_holders: frozenset[int]
    survivors: frozenset[int]
    signers: frozenset[int]
    cost: NoiseCost | None


def verify_receipt(
    data: bytes,
    *,
    enrolment_key: bytes | None = None,
    revocations: bytes | None = None,
    noise: NoiseVerifier | None = None,
) -> Verdict:
    """Verify a receipt (R5.8-1) and return what it shows (R5.8-2).

    Args:
        data: Its bytes.
        enrolment_key: The key that clients were to pin, 32 bytes; needed in profiles
            with signatures.
        revocations: The revocation list that the offer names, so that revoked
            credentials are refused; None accepts every credential that was signed.
        noise: Verifies noise; needed if the offer has a noise block.  It takes up to
            seconds to compute an epsilon.

    Returns:
        What it shows.

    Raises:
        ReceiptError: The first step that fails, and why.
        LocalProtocolError: The session adds noise, and `noise` is None.
    """
    with naming_step(VerificationStep.ENCODING):
        receipt = AuditReceipt.decode(data)
    if not receipt.is_undamaged(data):
        raise ReceiptError(
            VerificationStep.DIGEST,
            "the receipt is damaged",
            code=ErrorCode.BAD_ENCODING,
        )
    with naming_step(VerificationStep.OFFER):
        descriptor = SessionDescriptor.decode(receipt.offer)
    reading = _Reading(receipt, descriptor, noise)
    with naming_step(VerificationStep.VIEW):
        reading.read_view()
    with naming_step(VerificationStep.CREDENTIALS):
        reading.check_credentials(enrolment_key, revocations)
    with naming_step(VerificationStep.SETS):
        reading.read_sets()
    with naming_step(VerificationStep.QUORUM):
        reading.check_quorum()
    with naming_step(VerificationStep.OUTCOME):
        reading.check_outcome()
    with naming_step(VerificationStep.CLAIM):
        reading.check_claim()
    with naming_step(VerificationStep.CERTIFICATE):
        reading.check_certificate()
    return reading.verdict()


class _Reading:
    """The facts of a receipt that are known so far."""

    def __init__(
        self,
        receipt: AuditReceipt,
        descriptor: SessionDescriptor,
        noise: NoiseVerifier | None,
    ) -> None:
        self._receipt: Final = receipt
        self._descriptor: Final = descriptor
        self._parameters: Final = descriptor.parameters
        self._noise: Final = _verifier_for(descriptor.parameters, noise)
        self._ctx0: Final = context.session_context(descriptor)
        self._adverts: tuple[Advert, ...] = ()
        self._clients = 0
        self._graph: SharingGraph | None = None
        self._ctx1 = b""
        self._terms = NoiseTerms(b"", tolerated_losses=0)
        self._cost: NoiseCost | None = None
        self._share_holders: AbstractSet[int] = frozenset()
        self._survivors: AbstractSet[int] = frozenset()
        self._signers: frozenset[int] = frozenset()

    def read_view(self) -> None:
        """Read the roster, or its commitment, and derive graph and ctx1."""
        parameters, view = self._parameters, self._receipt.view
        self._check_edge_root()
        match view:
            case None:
                return
            case RosterCommitment(clients, top, graph_seed):
                self._ctx1 = context.committed_roster(
                    self._ctx0, clients, top, graph_seed, parameters.suite
                )
            case _:
                roster = Roster.decode(view)
                if not isinstance(roster, Roster):
                    raise _receipt_error(
                        "the receipt has a neighbourhood in place of the roster"
                    )
                self._adverts = roster.adverts
                clients, graph_seed = len(roster), roster.graph_seed
                frame = RosterFrame.decode(view)
                self._ctx1 = context.roster_context(self._ctx0, frame, parameters.suite)
        self._clients = clients
        adverts = dict(enumerate(self._adverts))
        check_layers(parameters, adverts)
        check_size(parameters, clients)
        check_shown_adverts(adverts, parameters.profile)
        self._graph = sharing_graph(parameters, clients, graph_seed)
        # On a weaker graph no client that follows the protocol deals shares.
        check_ring(parameters, self._graph)
        check_edge_bounds(parameters, clients)

    def _check_edge_root(self) -> None:
        """Check that there is an edge root exactly if edges were published."""
        root, is_drawn = self._receipt.edge_root, self._parameters.graph is Graph.K_OUT
        if root and (not is_drawn or self._receipt.view is None):
            raise _receipt_error("it has an edge root, but no client drew edges")
        # A client that left between the edges and U2 has only the edge root.
        is_due = root or (is_drawn and self._receipt.share_holders)
        if is_due and len(root) != DIGEST_BYTES:
            raise _receipt_error("no edge root covers the drawn edges")

    def check_credentials(
        self, enrolment_key: bytes | None, revocations: bytes | None
    ) -> None:
        """Check the clients' credentials, in profiles that have them."""
        if isinstance(self._parameters.tail, HonestCuriousParameters):
            return
        trust = self._parameters.tail.trust
        if trust.enrolment_key != enrolment_key:
            raise _receipt_error(
                "its clients were enrolled under another key than the expected one"
                if enrolment_key
                else "its clients sign, but no enrolment key was passed",
                code=ErrorCode.BAD_CREDENTIAL,
            )
        listed = None
        if revocations is not None:
            if sha256(revocations).digest() != trust.revocation_hash:
                raise ErrorCode.BAD_CREDENTIAL.error(
                    "the session names another revocation list, or none",
                    kind=RemoteProtocolError,
                    fix="Pass the list of that session; leave it out if it has none.",
                )
            listed = read_revocations(revocations, trust)
        revoked = frozenset(() if listed is None else listed.serials)
        check_adverts(
            self._adverts,
            enrolment_rules(trust, self._descriptor.session_end, revoked),
            ctx0=self._ctx0,
            suite=self._parameters.suite,
            verified=None,
        )
        check_overlap(self._parameters, self._clients)

    def read_sets(self) -> None:
        """Read U2 and U3, as far as they were fixed, and the noise that they carry."""
        receipt, parameters = self._receipt, self._parameters
        self._check_block()
        if receipt.survivors and not receipt.share_holders:
            raise _receipt_error("it has U3 and no U2")
        if not receipt.share_holders:
            return
        if self._graph is None:
            raise _receipt_error("it has U2 and no roster")
        self._share_holders = check_share_holders(
            parameters,
            roster_size=self._clients,
            index=None,
            bitmap=receipt.share_holders,
        )
        self._terms = self._settled(len(self._share_holders))
        if not receipt.survivors:
            return
        self._survivors = check_survivors(
            parameters,
            roster_size=self._clients,
            index=None,
            share_holders=self._share_holders,
            bitmap=receipt.survivors,
        )
        check_noise_suffices(
            self._terms, len(self._share_holders), len(self._survivors)
        )
        check_ring_survivors(parameters, self._graph, self._survivors)

    def _check_block(self) -> None:
        """Check the offer's noise statements, as a joining client does."""
        if self._noise is not None:
            self._noise.check_block(self._descriptor)

    def _settled(self, share_holders: int) -> NoiseTerms:
        read = no_noise if self._noise is None else self._noise.terms
        return noise_terms(self._parameters, share_holders, read, clients=self._clients)

    def check_quorum(self) -> None:
        """Check that enough clients have signed these sets, if clients sign."""
        receipt, parameters = self._receipt, self._parameters
        clients_sign = parameters.profile.has_identities
        if receipt.quorum and not clients_sign:
            raise _receipt_error(
                "in this profile no client signs", code=ErrorCode.NO_QUORUM
            )
        if not receipt.quorum:
            if clients_sign and receipt.outcome is not Outcome.ABORTED:
                raise _receipt_error("no client signed", code=ErrorCode.NO_QUORUM)
            return
        if not self._survivors:
            raise _receipt_error("it has a quorum and no U3", code=ErrorCode.NO_QUORUM)
        suite = parameters.suite
        ctx2 = context.mask_context(
            self._ctx1,
            receipt.share_holders,
            suite,
            edge_root=receipt.edge_root,
            noise_context=self._terms.context,
        )
        quorum = Quorum.decode(receipt.quorum)
        check_quorum(
            quorum,
            needed=parameters.quorum,
            survivors=self._survivors,
            signers=Signers.of(self._adverts),
            ctx1=self._ctx1,
            ctx3=context.unmask_context(ctx2, receipt.survivors, suite),
            suite=suite,
        )
        self._signers = frozenset(signer for signer, _ in quorum.signatures)

    def check_outcome(self) -> None:
        """Check that the outcome is possible for these sets."""
        receipt, parameters = self._receipt, self._parameters
        is_released = receipt.outcome is Outcome.RELEASED
        if receipt.outcome is not Outcome.ABORTED and not self._survivors:
            raise _receipt_error("it ended with a sum and has no U3")
        if is_released != (receipt.code == 0):
            raise _receipt_error(
                "a code must be present exactly if no sum was released"
            )
        size = packed_size(parameters.dimension, parameters.bits) if is_released else 0
        if receipt.size != size:
            raise _receipt_error(f"its sum has {receipt.size} bytes, not {size}")
        if not is_released and any(receipt.sum_hash):
            raise _receipt_error("it has the hash of a sum that was not released")
        pairs = [(row.accuser, row.accused) for row in receipt.disputes]
        if any(one >= other for one, other in pairwise(pairs)):
            raise _receipt_error("its disputes are not strictly ascending")
        if any(a == b or max(a, b) >= self._clients for a, b in pairs):
            raise _receipt_error("a dispute is between two clients of the roster")
        for row in receipt.disputes:
            self._check_evidence(row)

    def _check_evidence(self, dispute: Dispute) -> None:
        """Check that a dealer has signed what is in dispute, if clients sign."""
        parameters = self._parameters
        if bool(dispute.evidence) != parameters.profile.has_identities:
            raise _receipt_error("a dispute must have evidence exactly if clients sign")
        if dispute.evidence:
            check_bundle_signature(
                dispute.evidence[DIGEST_BYTES:],
                dispute.evidence[:DIGEST_BYTES],
                signers=Signers.of(self._adverts),
                ctx1=self._ctx1,
                index=dispute.dealer,
                suite=parameters.suite,
            )

    def check_claim(self) -> None:
        """Compute the cost of the noise to a client, and compare it with the claim."""
        if self._noise is not None:
            self._cost = self._noise.cost(self._descriptor)

    def check_certificate(self) -> None:
        """Compute the noise that the sum holds, and compare."""
        receipt, parameters = self._receipt, self._parameters
        stated, is_server = receipt.certificate, receipt.writer is WrittenBy.SERVER
        if not stated:
            is_released = receipt.outcome is Outcome.RELEASED
            if is_server and is_released and parameters.noise_layers:
                raise _receipt_error(
                    "a server released the sum without a noise certificate"
                )
            return
        if self._noise is None or not parameters.noise_layers:
            raise _receipt_error("it has a certificate, but no noise is removed")
        if not self._survivors:
            raise _receipt_error("it has a certificate and no U3")
        computed = self._noise.certificate(
            parameters, self._clients, len(self._share_holders), len(self._survivors)
        )
        # The number of subtracted seeds is known only from the writer's statement.
        given = _subtracted_counts(stated, len(computed.removed), len(self._survivors))
        if (given is None) == is_server:
            raise _receipt_error(
                "a server states how much noise it has subtracted, a client does not"
            )
        if replace(computed, given=given).encode() != stated:
            raise _receipt_error(
                "its certificate does not follow from noise block, U2 and U3"
            )

    def verdict(self) -> Verdict:
        """Return the verdict of all steps."""
        finding = Finding.STATED if self._survivors else Finding.NO_SUM
        if self._signers:
            finding = Finding.AGREED
        return Verdict(
            finding,
            self._receipt,
            self._descriptor,
            self._ctx1,
            self._clients,
            tuple(advert.identity for advert in self._adverts),
            frozenset(self._share_holders),
            frozenset(self._survivors),
            self._signers,
            self._cost,
        )


def _verifier_for(
    parameters: ProtocolParameters, noise: NoiseVerifier | None
) -> NoiseVerifier | None:
    """Return the verifier of a session's noise; None for a session without noise."""
    if not parameters.noise_block:
        return None
    if noise is None:
        raise ErrorCode.LOCAL_MISUSE.error(
            "this session adds noise, but no noise verifier was given",
            fix="Pass noise=secagg.distributed_dp.TaskNoiseVerifier().",
        )
    return noise


def _subtracted_counts(
    certificate: bytes, layers: int, survivors: int
) -> tuple[int, ...] | None:
    """Return from how many survivors each layer is stated to have been subtracted."""
    try:
        given = json.loads(certificate)["given"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise _receipt_error("its certificate is malformed") from None
    if given is None:  # a client does not learn what was subtracted
        return None
    if not isinstance(given, list) or len(given) != layers:
        raise _receipt_error(f"its certificate does not count {layers} layers")
    if not all(type(count) is int and 0 <= count <= survivors for count in given):
        raise _receipt_error(
            f"no layer is subtracted from more than {survivors} survivors"
        )
    return tuple(given)


@contextmanager
def naming_step(step: VerificationStep) -> Iterator[None]:
    """Name the step at which a receipt fails.

    Raises:
        ReceiptError: A check inside the block has failed.
    """
    try:
        yield
    except RemoteProtocolError as error:
        raise ReceiptError(
            step, str(error), code=error.code, next_step=error.next_step
        ) from None


def _receipt_error(
    complaint: str, *, code: ErrorCode = ErrorCode.BAD_ENCODING
) -> RemoteProtocolError:
    return code.error(complaint, kind=RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class ShownSession:
    """What one receipt shows of a session, for comparison with others.

    Attributes:
        source: Origin of the receipt, for errors; for example its file.
        session_id: The session's, 32 bytes.
        shown: Values that every party must know alike, by name, in the order in which a
            session fixes them.  Empty values were never fixed, or not shown.
    """

    source: str
    session_id: bytes
    shown: Mapping[str, bytes]


def facts_in(verdict: Verdict, *, source: str) -> ShownSession:
    """Return what the receipt of one aggregator, or of its client, shows.

    Args:
        verdict: Of a receipt that passed.
        source: Origin of the receipt.
    """
    receipt = verdict.receipt
    return ShownSession(
        source,
        verdict.descriptor.session_id,
        {
            "ctx1": verdict.ctx1,
            "edge root": receipt.edge_root,
            "U2": receipt.share_holders,
            "U3": receipt.survivors,
            "sum": receipt.sum_hash if receipt.outcome is Outcome.RELEASED else b"",
        },
    )


def check_one_session(sessions: Iterable[ShownSession]) -> None:
    """Check that receipts with one session id show one session (R5.8-3).

    Args:
        sessions: Of receipts that passed, of any sessions.

    Raises:
        RemoteProtocolError: EQUIVOCATION; names two receipts and the first difference.
    """
    for one, other in combinations(sessions, 2):
        if one.session_id != other.session_id:
            continue
        for what, value in one.shown.items():
            # A set over another roster is another set, whatever its bytes are.
            if value and (seen := other.shown.get(what)) and seen != value:
                raise ErrorCode.EQUIVOCATION.error(
                    f"{one.source} and {other.source} show session "
                    f"{one.session_id.hex()} with another {what}: "
                    f"{value.hex()} and {seen.hex()}",
                    fix="Keep both receipts and ask the operator which one is true.",
                )
