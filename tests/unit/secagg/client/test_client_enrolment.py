"""What a client makes of the enrolment that an offer names, over its own store."""

import dataclasses
import time

import pytest
from secagg_testing.cohorts import (
    lenient_rules,
    offer_of,
    parameters_for,
    signing_parameters_for,
)
from secagg_testing.crash_points import CrashingStore, CrashSwitch, SimulatedCrashError

from secagg.client.enrolment import ClientEnrolment, EnrolledClient
from secagg.client.enrolment_files import read_enrolled
from secagg.client.gate import GateRequest, GateStage, KnownFacts, Need, admit
from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.pki.client_identity import (
    CREDENTIAL,
    IDENTITY_SEED,
    new_identity,
    write_credential,
)
from secagg.pki.credential_issuer import Issuer
from secagg.pki.key_files import key_text
from secagg.protocol.enrolment import (
    ClientIdentity,
    Credential,
    IssuedCredential,
    RevocationList,
    check_credential,
)
from secagg.protocol.profiles import MaliciousParameters, Trust
from secagg.storage.open_store import open_store
from secagg.storage.queries import ReadRevocations

ISSUER = IdentityKey.from_bytes(SecretBytes(bytes([1]) * 32))
CLIENT = IdentityKey.from_bytes(SecretBytes(bytes([2]) * 32))
DOMAIN = "deployment.example"
NOW = 1_000_000
SESSION_END = NOW + 600

OWN = Credential(
    name="phone-7",
    identity_key=CLIENT.public_bytes,
    not_before=NOW,
    not_after=NOW + 1_000,
    serial=7,
).signed_by(ISSUER, DOMAIN)
ENROLMENT = EnrolledClient(
    ClientIdentity(CLIENT, IssuedCredential(DOMAIN, OWN), ISSUER.public_bytes)
)


def revocations(number, *serials, made_at=NOW):
    return RevocationList(
        trust_domain=DOMAIN, number=number, made_at=made_at, serials=serials
    ).signed_by(ISSUER)


def trusting(found):
    if found is None:
        return Trust(DOMAIN, ISSUER.public_bytes)
    return Trust(DOMAIN, ISSUER.public_bytes, found.number, found.digest)


@pytest.fixture
async def store():
    opened = await open_store("sqlite::memory:")
    yield opened
    await opened.close()


async def admitted(store, trust, data, *, enrolment=ENROLMENT, now=NOW, **changes):
    """Check an offer as a client does, with the list's bytes at hand or without."""
    parameters = signing_parameters_for(5, dimension=2, tail=MaliciousParameters(trust))
    offer = offer_of(parameters, session_end=SESSION_END)
    request = GateRequest(
        offer=offer,
        stage=GateStage.OFFER,
        aggregator=offer.aggregator,
        trust_domain=None,
        now=now,
        own=dataclasses.replace(lenient_rules(), enrolment=enrolment.rules()),
        known=KnownFacts(newest_list=await enrolment.newest_list(store)),
        revocations=data,
    )
    return admit(dataclasses.replace(request, **changes))


async def rules(store, found, *, enrolment=ENROLMENT, trust=None, now=NOW):
    trust, data = trust or trusting(found), b"" if found is None else found.encode()
    session = await admitted(store, trust, data, enrolment=enrolment, now=now)
    await enrolment.record(trust, data, store=store)
    place = session.membership
    assert (place.key, place.credential) == (
        CLIENT,
        enrolment.identity.issued.credential,
    )
    return place.rules(trust, SESSION_END)


async def refusal(code, coroutine):
    with pytest.raises(RemoteProtocolError) as caught:
        await coroutine
    assert caught.value.code is code
    return caught.value


async def seen(store):
    return await store.read(ReadRevocations(ISSUER.public_bytes, DOMAIN))


async def test_an_offer_determines_the_rules_of_its_session(store):
    found = await rules(store, None)
    assert (found.session_end, found.revoked) == (SESSION_END, frozenset())
    assert await seen(store) is None
    found = await rules(store, revocations(2, 3, 9))
    assert found.revoked == {3, 9}
    check_credential(OWN, found, identity="phone-7", verified=ENROLMENT.verified)
    assert await seen(store) == trusting(revocations(2, 3, 9))


async def test_a_renewed_credential_is_used_for_the_next_offer(store, tmp_path, caplog):
    issuer = tmp_path / "issuer"
    key = Issuer.create(issuer, trust_domain=DOMAIN, entropy=SystemEntropy())
    now = int(time.time())
    request = new_identity(
        tmp_path / "id",
        trust_domain=DOMAIN,
        name="phone-7",
        now=now,
        entropy=SystemEntropy(),
    )
    path = tmp_path / "id" / CREDENTIAL

    def renew(days):
        with Issuer.open(issuer) as opened:
            issued = opened.sign(request, now=now, days=days)
        write_credential(path, issued)
        return issued.credential.serial

    renew(5)
    files = ClientEnrolment(
        seed=tmp_path / "id" / IDENTITY_SEED,
        credential=path,
        enrolment_key=key_text(key),
    )
    enrolment = read_enrolled(files, name="phone-7", trust_domain=DOMAIN)
    assert [r.levelname for r in caplog.records] == ["ERROR"]  # it ends this week

    async def serial():
        trust = Trust(DOMAIN, key)
        session = await admitted(store, trust, b"", enrolment=enrolment)
        return session.membership.credential.serial

    newest = renew(90)
    assert await serial() == newest
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    assert await serial() == newest
    path.unlink()
    assert await serial() == newest
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "later",
    [None, revocations(1, 3), revocations(2, 3)],
    ids=["none", "older", "other"],
)
async def test_a_client_rejects_an_older_revocation_list_than_it_has_read(store, later):
    # R5.0-3
    await rules(store, revocations(2, 3, 9))
    await refusal(ErrorCode.POLICY_VIOLATION, rules(store, later))
    await rules(store, revocations(2, 3, 9))
    await rules(store, revocations(3, 3, 9, 10))


async def test_a_list_number_without_a_list_does_not_block_a_client(store):
    # R2.1-0 comes before R5.0-5.
    huge = dataclasses.replace(
        trusting(None), revocation_number=(1 << 32) - 1, revocation_hash=bytes(32)
    )
    assert await admitted(store, huge, None) is Need.REVOCATIONS
    await refusal(ErrorCode.BAD_CREDENTIAL, rules(store, None, trust=huge))
    assert await seen(store) is None
    forged = dataclasses.replace(revocations((1 << 32) - 1), signature=bytes(64))
    await refusal(ErrorCode.BAD_CREDENTIAL, rules(store, forged))
    assert await seen(store) is None
    await rules(store, revocations(1))


async def test_another_enrolment_key_or_trust_domain_is_rejected_before_any_fetch(
    store,
):
    for change, code in (
        ({"enrolment_key": CLIENT.public_bytes}, ErrorCode.POLICY_VIOLATION),
        ({"trust_domain": "b.example"}, ErrorCode.UNAUTHENTICATED),
    ):
        offered = dataclasses.replace(trusting(None), **change)
        await refusal(code, admitted(store, offered, None))


async def test_a_revocation_list_older_than_the_limit_is_rejected(store):
    strict = dataclasses.replace(ENROLMENT, max_revocation_seconds=100.0)
    error = await refusal(
        ErrorCode.POLICY_VIOLATION, rules(store, None, enrolment=strict)
    )
    assert "names no revocation list" in str(error)
    found = revocations(1)
    await rules(store, found, enrolment=strict, now=NOW + 100)
    await refusal(
        ErrorCode.POLICY_VIOLATION,
        rules(store, found, enrolment=strict, now=NOW + 101),
    )


async def test_an_answered_session_is_resumed_with_a_list_of_any_age(store):
    strict = dataclasses.replace(ENROLMENT, max_revocation_seconds=100.0)
    trust, resumed = trusting(revocations(1)), {"stage": GateStage.RESUME}
    session = await admitted(store, trust, None, enrolment=strict, **resumed)
    assert session.membership is None  # its record has it
    for joined_at in (NOW + 100, NOW + 101):
        known = KnownFacts(list_made_at=NOW)
        resuming = admitted(
            *(store, trust, None),
            enrolment=strict,
            **resumed,
            known=known,
            joined_at=joined_at,
        )
        if joined_at == NOW + 100:
            assert (await resuming).membership is None
        else:
            await refusal(ErrorCode.POLICY_VIOLATION, resuming)


async def test_a_membership_exists_only_if_client_and_offer_are_enrolled(store):
    plain = offer_of(
        parameters_for(5, dimension=2, threshold=4), session_end=SESSION_END
    )
    for changes in ({"offer": plain}, {"own": lenient_rules()}):
        session = await admitted(store, trusting(None), b"", **changes)
        assert session.membership is None


async def test_a_list_is_fetched_once(store):
    enrolment = EnrolledClient(ENROLMENT.identity)
    first, second = revocations(1, 3), revocations(2, 3, 9)
    assert enrolment.list_of(trusting(None)) == b""
    assert enrolment.list_of(trusting(first)) is None
    await rules(store, first, enrolment=enrolment)
    assert enrolment.list_of(trusting(first)) == first.encode()
    assert enrolment.list_of(trusting(second)) is None
    await rules(store, second, enrolment=enrolment)
    assert enrolment.list_of(trusting(second)) == second.encode()
    assert enrolment.list_of(trusting(first)) is None


@pytest.mark.parametrize("point", [0, 1])
async def test_the_rules_take_effect_only_after_the_list_is_stored(store, point):
    switch = CrashSwitch(point)
    with pytest.raises(SimulatedCrashError):
        await rules(CrashingStore(store, switch), revocations(2))
    expected = None if point == 0 else trusting(revocations(2))
    assert await seen(store) == expected
