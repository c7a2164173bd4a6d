import datetime as dt
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.server.rpc.certificates import server_credentials
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.tls import (
    ReloadingIdentity,
    TLSIdentity,
    identity_in_pem,
    identity_of,
)

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def authority():
    return CertificateAuthority.create("deployment.example", now=NOW)


@pytest.fixture
def files(tmp_path, authority):
    authority.issued().write(tmp_path, "ca")
    authority.issue_client("phone-7", now=NOW).write(tmp_path, "client")
    authority.issue_server("agg", ["127.0.0.1", "agg.example"], now=NOW).write(
        tmp_path, "server"
    )
    return tmp_path


def load(directory, stem="client", *, role=Role.CLIENT, now=NOW + DAY, **changes):
    paths = {
        "certificate": directory / f"{stem}.pem",
        "private_key": directory / f"{stem}.key",
        "authority": directory / "ca.pem",
        **changes,
    }
    return TLSIdentity.load(**paths, role=role, now=now)


def leaf_of(issued):
    return x509.load_pem_x509_certificate(issued.certificate)


def extension(leaf, kind):
    return leaf.extensions.get_extension_for_class(kind)


def test_issued_certificates_load_and_name_their_holder(files):
    client = load(files)
    assert client.identity == PeerIdentity("deployment.example", Role.CLIENT, "phone-7")
    server = load(files, "server", role=Role.SERVER)
    assert server.identity == PeerIdentity("deployment.example", Role.SERVER, "agg")
    client.channel_credentials()
    server_credentials(ReloadingIdentity(server))


def test_a_leaf_has_one_purpose_one_identity_and_cannot_issue(authority):
    client, server = (
        leaf_of(authority.issue_client("c", now=NOW)),
        leaf_of(authority.issue_server("s", ["::1", "*.example.org"], now=NOW)),
    )
    assert list(extension(client, x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert list(extension(server, x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    own = extension(authority.certificate, x509.BasicConstraints)
    assert own.critical
    assert (own.value.ca, own.value.path_length) == (True, 0)
    for leaf in (client, server):
        constraints = extension(leaf, x509.BasicConstraints)
        assert constraints.critical
        assert not constraints.value.ca
        assert not extension(leaf, x509.KeyUsage).value.key_cert_sign
        assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
        leaf.verify_directly_issued_by(authority.certificate)
    names = extension(server, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "s.deployment.example.server.secagg.internal",
        "*.example.org",
    ]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert identity_of(client).uri == "secagg://deployment.example/client/c"


def test_no_leaf_is_valid_longer_than_its_authority():
    short = CertificateAuthority.create(days=10, now=NOW)
    leaf = leaf_of(short.issue_client("c", days=90, now=NOW))
    assert leaf.not_valid_after_utc == short.certificate.not_valid_after_utc
    with pytest.raises(ServiceError, match="has expired"):
        short.issue_client("c", now=NOW + 11 * DAY)


def test_clocks_may_differ_by_an_hour(authority):
    leaf = leaf_of(authority.issue_client("c", now=NOW))
    assert leaf.not_valid_before_utc == NOW - dt.timedelta(hours=1)


def test_keys_are_new_each_time_and_come_from_the_given_entropy(authority):
    one, other = (authority.issue_client("c", now=NOW) for _ in range(2))
    assert one.private_key != other.private_key
    assert leaf_of(one).serial_number != leaf_of(other).serial_number
    seeded = [
        authority.issue_client(
            "c", now=NOW, entropy=SeededEntropy(SecretBytes(bytes(32)), b"test")
        )
        for _ in range(2)
    ]
    assert seeded[0].private_key == seeded[1].private_key


def test_key_files_are_private_and_never_overwritten(files, authority):
    key = files / "client.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    with pytest.raises(ServiceError, match="exists already") as caught:
        authority.issue_client("phone-7").write(files, "client")
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert key.read_bytes() == before


def test_a_directory_that_cannot_be_written_is_an_error_with_a_next_step(
    tmp_path, authority
):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with pytest.raises(ServiceError) as caught:
        authority.issued().write(blocked / "below", "ca")
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert caught.value.next_step


def test_a_certificate_authority_can_be_loaded_and_continue_issuing(files, authority):
    again = CertificateAuthority.load(files / "ca.pem", files / "ca.key")
    assert again.trust_domain == authority.trust_domain
    leaf_of(again.issue_client("late", now=NOW)).verify_directly_issued_by(
        authority.certificate
    )
    with pytest.raises(ServiceError, match="not an authority"):
        CertificateAuthority.load(files / "client.pem", files / "client.key")
    with pytest.raises(ServiceError, match="not an authority"):
        CertificateAuthority.load(files / "ca.pem", files / "client.key")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 256, "c\x00"]
)
def test_a_misleading_name_is_rejected(authority, name):
    with pytest.raises(ServiceError) as caught:
        authority.issue_client(name)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE


@pytest.mark.parametrize("trust_domain", ["", "Upper.example", "a/b", "a" * 256, "ä"])
def test_a_bad_trust_domain_is_refused(trust_domain):
    with pytest.raises(ServiceError, match="trust domain"):
        CertificateAuthority.create(trust_domain)


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["a"] * 101,
        ["bad host"],
        [""],
        ["a..b"],
        ["x" * 64],
        ["-a.b"],
        ["other.deployment.example.server.secagg.internal"],
        ["*.deployment.example.server.SECAGG.internal"],
    ],
)
def test_a_bad_host_is_refused(authority, hosts):
    with pytest.raises(ServiceError) as caught:
        authority.issue_server("s", hosts)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE


@pytest.mark.parametrize("days", [0, -1, 399])
def test_a_bad_duration_is_refused(authority, days):
    with pytest.raises(ServiceError, match="398 days"):
        authority.issue_client("c", days=days)


# --- whom a certificate names -------------------------------------------------------

URI, DNS = x509.UniformResourceIdentifier, x509.DNSName
CLIENT = URI("secagg://deployment.example/client/client-1")
SERVER = URI("secagg://deployment.example/server/agg")
SERVER_NAME = DNS("agg.deployment.example.server.secagg.internal")


def pem_naming(authority, names, extra=()):
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client-1")])
        )
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
    )
    for extension_of_it in (
        *([x509.SubjectAlternativeName(names)] if names else []),
        *extra,
    ):
        builder = builder.add_extension(extension_of_it, critical=False)
    leaf = builder.sign(authority.private_key, hashes.SHA256())
    return leaf.public_bytes(serialization.Encoding.PEM)


def test_the_name_is_read_from_the_certificate(authority):
    mail = x509.RFC822Name("somebody@example.org")
    assert identity_in_pem(pem_naming(authority, [mail, CLIENT])).name == "client-1"
    assert identity_in_pem(pem_naming(authority, [SERVER, SERVER_NAME])).name == "agg"


@pytest.mark.parametrize(
    "names",
    [
        [],  # a common name only
        [DNS("client-1")],
        [URI(CLIENT.value + "\0.evil")],
        [URI(CLIENT.value + "\0")],
        [URI(CLIENT.value + "\n")],
        [URI(CLIENT.value + "/x")],
        [URI(CLIENT.value.replace("-", "%2D"))],
        [URI(CLIENT.value.replace("deployment", "Deployment"))],
        [URI(CLIENT.value.replace("secagg", "SECAGG"))],
        [URI("secagg://deployment.example/client/..")],
        [URI("secagg://deployment.example/client/a"), CLIENT],
        [URI("spiffe://deployment.example/client/client-1"), CLIENT],
        [URI("https://unrelated.example"), CLIENT],
        [CLIENT, CLIENT],
        # A client that could pose as an aggregator, also where names end at a NUL.
        [CLIENT, SERVER_NAME],
        [CLIENT, DNS("*.deployment.example.server.secagg.internal")],
        [CLIENT, DNS(SERVER_NAME.value + "\0.evil")],
        # An aggregator that could pose as another one, and one that no client knows.
        [SERVER, SERVER_NAME, DNS("b.deployment.example.server.secagg.internal")],
        [SERVER, DNS("agg.elsewhere.example.server.secagg.internal")],
        [SERVER, DNS("*.deployment.example.server.secagg.internal")],
        [SERVER, DNS("agg.example")],
    ],
)
def test_a_misleading_certificate_names_no_client(authority, names):
    with pytest.raises(ServiceError) as caught:
        identity_in_pem(pem_naming(authority, names))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert caught.value.next_step


@pytest.mark.parametrize(
    "content",
    [
        b"\x30\x03\x86\x01\xff",  # a URI that is not ASCII
        b"\x30\x05\x86\x03ab",  # a length beyond the end
        b"",
    ],
)
def test_an_unreadable_extension_names_no_client(authority, content):
    unreadable = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, content)
    with pytest.raises(ServiceError) as caught:
        identity_in_pem(pem_naming(authority, [], [unreadable]))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE


def test_an_invalid_certificate_names_no_client():
    with pytest.raises(ServiceError, match="is malformed"):
        identity_in_pem(b"-----BEGIN CERTIFICATE-----\nAA==\n")


# --- loading ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"now": NOW + 91 * DAY}, "expired on 2026-07-30"),
        ({"now": NOW - DAY}, "valid only from 2026-04-30"),
        ({"role": Role.SERVER}, "a client's certificate"),
        ({"stem": "server"}, "a server's certificate"),
    ],
)
def test_an_unusable_certificate_is_rejected_at_load(files, changes, complaint):
    with pytest.raises(ServiceError, match=complaint) as caught:
        load(files, **changes)
    is_early = "valid only from" in complaint  # passes, as a wrong clock does
    expected = ErrorCode.BAD_CLOCK if is_early else ErrorCode.BAD_CERTIFICATE
    assert caught.value.code is expected
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("which", "file", "complaint"),
    [
        ("private_key", "server.key", "does not belong to"),
        ("private_key", "client.pem", "no readable PEM private key"),
        ("private_key", "missing.key", "No such file"),
        ("certificate", "client.key", "0 readable PEM certificates"),
        ("certificate", "missing.pem", "No such file"),
        ("authority", "client.key", "0 readable PEM certificates"),
        ("authority", "client.pem", "was not issued by"),
        ("authority", "other.pem", "was not issued by"),
        ("authority", ".", "Is a directory"),
        ("certificate", "large.pem", "larger than"),
    ],
)
def test_a_confused_file_is_named_with_the_next_step(files, which, file, complaint):
    CertificateAuthority.create("deployment.example", now=NOW).issued().write(
        files, "other"
    )
    (files / "large.pem").write_bytes(b"x" * (1 << 17))
    with pytest.raises(ServiceError, match=complaint) as caught:
        load(files, **{which: files / file})
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert str(files / file) in str(caught.value)
    assert caught.value.next_step


def test_a_chain_through_an_intermediate_is_accepted(files, authority):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "intermediate")])
    intermediate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(NOW)
        .not_valid_after(NOW + 30 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority.private_key, hashes.SHA256())
    )
    below = CertificateAuthority(intermediate, key, authority.trust_domain)
    issued = below.issue_client("deep", now=NOW)
    (files / "chain.pem").write_bytes(
        issued.certificate + intermediate.public_bytes(serialization.Encoding.PEM)
    )
    (files / "chain.key").write_bytes(issued.private_key)
    assert load(files, "chain").identity.name == "deep"
    (files / "chain.pem").write_bytes(issued.certificate)
    with pytest.raises(ServiceError, match="was not issued by"):
        load(files, "chain")


def test_an_unsupported_kind_of_key_is_named(files):
    key = ed25519.Ed25519PrivateKey.generate()
    (files / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(ServiceError, match="kind of key"):
        load(files)


def test_an_encrypted_key_is_rejected(files):
    key = serialization.load_pem_private_key(
        (files / "client.key").read_bytes(), password=None
    )
    (files / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ServiceError, match="is encrypted"):
        load(files)


def test_a_key_readable_by_others_causes_only_a_warning(files, caplog):
    load(files)
    assert not caplog.records
    (files / "client.key").chmod(0o644)
    load(files)
    assert [r.message.split()[0] for r in caplog.records] == ["key_file_permissions"]


def test_no_private_key_appears_in_a_repr_or_an_error(files, authority):
    key = (files / "client.key").read_text()
    secret = key.splitlines()[1]
    assert secret not in repr(load(files))
    assert secret not in repr(authority.issue_client("c"))
    assert "private" not in repr(authority)
    with pytest.raises(ServiceError) as caught:
        load(files, certificate=files / "client.key")
    assert secret not in str(caught.value)
