"""The vectors of tests/vectors/protocol/enrolment.json, made from PROTOCOL.md alone."""

import json
from pathlib import Path

import pytest

from secagg.enrolment.credential import Credential, CredentialRequest
from secagg.enrolment.revocation import RevocationList, read_revocations
from secagg.enrolment.rules import (
    EnrolmentRules,
    VerifiedCredentials,
    check_credential,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.primitives.canonical import Reader
from secagg.primitives.secret_bytes import SecretBytes
from secagg.primitives.signature import IdentityKey, SignatureError, verify

FILE = Path(__file__).parents[3] / "vectors" / "protocol" / "enrolment.json"
VECTORS = json.loads(FILE.read_text())


def cases(key):
    return pytest.mark.parametrize(
        "case", [pytest.param(each, id=each["name"]) for each in VECTORS[key]]
    )


def trust(text):
    reader = Reader(bytes.fromhex(text), "trust")
    fields = (
        reader.text(max_bytes=255),
        reader.fixed(32),
        reader.u32(),
        reader.fixed(32),
    )
    reader.end()
    return fields


def data(case, key):
    return bytes.fromhex(case[key])


@cases("signatures")
def test_signatures(case):
    arguments = (data(case, "key"), data(case, "message"), data(case, "signature"))
    if case["success"]:
        verify(*arguments)
    else:
        with pytest.raises(SignatureError):
            verify(*arguments)


@cases("requests")
def test_requests(case):
    if case["success"]:
        key = IdentityKey.from_bytes(SecretBytes(data(case, "identity_seed")))
        made = CredentialRequest.make(key, **case["fields"])
        assert made.encode() == data(case, "request")
        CredentialRequest.decode(made.encode()).check()
        return
    with pytest.raises(RemoteProtocolError) as caught:
        CredentialRequest.decode(data(case, "request")).check()
    assert caught.value.code == case.get("code", ErrorCode.BAD_SIGNATURE)


@cases("credentials")
@pytest.mark.parametrize("cached", [False, True])
def test_credentials(case, cached):
    trust_domain, enrolment_key, _, _ = trust(VECTORS["trust"])
    (named,) = (
        each for each in VECTORS["revocation_lists"] if each["name"] == "three serials"
    )
    rules = EnrolmentRules(
        trust_domain=trust_domain,
        enrolment_key=enrolment_key,
        session_end=VECTORS["session_end"],
        revoked=frozenset(named["serials"]),
    )
    reader = Reader(data(case, "credential"), "credential")
    credential = Credential.decode_from(reader, name=case["identity"])
    reader.end()
    verified = VerifiedCredentials() if cached else None
    for _ in range(2):
        if case["success"]:
            check_credential(
                credential, rules, identity=case["identity"], verified=verified
            )
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            check_credential(
                credential, rules, identity=case["identity"], verified=verified
            )
        assert caught.value.code == case["code"]


@cases("revocation_lists")
def test_revocation_lists(case):
    trust_domain, enrolment_key, number, digest = trust(case["trust"])

    def read():
        return read_revocations(
            data(case, "revocations"),
            trust_domain=trust_domain,
            enrolment_key=enrolment_key,
            number=number,
            digest=digest,
        )

    if not case["success"]:
        with pytest.raises(RemoteProtocolError) as caught:
            read()
        assert caught.value.code == case["code"]
        return
    found = read()
    assert list(found.serials if found else ()) == case["serials"]
    if found is not None:
        issuer = IdentityKey.from_bytes(
            SecretBytes(bytes.fromhex(VECTORS["enrolment_seed"]))
        )
        made = RevocationList(
            trust_domain=trust_domain,
            number=number,
            made_at=found.made_at,
            serials=found.serials,
        ).signed_by(issuer)
        assert made.encode() == data(case, "revocations")
