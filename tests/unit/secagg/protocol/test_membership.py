"""Adverts of enrolled clients: keys that sign are checked by their signatures (R2.1-5).

What is refused, with which code and naming whom, is what the rules give in their order:
each credential with its key, one after the other, and then each signature.
"""

from dataclasses import replace
from itertools import product

import pytest

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import (
    IdentityKey,
    SignatureError,
    check_identity,
    check_identity_form,
    verify,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import enrolment as rules_module
from secagg.protocol import membership
from secagg.protocol.enrolment import (
    Credential,
    EnrolmentRules,
    VerifiedCredentials,
    check_credential,
)
from secagg.protocol.membership import Member, check_adverts, signed_advert
from secagg.protocol.messages import Advert

SUITE = CipherSuite(1)
CTX0 = bytes(range(32))
NAMES = ("ann", "ben", "cai")


def key_of(number: int) -> IdentityKey:
    return IdentityKey.from_bytes(SecretBytes(bytes([number]) * 32))


ISSUER, FOREIGN = key_of(101), key_of(102)
RULES = EnrolmentRules(
    trust_domain="example", enrolment_key=ISSUER.public_bytes, session_end=1_500
)


def is_point(encoded: bytes) -> bool:
    try:
        check_identity(encoded)
    except SignatureError:
        return False
    return True


LOW = [number.to_bytes(32, "little") for number in range(2, 130)]
OFF_CURVE = [encoded for encoded in LOW if not is_point(encoded)]


def advert_of(place: int, fault: str) -> Advert:
    """Return what a client sends: enrolled and signed but for one fault."""
    own = key_of(1 + place)
    key = {"off the curve": OFF_CURVE[place], "small order": bytes([1]) + bytes(31)}
    credential = Credential(
        name=NAMES[place],
        identity_key=key.get(fault, own.public_bytes),
        not_before=1_000,
        not_after=1_400 if fault == "expired" else 2_000,
        serial=place + 1,
    ).signed_by(FOREIGN if fault == "foreign" else ISSUER, "example")
    bare = Advert(NAMES[place], *(bytes([place, n]) * 16 for n in range(3)))
    member = Member(own, credential, RULES)
    made = signed_advert(bare, member, ctx0=CTX0, suite=SUITE)
    if fault == "unsigned":
        made = replace(made, signature=made.signature[:32] + bytes(32))
    return made


FAULTS = ("", "off the curve", "small order", "foreign", "expired", "unsigned")
ADVERTS = {
    (place, fault): advert_of(place, fault) for place in range(3) for fault in FAULTS
}


def refusal(check, adverts, verified) -> tuple[ErrorCode, str] | None:
    try:
        check(adverts, RULES, ctx0=CTX0, suite=SUITE, verified=verified)
    except RemoteProtocolError as error:
        return error.code, error.sender
    return None


def by_the_rules(adverts, rules, *, ctx0, suite, verified) -> None:
    """R5.2-6, as it is written."""
    for each in adverts:
        check_credential(
            each.credential, rules, identity=each.identity, verified=verified
        )
    membership._check_signatures(adverts, ctx0, suite)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("first", FAULTS)
def test_the_first_violation_in_the_order_of_the_rules_is_named(first, cached):
    for faults in product([first], FAULTS, FAULTS):
        adverts = [ADVERTS[place, fault] for place, fault in enumerate(faults)]
        ours = VerifiedCredentials() if cached else None
        theirs = VerifiedCredentials() if cached else None
        for _ in range(2):  # what was remembered changes nothing
            found = refusal(check_adverts, adverts, ours)
            assert found == refusal(by_the_rules, adverts, theirs)
            assert (found is None) is not any(faults)


def test_a_key_is_cached_only_after_it_is_known_to_be_a_point():
    """A credential with any other is refused again, by whatever is asked."""
    verified = VerifiedCredentials()
    adverts = [ADVERTS[0, "off the curve"], ADVERTS[1, ""], ADVERTS[2, ""]]
    expected = (ErrorCode.BAD_CREDENTIAL, "ann")
    assert refusal(check_adverts, adverts, verified) == expected
    assert len(verified) == 0
    assert refusal(by_the_rules, adverts, verified) == expected
    assert refusal(check_adverts, adverts[1:], verified) is None
    assert len(verified) == 2


def test_no_signature_is_valid_under_a_key_off_the_curve():
    """Neither one of zeros, nor one that its equation would forgive."""
    neutral, base = bytes([1]) + bytes(31), bytes([0x58]) + bytes([0x66]) * 31
    signatures = [
        point + scalar.to_bytes(32, "little")
        for point in (neutral, base, FOREIGN.public_bytes)
        for scalar in (0, 1, 8)
    ]
    for key in OFF_CURVE:
        check_identity_form(key)
        for signature in [*signatures, ISSUER.sign(b"message")]:
            with pytest.raises(SignatureError):
                verify(key, b"message", signature)


def test_a_key_is_checked_as_a_point_only_after_a_rejection(monkeypatch):
    taken = []
    monkeypatch.setattr(rules_module, "check_identity", taken.append)
    adverts = [ADVERTS[place, ""] for place in range(3)]
    assert refusal(check_adverts, adverts, None) is None
    assert not taken
    assert refusal(check_adverts, [*adverts[:2], ADVERTS[2, "unsigned"]], None)
    assert len(taken) == 3
