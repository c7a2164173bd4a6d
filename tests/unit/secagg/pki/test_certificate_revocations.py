"""Revocation lists of certificates: which are accepted, and why others are refused."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from secagg_testing.manual_clock import ManualClock
from secagg_testing.tls_deployment import crl_of

from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.pki import certificate_revocations
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.certificate_revocations import (
    MAX_CRL_BYTES,
    CertificateRevocations,
    RevocationFile,
    revocation_file,
)
from secagg.transport.tls import CertificateNumber, number_in_pem

DAY = 86_400
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"), b"")
OPENSSL_CONFIG = """
[ca]
default_ca = ours
[ours]
database = index.txt
crlnumber = crlnumber
default_md = sha256
default_crl_days = 30
crl_extensions = extensions
[extensions]
authorityKeyIdentifier = keyid:always
"""


@pytest.fixture(scope="module")
def ours():
    return CertificateAuthority.create("ours.example")


@pytest.fixture(scope="module")
def theirs():
    return CertificateAuthority.create("ours.example")


@pytest.fixture(scope="module")
def issued(ours):
    return [ours.issue_client(name).certificate for name in "ab"]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def place(tmp_path, ours, clock):
    return Place(tmp_path, clock, [ours])


class Place:
    """A file of lists, its mark, and the authorities that a process trusts."""

    def __init__(self, directory, clock, trusted):
        self.path, self.mark = directory / "ca.crl", directory / "numbers.json"
        self.clock, self.trusted = clock, trusted

    def write(self, *lists):
        self.path.write_bytes(b"".join(lists))

    def opened(self, max_days=None):
        """Return the lists as a process that starts reads them."""
        return CertificateRevocations(
            RevocationFile(path=self.path, max_days=max_days, mark=self.mark),
            lambda: b"".join(each.certificate_pem() for each in self.trusted),
            self.clock.date,
        )

    def refuses(self, complaint, **limits):
        with pytest.raises(ServiceError, match=complaint) as caught:
            self.opened(**limits)
        assert caught.value.code is ErrorCode.BAD_CERTIFICATE
        assert caught.value.next_step


def crl(authority, clock, *certificates, number=1, age=0, **options):
    now = clock.date() - age
    return crl_of(authority, *certificates, number=number, now=now, **options)


def built(authority, clock, *extensions, entry=(), number=1, signer=None):
    """Return a list that `secagg pki` would not make."""
    now = datetime.fromtimestamp(clock.date(), UTC)
    revoked = x509.RevokedCertificateBuilder().serial_number(7).revocation_date(now)
    for each in entry:
        revoked = revoked.add_extension(each, critical=True)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + timedelta(days=1))
        .add_revoked_certificate(revoked.build())
    )
    if number is not None:
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for each in extensions:
        builder = builder.add_extension(each, critical=True)
    signed = builder.sign(signer or authority.private_key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def test_a_list_revokes_only_certificates_of_its_issuer(
    place, ours, theirs, clock, issued
):
    gone, stays = map(number_in_pem, issued)
    place.write(crl(ours, clock, issued[0]))
    found = place.opened()
    assert gone in found
    assert stays not in found
    elsewhere = theirs.certificate.subject
    assert CertificateNumber(elsewhere, gone.serial) not in found
    place.write(
        x509.load_pem_x509_crl(crl(ours, clock, *issued, number=2)).public_bytes(
            serialization.Encoding.DER
        )
    )
    assert found.refresh()
    assert {gone, stays} <= place.opened()._numbers


def test_lists_of_two_authorities_share_one_file(place, ours, theirs, clock):
    place.trusted = [ours, theirs]
    leaves = [each.issue_client("a").certificate for each in place.trusted]
    lists = [
        crl(authority, clock, leaf)
        for authority, leaf in zip(place.trusted, leaves, strict=True)
    ]
    place.write(*lists)
    found = place.opened()
    assert all(number_in_pem(leaf) in found for leaf in leaves)
    place.write(lists[0])
    place.refuses("lacks the list of .*still trusted")
    place.write(*lists, lists[0])
    place.refuses("two lists of")
    place.trusted = [ours]  # the other authority is no longer trusted
    place.write(lists[0])
    place.opened()


@pytest.fixture
def openssl(tmp_path, ours, issued):
    """Return what runs openssl as the authority of ours that has revoked a leaf."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs the openssl program")
    ours.issued().write(tmp_path, "root")
    (tmp_path / "openssl.cnf").write_text(OPENSSL_CONFIG)
    (tmp_path / "index.txt").touch()
    (tmp_path / "crlnumber").write_text("1000\n")
    (tmp_path / "leaf.pem").write_bytes(issued[0])

    def run(*words):
        subprocess.run([program, *words], cwd=tmp_path, check=True, capture_output=True)

    signer = ("-config", "openssl.cnf", "-cert", "root.pem", "-keyfile", "root.key")

    def authority(*words):
        run("ca", *signer, *words, "-out", "list.pem")
        for form in ("PEM", "DER"):
            run("crl", "-in", "list.pem", "-outform", form, "-out", f"list.{form}")
            yield (tmp_path / f"list.{form}").read_bytes()

    run("ca", *signer, "-revoke", "leaf.pem", "-crl_reason", "keyCompromise")
    return authority


def test_a_list_made_by_openssl_is_accepted(place, issued, openssl):
    place.clock = ManualClock(date=datetime.now(UTC).timestamp())
    for data in openssl("-gencrl"):
        place.write(data)
        found = place.opened()
        assert number_in_pem(issued[0]) in found
        assert number_in_pem(issued[1]) not in found
    [[number, _]] = json.loads(place.mark.read_bytes()).values()
    assert number == 0x1000
    for data in openssl("-gencrl", "-md", "sha1"):
        place.write(data)
        place.refuses("is not signed by")


def test_an_unsigned_foreign_or_malformed_list_is_rejected(place, ours, theirs, clock):
    good = crl(ours, clock)
    der = x509.load_pem_x509_crl(good).public_bytes(serialization.Encoding.DER)
    for data, complaint in (
        (b"", "not an X.509 revocation list"),
        (b"oops", "not an X.509 revocation list"),
        (der[:-1], "not an X.509 revocation list"),
        (der.replace(b"\x02\x01\x01", b"\x02\x01\x08", 1), "not an X.509 revocation"),
        (good[:-30], "0 whole revocation lists"),
        (good + good[:40], "1 whole revocation lists"),
        (good + ours.certificate_pem(), "1 whole revocation lists"),
        (good * 9, "9 whole revocation lists"),
        # As many as fit: a search to the end of the file from each takes an hour.
        (b"-----BEGIN X509 CRL-----" * (MAX_CRL_BYTES // 24), "0 whole"),
        (good + b" " * MAX_CRL_BYTES, "larger than"),
        (crl(theirs, clock), "not a trusted authority"),
        (built(ours, clock, signer=theirs.private_key), "is not signed by"),
    ):
        place.write(data)
        place.refuses(complaint)
    place.path.unlink()
    place.refuses("cannot read")


def test_a_list_is_accepted_only_from_an_issuer_allowed_to_sign_lists(
    place, ours, clock
):
    usage = x509.KeyUsage(
        digital_signature=False,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    now = datetime.fromtimestamp(clock.date(), UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "no lists")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(ours.private_key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=400))
        .add_extension(usage, critical=True)
        .sign(ours.private_key, hashes.SHA256())
    )
    limited = CertificateAuthority(certificate, ours.private_key, "ours.example")
    place.trusted = [limited]
    place.write(crl(limited, clock))
    place.refuses("is not signed by")


def test_an_extension_that_changes_the_meaning_is_refused(place, ours, clock):
    part = x509.IssuingDistributionPoint(
        full_name=None,
        relative_name=None,
        only_contains_user_certs=True,
        only_contains_ca_certs=False,
        only_some_reasons=None,
        indirect_crl=False,
        only_contains_attribute_certs=False,
    )
    for data, complaint in (
        (built(ours, clock, UNKNOWN), "critical extension 1.3.6.1.4.1.55555.1"),
        (built(ours, clock, entry=[UNKNOWN]), "critical extension 1.3.6.1.4.1.55555.1"),
        (built(ours, clock, part), "a part of the authority's certificates"),
        (built(ours, clock, x509.DeltaCRLIndicator(1)), "a part of"),
        (built(ours, clock, number=None), "no CRL number"),
        (built(ours, clock, number=1 << 159), "number is out of range"),
    ):
        place.write(data)
        place.refuses(complaint)
    place.write(built(ours, clock))
    assert CertificateNumber(ours.certificate.subject, 7) in place.opened()


def endless(authority, clock):
    """Return a list without nextUpdate, which no library here makes."""
    made = x509.load_pem_x509_crl(crl(authority, clock))
    whole = made.tbs_certlist_bytes
    body = whole[
        2 + (whole[1] & 0x7F) :
    ]  # behind the tag and the long form of a length
    ends = made.next_update_utc.strftime("%y%m%d%H%M%SZ").encode()
    assert body.count(sequence(ends, tag=0x17)) == 1
    tbs = sequence(body.replace(sequence(ends, tag=0x17), b""))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    signed = authority.private_key.sign(tbs, ec.ECDSA(hashes.SHA256()))
    return sequence(tbs + algorithm + sequence(b"\0" + signed, tag=0x03))


def sequence(body, *, tag=0x30):
    size = len(body).to_bytes(2, "big").lstrip(b"\0")
    if len(body) >= 0x80:
        size = bytes([0x80 + len(size)]) + size
    return bytes([tag]) + size + body


def test_a_list_is_refused_before_and_after_its_time(place, ours, clock):
    place.write(endless(ours, clock))
    place.refuses("no nextUpdate")
    place.write(crl(ours, clock, age=-3601))
    place.refuses("valid only from")
    place.write(crl(ours, clock, age=-3600))
    place.opened()
    place.mark.unlink()
    place.write(crl(ours, clock, age=10 * DAY, days=10))
    place.refuses("expired on")
    place.write(crl(ours, clock, age=3 * DAY))
    place.refuses("older than the 3 days", max_days=3.0)
    found = place.opened(max_days=3.5)
    clock.advance(DAY / 2 - 1)
    assert found.is_current()
    clock.advance(1)
    assert not found.is_current()


def test_list_numbers_never_decrease_even_after_a_restart(
    place, ours, clock, issued, caplog
):
    first, second = crl(ours, clock), crl(ours, clock, issued[0], number=2)
    place.write(second)
    running = place.opened()
    place.write(first)
    place.refuses("is list 1 of .*list 2 was used before")
    assert not running.refresh()
    assert number_in_pem(issued[0]) in running
    assert "list 2 was used before" in caplog.text
    place.write(crl(ours, clock, number=2))
    place.refuses("another list 2")
    place.write(second)
    place.opened()
    place.mark.write_text("{")
    with pytest.raises(ServiceError, match="does not hold numbers") as caught:
        place.opened()
    assert caught.value.code is ErrorCode.STATE_DAMAGED


def test_no_list_is_older_than_any_list(place, ours, clock, tmp_path):
    """A setting that was left out, or another settings file, readmits no client."""
    place.mark = revocation_file(place.path, None, tmp_path).mark
    assert revocation_file(None, None, tmp_path) is None
    place.write(crl(ours, clock))
    place.opened()
    with pytest.raises(ServiceError, match="names no list, and") as caught:
        revocation_file(None, None, tmp_path)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_a_full_disk_does_not_readmit_revoked_clients(
    place, ours, clock, issued, caplog
):
    place.mark = place.mark.parent / "state" / "numbers.json"
    place.mark.parent.mkdir()
    place.write(crl(ours, clock))
    running = place.opened()
    shutil.rmtree(place.mark.parent)
    place.write(crl(ours, clock, issued[0], number=2))
    assert running.refresh()
    assert number_in_pem(issued[0]) in running
    assert "crl_rejected" in {record.event for record in caplog.records}
    with pytest.raises(ServiceError) as caught:
        place.opened()
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    place.mark.parent.mkdir()
    assert not running.refresh()
    assert place.mark.exists()


def test_an_invalid_list_readmits_no_client_and_is_logged_once(
    place, ours, clock, issued, caplog
):
    caplog.set_level("INFO")
    gone, later = map(number_in_pem, issued)
    place.write(crl(ours, clock, issued[0]))
    found = place.opened()
    for damage in (lambda: place.write(b"oops\n"), place.path.unlink):
        caplog.clear()
        damage()
        assert not found.refresh()
        assert not found.refresh()
        assert gone in found
        [record] = caplog.records
        assert (record.levelname, record.event) == ("ERROR", "crl_rejected")
    place.write(crl(ours, clock, *issued, number=2))
    assert found.refresh()
    assert later in found
    assert not found.refresh()


def test_a_rejected_file_is_read_again_when_it_may_have_become_valid(
    place, ours, clock, caplog, monkeypatch
):
    good = crl(ours, clock)
    place.write(good)
    found, read = place.opened(), []
    check = certificate_revocations._check
    monkeypatch.setattr(
        certificate_revocations,
        "_check",
        lambda *given: read.append(given) or check(*given),
    )
    part = built(ours, clock, x509.DeltaCRLIndicator(1), number=3)
    for wrong, times in ((part, 1), (good, 2), (part, 3)):
        place.write(wrong)
        for _ in range(3):
            assert not found.refresh()
        assert len(read) == times  # however often it is looked at
    assert [record.event for record in caplog.records] == ["crl_rejected"] * 2
    # The clock was wrong, and is corrected.
    early = crl(ours, clock, number=4, age=-3700)
    late = crl(ours, clock, number=5, age=DAY, days=1)
    for number, wrong, seconds in ((4, early, 100), (5, late, -101)):
        place.write(wrong)
        found.refresh()
        assert found._lists[0].number < number
        clock.advance(seconds)
        found.refresh()
        assert found._lists[0].number == number


def test_a_list_is_read_again_after_a_defect(place, ours, clock, monkeypatch):
    place.write(crl(ours, clock))
    found, check = place.opened(), certificate_revocations._check
    place.write(crl(ours, clock, number=2))

    def broken(*_):
        raise RuntimeError

    for _ in range(2):  # each is an error in the log of the watch
        monkeypatch.setattr(certificate_revocations, "_check", broken)
        with pytest.raises(RuntimeError):
            found.refresh()
    monkeypatch.setattr(certificate_revocations, "_check", check)
    found.refresh()
    assert found._lists[0].number == 2


def test_a_change_of_trusted_authorities_is_checked_against_the_same_list(
    place, ours, theirs, clock, caplog
):
    place.write(crl(ours, clock))
    running = place.opened()
    for trusted, events in ((theirs, ["crl_rejected"]), (ours, [])):
        caplog.clear()
        place.trusted = [trusted]
        assert not running.refresh()
        assert not running.refresh()
        assert [record.event for record in caplog.records] == events


def test_an_authority_that_returns_without_its_list_is_reported(
    place, ours, theirs, clock, caplog
):
    own = crl(ours, clock)
    place.trusted = [ours, theirs]
    place.write(own, crl(theirs, clock))
    running = place.opened()
    place.trusted = [ours]
    place.write(own)
    assert not running.refresh()
    assert not caplog.records
    place.trusted = [ours, theirs]
    assert not running.refresh()
    assert "lacks the list of" in caplog.text


def test_a_withdrawn_revocation_is_accepted_and_logged(
    place, ours, clock, issued, caplog
):
    place.write(crl(ours, clock, issued[0]))
    found = place.opened()
    place.write(crl(ours, clock, number=2))
    assert not found.refresh()
    assert number_in_pem(issued[0]) not in found
    [record] = caplog.records
    assert (record.levelname, record.facts["given_back"]) == ("WARNING", 1)


def test_the_expiry_of_a_list_is_logged_in_advance_and_once_a_day(
    place, ours, clock, caplog
):
    place.write(crl(ours, clock, days=8))
    found, levels = place.opened(), []
    for _ in range(18):  # half a day each
        caplog.clear()
        found.refresh()
        levels.append([record.levelname for record in caplog.records])
        clock.advance(DAY / 2)
    # A quarter of eight days is left after day 6.
    assert levels == [[]] * 13 + [["WARNING"], [], ["WARNING"], ["ERROR"], []]
    assert not found.is_current()


@pytest.mark.parametrize("days", [0.0, 3651.0, 1e300])
def test_an_invalid_maximal_age_is_rejected(days, tmp_path):
    with pytest.raises(LocalProtocolError, match="max_revocation_days must be"):
        revocation_file(tmp_path / "ca.crl", days, tmp_path)


def test_without_a_file_no_certificate_is_revoked(issued, tmp_path):
    found = CertificateRevocations(None)
    assert not found.refresh()
    assert number_in_pem(issued[0]) not in found
    assert found.is_current()
    assert revocation_file(None, None, tmp_path) is None
    with pytest.raises(ServiceError, match="no list is named") as caught:
        revocation_file(None, 3.0, tmp_path)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
