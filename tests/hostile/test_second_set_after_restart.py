"""A client that dies at any instant, and a server that then shows it another set U3.

Profile malicious-server.  However often the client comes back, it has signed one set,
and says nothing else about any other (R5.4-5, R5.4-6).  What the adversary knows is
checked by `Deployment.run`.
"""

from itertools import count

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import signing_parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError
from secagg_testing.lying_connection import LyingConnection, instead

from secagg.client.contribution import SessionOutcome
from secagg.client.session import ClientSession
from secagg.crypto.transcript import encode_set
from secagg.protocol.client.states import Signed
from secagg.protocol.messages import Survivors
from secagg.wire.calls import GetUpdate, SignConsistency, WatchSession
from tests.cases import recorded_points

CLIENTS, VICTIM = 4, 0
PARAMETERS = signing_parameters_for(CLIENTS, dimension=CLIENTS + 1)
SETS = [encode_set(each, CLIENTS) for each in (range(4), (0, 1, 2), (0, 2, 3))]


def run(first=0, crash=None, **options):
    """Run a task whose server shows the victim another set each time it asks."""
    shown = count(first)
    lie = instead(Survivors, lambda _: Survivors(SETS[next(shown) % len(SETS)]))

    def tamper(number, link):
        lies = {GetUpdate: lie, WatchSession: lie} if number == VICTIM else {}
        return LyingConnection(link, lies)

    async def main(clock):
        deployment = Deployment(
            clock,
            PARAMETERS,
            CLIENTS,
            client_crash={VICTIM: crash or CrashSwitch()},
            tamper=tamper,
            max_attempts=1,
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def points():
    """Return the instants at which the victim can die, once its upload is done."""
    found = recorded_points("client-that-signs")
    return list(enumerate(found))[found.index("after UploadChunk") :]


def test_the_points_are_those_of_a_session(golden):
    switch = CrashSwitch()
    run(crash=switch)
    golden("points/client-that-signs.txt", "\n".join(switch.points) + "\n")


def signatures_of(deployment):
    """Count what the victim has signed."""
    said = deployment.links[VICTIM].distinct_messages()
    return [n for (_, call), n in said.items() if call is SignConsistency]


@pytest.mark.parametrize("first", [0, 1], ids=["the truth first", "a lie first"])
@pytest.mark.parametrize("at", [pytest.param(at, id=name) for at, name in points()])
def test_a_client_signs_one_set_wherever_it_crashes(first, at):
    deployment, endings = run(first, CrashSwitch(at))
    assert deployment.contradictions() == {}
    assert all(n <= 1 for n in signatures_of(deployment))
    others = [ending for number, ending in endings.items() if number != VICTIM]
    assert all(isinstance(ending, SessionOutcome) for ending in others)


def test_an_unrecorded_signature_is_detected_after_a_restart(monkeypatch):
    change_of, commit = ClientSession._change_of, ClientSession._commit
    lost = []

    async def prepare(session, event, state):
        change = await change_of(session, event, state)
        if isinstance(state, Signed):
            lost.append(change)
        return change

    async def keep(session, change):
        if not any(change is each for each in lost):
            await commit(session, change)

    monkeypatch.setattr(ClientSession, "_change_of", prepare)
    monkeypatch.setattr(ClientSession, "_commit", keep)
    (dies,) = [at for at, name in points() if name == "after SignConsistency"]
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        run(crash=CrashSwitch(dies - 2))  # its record is not one of the points now
    assert {found.claim for found in caught.value.violations} == {Claim.ONE_SIGNATURE}
