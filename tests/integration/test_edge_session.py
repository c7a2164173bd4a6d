"""Sessions whose clients come over gRPC and over the HTTP edge, with TLS and files."""

import asyncio
import time

import numpy as np
import pytest
from secagg_testing.edge_deployment import AUTHORITY
from secagg_testing.tls_deployment import TLSDeployment

import secagg
from secagg.client.edge_connection import EdgeConnection
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.client_identity import load_client_identity
from secagg.pki.development import DevelopmentEnrolment
from secagg.pki.key_files import key_text
from secagg.server.http_edge.listener import EdgeOptions

pytest.importorskip("uvicorn", reason="needs the extra edge")
pytest.importorskip("httptools", reason="needs the extra edge")

NAMES = ("ada", "bob", "cyd", "dan")
AT_EDGE = ("cyd", "dan")
WAIVER = secagg.ExactSumWaiver(secagg.NO_NOISE_ACKNOWLEDGEMENT)
MALICIOUS = secagg.Profile.MALICIOUS_SERVER
HONEST = secagg.Profile.HONEST_CURIOUS_SERVER
DEPLOYMENT_SECONDS = 120.0


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

    def server(self, **changes):
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
            edge=EdgeOptions(**options | changes),
        )

    def prepared(self, profile, dimension=4):
        cohort = secagg.Cohort(
            profile=profile,
            enrolment=secagg.PublishedEnrolment("ours.example", self.key)
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
        files = secagg.ClientEnrolment(
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

    async def give(self, server, name, profile, **changes):
        if name not in AT_EDGE:
            async with self.client(server, name, None, profile) as client:
                return await client.contribute(np.arange(4))
        async with (
            self.edge_connection(server, name, **changes) as connection,
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
            *(
                deployment.give(
                    server,
                    name,
                    profile,
                    **({"direct": True} if name in AT_EDGE else {}),
                )
                for name in NAMES
            )
        )
        total = await released
        task.take()
    np.testing.assert_array_equal(total.values, 4 * np.arange(4))
    assert [each.inputs for each in given] == [4, 4, 4, 4]
