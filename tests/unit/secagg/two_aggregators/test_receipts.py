"""Receipts between two aggregators: who has signed what, and who is caught."""

import asyncio
import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from nacl.signing import VerifyKey
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import (
    HELPER_KEY,
    LEADER_KEY,
    TwoAggregators,
    noise_for,
)

from secagg.cli import main
from secagg.cli.failures import EXIT_OK, exit_code_of
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.pki.key_files import key_text
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope, Fate, Released
from secagg.protocol.policy import PrivacyLimits
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import (
    ReceiptError,
    VerificationStep,
    check_one_session,
)
from secagg.two_aggregators.messages import NoisyShare
from secagg.two_aggregators.party import receipt_key_in
from secagg.two_aggregators.receipt import (
    NameList,
    PartStatement,
    TwoAggregatorReceipt,
    pair_facts,
    verify_shared_receipt,
)
from secagg.wire.calls import Blob, BlobChunk, FetchChunk, GetUpdate

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]
KEYS = {"leader_key": LEADER_KEY.public_bytes, "helper_key": HELPER_KEY.public_bytes}
FOREIGN = IdentityKey.from_bytes(SecretBytes(bytes([9]) * 32))


async def signed(clock, clients=4):
    """Return the operator's receipt of a sum, and those of its clients."""
    deployment = TwoAggregators(clock, noise_for())
    released, given = await deployment.give(VECTORS[:clients])
    return (
        released,
        (await deployment.leader.last_receipt())[1],
        [one.receipt for one in given],
    )


@pytest.fixture(scope="module")
def signed_sum():
    return run(signed)


def flaw_of(data, **keys):
    with pytest.raises(ReceiptError) as caught:
        verify_shared_receipt(data, **(KEYS | keys))
    return caught.value


def resigned(receipt, *, helper=False):
    """Return the signatures of a malicious leader, with or without its helper."""
    leader = SessionDescriptor.decode(receipt.leader_offer)
    suite = leader.parameters.suite
    roster, survivors = (
        NameList(names, leader.session_id, suite).commitment
        for names in (receipt.roster, receipt.survivors)
    )
    statement = PartStatement(
        receipt.leader_offer,
        receipt.helper_offer,
        roster,
        survivors,
        receipt.part_digest,
    )
    if helper:
        signature = HELPER_KEY.sign(statement.to_sign(suite))
        receipt = replace(receipt, helper_signature=signature)
    signature = LEADER_KEY.sign(receipt.to_sign(statement, suite))
    return replace(receipt, leader_signature=signature).encode()


def test_a_receipt_states_what_both_aggregators_signed(signed_sum) -> None:
    released, data, _ = signed_sum
    verdict = verify_shared_receipt(data, **KEYS)
    names = tuple(f"client-{k}" for k in range(4))
    assert verdict.is_released
    assert verdict.is_included is None
    assert verdict.receipt.roster == verdict.receipt.survivors == names
    assert (verdict.roster, verdict.survivors) == (4, 4)
    assert verdict.receipt.sum_hash == released.sum_hash
    assert verdict.receipt.ended == released.ended
    assert verdict.privacy == noise_for().report()
    assert (verdict.leader.aggregator, verdict.helper.aggregator) == (
        "leader",
        "helper",
    )


def test_the_receipt_of_a_client_names_no_other_client(signed_sum) -> None:
    _, operators, clients = signed_sum
    for place, data in enumerate(clients):
        verdict = verify_shared_receipt(data, **KEYS)
        assert verdict.is_included
        assert verdict.receipt.reader == f"client-{place}"
        assert (verdict.roster, verdict.survivors) == (4, 4)
        assert data.count(b"client-") == 1
        mine, theirs = verdict.receipt, TwoAggregatorReceipt.decode(operators)
        assert mine.leader_signature == theirs.leader_signature
        assert mine.helper_signature == theirs.helper_signature


def test_no_byte_of_a_receipt_can_be_changed(signed_sum) -> None:
    _, operators, clients = signed_sum
    for data in (operators, clients[2]):
        # Each third byte: the others belong to the same fields.
        for place in range(0, len(data), 3):
            other = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            assert flaw_of(other).step is not VerificationStep.DIGEST
        for cut in (0, 15, len(data) // 2, len(data) - 1):
            assert flaw_of(data[:cut]).step is VerificationStep.ENCODING
        assert flaw_of(data + b"\0").step is VerificationStep.ENCODING


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_a_receipt_cannot_vouch_for_its_own_keys(signed_sum, part) -> None:
    flaw = flaw_of(signed_sum[1], **{f"{part}_key": FOREIGN.public_bytes})
    assert flaw.step is VerificationStep.CREDENTIALS
    assert f"the {part} signs as" in str(flaw)


@pytest.mark.parametrize(
    ("lie", "step"),
    [
        (
            lambda r: replace(
                r, survivors=(*r.survivors[:3], "zed"), roster=(*r.roster, "zed")
            ),
            VerificationStep.SETS,  # five of at most four
        ),
        (
            lambda r: replace(
                r, survivors=(*r.survivors[:3], "zed"), roster=(*r.roster[:3], "zed")
            ),
            VerificationStep.SIGNATURES,
        ),
        (lambda r: replace(r, survivors=r.survivors[:3]), VerificationStep.SIGNATURES),
        (lambda r: replace(r, survivors=r.survivors[:2]), VerificationStep.SETS),
        (lambda r: replace(r, roster=r.roster[:3]), VerificationStep.SETS),
        (
            lambda r: replace(r, roster=r.roster[:3], survivors=r.survivors[:3]),
            VerificationStep.SIGNATURES,
        ),
        (lambda r: replace(r, part_digest=bytes(32)), VerificationStep.SIGNATURES),
        (
            lambda r: replace(r, helper_signature=b"", helper_key=b""),
            VerificationStep.SIGNATURES,
        ),
        (
            lambda r: replace(
                r, helper_signature=bytes(64), helper_key=FOREIGN.public_bytes
            ),
            VerificationStep.CREDENTIALS,
        ),
        (lambda r: replace(r, code=14), VerificationStep.OUTCOME),
        (lambda r: replace(r, size=r.size + 1), VerificationStep.OUTCOME),
        (
            lambda r: replace(r, outcome=Outcome.ABORTED, survivors=()),
            VerificationStep.OUTCOME,
        ),
        (
            lambda r: replace(r, outcome=Outcome.DISCARDED, code=9, survivors=()),
            VerificationStep.OUTCOME,
        ),
        (
            lambda r: replace(
                r,
                leader_offer=replace(
                    SessionDescriptor.decode(r.leader_offer), session_number=7
                ).encode(),
            ),
            VerificationStep.SIGNATURES,
        ),
    ],
)
def test_a_leader_alone_cannot_sign_another_sum(signed_sum, lie, step) -> None:
    receipt = TwoAggregatorReceipt.decode(signed_sum[1])
    assert resigned(receipt) == signed_sum[1]
    assert flaw_of(resigned(lie(receipt))).step is step


def test_both_aggregators_cannot_sign_a_claim_that_the_noise_does_not_satisfy(
    signed_sum,
) -> None:
    receipt = TwoAggregatorReceipt.decode(signed_sum[1])
    weak = noise_for(rho=50).parameters  # for the epsilon of rho = 1/2
    helper = replace(SessionDescriptor.decode(receipt.helper_offer), parameters=weak)
    leader = replace(
        SessionDescriptor.decode(receipt.leader_offer),
        parameters=weak,
        server_nonce=helper.session_id,
    )
    changed = replace(
        receipt, leader_offer=leader.encode(), helper_offer=helper.encode()
    )
    flaw = flaw_of(resigned(changed, helper=True))
    assert flaw.step in {VerificationStep.OUTCOME, VerificationStep.CLAIM}
    size = (weak.dimension * weak.bits + 7) // 8
    flaw = flaw_of(resigned(replace(changed, size=size), helper=True))
    assert (flaw.step, flaw.code) == (
        VerificationStep.CLAIM,
        ErrorCode.POLICY_VIOLATION,
    )


def offering(receipt, **changes):
    """Return the receipt of both aggregators over other parameters."""
    helper = SessionDescriptor.decode(receipt.helper_offer)
    parameters = replace(helper.parameters, **changes)
    helper = replace(helper, parameters=parameters)
    leader = replace(
        SessionDescriptor.decode(receipt.leader_offer),
        parameters=parameters,
        server_nonce=helper.session_id,
    )
    changed = replace(
        receipt, leader_offer=leader.encode(), helper_offer=helper.encode()
    )
    return parameters, resigned(changed, helper=True)


def block_with(**changes):
    entries = json.loads(noise_for().parameters.noise_block)
    for name, value in changes.items():
        inner = entries["mechanism"]
        (inner if name in inner else entries)[name] = value
    return json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()


ACCOUNTANT = json.loads(noise_for().parameters.noise_block)["accountant"]
HOSTILE = {
    "not in canonical form": (block_with().replace(b",", b", "), VerificationStep.SETS),
    "not JSON": (b"no noise, believe me", VerificationStep.SETS),
    "no block": (b"", VerificationStep.SETS),
    "another modulus": (block_with(modulus=1 << 40), VerificationStep.SETS),
    "another sampler": (block_with(noise_sampler="00" * 32), VerificationStep.CLAIM),
    "an epsilon that is too small": (block_with(epsilon=0.001), VerificationStep.CLAIM),
    "an accountant that no client believes": (
        block_with(accountant=f"hypothetical-{ACCOUNTANT}"),
        VerificationStep.CLAIM,
    ),
}


@pytest.mark.parametrize(("block", "step"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("whose", ["operator", "client"])
def test_noise_that_every_client_rejects_is_rejected_offline(
    signed_sum, tmp_path, whose, block, step
) -> None:
    parameters, data = offering(
        TwoAggregatorReceipt.decode(signed_sum[1]), noise_block=block
    )
    lax = PrivacyLimits(
        max_epsilon=1e300,
        max_delta=math.nextafter(1.0, 0.0),
        statuses=frozenset({"proven", "certified", "numerical", "recalled"}),
    )
    with pytest.raises(RemoteProtocolError):
        AggregatorNoise.from_parameters(parameters).check(lax)
    if whose == "client":
        receipt = TwoAggregatorReceipt.decode(data)
        leader = SessionDescriptor.decode(receipt.leader_offer)
        suite = leader.parameters.suite
        lists = [
            NameList(names, leader.session_id, suite)
            for names in (receipt.roster, receipt.survivors)
        ]
        data = receipt.for_reader("client-1", *lists).encode()
    flaw = flaw_of(data)
    assert flaw.step is step
    path = tmp_path / "receipt.bin"
    path.write_bytes(data)
    words = [f"--{part[:6]}={key_text(key)}" for part, key in KEYS.items()]
    assert main(["sessions", "verify", str(path), *words]) == exit_code_of(flaw)


def test_a_valid_noise_block_is_accepted_offline(signed_sum) -> None:
    # What the test above changes is all that its receipts break.
    _, data = offering(TwoAggregatorReceipt.decode(signed_sum[1]))
    assert verify_shared_receipt(data, **KEYS).is_released


def test_all_receipts_of_one_session_must_match(
    signed_sum, tmp_path, capsys, json_answer
) -> None:
    operators, clients = signed_sum[1], signed_sum[2]
    receipt = TwoAggregatorReceipt.decode(operators)
    names = receipt.survivors
    fewer = replace(receipt, roster=names[:3], survivors=names[:3])
    lies = {
        "roster": resigned(fewer, helper=True),
        "U": resigned(replace(receipt, survivors=names[:3]), helper=True),
        "part of the helper": resigned(
            replace(receipt, part_digest=bytes(32)), helper=True
        ),
        "sum": resigned(replace(receipt, sum_hash=bytes(32))),
        "outcome": resigned(
            replace(
                receipt,
                outcome=Outcome.ABORTED,
                code=ErrorCode.DEADLINE,
                survivors=(),
                part_digest=bytes(32),
                helper_key=b"",
                helper_signature=b"",
                sum_hash=bytes(32),
                size=0,
            )
        ),
    }
    shown = [
        pair_facts(verify_shared_receipt(each, **KEYS), source="")
        for each in (operators, *clients)
    ]
    check_one_session(shown)
    keys = [f"--{part[:6]}={key_text(key)}" for part, key in KEYS.items()]
    paths = [str(tmp_path / name) for name in ("one", "other")]
    (tmp_path / "one").write_bytes(clients[0])
    for what, data in lies.items():
        verify_shared_receipt(data, **KEYS)  # each holds by itself
        (tmp_path / "other").write_bytes(data)
        code = main(["sessions", "verify", *paths, *keys, "--json"])
        assert code == exit_code_of(ErrorCode.EQUIVOCATION)
        facts = json.loads(capsys.readouterr().out.splitlines()[-1])
        json_answer("sessions verify several", facts)
        assert f"with another {what}: " in facts["reason"]
    (tmp_path / "other").write_bytes(operators)
    assert main(["sessions", "verify", *paths, *keys]) == EXIT_OK


def test_both_aggregators_cannot_combine_offers_that_do_not_match(signed_sum) -> None:
    receipt = TwoAggregatorReceipt.decode(signed_sum[1])
    leader = SessionDescriptor.decode(receipt.leader_offer)
    other = replace(leader, server_nonce=bytes(32)).encode()
    flaw = flaw_of(resigned(replace(receipt, leader_offer=other), helper=True))
    assert (flaw.step, flaw.code) == (VerificationStep.OFFER, ErrorCode.BAD_CONFIG)


def test_the_hash_path_of_another_client_is_no_proof(signed_sum) -> None:
    receipts = [TwoAggregatorReceipt.decode(each) for each in signed_sum[2]]
    mine, theirs = receipts[1], receipts[2]
    flaw = flaw_of(replace(theirs, reader=mine.reader).encode())
    assert (flaw.step, flaw.code) == (VerificationStep.VIEW, ErrorCode.BAD_PROOF)
    behind = replace(mine.survivors, place=4)
    flaw = flaw_of(replace(mine, survivors=behind).encode())
    assert (flaw.step, flaw.code) == (VerificationStep.VIEW, ErrorCode.BAD_PROOF)
    # In the sum, but not among those whose share the leader held.
    unheld = replace(mine.roster, place=None, path=())
    assert flaw_of(replace(mine, roster=unheld).encode()).step is VerificationStep.SETS


def test_a_session_without_a_sum_leaves_a_receipt_of_the_leader() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(2)),
            return_exceptions=True,
        )
        return await deployment.leader.last_receipt()

    offer, data = run(main)
    verdict = verify_shared_receipt(data, **KEYS)
    assert offer == verdict.leader
    assert offer.session_number == 1
    assert not verdict.is_released
    assert verdict.receipt.roster == ("c0", "c1")
    assert verdict.receipt.code == ErrorCode.U3_TOO_SMALL
    receipt = TwoAggregatorReceipt.decode(data)
    for lie in (
        {"code": 0},
        {"size": 9},
        {"part_digest": bytes([1]) * 32},
        {"helper_key": bytes(32)},
    ):
        assert (
            flaw_of(resigned(replace(receipt, **lie))).step is VerificationStep.OUTCOME
        )


# --- in a session ---------------------------------------------------------------------


def of_client(deployment, lie):
    """Return a leader that changes what a client fetches as its receipt."""

    class Lying(LyingConnection):
        async def call(self, request):
            answer = await super().call(request)
            if isinstance(request, FetchChunk) and request.blob is Blob.QUORUM:
                data = lie(answer.data)
                return BlobChunk(data, len(data))
            return answer

    return Lying(deployment.way_to("leader", "c3"), {})


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda signed_sum, _: signed_sum[2][3], "for other offers"),
        (lambda _, mine: mine[:-1] + bytes([mine[-1] ^ 1]), "has not signed"),
        (lambda _, mine: mine[:40], "receipt of two aggregators is malformed"),
    ],
)
def test_a_client_rejects_a_sum_without_its_receipt(signed_sum, lie, words) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        way = of_client(deployment, lambda mine: lie(signed_sum, mine))
        return await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            deployment.client("c3", leader=way).contribute(VECTORS[3]),
            return_exceptions=True,
        )

    released, *_, caught = run(main)
    assert released.inputs == 4
    assert isinstance(caught, RemoteProtocolError)
    assert words in str(caught)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fate": Fate.NOT_INCLUDED}, "contradicts the leader"),
        ({"survivors": 3}, "for another sum"),
    ],
)
def test_a_result_that_differs_from_the_signed_receipt_is_rejected(
    change, words
) -> None:
    def lie(news):
        if not isinstance(news, Envelope):
            return news
        return Envelope.of(replace(Released.decode(news.data), **change))

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        way = LyingConnection(deployment.way_to("leader", "c3"), {GetUpdate: lie})
        return await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            deployment.client("c3", leader=way).contribute(VECTORS[3]),
            return_exceptions=True,
        )

    *_, caught = run(main)
    assert isinstance(caught, RemoteProtocolError)
    assert words in str(caught)
    assert caught.code is ErrorCode.EQUIVOCATION


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda _, part: replace(part, signature=bytes(64)), "signature"),
        (
            lambda _, part: replace(
                part, key=FOREIGN.public_bytes, signature=bytes(64)
            ),
            "the wrong key",
        ),
        # Signed, for another set than the one that it says.
        (
            lambda deployment, part: replace(
                deployment.signed(replace(part, names=part.names[:3])), names=part.names
            ),
            "signature does not match",
        ),
    ],
)
def test_a_leader_rejects_a_part_that_the_helper_has_not_signed(lie, words) -> None:
    async def main(clock):
        def changed(piece):
            data = lie(deployment, NoisyShare.decode(piece.data)).encode()
            return BlobChunk(data, len(data))

        deployment = TwoAggregators(
            clock,
            noise_for(),
            helper_way=lambda way: LyingConnection(way, {FetchChunk: changed}),
        )
        return await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(4)),
            return_exceptions=True,
        )

    caught, *told = run(main)
    assert isinstance(caught, RemoteProtocolError)
    assert caught.code is ErrorCode.BAD_SIGNATURE
    assert caught.sender == "helper"
    asked = "[helper] receipt_key" in caught.next_step
    assert asked == (words == "the wrong key")
    assert words in str(caught)
    assert all(isinstance(each, SessionAbortedError) for each in told)


def test_the_receipt_of_another_client_is_rejected() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())

        def of_another(data):
            session_id = SessionDescriptor.decode(
                TwoAggregatorReceipt.decode(data).leader_offer
            ).session_id
            assert deployment.leader._last[0] == session_id
            return deployment.leader._last[1].receipt_for("c0")

        way = of_client(deployment, of_another)
        return await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            deployment.client("c3", leader=way).contribute(VECTORS[3]),
            return_exceptions=True,
        )

    *_, caught = run(main)
    assert isinstance(caught, RemoteProtocolError)
    assert "for another client" in str(caught)


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_a_client_accepts_only_its_pinned_keys(part) -> None:
    """A leader that could state the helper's key would sign for both."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        pinned = {f"{part}_key": FOREIGN.public_bytes}
        return await asyncio.gather(
            deployment.leader.next_sum(),
            deployment.client("c0", **pinned).contribute(VECTORS[0]),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in (1, 2, 3)),
            return_exceptions=True,
        )

    _, strict, usual, *_ = run(main)
    assert verify_shared_receipt(usual.receipt, **KEYS).is_included
    assert isinstance(strict, ReceiptError)
    assert strict.step is VerificationStep.CREDENTIALS


def test_one_key_cannot_sign_for_both_aggregators(signed_sum) -> None:
    key = LEADER_KEY.public_bytes

    async def main(clock):
        with pytest.raises(ServiceError, match="one key") as refused:
            TwoAggregators(clock, noise_for()).client("c0", helper_key=key)
        assert refused.value.code is ErrorCode.BAD_SETTINGS

    run(main)
    assert flaw_of(signed_sum[1], helper_key=key).step is VerificationStep.CREDENTIALS
    assert "one key" in str(flaw_of(signed_sum[1], helper_key=key))


def test_a_leader_can_omit_a_client_from_its_receipt() -> None:
    """So False shows nothing: the receipt without a place verifies, both signatures."""

    def unsaid(news):
        if not isinstance(news, Envelope):
            return news
        told = Released.decode(news.data)
        return Envelope.of(replace(told, fate=Fate.NOT_INCLUDED))

    def unshown(data):
        mine = TwoAggregatorReceipt.decode(data)
        hidden = replace(mine.survivors, place=None, path=())
        return replace(mine, survivors=hidden).encode()

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        way = LyingConnection(of_client(deployment, unshown), {GetUpdate: unsaid})
        _, *given = await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            deployment.client("c3", leader=way).contribute(VECTORS[3]),
        )
        return given, verify_shared_receipt(
            (await deployment.leader.last_receipt())[1], **KEYS
        )

    given, whole = run(main)
    assert "c3" in whole.receipt.survivors
    assert [each.is_included for each in given] == [True, True, True, False]
    assert verify_shared_receipt(given[3].receipt, **KEYS).is_included is False


def test_a_damaged_receipt_key_is_restored_or_replaced(tmp_path) -> None:
    key = receipt_key_in(tmp_path)
    assert receipt_key_in(tmp_path).public_bytes == key.public_bytes
    (tmp_path / "receipt.key").write_bytes(b"short")
    with pytest.raises(ServiceError) as damaged:
        receipt_key_in(tmp_path)
    assert damaged.value.code is ErrorCode.BAD_CREDENTIAL
    assert "Restore the file from a copy" in damaged.value.next_step


# --- as it is written down ------------------------------------------------------------


def blob(data):
    return len(data).to_bytes(4, "big") + data


def tag(role, usage, suite):
    parts = (b"SecAgg/1", suite.to_bytes(2, "big"), role.encode(), usage.encode())
    return b"".join(blob(part) for part in parts)


def top_of(hashes, suite):
    """Hash neighbours in pairs, an odd last one going up as it is."""
    while len(hashes) > 1:
        pairs = [hashes[k : k + 2] for k in range(0, len(hashes), 2)]
        hashes = [
            sha256(tag("hash", "shared name node", suite) + blob(p[0]) + blob(p[1]))
            if len(p) == 2
            else p[0]
            for p in pairs
        ]
    return hashes[0]


def sha256(data):
    return hashlib.sha256(data).digest()


def test_signatures_cover_the_documented_fields(signed_sum) -> None:
    """Layouts of protos/TWO_AGGREGATORS.md, in this test's own words."""
    receipt = TwoAggregatorReceipt.decode(signed_sum[1])
    leader = SessionDescriptor.decode(receipt.leader_offer)
    suite = int(leader.parameters.suite)
    leaves = [
        sha256(
            tag("hash", "shared name", suite)
            + blob(leader.session_id)
            + blob(place.to_bytes(4, "big"))
            + blob(name.encode())
        )
        for place, name in enumerate(receipt.survivors)
    ]
    names = (4).to_bytes(4, "big") + top_of(leaves, suite)
    statement = blob(receipt.leader_offer) + blob(receipt.helper_offer)
    statement += names + names + receipt.part_digest
    message = tag("helper", "shared part", suite) + statement
    VerifyKey(receipt.helper_key).verify(message, receipt.helper_signature)
    message = tag("leader", "shared sum", suite) + blob(statement)
    message += blob(receipt.leader_key) + blob(receipt.helper_key)
    message += blob(receipt.helper_signature) + b"\0" + b"\0\0" + receipt.sum_hash
    message += receipt.size.to_bytes(8, "big") + receipt.ended.to_bytes(8, "big")
    VerifyKey(receipt.leader_key).verify(message, receipt.leader_signature)
