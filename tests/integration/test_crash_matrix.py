"""Every instant at which a process can die, one after the other.

A crash point lies before and after each thing that outlives a process: a write to the
journal or the spool, a message to a peer.  Each test kills one process at one of them,
starts it again on the same disk, and lets the task continue.

What must hold: the same sum as without the crash, or a typed abort; no client sends
two different messages for the same round; and the server knows no more than that sum
together with one client, another one at every point (`Deployment.run` checks it).
"""

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
)
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment, one_hot_input
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault

from secagg.client.contribution import SessionOutcome, receipt_of
from secagg.protocol.client import states as client_states
from secagg.protocol.events import PlainVector
from secagg.protocol.profiles import MaliciousParameters
from secagg.protocol.rounds import rounds_of
from secagg.simulation.driver import published_in_simulation
from secagg.storage.change import Side
from secagg.storage.journal import decode_ending
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState
from secagg.wire.calls import GetUploadStatus, UploadChunk
from tests.cases import on_every_graph, recorded_points

CLIENTS = 4
CRASHING = 2


HONEST = parameters_for(CLIENTS, dimension=7, threshold=3, colluders=1)
# Six rounds, signed by enrolled clients, under a revocation list.
PUBLISHED = published_in_simulation(2, 98, 99)
MALICIOUS = signing_parameters_for(
    CLIENTS, dimension=7, colluders=1, tail=MaliciousParameters(PUBLISHED.trust)
)
PROFILES = (HONEST, MALICIOUS)
# Seven rounds in all: each client draws all the others, so that any one can be lost.
SPARSE = sparse_parameters_for(
    CLIENTS, dimension=7, degree=CLIENTS - 1, colluders=1, losses=1
).under(PUBLISHED.trust)


# Graphs on which not all clients share with one another.
GRAPHS = on_every_graph(7)
OTHER_GRAPHS = {
    "ring": GRAPHS["ring"],
    "drawn": GRAPHS["drawn"].under(PUBLISHED.trust),
}


def run(parameters=HONEST, **options):
    if parameters.trust is not None:
        options["revocations"] = PUBLISHED.revocations

    async def main(clock):
        deployment = Deployment(
            clock, parameters, parameters.max_clients, payload=b"a query", **options
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def one_client_uploads_nothing(number, call, _count):
    dead = number == 0 and call in (GetUploadStatus, UploadChunk)
    return Fault.LOSE_REQUEST if dead else Fault.NONE


def points_of_server(parameters, fault_of):
    switch = CrashSwitch()
    run(parameters, server_crash=switch, fault_of=fault_of)
    return switch.points


def points_of_client(parameters):
    switch = CrashSwitch()
    run(parameters, client_crash={CRASHING: switch})
    return switch.points


def assert_safe_and_exact(deployment, numbers):
    assert deployment.contradictions() == {}
    assert len(deployment.sums) == 1
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(numbers))
    )


def no_fault(*_):
    return Fault.NONE


# Each file of points, and the session that has them.
POINTS = {
    "server-plain": lambda: points_of_server(HONEST, no_fault),
    "server-signed": lambda: points_of_server(MALICIOUS, no_fault),
    "lossy-server-plain": lambda: points_of_server(HONEST, one_client_uploads_nothing),
    "lossy-server-signed": lambda: points_of_server(
        MALICIOUS, one_client_uploads_nothing
    ),
    "client-plain": lambda: points_of_client(HONEST),
    "client-signed": lambda: points_of_client(MALICIOUS),
    "server-drawn": lambda: points_of_server(SPARSE, one_client_uploads_nothing),
    "client-drawn": lambda: points_of_client(SPARSE),
}
SERVER_POINTS = [recorded_points(f"server-{each}") for each in ("plain", "signed")]
LOSSY_SERVER_POINTS = [
    recorded_points(f"lossy-server-{each}") for each in ("plain", "signed")
]
CLIENT_POINTS = [recorded_points(f"client-{each}") for each in ("plain", "signed")]
SPARSE_SERVER_POINTS = recorded_points("server-drawn")
SPARSE_CLIENT_POINTS = recorded_points("client-drawn")


@pytest.mark.parametrize("name", POINTS)
def test_the_points_are_those_of_a_session(name, golden):
    golden(f"points/{name}.txt", "\n".join(POINTS[name]()) + "\n")


def named(points):
    return [
        pytest.param(parameters, at, id=f"{parameters.profile.label} {at} {name}")
        for parameters, of in zip(PROFILES, points, strict=True)
        for at, name in enumerate(of)
    ]


@pytest.mark.parametrize("place", [0, 1], ids=lambda n: PROFILES[n].profile.label)
def test_the_matrix_covers_every_round(place):
    rounds = len(rounds_of(PROFILES[place].profile))
    names = " ".join(SERVER_POINTS[place])
    for what in (
        "create",
        "append",
        "chunk",
        "commit",
        "put payload",
        "put sum",
        "end",
    ):
        assert f"before {what}" in names
        assert f"after {what}" in names
    assert SERVER_POINTS[place].count("before append") >= 2 * rounds
    sent = ["AdvertiseKeys", "ShareKeys", "UploadChunk", "RevealShares"]
    if place == 1:
        sent += ["SignConsistency", "see revocations"]
    assert {f"after {what}" for what in sent} <= set(CLIENT_POINTS[place])


def test_the_matrix_covers_the_round_in_which_clients_draw():
    rounds = len(rounds_of(SPARSE.profile))
    assert SPARSE_SERVER_POINTS.count("before append") >= 2 * rounds
    sent = {"after ChooseEdges", "before ChooseEdges", "after SignConsistency"}
    assert sent <= set(SPARSE_CLIENT_POINTS)
    assert len(SPARSE_CLIENT_POINTS) <= len(SPARSE_SERVER_POINTS)


@pytest.mark.parametrize(("parameters", "at"), named(SERVER_POINTS))
def test_an_aggregator_killed_anywhere_finishes_with_the_same_sum(parameters, at):
    deployment, endings = run(
        parameters, server_crash=CrashSwitch(at), corrupt={at % CLIENTS}
    )
    assert deployment.server_restarts == 1
    assert_safe_and_exact(deployment, range(CLIENTS))
    assert sum(isinstance(e, SessionOutcome) for e in endings.values()) == CLIENTS


@pytest.mark.parametrize(("parameters", "at"), named(LOSSY_SERVER_POINTS))
def test_an_aggregator_killed_anywhere_releases_the_sum_of_the_survivors(
    parameters, at
):
    deployment, endings = run(
        parameters,
        server_crash=CrashSwitch(at),
        fault_of=one_client_uploads_nothing,
        corrupt={at % CLIENTS},
    )
    assert deployment.server_restarts == 1
    assert_safe_and_exact(deployment, range(1, CLIENTS))
    assert sum(isinstance(e, SessionOutcome) for e in endings.values()) == CLIENTS - 1


@pytest.mark.parametrize(
    "at", range(len(SPARSE_SERVER_POINTS)), ids=lambda n: SPARSE_SERVER_POINTS[n]
)
def test_losses_and_crashes_of_both_sides_with_drawn_neighbours(at):
    """A lost client, an aggregator that dies and a client that dies, in one session."""
    switch = CrashSwitch(at % len(SPARSE_CLIENT_POINTS))
    deployment, endings = run(
        SPARSE,
        server_crash=CrashSwitch(at),
        client_crash={CRASHING: switch},
        fault_of=one_client_uploads_nothing,
        corrupt={at % CLIENTS},
    )
    assert deployment.server_restarts == 1
    assert switch.is_dead
    assert_safe_and_exact(deployment, range(1, CLIENTS))
    outcomes = [each for each in endings.values() if isinstance(each, SessionOutcome)]
    # A client that died after its last word has no outcome, its store has the receipt.
    has_finished = switch.points[-1] == "after end"
    assert len(outcomes) == CLIENTS - 1 - has_finished
    receipt = answer_of(receipt_of(deployment.client_stores[CRASHING], TASK_ID, 1))
    assert {each.audit for each in outcomes} == {receipt}


@pytest.mark.parametrize(("parameters", "at"), named(CLIENT_POINTS))
def test_a_client_killed_anywhere_never_contradicts_itself(parameters, at):
    switch = CrashSwitch(at)
    deployment, endings = run(
        parameters, client_crash={CRASHING: switch}, corrupt={at % CLIENTS}
    )
    assert switch.is_dead
    assert_safe_and_exact(deployment, range(CLIENTS))
    store = deployment.client_stores[CRASHING]
    # Nothing is left to answer with.
    assert answer_of(store.read(ListSessions(role=Side.CLIENT))) == ()
    # A client that died after its last word has no outcome, its store has the receipt.
    (other,) = {each.audit for n, each in endings.items() if n != CRASHING}
    assert answer_of(receipt_of(store, TASK_ID, 1)) == other
    if isinstance(endings[CRASHING], SessionOutcome):
        assert endings[CRASHING].audit == other
    for number, ending in endings.items():
        if number == CRASHING and switch.points[-1] == "after end":
            # It finished and died before it could say so; its receipt says it.
            (row,) = answer_of(
                store.read(ListSessions(role=Side.CLIENT, state=SessionState.ENDED))
            )
            outcome = decode_ending(
                answer_of(store.read(LoadSession(row.key))).receipt
            ).state
            assert isinstance(outcome, client_states.Completed)
        else:
            assert isinstance(ending, SessionOutcome)


@pytest.mark.parametrize("first", range(23))
@pytest.mark.parametrize("who", ["server", "client"])
@pytest.mark.parametrize("graph", OTHER_GRAPHS)
def test_a_process_killed_anywhere_on_a_sparse_graph_is_safe_and_exact(
    graph, who, first
):
    """At every 23rd point from the `first`: before a write and after one in turn."""
    parameters, at = OTHER_GRAPHS[graph], first
    everyone = range(parameters.max_clients)
    while True:
        switch = CrashSwitch(at)
        dying = {"server_crash": switch}
        if who == "client":
            dying = {"client_crash": {CRASHING: switch}}
        if parameters.colluders:
            dying["corrupt"] = {at % len(everyone)}
        deployment, endings = run(parameters, **dying)
        assert_safe_and_exact(deployment, everyone)
        if not switch.is_dead:
            break
        has_finished = who == "client" and switch.points[-1] == "after end"
        outcomes = [e for e in endings.values() if isinstance(e, SessionOutcome)]
        assert len(outcomes) == len(everyone) - has_finished
        at += 23
    assert at > first


def test_a_restarted_client_with_another_input_is_refused_and_sends_nothing():
    """The application forgets: after the crash it supplies another vector."""
    upload = CLIENT_POINTS[0].index("before UploadChunk")
    calls = []

    def make_input(number):
        def make(descriptor, _payload, _seed):
            calls.append(number)
            vector = one_hot_input(number, descriptor.parameters)
            if number == CRASHING and calls.count(CRASHING) > 1:
                vector[0] += 1
            return PlainVector(vector)

        return make

    deployment, endings = run(
        client_crash={CRASHING: CrashSwitch(upload)}, make_input=make_input
    )
    assert calls.count(CRASHING) > 1
    assert not isinstance(endings[CRASHING], SessionOutcome)
    assert_safe_and_exact(deployment, set(range(CLIENTS)) - {CRASHING})
