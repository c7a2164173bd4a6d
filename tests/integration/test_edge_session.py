"""Sessions whose clients come over gRPC and over the HTTP edge, with TLS and files."""

import asyncio
import socket
import time

import numpy as np
import pytest
from secagg_testing.edge_deployment import AUTHORITY
from secagg_testing.tls_deployment import TLSDeployment

import secagg
from secagg import advanced
from secagg.client.edge_connection import EdgeConnection
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.client_identity import load_client_identity
from secagg.pki.development import DevelopmentEnrolment
from secagg.pki.key_files import key_text
from secagg.protocol.descriptor import SessionDescriptor
from secagg.server.http_edge.listener import EdgeOptions
from secagg.transport.relay import Rejection
from secagg.wire.calls import (
    AdvertiseKeys,
    GetOffer,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
)

pytest.importorskip("uvicorn", reason="needs the extra edge")
pytest.importorskip("httptools", reason="needs the extra edge")

NAMES = ("ada", "bob", "cyd", "dan")
AT_EDGE = ("cyd", "dan")
WAIVER = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
MALICIOUS = secagg.Profile.MALICIOUS_SERVER
HONEST = secagg.Profile.HONEST_CURIOUS_SERVER
DEPLOYMENT_SECONDS = 120.0
ROUNDS = AdvertiseKeys, ShareKeys, UploadChunk, SignConsistency, RevealShares


class Deployment:
    def __init__(self, path):
        self.path = path
        self.tls = TLSDeployment(path)
        self.enrolled, self.key = DevelopmentEnrolment.create(
            path,
            trust_domain="ours.example",
            names=NAMES,
            now=int(time.time()),
            entropy=SystemEntropy(),
        )
        self.web = self.tls.server(AUTHORITY).files

    def server(self, *, admission=None, **changes):
        options = {
            "listen": "127.0.0.1:0",
            "authority": AUTHORITY,
            "certificate": self.web.certificate,
            "private_key": self.web.private_key,
            "trust_domain": "ours.example",
            "enrolment_key": self.key,
        }
        return secagg.Server(
            "127.0.0.1:0",
            identity=self.tls.server(),
            state_dir=self.path / "server",
            rollback_mark=self.path / "server.mark",
            keep_seconds=5.0,
            admission=admission,
            edge=EdgeOptions(**options | changes),
        )

    def prepared(self, profile, dimension=4):
        cohort = secagg.Cohort(
            profile=profile,
            enrolment=advanced.PublishedEnrolment("ours.example", self.key)
            if profile is MALICIOUS
            else None,
            min_clients=4,
            max_clients=4,
            min_survivors=3,
            threshold=3,
        )
        return secagg.PreparedTask.exact(WAIVER, cohort, dimension=dimension)

    def edge_connection(self, server, name, **changes):
        identity = load_client_identity(
            seed=self.enrolled.seed(name),
            credential=self.enrolled.credential(name),
            enrolment_key=self.key,
            name=name,
            trust_domain="ours.example",
            now=int(time.time()),
        )
        return EdgeConnection(
            AUTHORITY,
            identity=identity,
            aggregator="agg",
            authorities=self.tls.directory / "ours.pem",
            address=server.edge.address,
            **changes,
        )

    def client(self, server, name, connection, profile):
        files = advanced.ClientEnrolment(
            seed=self.enrolled.seed(name),
            credential=self.enrolled.credential(name),
            enrolment_key=key_text(self.key),
        )
        policy = secagg.ClientPolicy(profiles=frozenset({profile}), require_noise=False)
        given = {"identity": self.tls.client(name)} if connection is None else {}
        return secagg.Client(
            str(server.address) if connection is None else connection,
            task="sum",
            privacy_limits=WAIVER,
            enrolment=files if profile is MALICIOUS else None,
            cohort=policy,
            state_dir=self.path / name,
            rollback_mark=self.path / f"{name}.mark",
            attempts=1,
            **given,
        )

    def way(self, server, name, *, direct=True):
        if name in AT_EDGE:
            return self.edge_connection(server, name, direct=direct)
        return advanced.GrpcConnection(server.address, identity=self.tls.client(name))

    async def give(self, server, name, profile, **way):
        if name not in AT_EDGE:
            async with self.client(server, name, None, profile) as client:
                return await client.contribute(np.arange(4))
        async with (
            self.way(server, name, **way) as connection,
            self.client(server, name, connection, profile) as client,
        ):
            return await client.contribute(np.arange(4))


@pytest.fixture
def deployment(tmp_path):
    return Deployment(tmp_path)


@pytest.mark.parametrize("profile", [MALICIOUS, HONEST])
async def test_clients_of_both_entries_get_one_exact_sum(deployment, profile):
    async with (
        asyncio.timeout(DEPLOYMENT_SECONDS),
        deployment.server() as server,
    ):
        task = await server.add_task("sum", deployment.prepared(profile))
        released = asyncio.ensure_future(task.next_sum())
        given = await asyncio.gather(
            *(deployment.give(server, name, profile) for name in NAMES)
        )
        total = await released
        task.take()
    np.testing.assert_array_equal(total.values, 4 * np.arange(4))
    assert [each.inputs for each in given] == [4, 4, 4, 4]


class _Killed:
    """A connection whose client is killed at one call, before or behind its answer."""

    def __init__(self, inner, call, *, answered):
        self.inner, self.call_type, self.answered = inner, call, answered
        self.killed = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def call(self, request):
        if isinstance(request, self.call_type):
            if self.answered:
                await self.inner.call(request)
            self.killed.set()
            await asyncio.Event().wait()
        return await self.inner.call(request)


async def contribute_after_a_kill(deployment, server, name, killed_at, *, answered):
    """Kill a client at a call, and start it again on the same disk."""
    async with deployment.way(server, name) as inner:
        profile, call = killed_at
        connection = _Killed(inner, call, answered=answered)
        client = deployment.client(server, name, connection, profile)

        async def give():
            async with client:
                await client.contribute(np.arange(4))

        first = asyncio.ensure_future(give())
        killed = asyncio.ensure_future(connection.killed.wait())
        await asyncio.wait({first, killed}, return_when=asyncio.FIRST_COMPLETED)
        assert not first.done()
        first.cancel()
        await asyncio.wait({first})
    return await deployment.give(server, name, profile)


@pytest.mark.parametrize(
    "killed_at",
    [
        (profile, call)
        for profile in (HONEST, MALICIOUS)
        for call in ROUNDS
        if profile is MALICIOUS or call is not SignConsistency
    ],
    ids=lambda each: f"{each[0]}-{each[1].__name__}",
)
async def test_the_sum_is_exact_if_clients_of_both_transports_are_killed(
    deployment, killed_at
):
    profile, _ = killed_at
    # The one over gRPC before its answer and the other behind it, or the reverse.
    behind = profile is HONEST, profile is MALICIOUS
    async with (
        asyncio.timeout(DEPLOYMENT_SECONDS),
        deployment.server() as server,
    ):
        task = await server.add_task("sum", deployment.prepared(profile))
        released = asyncio.ensure_future(task.next_sum())
        given = await asyncio.gather(
            deployment.give(server, "ada", profile),
            contribute_after_a_kill(
                deployment, server, "bob", killed_at, answered=behind[0]
            ),
            deployment.give(server, "cyd", profile),
            contribute_after_a_kill(
                deployment, server, "dan", killed_at, answered=behind[1]
            ),
        )
        total = await released
        task.take()
    np.testing.assert_array_equal(total.values, 4 * np.arange(4))
    assert [each.inputs for each in given] == [4, 4, 4, 4]


async def test_a_session_succeeds_beside_1600_idle_sockets(deployment):
    silent = []
    admission = advanced.AdmissionLimits(relay="on", connections=2000, waiting=2000)
    async with (
        asyncio.timeout(DEPLOYMENT_SECONDS),
        deployment.server(admission=admission) as server,
    ):
        task = await server.add_task("sum", deployment.prepared(MALICIOUS))
        host, port = server.edge.address.host, server.edge.address.port
        for number in range(1600):
            made = socket.create_connection(
                (host, port), source_address=(f"127.0.1.{1 + number // 50}", 0)
            )
            silent.append(made)
            if number % 4 == 0:
                made.sendall(b"\x16\x03\x01\x02\x00")  # TLS, a part of it
            await asyncio.sleep(0)
        released = asyncio.ensure_future(task.next_sum())
        await asyncio.gather(
            *(deployment.give(server, name, MALICIOUS) for name in NAMES)
        )
        total = await released
        task.take()
        assert server.edge.relay.refused[Rejection.PER_ADDRESS] == 0
    for each in silent:
        each.close()
    np.testing.assert_array_equal(total.values, 4 * np.arange(4))


async def test_profile_1_is_refused_where_tls_may_end_in_a_proxy(deployment):
    # R10.3-4, at both ends.
    async with deployment.server(behind_proxy=True) as server:
        with pytest.raises(secagg.ServiceError, match="proxy") as refused:
            await server.add_task("sum", deployment.prepared(HONEST))
        assert refused.value.code is secagg.ErrorCode.BAD_SETTINGS
        await server.add_task("other", deployment.prepared(MALICIOUS))
        assert server.edge.relay is None


async def test_an_open_session_of_profile_1_is_not_served_behind_a_proxy(deployment):
    # R10.3-4 for a session that was opened before the proxy was put in front.
    async with asyncio.timeout(DEPLOYMENT_SECONDS), deployment.server() as server:
        await server.add_task("sum", deployment.prepared(HONEST))
        async with deployment.edge_connection(server, "dan", direct=True) as connection:
            offer = None
            while not isinstance(offer, SessionDescriptor):
                offer = await connection.call(GetOffer("sum"))
                await asyncio.sleep(0)
    with pytest.raises(secagg.ServiceError, match="proxy") as refused:
        async with deployment.server(behind_proxy=True):
            pass
    assert refused.value.code is secagg.ErrorCode.BAD_SETTINGS
    async with deployment.server():
        pass


def test_an_edge_of_another_trust_domain_is_rejected(deployment):
    # A certificate and a credential of one name are one client.
    with pytest.raises(secagg.ServiceError, match="two clients") as refused:
        deployment.server(trust_domain="other.example")
    assert refused.value.code is secagg.ErrorCode.BAD_SETTINGS


async def test_a_client_rejects_profile_1_unless_tls_ends_at_the_aggregator(deployment):
    # R10.3-4.
    async with deployment.server() as server:
        await server.add_task("sum", deployment.prepared(HONEST))
        with pytest.raises(secagg.RemoteProtocolError, match="profile 1") as refused:
            await deployment.give(server, "dan", HONEST, direct=False)
        assert refused.value.code is secagg.ErrorCode.POLICY_VIOLATION
