import datetime as dt
import shutil

import pytest
from secagg_testing.manual_clock import ManualClock

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.transport.peer_identity import Role
from secagg.transport.tls import ReloadingIdentity, TLSIdentity

NOW = dt.datetime(2027, 1, 15, 8, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def authority():
    return CertificateAuthority.create("deployment.example", now=NOW)


@pytest.fixture
def followed(tmp_path, authority):
    authority.issued().write(tmp_path, "ca")
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"], now=NOW))
    loaded = TLSIdentity.load(
        certificate=tmp_path / "server.pem",
        private_key=tmp_path / "server.key",
        authority=tmp_path / "ca.pem",
        role=Role.SERVER,
        now=NOW,
    )
    return ReloadingIdentity(loaded, NOW.timestamp)


def replace(directory, issued):
    """Put other files in place, as a deployer's tool would."""
    fresh = directory / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    issued.write(fresh, "server")
    for name in ("server.pem", "server.key"):
        (fresh / name).replace(directory / name)


def names(caplog):
    return [record.message.split()[0] for record in caplog.records]


def test_unchanged_files_are_the_same_identity(followed, tmp_path, caplog):
    caplog.set_level("INFO")
    first = followed.identity
    path = tmp_path / "server.pem"
    path.write_bytes(path.read_bytes())  # a new file of the same contents
    assert followed.refresh() is first
    assert not caplog.records


def test_files_changed_since_loading_are_detected(followed, tmp_path, authority):
    loaded = followed.identity
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"], now=NOW))
    late = ReloadingIdentity(loaded, NOW.timestamp)
    assert late.refresh().certificate_chain != loaded.certificate_chain


def test_a_renewed_certificate_is_used_and_logged_once(
    followed, tmp_path, authority, caplog
):
    caplog.set_level("INFO")
    first = followed.identity
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"], now=NOW))
    second = followed.refresh()
    assert second.certificate_chain != first.certificate_chain
    assert followed.refresh() is second is followed.identity
    assert names(caplog) == ["certificate_renewed"]


def test_an_added_authority_is_a_renewal(followed, tmp_path):
    other = CertificateAuthority.create("deployment.example", now=NOW)
    path = tmp_path / "ca.pem"
    path.write_bytes(path.read_bytes() + other.certificate_pem())
    assert other.certificate_pem() in followed.refresh().authorities


def test_partially_copied_files_are_rejected_once_and_retried(
    followed, tmp_path, authority, caplog
):
    caplog.set_level("INFO")
    first = followed.identity
    issued = authority.issue_server("agg", ["127.0.0.1"], now=NOW)
    (tmp_path / "server.pem").write_bytes(issued.certificate)
    assert followed.refresh() is followed.refresh() is first
    assert names(caplog) == ["certificate_refused"]
    (tmp_path / "server.key").write_bytes(issued.private_key)
    assert followed.refresh() is not first
    assert names(caplog)[1:] == ["certificate_renewed"]


def test_files_that_are_removed_and_restored_change_nothing(followed, tmp_path, caplog):
    first = followed.identity
    path = tmp_path / "server.pem"
    data = path.read_bytes()
    path.unlink()
    assert followed.refresh() is first
    assert names(caplog) == ["certificate_refused"]
    path.write_bytes(data)
    assert followed.refresh() is first
    assert names(caplog) == ["certificate_refused"]


def test_a_certificate_not_yet_valid_is_used_once_it_is_valid(
    followed, tmp_path, authority, caplog
):
    clock = ManualClock(date=NOW.timestamp())
    followed = ReloadingIdentity(followed.identity, clock.date)
    tomorrow = NOW + dt.timedelta(days=1)
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"], now=tomorrow))
    first = followed.identity
    assert followed.refresh() is first
    clock.advance(24 * 3600)
    assert followed.refresh() is not first
    assert names(caplog) == ["certificate_refused"]


def test_a_certificate_of_another_server_requires_a_restart(
    followed, tmp_path, authority, caplog
):
    first = followed.identity
    replace(tmp_path, authority.issue_server("other", ["127.0.0.1"], now=NOW))
    assert followed.refresh() is first
    assert "secagg://deployment.example/server/other" in caplog.text
