"""Profiles with credentials over mutual TLS, with keys and credentials in files."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.tls_deployment import TLSDeployment

import secagg
from secagg import advanced
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.credential_issuer import Issuer
from secagg.pki.development import DevelopmentEnrolment
from secagg.pki.key_files import key_text
from secagg.protocol.receipts.verifier import Finding, verify_receipt

NAMES = ("ada", "bob", "cyd", "dan")
WAIVER = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
MALICIOUS = secagg.Profile.MALICIOUS_SERVER
POLICY = secagg.ClientPolicy(profiles=frozenset({MALICIOUS}), require_noise=False)


@pytest.fixture
def tls(tmp_path):
    return TLSDeployment(tmp_path)


@pytest.fixture
def enrolled(tmp_path):
    return DevelopmentEnrolment.create(
        tmp_path,
        trust_domain="ours.example",
        names=NAMES,
        now=int(time.time()),
        entropy=SystemEntropy(),
    )


def client_of(tls, enrolled, name, server, state, **changes):
    made, key = enrolled
    policy = changes.pop("policy", POLICY)
    files = {
        "seed": made.seed(name),
        "credential": made.credential(name),
        "enrolment_key": key_text(key),
        "max_revocation_days": 30.0,
    }
    return secagg.Client(
        str(server.address),
        task="sum",
        privacy_limits=WAIVER,
        identity=tls.client(name),
        enrolment=advanced.ClientEnrolment(**files | changes),
        cohort=policy,
        state_dir=state / name,
        rollback_mark=state / f"{name}.mark",
        attempts=1,
    )


async def test_a_revoked_client_is_told_so_and_the_others_get_their_sum(
    tls, enrolled, tmp_path
):
    made, key = enrolled
    with Issuer.open(made.issuer) as issuer:
        issuer.revoke([2], now=int(time.time()))
    cohort = secagg.Cohort(
        profile=MALICIOUS,
        enrolment=advanced.PublishedEnrolment.load(
            trust_domain="ours.example",
            enrolment_key=key,
            revocations=made.issuer / "revocations.bin",
        ),
        min_clients=3,
        max_clients=3,
        min_survivors=3,
    )
    prepared = secagg.PreparedTask.exact(WAIVER, cohort, dimension=4)
    server = secagg.Server(
        "127.0.0.1:0",
        identity=tls.server(),
        state_dir=tmp_path / "server",
        rollback_mark=tmp_path / "server.mark",
        keep_seconds=5.0,
    )

    async def give(name):
        async with client_of(tls, enrolled, name, server, tmp_path) as client:
            return await client.contribute(np.arange(4))

    async with server:
        task = await server.add_task("sum", prepared)
        with pytest.raises(secagg.RemoteProtocolError, match="revoked") as refused:
            await give("bob")
        assert refused.value.code is secagg.ErrorCode.BAD_CREDENTIAL
        released = asyncio.ensure_future(task.next_sum())
        given = await asyncio.gather(*(give(name) for name in ("ada", "cyd", "dan")))
        total = await released
        task.take()
    np.testing.assert_array_equal(total.values, 3 * np.arange(4))
    assert [each.inputs for each in given] == [3, 3, 3]


async def test_a_client_that_does_not_allow_the_sparse_profile_stays_out(
    tls, enrolled, tmp_path
):
    _, key = enrolled
    cohort = secagg.Cohort(
        profile=secagg.Profile.MALICIOUS_SERVER_SPARSE,
        enrolment=advanced.PublishedEnrolment("ours.example", key),
        degree=2,
        min_clients=3,
        max_clients=3,
        min_survivors=3,
    )
    prepared = secagg.PreparedTask.exact(WAIVER, cohort, dimension=4)
    server = secagg.Server(
        "127.0.0.1:0",
        identity=tls.server(),
        state_dir=tmp_path / "server",
        rollback_mark=tmp_path / "server.mark",
        keep_seconds=5.0,
    )
    sparse = frozenset({secagg.Profile.MALICIOUS_SERVER_SPARSE})
    drawn = frozenset({advanced.Graph.K_OUT})

    async def give(name, **privacy_limits):
        client = client_of(
            tls,
            enrolled,
            name,
            server,
            tmp_path,
            policy=replace(POLICY, **privacy_limits),
            max_revocation_days=None,
        )
        async with client:
            return await client.contribute(np.arange(4))

    async with server:
        task = await server.add_task("sum", prepared)
        for privacy_limits in ({"profiles": sparse}, {"graphs": drawn}, {}):
            with pytest.raises(secagg.RemoteProtocolError, match="policy") as refused:
                await give("bob", **privacy_limits)
            assert refused.value.code is secagg.ErrorCode.POLICY_VIOLATION
        released = asyncio.ensure_future(task.next_sum())
        named = {"profiles": sparse, "graphs": drawn}
        await asyncio.gather(*(give(name, **named) for name in ("ada", "cyd", "dan")))
        total = await released
        task.take()
    np.testing.assert_array_equal(total.values, 3 * np.arange(4))
    verdict = verify_receipt(total.audit, enrolment_key=key)
    assert verdict.finding is Finding.AGREED
    assert len(verdict.signers) == 3


async def test_mismatched_enrolment_files_are_rejected_before_any_call(
    tls, enrolled, tmp_path
):
    made, _ = enrolled
    server = secagg.Server(None)  # no peer is asked
    server.transport = type("", (), {"address": "127.0.0.1:9"})
    for changes in (
        {"credential": made.credential("bob")},
        {"seed": made.seed("bob")},
        {
            "enrolment_key": key_text(
                advanced.InProcessEnrolment().published.enrolment_key
            )
        },
    ):
        client = client_of(tls, enrolled, "ada", server, tmp_path, **changes)
        with pytest.raises(secagg.SecAggError) as refused:
            async with client:
                pass
        assert refused.value.code is secagg.ErrorCode.BAD_CREDENTIAL
