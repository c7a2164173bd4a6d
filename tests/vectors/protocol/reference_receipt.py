"""§5.8: what is left of a session, for any reader to check."""

import itertools
import json
from dataclasses import dataclass

from reference import (
    BAD_ENCODING,
    CURIOUS,
    RECONSTRUCTION_FAILED,
    Decoder,
    Offer,
    Refused,
    blob,
    context_0,
    digest,
    members_of,
    packed_size,
    residue_bits,
    u16,
    u32,
    u64,
)
from reference_enrolment import Trust
from reference_noise import NoiseRule, certificate, check_block, check_claim
from reference_ring import is_safe
from reference_roster import Roster, decode_roster
from reference_session import Known, Noise, View, check_keys, read_quorum

MAGIC = b"SecAgg-receipt/1"
NO_SUITE = 0
NOTHING, WHOLE, PART = 0, 1, 2
RELEASED, ABORTED, DISCARDED = 0, 1, 2
SERVER, CLIENT = 0, 1
EVIDENCE_SIZE = 96


class Flawed(Exception):  # noqa: N818 - the word of the specification
    """A step of R5.8-1 failed."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class Receipt:
    """The fields, in the order of the encoding."""

    offer: bytes
    form: int  # of the view
    roster: bytes = b""
    count: int = 0
    top: bytes = b""
    graph_seed: bytes = b""
    edge_root: bytes = b""
    share_holders: bytes = b""
    survivors: bytes = b""
    quorum: bytes = b""
    outcome: int = RELEASED
    code: int = 0
    sum_hash: bytes = bytes(32)
    size: int = 0
    certificate: bytes = b""
    disputes: tuple[tuple[int, int, int, bytes], ...] = ()
    writer: int = SERVER  # stands first

    def encode(self) -> bytes:
        views = {
            NOTHING: b"",
            WHOLE: blob(self.roster),
            PART: u32(self.count) + self.top + blob(self.graph_seed),
        }
        rows = b"".join(
            u32(a) + u32(b) + u16(code) + blob(evidence)
            for a, b, code, evidence in self.disputes
        )
        body = (
            MAGIC
            + bytes([self.writer])
            + blob(self.offer)
            + bytes([self.form])
            + views[self.form]
            + blob(self.edge_root)
            + blob(self.share_holders)
            + blob(self.survivors)
            + blob(self.quorum)
            + bytes([self.outcome])
            + u16(self.code)
            + self.sum_hash
            + u64(self.size)
            + blob(self.certificate)
            + u32(len(self.disputes))
            + rows
        )
        return body + digest(NO_SUITE, "receipt", body)

    @staticmethod
    def decode(data: bytes) -> "Receipt":
        decoder, most = Decoder(data), len(data)
        if decoder.take(16) != MAGIC:
            raise Refused(BAD_ENCODING)
        writer = decoder.number(1)
        offer, form = decoder.blob(most), decoder.number(1)
        if form > PART or writer > CLIENT:
            raise Refused(BAD_ENCODING)
        roster = decoder.blob(most) if form == WHOLE else b""
        count, top, graph_seed = 0, b"", b""
        if form == PART:
            count, top = decoder.number(4), decoder.take(32)
            graph_seed = decoder.blob(32, least=32)
        sets = [decoder.blob(most) for _ in range(4)]
        outcome, code = decoder.number(1), decoder.number(2)
        if outcome > DISCARDED:
            raise Refused(BAD_ENCODING)
        sum_hash, size = decoder.take(32), decoder.number(8)
        certificate = decoder.blob(65536)
        disputes = []
        for _ in range(decoder.number(4)):
            pair = decoder.number(4), decoder.number(4)
            about = decoder.number(2)
            disputes.append((*pair, about, decoder.blob_or_nothing(EVIDENCE_SIZE)))
        decoder.take(32)
        decoder.end()
        return Receipt(
            offer,
            form,
            roster,
            count,
            top,
            graph_seed,
            *sets,
            outcome,
            code,
            sum_hash,
            size,
            certificate,
            tuple(disputes),
            writer,
        )


class Verifier:
    """Judges one receipt, step by step."""

    def __init__(
        self,
        enrolment_key: bytes = b"",
        revoked: frozenset[int] = frozenset(),
        tables: tuple[str, ...] = (),
        sampler: str = "",
        epsilon: float = 0.0,
    ) -> None:
        self.enrolment_key = enrolment_key
        self.revoked = revoked
        self.tables = tables  # of the samplers of base and layers
        self.sampler = sampler  # the hash of them
        self.epsilon = epsilon  # of the block, as an accountant computes it

    def judge(self, data: bytes) -> str:
        """Return what holds, in the words of R5.8-2."""
        receipt, _ = self._pass(data)
        if receipt.quorum:
            return "agreed"
        return "stated" if receipt.survivors else "no sum"

    def difference(self, one: bytes, other: bytes) -> str:
        """Return in what two receipts that pass contradict each other (R5.8-3)."""
        first, second = self._shown(one), self._shown(other)
        if first["sid"] != second["sid"]:
            return ""
        for name, value in first.items():
            if value and second[name] and value != second[name]:
                return name
        return ""

    def _shown(self, data: bytes) -> dict[str, bytes]:
        receipt, view = self._pass(data)
        return {
            "sid": view.sid,
            "ctx1": view.contexts[1] if len(view.contexts) > 1 else b"",
            "edge root": receipt.edge_root,
            "U2": receipt.share_holders,
            "U3": receipt.survivors,
            "sum": receipt.sum_hash if receipt.outcome == RELEASED else b"",
        }

    def _pass(self, data: bytes) -> tuple[Receipt, View]:
        """Take all steps of R5.8-1."""
        receipt = self._step("encoding", lambda: Receipt.decode(data))
        self._demand("digest", receipt.encode() == data)
        offer = self._step("offer", lambda: Offer.decode(receipt.offer))
        view = View(offer, Known(self.revoked))
        self._step("view", lambda: self._view(receipt, view))
        self._step("credentials", lambda: self._credentials(view))
        self._step("sets", lambda: self._sets(receipt, view))
        self._step("quorum", lambda: self._quorum(receipt, view))
        self._demand("outcome", self._outcome_fits(receipt, view))
        self._step("claim", lambda: self._claim(view))
        self._step("certificate", lambda: self._certificate(receipt, view))
        return receipt, view

    def _step(self, name, act):
        try:
            return act()
        except Refused:
            raise Flawed(name) from None

    def _demand(self, name: str, holds: bool) -> None:  # noqa: FBT001
        if not holds:
            raise Flawed(name)

    def _view(self, receipt: Receipt, view: View) -> None:
        rules = view.offer.parameters
        possible = {32} if receipt.share_holders else {0, 32}
        if not view.is_sparse or receipt.form == NOTHING:
            possible = {0}
        if len(receipt.edge_root) not in possible:
            raise Refused(BAD_ENCODING)
        if receipt.form == NOTHING:
            return
        if receipt.form == WHOLE:
            roster = decode_roster(receipt.roster, rules)
            if roster.reader is not None:
                raise Refused(BAD_ENCODING)
            top = roster.top(view.suite, context_0(view.offer))
        else:
            roster = Roster(receipt.count, {}, receipt.graph_seed)
            top = receipt.top
        view.check_size(roster.count)
        for advert in roster.adverts.values():
            advert.check_form(rules.profile)
        check_keys(list(roster.adverts.values()))
        view.check_seed(roster)
        view.check_odds(roster.count)
        if view.is_signed and receipt.form == PART:
            raise Refused(BAD_ENCODING)
        view.set_roster(roster, top)
        view.edge_root = receipt.edge_root

    def _credentials(self, view: View) -> None:
        trust: Trust | None = view.offer.parameters.trust
        if trust is None:
            return
        if trust.enrolment_key != self.enrolment_key:
            raise Refused(BAD_ENCODING)
        for advert in view.adverts.values():
            view.check_credential(advert)
        for advert in view.adverts.values():
            advert.check_signature(view.suite, view.contexts[0])
        view.check_overlap(view.count)

    def _sets(self, receipt: Receipt, view: View) -> None:
        check_block(view.offer)
        if block := view.offer.parameters.noise_block:
            noise = Noise(NoiseRule.of_block(block), self.tables)
            view.known = Known(self.revoked, noise)
        if not receipt.share_holders:
            if receipt.survivors:
                raise Refused(BAD_ENCODING)
            return
        if view.count == 0:
            raise Refused(BAD_ENCODING)
        view.set_share_holders(receipt.share_holders)
        if len(view.share_holders) < view.floor:
            raise Refused(BAD_ENCODING)
        if not receipt.survivors:
            return
        members = members_of(receipt.survivors, view.count)
        if not members <= view.share_holders or len(members) < view.floor:
            raise Refused(BAD_ENCODING)
        view.check_losses(members)
        rules = view.offer.parameters
        if view.is_ring and not is_safe(rules, view.count, members, 0.0):
            raise Refused(BAD_ENCODING)
        view.set_survivors(receipt.survivors)

    def _quorum(self, receipt: Receipt, view: View) -> None:
        if view.offer.parameters.profile == CURIOUS or not receipt.quorum:
            if receipt.quorum or (view.is_signed and receipt.outcome != ABORTED):
                raise Refused(BAD_ENCODING)
            return
        if not receipt.survivors:
            raise Refused(BAD_ENCODING)
        read_quorum(view, receipt.quorum)

    def _outcome_fits(self, receipt: Receipt, view: View) -> bool:
        rules = view.offer.parameters
        size = packed_size(rules.dim, residue_bits(rules.modulus))
        pairs = [(accuser, accused) for accuser, accused, *_ in receipt.disputes]
        return (
            (receipt.outcome == ABORTED or receipt.survivors != b"")
            and (receipt.code == 0) == (receipt.outcome == RELEASED)
            and (
                receipt.size == size
                if receipt.outcome == RELEASED
                else receipt.size == 0 and receipt.sum_hash == bytes(32)
            )
            and all(one < other for one, other in itertools.pairwise(pairs))
            and all(a != b and a < view.count and b < view.count for a, b in pairs)
            and all(self._is_evident(row, view) for row in receipt.disputes)
        )

    def _is_evident(self, row: tuple[int, int, int, bytes], view: View) -> bool:
        accuser, accused, code, evidence = row
        if not evidence or not view.is_signed:
            return bool(evidence) == view.is_signed
        dealer = accuser if code == RECONSTRUCTION_FAILED else accused
        signed = view.digest_to_sign(dealer, evidence[:32])
        return view.signed_by(dealer, signed, evidence[32:])

    def _claim(self, view: View) -> None:
        if block := view.offer.parameters.noise_block:
            check_claim(block, self.sampler, self.epsilon)

    def _certificate(self, receipt: Receipt, view: View) -> None:
        by_server = receipt.writer == SERVER
        if not receipt.certificate:
            has_layers = view.offer.parameters.noise_layers > 0
            if by_server and has_layers and receipt.outcome == RELEASED:
                raise Refused(BAD_ENCODING)
            return
        known = view.known.noise
        if (
            view.offer.parameters.noise_layers == 0
            or not receipt.survivors
            or not known
        ):
            raise Refused(BAD_ENCODING)
        try:
            given = json.loads(receipt.certificate)["given"]
        except (ValueError, KeyError, TypeError):
            raise Refused(BAD_ENCODING) from None
        if (given is None) == by_server:
            raise Refused(BAD_ENCODING)
        present = len(view.survivors)
        removed = view.layers_taken_back(view.survivors)
        if given is not None and (
            not isinstance(given, list)
            or len(given) != len(removed)
            or not all(type(n) is int and 0 <= n <= present for n in given)
        ):
            raise Refused(BAD_ENCODING)
        computed = certificate(
            known.rule,
            len(view.share_holders),
            present,
            unseen=view.unseen,
            given=given,
        )
        if computed != receipt.certificate:
            raise Refused(BAD_ENCODING)
