import dataclasses
import datetime as dt

from secagg_testing.scripted_service import ScriptedService

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.expiry import ExpiryWarnings
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity


def identity(directory, *, leaf_days, authority_days=730):
    authority = CertificateAuthority.create("ours.example", days=authority_days)
    issued = authority.issue_server("agg", ["127.0.0.1"], days=leaf_days)
    authority.issued().write(directory, "ca")
    issued.write(directory, "server")
    return TLSIdentity.load(
        certificate=directory / "server.pem",
        private_key=directory / "server.key",
        authority=directory / "ca.pem",
        role=Role.SERVER,
    )


def expiring(caplog):
    words = [record.getMessage().split() for record in caplog.records]
    return [path for name, path, *_ in words if name == "certificate_expires"]


def test_expiry_is_logged_at_once_then_daily_and_as_an_error_in_the_last_week(
    tmp_path, caplog
):
    loaded, said = identity(tmp_path, leaf_days=90), ExpiryWarnings()
    for hours in range(100 * 24):  # more often than any operator looks
        said.warn(loaded, loaded.not_valid_after - dt.timedelta(days=100 - hours / 24))
    assert expiring(caplog) == [f"path={tmp_path / 'server.pem'}"] * 30
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * 23 + ["ERROR"] * 7


def test_a_renewed_certificate_ends_the_warnings(tmp_path, caplog):
    said = ExpiryWarnings()
    said.warn(identity(tmp_path / "old", leaf_days=5))
    assert len(expiring(caplog)) == 1
    said.warn(identity(tmp_path / "new", leaf_days=90))
    assert len(expiring(caplog)) == 1


def test_an_authority_with_a_successor_causes_no_warning(tmp_path, caplog):
    loaded = identity(tmp_path, leaf_days=5, authority_days=5)
    ExpiryWarnings().warn(loaded)
    files = [f"path={tmp_path / name}" for name in ("server.pem", "ca.pem")]
    assert expiring(caplog) == files
    both = (
        loaded.authorities
        + CertificateAuthority.create("ours.example").certificate_pem()
    )
    (tmp_path / "ca.pem").write_bytes(both)
    caplog.clear()
    ExpiryWarnings().warn(dataclasses.replace(loaded, authorities=both))
    assert expiring(caplog) == files[:1]


async def test_a_server_logs_expiry_when_it_starts(tmp_path, caplog):
    async with await GrpcServer.start(
        ScriptedService(),
        Address("127.0.0.1", 0),
        identity=identity(tmp_path, leaf_days=5),
    ):
        pass
    assert len(expiring(caplog)) == 1
