import shutil

import pytest

from secagg.server.certificate_renewal import CertificateRenewal
from secagg.transport.certificates import Authority
from secagg.transport.identity import Role
from secagg.transport.tls import TLSIdentity


@pytest.fixture(scope="module")
def authority():
    return Authority.create("deployment.example")


@pytest.fixture
def renewal(tmp_path, authority):
    authority.issued().write(tmp_path, "ca")
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"]))
    return CertificateRenewal(
        TLSIdentity.load(
            certificate=tmp_path / "server.pem",
            private_key=tmp_path / "server.key",
            authority=tmp_path / "ca.pem",
            role=Role.SERVER,
        )
    )


def replace(directory, issued):
    """Put other files in place, as a deployer's tool would."""
    fresh = directory / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    issued.write(fresh, "server")
    for name in ("server.pem", "server.key"):
        (fresh / name).replace(directory / name)


def names(caplog):
    return [record.message.split()[0] for record in caplog.records]


def test_unchanged_files_are_not_read_again(renewal, tmp_path):
    assert renewal.fetch() is None
    # Reading it would be an error, so that only the stamp can have been looked at.
    (tmp_path / "server.key").chmod(0)
    assert renewal.fetch() is None


def test_a_renewed_certificate_is_used_once_and_then_present(
    renewal, tmp_path, authority, caplog
):
    caplog.set_level("INFO")
    replace(tmp_path, authority.issue_server("agg", ["127.0.0.1"]))
    assert renewal.fetch() is not None
    assert renewal.fetch() is None
    assert names(caplog) == ["certificate_renewed"]


def test_half_copied_files_are_refused_once_and_repair_themselves(
    renewal, tmp_path, authority, caplog
):
    caplog.set_level("INFO")
    issued = authority.issue_server("agg", ["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(issued.certificate)
    assert renewal.fetch() is None
    assert renewal.fetch() is None
    assert names(caplog) == ["certificate_refused"]
    (tmp_path / "server.key").write_bytes(issued.private_key)
    assert renewal.fetch() is not None
    assert names(caplog)[1:] == ["certificate_renewed"]


def test_missing_files_leave_the_present_certificate_in_use(renewal, tmp_path, caplog):
    (tmp_path / "server.pem").unlink()
    assert renewal.fetch() is None
    assert names(caplog) == ["certificate_refused"]


def test_a_certificate_of_another_server_needs_a_restart(
    renewal, tmp_path, authority, caplog
):
    replace(tmp_path, authority.issue_server("other", ["127.0.0.1"]))
    assert renewal.fetch() is None
    assert "secagg://deployment.example/server/other" in caplog.text
