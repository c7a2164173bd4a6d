import dataclasses
from hashlib import sha256

import pytest

from secagg.client.gate import (
    check_enrolment_key,
    check_list_age,
    check_list_number,
    check_trust_domain,
)
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import enrolment as module
from secagg.protocol import enrolment as revocation
from secagg.protocol.enrolment import (
    MAX_REVOCATION_BYTES,
    NO_DIGEST,
    Credential,
    EnrolmentRules,
    RevocationList,
    VerifiedCredentials,
    check_credential,
    check_signing_credential,
    read_revocations,
)
from secagg.protocol.profiles import Trust

ISSUER = IdentityKey.from_bytes(SecretBytes(bytes([1]) * 32))
CLIENT = IdentityKey.from_bytes(SecretBytes(bytes([2]) * 32))
FOREIGN = IdentityKey.from_bytes(SecretBytes(bytes([3]) * 32))
DOMAIN = "deployment.example"
NEUTRAL = bytes([1] + 31 * [0])

UNSIGNED = Credential(
    name="phone-7",
    identity_key=CLIENT.public_bytes,
    not_before=1_000,
    not_after=2_000,
    serial=7,
)
CREDENTIAL = UNSIGNED.signed_by(ISSUER, DOMAIN)
RULES = EnrolmentRules(
    trust_domain=DOMAIN,
    enrolment_key=ISSUER.public_bytes,
    session_end=1_500,
    revoked=frozenset({6, 8}),
)
LIST = RevocationList(
    trust_domain=DOMAIN, number=3, made_at=950, serials=(6, 8)
).signed_by(ISSUER)


def refusal(call, *args, **kwargs):
    with pytest.raises(RemoteProtocolError) as caught:
        call(*args, **kwargs)
    assert caught.value.next_step
    return caught.value


def signed(**changes):
    return dataclasses.replace(UNSIGNED, **changes).signed_by(ISSUER, DOMAIN)


def ruled(**changes):
    return dataclasses.replace(RULES, **changes)


# --- one credential -------------------------------------------------------------------


@pytest.mark.parametrize("session_end", [1_000, 1_500, 2_000])
def test_a_credential_is_accepted_for_a_session_that_ends_within_its_validity(
    session_end,
):
    check_credential(CREDENTIAL, ruled(session_end=session_end), identity="phone-7")


BAD = [
    ("R2.1-1", None, RULES, "it is missing"),
    ("R2.1-2", signed(name="phone 7"), RULES, "is not 1 to 255 of the characters"),
    ("R2.1-3 early", CREDENTIAL, ruled(session_end=999), "it becomes valid at 1000"),
    ("R2.1-3 late", CREDENTIAL, ruled(session_end=2_001), "it is valid until 2000"),
    ("R2.1-4", CREDENTIAL, ruled(revoked=frozenset({7})), "serial 7 was revoked"),
    ("R2.1-5", signed(identity_key=NEUTRAL), RULES, "small order"),
    (
        "R2.1-6 issuer",
        UNSIGNED.signed_by(FOREIGN, DOMAIN),
        RULES,
        "does not match message and signer",
    ),
    (
        "R2.1-6 trust domain",
        CREDENTIAL,
        ruled(trust_domain="other.example"),
        "does not match message and signer",
    ),
    (
        "R2.1-6 pinned key",
        CREDENTIAL,
        ruled(enrolment_key=FOREIGN.public_bytes),
        "does not match message and signer",
    ),
]


@pytest.mark.parametrize(
    ("credential", "rules", "complaint"),
    [row[1:] for row in BAD],
    ids=[row[0] for row in BAD],
)
@pytest.mark.parametrize("cached", [False, True])
def test_an_invalid_credential_is_refused(credential, rules, complaint, cached):
    verified = VerifiedCredentials() if cached else None
    if cached:  # what was verified before excuses nothing
        check_credential(CREDENTIAL, RULES, identity="phone-7", verified=verified)
    identity = credential.name if credential else "phone-7"
    error = refusal(
        check_credential, credential, rules, identity=identity, verified=verified
    )
    assert error.code is ErrorCode.BAD_CREDENTIAL
    assert error.sender == identity
    assert complaint in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "phone-8"},
        {"identity_key": FOREIGN.public_bytes},
        {"not_before": 999},
        {"not_after": 2_001},
        {"serial": 9},
        {"signature": bytes(64)},
    ],
    ids=str,
)
def test_every_field_is_signed(change):
    changed = dataclasses.replace(CREDENTIAL, **change)
    verified = VerifiedCredentials()
    check_credential(CREDENTIAL, RULES, identity="phone-7", verified=verified)
    error = refusal(
        check_credential, changed, RULES, identity=changed.name, verified=verified
    )
    assert error.code is ErrorCode.BAD_CREDENTIAL


def test_a_credential_of_another_client_is_refused():
    error = refusal(check_credential, CREDENTIAL, RULES, identity="phone-8")
    assert error.code is ErrorCode.BAD_CREDENTIAL
    assert error.sender == "phone-8"
    assert "it names 'phone-7'" in str(error)


def test_the_first_violated_rule_is_named():
    # One fault after the other is mended, in the order of the rules.
    worst = dataclasses.replace(
        UNSIGNED, name="phone 7", identity_key=NEUTRAL, signature=bytes(64)
    )
    strict = ruled(session_end=999, revoked=frozenset({7}))
    steps = [
        (worst, strict, "is not 1 to 255"),
        (dataclasses.replace(worst, name="phone-7"), strict, "becomes valid"),
        (
            dataclasses.replace(worst, name="phone-7"),
            ruled(revoked=frozenset({7})),
            "revoked",
        ),
        (dataclasses.replace(worst, name="phone-7"), RULES, "an identity is of small"),
        (dataclasses.replace(UNSIGNED, signature=bytes(64)), RULES, "point is of"),
    ]
    for credential, rules, complaint in steps:
        error = refusal(check_credential, credential, rules, identity=credential.name)
        assert complaint in str(error)


# --- what was verified before ---------------------------------------------------------


@pytest.fixture
def verifications(monkeypatch):
    counted = []

    def count(identity, message, signature):
        counted.append(identity)
        real(identity, message, signature)

    real = module.verify
    monkeypatch.setattr(module, "verify", count)
    return counted


def test_a_credential_is_verified_once(verifications):
    # R2.1-8
    verified = VerifiedCredentials()
    for _ in range(3):
        check_credential(CREDENTIAL, RULES, identity="phone-7", verified=verified)
    assert len(verifications) == 1


def test_the_cache_applies_to_one_enrolment_key_and_trust_domain_only():
    verified = VerifiedCredentials()
    check_credential(CREDENTIAL, RULES, identity="phone-7", verified=verified)
    for rules in (
        ruled(enrolment_key=FOREIGN.public_bytes),
        ruled(trust_domain="other.example"),
    ):
        refusal(
            check_credential, CREDENTIAL, rules, identity="phone-7", verified=verified
        )


def test_a_rejected_credential_is_not_cached(verifications):
    verified = VerifiedCredentials()
    forged = UNSIGNED.signed_by(FOREIGN, DOMAIN)
    for _ in range(2):
        refusal(check_credential, forged, RULES, identity="phone-7", verified=verified)
    assert len(verifications) == 2
    assert len(verified) == 0


def test_the_cache_is_bounded_and_evicts_the_least_used(monkeypatch):
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 2)
    verified = VerifiedCredentials()
    verified.add(b"a")
    verified.add(b"b")
    assert verified.knows(b"a")
    verified.add(b"c")
    assert [verified.knows(each) for each in (b"a", b"b", b"c")] == [True, False, True]


# --- the revocation list of an offer --------------------------------------------------


def trusting(number, digest, domain=DOMAIN, key=ISSUER.public_bytes):
    return Trust(domain, key, number, digest)


def read(data, **changes):
    offered = trusting(3, sha256(data).digest())
    return read_revocations(data, dataclasses.replace(offered, **changes))


def test_the_list_named_by_an_offer_is_read():
    assert read(LIST.encode()) == LIST
    assert read(b"", revocation_number=0, revocation_hash=NO_DIGEST) is None


FOREIGN_LIST = dataclasses.replace(LIST).signed_by(FOREIGN)
BAD_LISTS = [
    ("missing", b"", {"revocation_hash": LIST.digest}, "missing"),
    ("other digest", LIST.encode(), {"revocation_hash": bytes(32)}, "not the list"),
    ("no list, number", b"", {}, "revocation list is malformed"),
    ("list without number", LIST.encode(), {"revocation_number": 0}, "names no list"),
    (
        "list without number and digest",
        LIST.encode(),
        {"revocation_number": 0, "revocation_hash": NO_DIGEST},
        "names no list",
    ),
    (
        "digest without number",
        b"",
        {"revocation_number": 0, "revocation_hash": LIST.digest},
        "names no list",
    ),
    ("other number", LIST.encode(), {"revocation_number": 4}, "it is number 3"),
    ("other domain", LIST.encode(), {"trust_domain": "b.example"}, "trust domain"),
    ("other key", LIST.encode(), {"enrolment_key": FOREIGN.public_bytes}, "not signed"),
    ("foreign issuer", FOREIGN_LIST.encode(), {}, "not signed"),
    ("changed", LIST.encode()[:-1] + b"\0", {}, "not signed"),
    ("trailing", LIST.encode() + b"\0", {}, "follow the end"),
    ("too long", bytes(MAX_REVOCATION_BYTES + 1), {}, "at most"),
]


@pytest.mark.parametrize(
    ("data", "changes", "complaint"),
    [row[1:] for row in BAD_LISTS],
    ids=[row[0] for row in BAD_LISTS],
)
def test_another_list_is_refused(data, changes, complaint):
    # R2.1-0
    error = refusal(read, data, **changes)
    assert error.code is ErrorCode.BAD_CREDENTIAL
    assert complaint in str(error)


def test_a_list_of_exactly_the_limit_is_read(monkeypatch):
    monkeypatch.setattr(revocation, "MAX_REVOCATION_BYTES", len(LIST.encode()))
    assert read(LIST.encode()) == LIST


# --- what an offer says of enrolment --------------------------------------------------

SEEN = trusting(3, LIST.digest)


def judge(seen=SEEN, **changes):
    trust = dataclasses.replace(SEEN, **changes)
    check_trust_domain(trust, DOMAIN)
    check_enrolment_key(trust, ISSUER.public_bytes)
    check_list_number(trust, seen)


def test_an_offer_with_the_pinned_key_and_no_older_list_is_accepted():
    judge()
    judge(revocation_number=4, revocation_hash=bytes(32))
    judge(seen=None)
    judge(seen=None, revocation_number=0, revocation_hash=NO_DIGEST)


@pytest.mark.parametrize(
    ("changes", "code", "complaint"),
    [
        (
            {"trust_domain": "b.example"},
            ErrorCode.UNAUTHENTICATED,
            "this client belongs to",
        ),
        (
            {"enrolment_key": FOREIGN.public_bytes},
            ErrorCode.POLICY_VIOLATION,
            "another enrolment key",
        ),
        ({"revocation_number": 2}, ErrorCode.POLICY_VIOLATION, "has seen list 3"),
        (
            {"revocation_number": 0, "revocation_hash": NO_DIGEST},
            ErrorCode.POLICY_VIOLATION,
            "uses no revocation list",
        ),
        (
            {"revocation_hash": bytes(32)},
            ErrorCode.POLICY_VIOLATION,
            "another revocation list 3",
        ),
    ],
)
def test_an_offer_with_another_key_or_list_is_rejected(changes, code, complaint):
    error = refusal(judge, **changes)
    assert error.code is code
    assert complaint in str(error)


def test_a_key_that_signs_next_is_refused_by_its_form_already():
    # R2.1-5; whether it is a point of the curve, its signature shows.
    bad = signed(identity_key=NEUTRAL)
    error = refusal(check_signing_credential, bad, RULES, identity="phone-7")
    assert error.code is ErrorCode.BAD_CREDENTIAL
    assert "small order" in str(error)


def test_the_maximal_age_of_a_list_is_enforced():
    check_list_age(SEEN, LIST.made_at, now=1_050.0, max_age_seconds=100.0)
    none = trusting(0, NO_DIGEST)
    for trust, made_at, now in (
        (SEEN, LIST.made_at, 1_050.5),
        (SEEN, None, 0.0),
        (none, None, 0.0),
        (none, LIST.made_at, LIST.made_at),
    ):
        error = refusal(check_list_age, trust, made_at, now=now, max_age_seconds=100.0)
        assert error.code is ErrorCode.POLICY_VIOLATION
