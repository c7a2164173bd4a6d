"""The list of certificates that were taken back: what a line is, and what a mistake."""

import pytest
from cryptography import x509

from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.certificate_revocations import (
    CertificateRevocations,
    read_revoked,
    revoked_line,
)
from secagg.transport.tls import CertificateNumber, number_in_pem

ISSUER = "CN=secagg authority 1a2b3c4d,O=ours.example"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "revoked.txt"


@pytest.fixture(scope="module")
def issued():
    authority = CertificateAuthority.create("ours.example")
    return [authority.issue_client(name) for name in "ab"]


def numbers(*issued):
    return [number_in_pem(each.certificate) for each in issued]


def test_a_line_takes_back_the_certificate_of_its_number_and_issuer_alone(path, issued):
    [gone, stays] = numbers(*issued)
    path.write_text(f"# on the phone, monday\n\n{revoked_line(gone)}\n")
    found = CertificateRevocations(path)
    assert gone in found
    assert stays not in found
    elsewhere = CertificateAuthority.create("ours.example").certificate.subject
    assert CertificateNumber(elsewhere, gone.serial) not in found


def test_a_line_is_what_openssl_prints(path):
    # serial=0F00 and issuer=... of `openssl x509 -serial -issuer -nameopt RFC2253`.
    path.write_text(f"0F00 {ISSUER}\n")
    issuer = x509.Name.from_rfc4514_string(ISSUER)
    assert read_revoked(path) == {CertificateNumber(issuer, 0xF00)}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (f"1 {ISSUER}\n2 {ISSUER}", "in the middle of a line"),
        (f"1 {ISSUER}\nxyz {ISSUER}\n", "line 2: .*hexadecimal"),
        (f"-1 {ISSUER}\n", "hexadecimal"),
        (f"{'1' * 41} {ISSUER}\n", "hexadecimal"),
        ("1\n", "issuer is missing"),
        ("1 nobody\n", "issuer is malformed"),
        (b"\xff\xfe\n", "not valid text"),
        (b"\n" * ((16 << 20) + 1), "larger than"),
    ],
)
def test_a_file_with_a_mistake_is_refused_whole(path, data, complaint):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(ServiceError, match=complaint) as caught:
        CertificateRevocations(path)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert caught.value.next_step


def test_a_file_that_is_not_there_is_no_empty_list(path):
    with pytest.raises(ServiceError, match="cannot read"):
        CertificateRevocations(path)
    path.touch()
    assert numbers() == list(read_revoked(path))


def test_a_mistake_lets_nobody_back_in_and_is_said_once(path, issued, caplog):
    caplog.set_level("INFO")
    [gone, later] = numbers(*issued)
    path.write_text(f"{revoked_line(gone)}\n")
    found = CertificateRevocations(path)
    for damage in (lambda: path.write_text("oops\n"), path.unlink):
        caplog.clear()
        damage()
        assert not found.look()
        assert not found.look()
        assert gone in found
        [record] = caplog.records
        assert record.levelname == "ERROR"
        assert record.event == "crl_rejected"
    path.write_text(f"{revoked_line(gone)}\n{revoked_line(later)}\n")
    assert found.look()
    assert later in found
    assert not found.look()


def test_what_is_given_back_is_welcome_again_and_in_the_log(path, issued, caplog):
    [gone, _] = numbers(*issued)
    path.write_text(f"{revoked_line(gone)}\n")
    found = CertificateRevocations(path)
    path.write_text("")
    assert not found.look()
    assert gone not in found
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.facts["given_back"] == 1


def test_without_a_file_nothing_is_taken_back(issued):
    found = CertificateRevocations(None)
    assert not found.look()
    assert numbers(*issued)[0] not in found
