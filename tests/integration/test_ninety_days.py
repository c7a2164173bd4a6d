"""Ninety days without a restart: everything is renewed, and both sides always fit.

The clock is the test's.  TLS libraries have the machine's, so that each day's handshake
is made by hand: what one side presents is held to what the other one trusts, that day.
"""

import asyncio
import datetime as dt
import time
from types import SimpleNamespace

import pytest
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService

from secagg.client.service import CertificateRenewal
from secagg.errors import ServiceError
from secagg.pki.certificate_revocations import CertificateRevocations, RevocationFile
from secagg.pki.issuance_ledger import REVOKED, IssuanceLedger, parse_holder
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.rpc.guards import TLSAuthenticator
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import ReloadingIdentity, TLSIdentity

DAY = 24 * 3600
STEP = 3 * 3600
LIFETIME = 30  # days of each certificate
EARLY = 10  # days before its end it is renewed
GOOD, BAD = "client/hospital-a", "client/hospital-b"


class Party:
    """A server or a client: its files, and how it gets new ones."""

    def __init__(self, directory, holder, clock):
        self.directory, self.holder, self.clock = directory, holder, clock
        self.role, self.renewals = Role(holder.partition("/")[0]), 0
        directory.mkdir(parents=True)

    def begin(self, office):
        """Get a key and its first certificate of an authority."""
        fresh = self.directory / "fresh"
        with IssuanceLedger.open(office) as opened:
            issued = opened.issue(
                parse_holder(self.holder, opened.trust_domain),
                now=int(self.clock.date()),
                hosts=("127.0.0.1",) if self.role is Role.SERVER else (),
                days=LIFETIME,
            )
        issued.write(fresh, "own")
        for name in ("own.key", "own.pem"):
            (fresh / name).replace(self.directory / name)

    def renew(self, office):
        """Get the next certificate for the key."""
        self.renewals += 1
        with IssuanceLedger.open(office) as opened:
            identity = parse_holder(self.holder, opened.trust_domain)
            now = int(self.clock.date())
            chain = opened.renew(identity, None, now=now, days=LIFETIME)
        (self.directory / "fresh.pem").write_bytes(chain)
        (self.directory / "fresh.pem").replace(self.directory / "own.pem")

    def trust(self, *offices):
        pems = [(office / "ca.pem").read_bytes() for office in offices]
        (self.directory / "ca.pem").write_bytes(b"".join(pems))

    def load(self):
        return TLSIdentity.load(
            certificate=self.directory / "own.pem",
            private_key=self.directory / "own.key",
            authority=self.directory / "ca.pem",
            role=self.role,
            now=date_of(self.clock),
        )


class Consortium:
    """Two authorities, a server, two clients, and what people do."""

    def __init__(self, directory):
        self.clock = ManualClock(date=time.time())
        self.directory = directory
        self.old, self.new = directory / "old", directory / "new"
        for office in (self.old, self.new):
            IssuanceLedger.create(office, "example.org")
        self.office = self.old
        self.server, *self.clients = self.parties = [
            Party(directory / holder, holder, self.clock)
            for holder in ("server/aggregator", GOOD, BAD)
        ]
        for party in self.parties:
            party.begin(self.old)
            party.trust(self.old)
        self.revoked = directory / "ca.crl"
        self.publish(self.old, [])

    def renewal_of(self, party):
        async def fetch(_):
            try:
                party.renew(self.office)
            except ServiceError:
                return 1  # a revoked one gets no other
            return 0

        return CertificateRenewal(dt.timedelta(days=EARLY), fetch)

    def operate(self, day):
        """Renew the server's, and on some days something else."""
        now = int(self.clock.date())
        with IssuanceLedger.open(self.office) as opened:
            soon = opened.expiring(now + EARLY * DAY, now=now)
        if self.server.holder in {row.holder for row in soon}:
            self.server.renew(self.office)
        if day == 35:
            self.trust(self.old, self.new)
        if day == 40:
            self.office = self.new
            for party in self.parties:
                party.begin(self.new)
        if day == 45:
            with IssuanceLedger.open(self.new) as opened:
                opened.revoke([], now=now)
            lists = [(office / REVOKED).read_bytes() for office in (self.old, self.new)]
            self.revoked.write_bytes(b"".join(lists))
        if day == 50:
            self.trust(self.new)
            self.publish(self.new, [])
        if day == 60:
            self.publish(self.new, [BAD])

    def publish(self, office, names):
        with IssuanceLedger.open(office) as opened:
            opened.revoke(opened.find(names), now=int(self.clock.date()))
        self.revoked.write_bytes((office / REVOKED).read_bytes())

    def trust(self, *offices):
        for party in self.parties:
            party.trust(*offices)

    def shake_hands(self, one, other):
        """Hold what `one` presents to what `other` trusts; raises if it does not."""
        names = ("seen.pem", "seen.key", "trusted.pem")
        paths = [self.directory / name for name in names]
        parts = (one.certificate_chain, one.private_key, other.authorities)
        for path, data in zip(paths, parts, strict=True):
            path.write_bytes(data)
        TLSIdentity.load(
            certificate=paths[0],
            private_key=paths[1],
            authority=paths[2],
            role=one.identity.role,
            now=date_of(self.clock),
            quiet=True,
        )


def date_of(clock):
    return dt.datetime.fromtimestamp(clock.date(), dt.UTC)


def call_of(identity):
    """Return what gRPC would tell of a call under a certificate."""
    leaf = identity.certificate_chain
    context = {"transport_security_type": [b"ssl"], "x509_pem_cert": [leaf]}
    return SimpleNamespace(auth_context=lambda: context)


async def test_certificates_and_lists_are_renewed_for_ninety_days_without_a_restart(
    tmp_path, caplog
):
    world = Consortium(tmp_path)
    clock = world.clock
    followed = {
        party.holder: ReloadingIdentity(party.load(), clock.date)
        for party in world.clients
    }
    presented = set()
    async with await GrpcServer.start(
        ScriptedService(),
        Address("127.0.0.1", 0),
        identity=world.server.load(),
        revoked=RevocationFile(path=world.revoked, mark=tmp_path / "numbers.json"),
        clock=clock,
    ) as running:
        renewing = [
            asyncio.create_task(
                world.renewal_of(party).poll(followed[party.holder].refresh, clock)
            )
            for party in world.clients
        ]
        for day in range(90):
            world.operate(day)
            for _ in range(DAY // STEP):
                clock.advance(STEP)
                for _ in range(4):  # all that woke up take a turn
                    await asyncio.sleep(0)
            ours = running.identity
            presented.add(ours.certificate_chain)
            list_of_today = CertificateRevocations(
                RevocationFile(path=world.revoked),
                lambda ours=ours: ours.authorities,
                clock.date,
            )
            for holder, each in followed.items():
                theirs = each.refresh()
                judge = TLSAuthenticator("example.org", list_of_today)
                if holder == BAD and day >= 60:
                    with pytest.raises(ServiceError, match="revoked"):
                        judge.identity_of(call_of(theirs))
                    continue
                name = judge.identity_of(call_of(theirs)).name
                assert f"client/{name}" == holder
                world.shake_hands(ours, theirs)
                world.shake_hands(theirs, ours)
        for task in renewing:
            task.cancel()
    assert world.clients[0].renewals >= 3
    assert len(presented) >= 5
    # Nothing was refused on the way, and nothing ever came near its last week.
    assert "certificate_refused" not in {record.event for record in caplog.records}
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
