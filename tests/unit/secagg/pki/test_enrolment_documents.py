import dataclasses
import hashlib

import pytest

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.enrolment import (
    CREDENTIAL_BYTES,
    Credential,
    CredentialRequest,
    IssuedCredential,
    RevocationList,
)

ISSUER = IdentityKey.from_bytes(SecretBytes(bytes([1]) * 32))
CLIENT = IdentityKey.from_bytes(SecretBytes(bytes([2]) * 32))
DOMAIN = "deployment.example"

CREDENTIAL = Credential(
    name="phone-7",
    identity_key=CLIENT.public_bytes,
    not_before=1_000,
    not_after=2_000,
    serial=7,
).signed_by(ISSUER, DOMAIN)
REQUEST = CredentialRequest.make(
    CLIENT, trust_domain=DOMAIN, name="phone-7", made_at=900
)
LIST = RevocationList(
    trust_domain=DOMAIN, number=3, made_at=950, serials=(2, 7, 4_000_000_000)
).signed_by(ISSUER)
DOCUMENTS = (IssuedCredential(DOMAIN, CREDENTIAL), REQUEST, LIST)


def field(text):
    return len(text).to_bytes(4, "big") + text


def tag(role, usage):
    return b"".join(map(field, (b"SecAgg/1", bytes(2), role, usage)))


def u64(value):
    return value.to_bytes(8, "big")


def u32(value):
    return value.to_bytes(4, "big")


def test_a_credential_is_laid_out_and_signed_as_specified():
    signed = (
        tag(b"issuer", b"credential")
        + field(DOMAIN.encode())
        + field(b"phone-7")
        + CLIENT.public_bytes
        + u64(1_000)
        + u64(2_000)
        + u32(7)
    )
    assert CREDENTIAL.signed_bytes(DOMAIN) == signed
    assert CREDENTIAL.signature == ISSUER.sign(signed)
    writer = Writer()
    CREDENTIAL.encode_into(writer)
    data = writer.getvalue()
    assert len(data) == CREDENTIAL_BYTES
    assert data == (
        CLIENT.public_bytes + u64(1_000) + u64(2_000) + u32(7) + CREDENTIAL.signature
    )
    reader = Reader(data, "credential")
    assert Credential.decode_from(reader, name="phone-7") == CREDENTIAL
    reader.end()


def test_a_request_is_laid_out_and_signed_as_specified():
    body = (
        b"\1"
        + field(DOMAIN.encode())
        + field(b"phone-7")
        + CLIENT.public_bytes
        + u64(900)
    )
    assert REQUEST.encode()[:-64] == body
    signed = tag(b"client", b"enrolment request") + body
    assert REQUEST.signature == CLIENT.sign(signed)
    REQUEST.check()


def test_a_revocation_list_is_laid_out_and_signed_as_specified():
    body = b"\1" + field(DOMAIN.encode()) + u32(3) + u64(950) + u32(3)
    body += u32(2) + u32(7) + u32(4_000_000_000)
    assert LIST.encode()[:-64] == body
    assert LIST.signature == ISSUER.sign(tag(b"issuer", b"revocation") + body)
    assert LIST.digest == hashlib.sha256(LIST.encode()).digest()
    LIST.check(trust_domain=DOMAIN, enrolment_key=ISSUER.public_bytes)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: type(each).__name__)
def test_decoders_return_the_document_or_raise_bad_encoding(document):
    data = document.encode()
    kind = type(document)
    assert kind.decode(data) == document
    spoilt = [data[:length] for length in range(len(data))]
    spoilt += [data + b"\0", b"\0" + data[1:], b"\2" + data[1:]]
    for bytes_ in spoilt:
        with pytest.raises(RemoteProtocolError) as caught:
            kind.decode(bytes_)
        assert caught.value.code is ErrorCode.BAD_ENCODING


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a\n", "x" * 256, "a\0"])
def test_names_with_other_characters_are_neither_written_nor_read(name):
    for domain, client in ((name, "phone-7"), (DOMAIN, name)):
        with pytest.raises(ValueError, match="is not 1 to 255 of the characters"):
            CredentialRequest.make(CLIENT, trust_domain=domain, name=client, made_at=1)
        forged = b"\1" + field(domain.encode()) + field(client.encode()) + bytes(200)
        for kind in (CredentialRequest, IssuedCredential):
            with pytest.raises(RemoteProtocolError) as caught:
                kind.decode(forged)
            assert caught.value.code is ErrorCode.BAD_ENCODING
    with pytest.raises(RemoteProtocolError):
        RevocationList.decode(
            dataclasses.replace(LIST, trust_domain="a/b").signed_by(ISSUER).encode()
        )


@pytest.mark.parametrize(
    "change",
    [
        {"trust_domain": "other.example"},
        {"name": "phone-8"},
        {"identity_key": ISSUER.public_bytes},
        {"made_at": 901},
        {"signature": bytes(64)},
        {"identity_key": bytes([1] + 31 * [0])},
    ],
    ids=str,
)
def test_a_request_that_was_changed_is_refused(change):
    with pytest.raises(RemoteProtocolError) as caught:
        dataclasses.replace(REQUEST, **change).check()
    assert caught.value.code is ErrorCode.BAD_SIGNATURE


def test_a_key_that_is_no_point_of_the_curve_is_named_as_such():
    stranger = dataclasses.replace(REQUEST, identity_key=bytes([2] + 31 * [0]))
    with pytest.raises(RemoteProtocolError, match="not a point of the curve"):
        stranger.check()


@pytest.mark.parametrize("serials", [(2, 2), (7, 2)])
def test_serials_out_of_order_are_refused(serials):
    data = dataclasses.replace(LIST, serials=serials).signed_by(ISSUER).encode()
    with pytest.raises(RemoteProtocolError, match="not strictly ascending"):
        RevocationList.decode(data)


def test_there_is_no_list_number_0():
    data = dataclasses.replace(LIST, number=0).signed_by(ISSUER).encode()
    with pytest.raises(RemoteProtocolError, match="counted from 1"):
        RevocationList.decode(data)


def test_a_count_beyond_the_bytes_is_rejected_without_allocating_memory():
    body = b"\1" + field(DOMAIN.encode()) + u32(3) + u64(950) + u32((1 << 32) - 1)
    with pytest.raises(RemoteProtocolError, match="are left"):
        RevocationList.decode(body + bytes(64))
