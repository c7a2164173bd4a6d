"""Any mixture of lost calls, repeats, silent clients and crashes, found by search.

Invariants of every run: each released sum is exactly the sum of the inputs of the
clients that its receipt counts; everything else ends in a typed error; no client ever
sends two different messages for the same round; nothing secret is left behind; and
server and colluders together know the released sums, and at most one for each session
that their members have paid for (`Deployment.run` checks it).
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, signing_parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault

from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.messages import Round
from secagg.server.rpc.limits import AggregatorLimits
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions
from secagg.wire.calls import (
    AdvertiseKeys,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    WatchSession,
)

CLIENTS = 4
METHODS = (
    GetOffer,
    AdvertiseKeys,
    ShareKeys,
    GetUploadStatus,
    UploadChunk,
    SignConsistency,
    RevealShares,
    GetUpdate,
    WatchSession,
    FetchChunk,
)

# The first calls of each method may fail in any way; after that the link is good,
# unless the client falls silent at some method for good.
faults = st.dictionaries(
    st.tuples(st.integers(0, CLIENTS - 1), st.sampled_from(METHODS), st.integers(0, 2)),
    st.sampled_from([Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.REPEAT]),
    max_size=8,
)
silences = st.dictionaries(
    st.integers(0, CLIENTS - 1), st.sampled_from(METHODS[1:7]), max_size=2
)
crashes = st.dictionaries(st.integers(0, CLIENTS - 1), st.integers(0, 40), max_size=2)
colluders = st.frozensets(st.integers(0, CLIENTS - 1), max_size=2)


def survivors_in(total, modulus):
    """Read from a sum of one-hot inputs who is in it."""
    return {n for n in range(CLIENTS) if int(total[n]) == modulus - 1}


def parameters_of(kind, colluders):
    """Return parameters of a task: with exact sums, with noise, or signed."""
    if kind == "signed":
        return signing_parameters_for(
            CLIENTS, dimension=CLIENTS + 1, colluders=colluders
        )
    parameters = parameters_for(
        CLIENTS,
        dimension=CLIENTS + 1,
        threshold=2 + colluders,
        colluders=colluders,
    )
    return with_noise(parameters) if kind == "noise" else parameters


@pytest.mark.parametrize("_part", range(3))
@pytest.mark.parametrize("kind", ["plain", "noise", "signed"])
@pytest.mark.parametrize("watch", [True, False], ids=["streams", "polls"])
@given(
    faults=faults,
    silences=silences,
    crashes=crashes,
    server_crash=st.none() | st.integers(0, 60),
    corrupt=colluders,
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_faults_give_an_exact_sum_or_a_typed_error(  # noqa: PLR0913, PLR0917 - kinds of faults
    _part, watch, kind, faults, silences, crashes, server_crash, corrupt
):
    parameters = parameters_of(kind, len(corrupt))
    silent = set()

    def fault_of(number, method, count):
        if silences.get(number) == method:
            silent.add(number)
        if number in silent:
            return Fault.LOSE_REQUEST
        return faults.get((number, method, count), Fault.NONE)

    async def main(clock):
        deployment = Deployment(
            clock,
            parameters,
            CLIENTS,
            payload=b"query",
            fault_of=fault_of,
            server_crash=CrashSwitch(server_crash),
            client_crash={n: CrashSwitch(at) for n, at in crashes.items()},
            settings=SessionSettings(watch=watch, offer_seconds=600.0),
            # Who polls twice a second for minutes asks nothing new.
            limits=AggregatorLimits(
                idle_timeout=60.0, poll_seconds=10.0, join_poll_seconds=10.0
            ),
            corrupt=corrupt,
        )
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)

    assert deployment.contradictions() == {}
    for released in deployment.sums:
        members = survivors_in(released.residues, parameters.modulus)
        assert len(members) == released.survivors
        np.testing.assert_array_equal(
            released.residues, deployment.expected_sum(members)
        )
    assert len(deployment.sums) == 1 or deployment.server_error is not None
    for number, ending in endings.items():
        assert isinstance(ending, SessionOutcome | SecAggError)
        if isinstance(ending, SessionOutcome):
            np.testing.assert_array_equal(ending.residues, deployment.sums[-1].residues)
        left = answer_of(
            deployment.client_stores[number].read(ListSessions(role=Side.CLIENT))
        )
        # A session that may yet begin keeps the place of who could not be reached.
        assert all(each.round < Round.SHARE_KEYS for each in left)
        assert not any(each.spent for each in left)
        unreachable = getattr(ending, "code", None) is ErrorCode.UNREACHABLE
        assert not left or unreachable
    assert answer_of(deployment.server_store.read(ListSessions(role=Side.SERVER))) == ()
