"""Our signatures and credentials against the vectors of `secagg.conformance`.

The vectors come from a reference that was written from the specification alone.
"""

import pytest

from secagg.conformance import read_vectors
from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey, SignatureError, verify
from secagg.errors import RemoteProtocolError, SecAggError
from secagg.pki.client_identity import load_client_identity
from secagg.protocol.enrolment import (
    Credential,
    CredentialRequest,
    EnrolmentRules,
    VerifiedCredentials,
    check_credential,
    read_revocations,
)
from secagg.protocol.profiles import Trust

ENROLMENT = read_vectors("enrolment")


def bytes_of(record, name):
    return bytes.fromhex(record[name])


def rows(key):
    return pytest.mark.parametrize("row", ENROLMENT[key], ids=lambda row: row["name"])


def trust_of(record):
    reader = Reader(bytes_of(record, "trust"), "trust")
    trust = Trust.decode_from(reader)
    reader.end()
    return trust


def listed(record):
    revocations = read_revocations(bytes_of(record, "revocations"), trust_of(record))
    if revocations is None:
        return []
    assert revocations.encode() == bytes_of(record, "revocations")
    return list(revocations.serials)


@rows("signatures")
def test_signatures(row):
    # R6.6-1; a verifier of batches takes all keys with torsion (R6.6-2).
    signed = bytes_of(row, "key"), bytes_of(row, "message"), bytes_of(row, "signature")
    if row["success"]:
        verify(*signed)
    else:
        with pytest.raises(SignatureError):
            verify(*signed)


@rows("requests")
def test_requests(row):
    data = bytes_of(row, "request")
    if row["success"]:
        key = IdentityKey.from_bytes(SecretBytes(bytes_of(row, "identity_seed")))
        assert CredentialRequest.make(key, **row["fields"]).encode() == data
        CredentialRequest.decode(data).check()
    elif "code" in row:
        with pytest.raises(RemoteProtocolError) as refused:
            CredentialRequest.decode(data)
        assert refused.value.code == row["code"]
    else:
        with pytest.raises(RemoteProtocolError):
            CredentialRequest.decode(data).check()


@rows("credentials")
def test_credentials(row):
    data, identity = bytes_of(row, "credential"), row["identity"]
    reader = Reader(data, "credential")
    credential = Credential.decode_from(reader, name=identity)
    reader.end()
    writer = Writer()
    credential.encode_into(writer)
    assert writer.getvalue() == data
    trust = trust_of(ENROLMENT)
    named = next(r for r in ENROLMENT["revocation_lists"] if r["success"])
    assert named["trust"] == ENROLMENT["trust"]
    rules = EnrolmentRules(
        trust_domain=trust.trust_domain,
        enrolment_key=trust.enrolment_key,
        session_end=ENROLMENT["session_end"],
        revoked=frozenset(named["serials"]),
    )
    verified = VerifiedCredentials()
    for _ in range(2):  # R2.1-8: what is remembered changes nothing
        if row["success"]:
            check_credential(credential, rules, identity=identity, verified=verified)
            continue
        with pytest.raises(RemoteProtocolError) as refused:
            check_credential(credential, rules, identity=identity, verified=verified)
        assert refused.value.code == row["code"]


@rows("revocation_lists")
def test_revocation_lists(row):
    if row["success"]:
        assert listed(row) == row["serials"]
        return
    with pytest.raises(RemoteProtocolError) as refused:
        listed(row)
    assert refused.value.code == row["code"]


@rows("identity_files")
def test_the_two_files_of_an_identity_load_or_are_rejected(row, tmp_path):
    # R10.2-1
    seed, credential = tmp_path / "identity.seed", tmp_path / "credential.bin"
    seed.write_bytes(bytes_of(row, "seed"))
    credential.write_bytes(bytes_of(row, "credential"))

    def load():
        return load_client_identity(
            seed=seed,
            credential=credential,
            enrolment_key=trust_of(ENROLMENT).enrolment_key,
            trust_domain="example.org",
            name=row["owner"],
            now=ENROLMENT["session_end"],
        )

    if row["success"]:
        assert load().issued.credential.name == row["owner"]
        return
    with pytest.raises(SecAggError) as refused:
        load()
    assert refused.value.code == row["code"]
