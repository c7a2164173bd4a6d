"""A client accepts as many sparse graphs of a task as delta counts on, and no more.

Colluders see the ring together with the roster and can end every session whose ring
does not suit them, before any client is charged: what counts is the roster.
"""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for, sparse_parameters_for
from secagg_testing.inline_store import inline_store

from secagg.client import session as session_module
from secagg.client.budget import max_rosters_of
from secagg.client.session import ClientSession
from secagg.crypto.entropy import SystemEntropy
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import states as client_states
from secagg.protocol.events import AbortRequested, Received
from secagg.protocol.messages import Round
from secagg.simulation import identity_of
from secagg.simulation.driver import (
    OFFERED_AT,
    InProcessSession,
    accepting,
    membership_of,
)
from secagg.storage.change import Side
from secagg.storage.queries import ReadTally

CLIENTS = 6
LIMIT = 3
RING = parameters_for(
    CLIENTS,
    dimension=2,
    degree=4,
    threshold=3,
    min_clients=CLIENTS,
    min_survivors=4,
)
DRAWN = sparse_parameters_for(CLIENTS, dimension=2, degree=4, losses=1)
COMPLETE = parameters_for(CLIENTS, dimension=2, threshold=4)


@pytest.fixture(autouse=True)
def _three_rosters(monkeypatch):
    """Delta counts on three; on how many for which noise is tested beside the noise."""
    monkeypatch.setattr(
        session_module,
        "max_rosters_of",
        lambda offered: None if offered.parameters.is_complete_graph else LIMIT,
    )


@pytest.fixture(name="store")
def _store():
    return inline_store()


class Party:
    """Client 0 with a store of its own, the others inside a driver."""

    def __init__(self, store, *, parameters=RING, aggregator="aggregator"):
        self.store, self.parameters, self.aggregator = store, parameters, aggregator

    async def begin(self, number):
        self.driver = InProcessSession(
            self.parameters,
            [np.zeros(2, np.uint64)] * CLIENTS,
            session_number=number,
            aggregator=self.aggregator,
        )
        self.session = await ClientSession.begin(
            self.driver.descriptor,
            identity_of(0),
            aggregator=self.aggregator,
            trust_domain=None,
            store=self.store,
            policy=accepting(self.parameters),
            entropy=SystemEntropy(),
            now=OFFERED_AT,
            membership=membership_of(identity_of(0), 1)
            if self.parameters.profile.has_identities
            else None,
        )
        return self

    async def see_the_roster(self):
        (advert,) = self.session.pending_outputs()
        self.driver.send(0, (advert,))
        self.driver.play(Round.ADVERTISE_KEYS, range(1, CLIENTS))
        self.driver.close(Round.ADVERTISE_KEYS)
        await self.session.apply(Received(self.driver.fetch(0)))
        assert isinstance(
            self.session.state, client_states.Shared | client_states.EdgesChosen
        )
        return self

    async def leave(self):
        await self.session.apply(AbortRequested(ErrorCode.CANCELLED, "no time"))
        await self.session.end_as(self.session.state)

    async def count(self):
        tally = await self.store.read(
            ReadTally(Side.CLIENT, "test-task", peer=self.aggregator)
        )
        return tally.spent


@pytest.mark.parametrize("parameters", [RING, DRAWN], ids=["ring", "drawn"])
async def test_aborted_sessions_count_after_their_roster_was_accepted(
    store, parameters
):
    # R11.3-1: where clients draw, before they say whom
    party = Party(store, parameters=parameters)
    for number in (1, 2):
        await (await party.begin(number)).leave()
        assert await party.count() == 0  # no ring was seen
    for seen, number in enumerate(range(3, 3 + LIMIT), start=1):
        await (await (await party.begin(number)).see_the_roster()).leave()
        assert await party.count() == seen
    with pytest.raises(RemoteProtocolError, match="3 sparse graphs") as refused:
        await party.begin(9)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert refused.value.next_step


async def test_the_roster_is_counted_durably_before_shares_are_sent(store):
    party = await Party(store).begin(1)
    assert await party.count() == 0
    await party.see_the_roster()
    # The shares are only pending yet; a process that dies here has counted.
    assert await party.count() == 1
    (stored,) = await ClientSession.open_records(
        "test-task", identity_of(0), store=store
    )
    resumed = ClientSession.of_record(
        stored,
        identity_of(0),
        store=store,
        policy=accepting(RING),
        trust_domain=None,
        now=OFFERED_AT,
    )
    assert isinstance(resumed.state, client_states.Shared)
    assert await party.count() == 1  # the same ring


async def test_a_rejected_roster_is_not_counted(store):
    party = await Party(store).begin(1)
    (advert,) = party.session.pending_outputs()
    party.driver.send(0, (advert,))
    party.driver.play(Round.ADVERTISE_KEYS, range(1, CLIENTS))
    party.driver.close(Round.ADVERTISE_KEYS)
    roster = party.driver.fetch(0).open()
    others = replace(roster, graph_seed=bytes(32))
    await party.session.apply(Received(party.driver.fetch(0).of(others)))
    assert isinstance(party.session.state, client_states.Failed)
    assert await party.count() == 0


async def test_rosters_are_counted_per_aggregator(store):
    """Another aggregator under the same task name cannot use up this one's rings."""
    one, other = Party(store), Party(store, aggregator="other")
    for number in (1, 2, 3):
        await (await (await other.begin(number)).see_the_roster()).leave()
    with pytest.raises(RemoteProtocolError, match="3 sparse graphs"):
        await other.begin(4)
    for number in (1, 2, 3):
        await (await (await one.begin(number)).see_the_roster()).leave()
    with pytest.raises(RemoteProtocolError, match="3 sparse graphs"):
        await one.begin(4)


async def test_rosters_of_the_complete_graph_are_not_counted(store):
    party = Party(store, parameters=COMPLETE)
    for number in range(1, LIMIT + 3):
        await (await (await party.begin(number)).see_the_roster()).leave()
    assert await party.count() == 0


def test_rosters_of_a_task_without_noise_are_not_limited():
    assert max_rosters_of(InProcessSession(RING, []).descriptor) is None
