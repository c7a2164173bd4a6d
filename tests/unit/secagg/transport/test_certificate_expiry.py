import datetime as dt

import pytest

from secagg.server.grpc_server import GrpcServer
from secagg.testing.scripted_service import ScriptedService
from secagg.transport.address import Address
from secagg.transport.certificate_expiry import WARNED_BEFORE, warn_before_expiry
from secagg.transport.certificates import Authority
from secagg.transport.identity import Role
from secagg.transport.tls import TLSIdentity


def identity(directory, *, leaf_days, authority_days=730):
    authority = Authority.create("ours.example", days=authority_days)
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


@pytest.mark.parametrize(
    ("leaf_days", "authority_days", "files"),
    [
        (30, 730, []),
        (13, 730, ["server.pem"]),
        (30, 13, ["server.pem", "ca.pem"]),  # a leaf ends with its authority
    ],
)
def test_what_expires_within_two_weeks_is_logged_with_its_file(
    tmp_path, caplog, leaf_days, authority_days, files
):
    warn_before_expiry(
        identity(tmp_path, leaf_days=leaf_days, authority_days=authority_days)
    )
    assert expiring(caplog) == [f"path={tmp_path / name}" for name in files]


def test_the_limit_is_counted_from_the_given_instant(tmp_path, caplog):
    loaded = identity(tmp_path, leaf_days=90)
    second = dt.timedelta(seconds=1)
    warn_before_expiry(loaded, loaded.not_valid_after - WARNED_BEFORE)
    assert not caplog.records
    warn_before_expiry(loaded, loaded.not_valid_after - WARNED_BEFORE + second)
    assert expiring(caplog) == [f"path={tmp_path / 'server.pem'}"]


async def test_a_server_says_so_when_it_starts(tmp_path, caplog):
    async with await GrpcServer.start(
        ScriptedService(),
        Address("127.0.0.1", 0),
        identity=identity(tmp_path, leaf_days=5),
    ):
        pass
    assert len(expiring(caplog)) == 1
