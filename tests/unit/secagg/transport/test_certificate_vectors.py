"""Whom a certificate names, against the vectors of `secagg.conformance`."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from secagg.conformance import read_vectors
from secagg.errors import ErrorCode, ServiceError
from secagg.server.rpc.guards import TLSAuthenticator
from secagg.transport.handshake import Expected
from secagg.transport.tls import identity_of

ROWS = read_vectors("enrolment")["certificates"]
KEY = ec.derive_private_key(1, ec.SECP256R1())


def certificate_of(row):
    """Return a certificate with exactly these subject alternative names."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vectors")])
    names = [x509.UniformResourceIdentifier(uri) for uri in row["uris"]]
    names += [x509.DNSName(dns) for dns in row["dns"]]
    start = datetime.now(UTC)
    return (
        x509.CertificateBuilder(name, name, KEY.public_key(), 1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(KEY, hashes.SHA256())
    )


class Connection:
    """What gRPC says of a connection with a verified certificate."""

    def __init__(self, certificate, version=b"TLSv1.3"):
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        self._found = {
            "transport_security_type": [b"ssl"],
            "ssl_tls_version": [version],
            "x509_pem_cert": [pem],
        }

    def auth_context(self):
        return self._found


def met(row):
    peer = identity_of(certificate_of(row))
    Expected("example.org", row["told"]).check(peer)
    return peer.name


def called(row):
    judge = TLSAuthenticator("example.org")
    return judge.identity_of(Connection(certificate_of(row))).name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_certificate_names_one_party_or_none(row):
    # R10.1-2, R10.1-3, R10.1-4
    who, code = (
        (called, ErrorCode.UNAUTHENTICATED)
        if row["to"] == "server"
        else (met, ErrorCode.BAD_CERTIFICATE)
    )
    if row["success"]:
        assert who(row) == row["who"]
        return
    with pytest.raises(ServiceError) as refused:
        who(row)
    assert refused.value.code is code
    assert row.get("code", code) == code


def test_a_caller_without_tls_1_3_is_rejected():
    # R10.1-1
    (row,) = (row for row in ROWS if row["name"] == "a caller")
    connection = Connection(certificate_of(row), b"TLSv1.2")
    with pytest.raises(ServiceError, match=r"older than TLS 1\.3") as refused:
        TLSAuthenticator("example.org").identity_of(connection)
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
