"""Forged receipts: which of them a verifier accepts.

In profile honest-curious-server no client signs, so that a receipt may hold any offer,
sets and claim.  The verifier must refuse what every client would have refused, however
few limits it has of its own, and two receipts of one session must show one session.
"""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import (
    any_noise,
    parameters_for,
    signing_parameters_for,
    with_noise,
)

from secagg.cli import main
from secagg.cli.failures import EXIT_OK, exit_code_of
from secagg.client.gate import GateRequest, GateStage, KnownFacts, OwnRules, admit
from secagg.crypto.modular import zeros
from secagg.crypto.transcript import encode_set
from secagg.distributed_dp import (
    ClippingSchedule,
    NoisyTask,
    TaskNoiseVerifier,
    offered_terms,
    plan,
)
from secagg.distributed_dp.noise_block import decode_block
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.pki.key_files import key_text
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import InputReady, NoisyVector, PlainVector, Received, Send
from secagg.protocol.messages import (
    Delivery,
    Envelope,
    Quorum,
    Released,
    Roster,
    Round,
    Survivors,
)
from secagg.protocol.packing import packed_size
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.protocol.profiles import MaliciousParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome, WrittenBy
from secagg.protocol.receipts.verifier import (
    Finding,
    ReceiptError,
    VerificationStep,
    check_one_session,
    facts_in,
    verify_receipt,
)
from secagg.simulation import driver
from secagg.simulation.driver import (
    InProcessSession,
    accepting,
    membership_of,
    published_in_simulation,
    simulated_trust,
)

CLIENTS = 6
NOISE = TaskNoiseVerifier()
PLAIN = parameters_for(CLIENTS, dimension=4, threshold=4)
SOUND = with_noise(PLAIN)
LAYERED = with_noise(PLAIN, ladder=2)
MOVING = NoisyTask.from_plan(
    plan(
        clients=CLIENTS,
        dimension=4,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        scale_factor=64.0,
        min_survivors=4,
        clip_flag_amplitude=0.25,
    ),
    PLAIN,
    clip=ClippingSchedule(l2_clip=1.0, lowest_clip=0.25, highest_clip=4.0),
).parameters
AT_START = offered_terms(MOVING, b"")
ALL_CLIENTS = frozenset(range(CLIENTS))
# What a client may insist on at the least; the statuses are those that a client knows.
LAX = PrivacyLimits(
    max_epsilon=1e300,
    max_delta=math.nextafter(1.0, 0.0),
    statuses=frozenset({"proven", "certified", "numerical", "recalled"}),
    min_colluder_fraction=0.0,
)


def written(entries):
    return json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()


def changed(parameters, **changes):
    """The same offer with other entries in its noise block, at any depth."""
    entries = json.loads(parameters.noise_block)
    for name, value in changes.items():
        holder = next(
            (e for e in (entries["mechanism"], entries["noise"]) if name in e), entries
        )
        holder[name] = value
    return replace(parameters, noise_block=written(entries))


def with_own_sampler(parameters):
    """The same with the hash of the sampler that the block describes."""
    try:
        digest = decode_block(parameters.noise_block).mechanism.sampler_digest
    except RemoteProtocolError:
        return parameters
    return changed(parameters, noise_sampler=digest.hex())


class LyingSession(InProcessSession):
    """Clients that follow the protocol, and a server that checks no noise."""

    def __init__(self, parameters, terms=b""):
        possible = parameters
        if not parameters.noise_block:
            possible = replace(parameters, noise_layers=0)
        super().__init__(possible, [None] * CLIENTS, read_noise=any_noise)
        self.descriptor = replace(
            self.descriptor, parameters=parameters, noise_terms=terms
        )
        self.server_state = replace(
            self.server_state,
            session=replace(self.server_state.session, descriptor=self.descriptor),
        )


def roster_for(parameters):
    """Adverts of a cohort: in this profile nothing ties them to an offer."""
    session = InProcessSession(
        replace(PLAIN, noise_layers=parameters.noise_layers, noise_block=b"any"),
        [None] * CLIENTS,
        read_noise=any_noise,
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    return session.server_state.cohort.roster


def receipt_of(  # noqa: PLR0913 - one keyword per respect in which receipts differ
    parameters,
    *,
    terms=b"",
    share_holders=ALL_CLIENTS,
    survivors=ALL_CLIENTS,
    writer=WrittenBy.CLIENT,
    sum_hash=bytes(32),
):
    """A receipt of a released sum, with a hash at its end that fits."""
    base = InProcessSession(PLAIN, [zeros(PLAIN.dimension, PLAIN.modulus)] * CLIENTS)
    offer = replace(base.descriptor, parameters=parameters, noise_terms=terms)
    return AuditReceipt(
        writer=writer,
        offer=offer.encode(),
        view=roster_for(parameters).encode(),
        share_holders=encode_set(share_holders, CLIENTS),
        survivors=encode_set(survivors, CLIENTS),
        outcome=Outcome.RELEASED,
        sum_hash=sum_hash,
        size=packed_size(parameters.dimension, parameters.bits),
    )


# --- noise that no client would have added --------------------------------------------

BLOCK = json.loads(SOUND.noise_block)
HOSTILE = {
    "keys in another order": (
        replace(SOUND, noise_block=json.dumps(dict(reversed(BLOCK.items()))).encode()),
        b"",
        VerificationStep.SETS,
        ErrorCode.BAD_CONFIG,
    ),
    "not JSON": (
        replace(SOUND, noise_block=b"no noise, believe me"),
        b"",
        VerificationStep.SETS,
        ErrorCode.BAD_CONFIG,
    ),
    "layers without a ladder": (
        replace(SOUND, noise_layers=3),
        b"",
        VerificationStep.SETS,
        ErrorCode.BAD_CONFIG,
    ),
    "terms without a unit": (
        SOUND,
        b'{"unit":"1/1"}',
        VerificationStep.SETS,
        ErrorCode.BAD_CONFIG,
    ),
    "layers without a block": (
        replace(PLAIN, noise_layers=3),
        b"",
        VerificationStep.OFFER,
        ErrorCode.BAD_CONFIG,
    ),
    "terms without a block": (
        PLAIN,
        b'{"unit":"1/1"}',
        VerificationStep.OFFER,
        ErrorCode.BAD_CONFIG,
    ),
    "another modulus": (
        changed(SOUND, modulus=1 << 40),
        b"",
        VerificationStep.SETS,
        ErrorCode.BAD_CONFIG,
    ),
    "another sampler": (
        changed(SOUND, noise_sampler="00" * 32),
        b"",
        VerificationStep.CLAIM,
        ErrorCode.BAD_CONFIG,
    ),
    "an epsilon of 0.001 where the noise gives 8": (
        changed(SOUND, epsilon=0.001),
        b"",
        VerificationStep.CLAIM,
        ErrorCode.POLICY_VIOLATION,
    ),
    "an accountant that no client believes": (
        changed(SOUND, accountant=f"hypothetical-{BLOCK['accountant']}"),
        b"",
        VerificationStep.CLAIM,
        ErrorCode.POLICY_VIOLATION,
    ),
}
hostile = pytest.mark.parametrize("lie", HOSTILE.values(), ids=HOSTILE)


def refusal_of(receipt):
    with pytest.raises(ReceiptError) as refused:
        verify_receipt(receipt.encode(), noise=NOISE)
    return refused.value.step, refused.value.code


@hostile
def test_noise_that_every_client_rejects_is_rejected_in_a_receipt(lie):
    """R5.8-1: profile 1, where the receipt rests on its writer alone."""
    parameters, terms, step, code = lie
    for writer in WrittenBy:
        receipt = receipt_of(parameters, terms=terms, writer=writer)
        assert refusal_of(receipt) == (step, code)
        early = replace(
            receipt, share_holders=b"", survivors=b"", outcome=Outcome.ABORTED
        )
        early = replace(early, code=ErrorCode.CANCELLED, size=0)
        assert refusal_of(early) == (step, code)
        assert refusal_of(replace(early, view=None)) == (step, code)
    assert not participates(parameters, terms, ALL_CLIENTS, ALL_CLIENTS)


@hostile
def test_the_command_rejects_noise_that_every_client_rejects(tmp_path, capsys, lie):
    parameters, terms, step, code = lie
    path = tmp_path / "receipt.bin"
    path.write_bytes(receipt_of(parameters, terms=terms).encode())
    words = ["sessions", "verify", str(path)]
    assert main(words) == exit_code_of(code)
    assert f"{step}: " in capsys.readouterr().err
    assert main([*words, "--json"]) == exit_code_of(code)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["valid"], facts["name"]) == (False, code.name)
    assert facts["reason"].startswith(f"{step}: ")


def test_what_every_client_accepts_is_verified_with_its_cost(tmp_path, capsys):
    for parameters in (SOUND, LAYERED):
        receipt = receipt_of(parameters)
        verdict = verify_receipt(receipt.encode(), noise=NOISE)
        report = NoisyTask.from_parameters(parameters).report()
        assert verdict.finding is Finding.STATED
        assert verdict.cost.epsilon == report.server.epsilon
        assert (verdict.cost.delta, verdict.cost.status) == (1e-5, "certified")
        assert participates(parameters, b"", ALL_CLIENTS, ALL_CLIENTS)
    path = tmp_path / "receipt.bin"
    path.write_bytes(receipt.encode())
    assert main(["sessions", "verify", str(path), "--json"]) == EXIT_OK
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["epsilon_server"] == verdict.cost.epsilon
    assert (facts["status"], facts["proof"]) == ("certified", "own")
    assert facts["delta"] == 1e-5
    assert facts["ctx1"] == verdict.ctx1.hex()
    assert (facts["session_id"], facts["writer"]) == (
        verdict.descriptor.session_id.hex(),
        "client",
    )


@pytest.mark.parametrize(("lost", "holds"), [(1, True), (2, False)])
def test_the_noise_must_suffice_after_the_losses_in_a_receipt(
    tmp_path, capsys, lost, holds
):
    """R3.5-1: a noise block that bears one loss of six, without any quorum."""
    parameters = with_own_sampler(changed(SOUND, loss_fraction="1/6"))
    survivors = ALL_CLIENTS - set(range(CLIENTS - lost, CLIENTS))
    receipt = receipt_of(parameters, survivors=survivors)
    path = tmp_path / "receipt.bin"
    path.write_bytes(receipt.encode())
    assert participates(parameters, b"", ALL_CLIENTS, survivors) == holds
    if holds:
        verify_receipt(receipt.encode(), noise=NOISE)
        assert main(["sessions", "verify", str(path)]) == EXIT_OK
        return
    assert refusal_of(receipt) == (VerificationStep.SETS, ErrorCode.TOO_MANY_DROPOUTS)
    over = replace(receipt, outcome=Outcome.ABORTED, code=ErrorCode.DEADLINE, size=0)
    assert refusal_of(over) == (VerificationStep.SETS, ErrorCode.TOO_MANY_DROPOUTS)
    code = exit_code_of(ErrorCode.TOO_MANY_DROPOUTS)
    assert main(["sessions", "verify", str(path)]) == code
    assert "sets: 2 of 6 clients are declared dropped" in capsys.readouterr().err


# --- what passes, a client would have taken part in -----------------------------------


def participates(parameters, terms, share_holders, survivors):
    """Whether a client with no limits of its own answers for these sets."""
    session = LyingSession(parameters, terms)
    try:
        admit(
            GateRequest(
                offer=session.descriptor,
                stage=GateStage.OFFER,
                aggregator=session.descriptor.aggregator,
                trust_domain=None,
                now=session.descriptor.session_end - 60,
                own=OwnRules(
                    limits=ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT, noised=LAX),
                    cohort=accepting(parameters),
                ),
                known=KnownFacts(),
            )
        )
    except RemoteProtocolError:
        return False
    session.clients[0] = client_machine.start(NOISE.terms)
    session.play(Round.ADVERTISE_KEYS)
    if isinstance(session.clients[0], client.Failed):
        return False
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    delivery = session.fetch(0).open()
    size = len(delivery.bundles) // (CLIENTS - 1)
    bundles = b"".join(
        delivery.bundles[size * place : size * (place + 1)]
        for place, number in enumerate(range(1, CLIENTS))
        if number in share_holders
    )
    shown = Delivery(encode_set(share_holders, CLIENTS), bundles)
    session.to_client(0, Received(Envelope.of(shown)))
    state = session.clients[0]
    if isinstance(state, client.Failed):
        return False
    residues = zeros(parameters.dimension, parameters.modulus)
    vector = PlainVector(residues)
    if parameters.noise_block:
        vector = NoisyVector(residues, parameters.noise_block, state.delivered.ctx2)
    session.to_client(0, InputReady(vector))
    said = session.to_client(
        0, Received(Envelope.of(Survivors(encode_set(survivors, CLIENTS))))
    )
    return any(isinstance(output, Send) for output in said)


ENTRIES = {
    "epsilon": st.sampled_from([0.5, 8.0, 7.99, 80.0]),
    "delta": st.sampled_from([1e-5, 1e-9, 0.5]),
    "steps": st.sampled_from([1, 2, 30]),
    "spare": st.sampled_from([0, 1, 30]),
    "version": st.sampled_from([2, 1]),
    "noise_sampler": st.sampled_from(["00" * 32, BLOCK["noise_sampler"]]),
    "selection_rate": st.sampled_from(["1/1", "1/2", "2/4"]),
    "accountant": st.sampled_from(["skellam-rdp", "zcdp", "hypothetical-skellam-gdp"]),
    "counted_variance": st.sampled_from(["1/1", "100/1", "100000/1", "2/4"]),
    "min_survivors": st.sampled_from([2, 4, 5]),
    "loss_fraction": st.sampled_from(["0/1", "1/6", "1/3", "1/1"]),
    "colluders": st.sampled_from([0, 1, 3, 5]),
    "colluder_fraction": st.sampled_from(["0/1", "1/10", "1/2"]),
    "share_bits": st.sampled_from([0, 20, 63]),
    "ladder": st.sampled_from([0, 2, 3]),
    "modulus": st.sampled_from([1 << 16, 1 << 40]),
    "num_clients": st.sampled_from([5, 6, 7]),
    "l2_clip": st.sampled_from([0.5, 1.0, 4.0]),
    "dim": st.sampled_from([3, 4, 5]),
}
FIELDS = {
    "noise_layers": st.sampled_from([0, 3, 4]),
    "min_survivors": st.sampled_from([4, 5]),
    "max_dropouts": st.sampled_from([0, 1, 2]),
    "colluders": st.sampled_from([0, 1]),
}
one_of_them = {
    "entry": st.one_of(*(st.tuples(st.just(k), v) for k, v in ENTRIES.items())),
    "field": st.one_of(*(st.tuples(st.just(k), v) for k, v in FIELDS.items())),
}


@st.composite
def forged_offers(draw):
    """An offer that differs from a sound one in some respects, and two sets."""
    base = draw(st.sampled_from([SOUND, LAYERED, MOVING]))
    parameters = changed(base, **dict(draw(st.lists(one_of_them["entry"], max_size=3))))
    fields = dict(draw(st.lists(one_of_them["field"], max_size=1)))
    fields.setdefault("max_dropouts", draw(st.sampled_from([0, 1, 2])))
    parameters = replace(parameters, **fields)
    if draw(st.integers(0, 3)):
        parameters = with_own_sampler(parameters)
    terms = AT_START if base is MOVING else b""
    if not draw(st.integers(0, 4)):
        parameters, terms = replace(parameters, noise_block=b""), b""
    if not draw(st.integers(0, 4)):
        terms = draw(st.sampled_from([b"", AT_START, b'{"unit":"1/1"}', b"{}"]))
    others = st.integers(1, CLIENTS - 1)
    unshared = draw(st.frozensets(others, max_size=1))
    lost = draw(st.frozensets(others, max_size=3))
    return parameters, terms, ALL_CLIENTS - unshared, ALL_CLIENTS - unshared - lost


def passes(parameters, terms, share_holders, survivors):
    receipt = receipt_of(
        parameters, terms=terms, share_holders=share_holders, survivors=survivors
    )
    try:
        verify_receipt(receipt.encode(), noise=NOISE)
    except ReceiptError as error:
        event(f"refused at {error.step}")
        return False
    event("passes")
    return True


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(forged_offers())
def test_the_verifier_accepts_exactly_what_a_client_without_limits_accepts(_part, lie):
    """R5.8-1, and nothing else is refused: the verifier is the client, offline."""
    parameters, *rest = lie
    try:
        parameters.validate()
    except RemoteProtocolError:
        assert not passes(*lie)
        return
    assert passes(*lie) == participates(parameters, *rest)


# --- two receipts of one session ------------------------------------------------------


def answered_apart(monkeypatch, prefix, first, value, trust=None):
    """The receipt of one cohort of enrolled clients that a server keeps to itself."""
    tail = MaliciousParameters(trust or simulated_trust())
    parameters = signing_parameters_for(4, dimension=3, tail=tail)
    monkeypatch.setattr(driver, "identity_of", lambda n: f"{prefix}-{n:04d}")
    session = InProcessSession(
        parameters,
        [np.full(3, value, np.uint32)] * 4,
        seed_of=lambda n: hashlib.sha256(prefix.encode() + bytes([n])).digest(),
    )
    session.membership = lambda n: membership_of(f"{prefix}-{n:04d}", first + n)
    shown, fetch = {}, session.fetch

    def noted(number):
        envelope = fetch(number)
        if envelope is not None:
            shown[envelope.kind] = envelope.data
        return envelope

    session.fetch = noted
    for which in driver.rounds_of(parameters.profile):
        session.play(which)
        session.close(which)
    for number in session.clients:
        session.update(number)
    released = Released.decode(shown[Released])
    receipt = AuditReceipt(
        writer=WrittenBy.CLIENT,
        offer=session.descriptor.encode(),
        view=shown[Roster],
        share_holders=Delivery.decode(shown[Delivery]).share_holders,
        survivors=shown[Survivors],
        quorum=shown[Quorum],
        outcome=Outcome.RELEASED,
        sum_hash=released.sum_hash,
        size=released.size,
    )
    return session.total.tolist(), receipt, parameters.tail.trust.enrolment_key


def test_two_cohorts_in_one_session_are_detected_by_comparing_their_receipts(
    monkeypatch, tmp_path, capsys
):
    """R5.8-3: two quorums, two sums, no colluder; each receipt holds by itself."""
    east_sum, east, key = answered_apart(monkeypatch, "east", 1, 1)
    west_sum, west, _ = answered_apart(monkeypatch, "west", 101, 7)
    assert (east_sum, west_sum) == ([4] * 3, [28] * 3)
    verdicts = [
        verify_receipt(each.encode(), enrolment_key=key) for each in (east, west)
    ]
    assert {verdict.finding for verdict in verdicts} == {Finding.AGREED}
    assert len({verdict.descriptor.session_id for verdict in verdicts}) == 1
    assert len({verdict.ctx1 for verdict in verdicts}) == 2
    shown = [facts_in(v, source=n) for v, n in zip(verdicts, "ab", strict=True)]
    with pytest.raises(RemoteProtocolError, match="with another ctx1") as refused:
        check_one_session(shown)
    assert refused.value.code is ErrorCode.EQUIVOCATION
    check_one_session([shown[0], shown[0]])

    files = [tmp_path / f"{name}.bin" for name in ("east", "again", "west")]
    for path, receipt in zip(files, (east, east, west), strict=True):
        path.write_bytes(receipt.encode())
    words = ["sessions", "verify", "--enrolment", key_text(key)]
    for path, verdict in zip((files[0], files[2]), verdicts, strict=True):
        assert main([*words, str(path)]) == EXIT_OK
        assert verdict.ctx1.hex() in capsys.readouterr().out
    assert main([*words, *map(str, files[:2])]) == EXIT_OK
    capsys.readouterr()
    code = exit_code_of(ErrorCode.EQUIVOCATION)
    assert main([*words, *map(str, files)]) == code
    said = capsys.readouterr()
    assert said.out.count("agreed: a quorum of enrolled clients has signed") == 3
    assert "east.bin" in said.err
    assert "west.bin" in said.err
    assert main([*words, *map(str, files), "--json"]) == code
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["valid"], facts["name"]) == (False, "EQUIVOCATION")
    assert verdicts[1].ctx1.hex() in facts["reason"]
    # What each shows by itself stays.
    assert [row["file"] for row in facts["receipts"]] == list(map(str, files))
    assert all(row["valid"] and row["finding"] == "agreed" for row in facts["receipts"])


def test_a_quorum_of_a_revoked_client_is_invalid_if_the_list_is_given(
    monkeypatch, tmp_path, capsys
):
    """R2.1-4: only the list of the session shows it, whatever else holds."""
    listed = published_in_simulation(3, 2)
    other = published_in_simulation(3, 9)
    _, receipt, key = answered_apart(monkeypatch, "east", 1, 1, listed.trust)
    data = receipt.encode()
    assert verify_receipt(data, enrolment_key=key).finding is Finding.AGREED
    for revocations, why in (
        (listed, "serial 2 was revoked"),
        (other, "names another revocation list"),
    ):
        with pytest.raises(ReceiptError, match=why) as refused:
            verify_receipt(data, enrolment_key=key, revocations=revocations.revocations)
        assert refused.value.step is VerificationStep.CREDENTIALS
        assert refused.value.code is ErrorCode.BAD_CREDENTIAL
    path, serials = tmp_path / "receipt.bin", tmp_path / "revocations.bin"
    path.write_bytes(data)
    serials.write_bytes(listed.revocations)
    words = ["sessions", "verify", str(path), "--enrolment", key_text(key)]
    assert main(words) == EXIT_OK
    code = main([*words, "--revocations", str(serials)])
    assert code == exit_code_of(ErrorCode.BAD_CREDENTIAL)
    assert "serial 2 was revoked" in capsys.readouterr().err


DIFFERENT = {
    "U2": ({"share_holders": ALL_CLIENTS - {5}, "survivors": ALL_CLIENTS - {5}}, "U2"),
    "U3": ({"survivors": ALL_CLIENTS - {5}}, "U3"),
    "sum": ({"sum_hash": bytes([1] * 32)}, "sum"),
}


@pytest.mark.parametrize(("sets", "what"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_sets_or_sums_over_one_roster_are_detected(
    tmp_path, capsys, sets, what
):
    one, other = receipt_of(SOUND), receipt_of(SOUND, **sets)
    early = replace(one, survivors=b"", outcome=Outcome.ABORTED, code=43, size=0)
    elsewhere = replace(other, offer=offer_number(other, 2))
    damaged = other.encode()[:-1]
    contents = {
        "one": one.encode(),
        "early": early.encode(),
        "elsewhere": elsewhere.encode(),
        "other": other.encode(),
        "damaged": damaged,
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)

    def verified(*names):
        words = ["sessions", "verify", *(str(tmp_path / n) for n in names), "--json"]
        code = main(words)
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    # A client that left early has not seen U3; another session has other sets.
    code, facts = verified("one", "early", "elsewhere")
    assert (code, facts["valid"], facts["reason"]) == (EXIT_OK, True, "")
    code, facts = verified("one", "elsewhere", "other")
    assert code == exit_code_of(ErrorCode.EQUIVOCATION)
    assert f"with another {what}: " in facts["reason"]
    # A receipt that does not hold is compared with none, and named.
    code, facts = verified("damaged", "one")
    assert code == exit_code_of(ErrorCode.BAD_ENCODING)
    assert [row["valid"] for row in facts["receipts"]] == [False, True]
    assert facts["reason"] == facts["receipts"][0]["reason"]
    # Of two faults the one of the aggregator decides.
    code, facts = verified("damaged", "one", "other")
    assert code == exit_code_of(ErrorCode.EQUIVOCATION)


def offer_number(receipt, number):
    verdict = verify_receipt(receipt.encode(), noise=NOISE)
    return replace(verdict.descriptor, session_number=number).encode()
