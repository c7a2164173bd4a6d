"""Polynomials of one client: one for each roster it is shown, and no relation."""

import numpy as np
import pytest
from secagg_testing.cohorts import one_hot, parameters_for

from secagg.crypto.canonical import Reader
from secagg.crypto.shamir import reconstruct
from secagg.protocol import share_bundles
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import Received
from secagg.protocol.messages import Envelope, Roster, Round
from secagg.protocol.policy import ClientPolicy
from secagg.simulation import InProcessSession
from secagg.simulation.driver import accepting

CLIENTS, THRESHOLD = 6, 4


def dealt_on(state: client.Advertised, roster: Roster, policy: ClientPolicy):
    """Return the shares of b that a client deals on a roster, by abscissa."""
    plain = {}
    original = share_bundles.seal

    def seal(key, plaintext, associated_data):
        reader = Reader(plaintext, "bundle")
        _, _, abscissa = reader.u32(), reader.u32(), reader.u32()
        reader.fixed(34)
        plain[abscissa] = np.frombuffer(reader.fixed(34), np.uint8)
        return original(key, plaintext, associated_data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_bundles, "seal", seal)
        event = Received(Envelope.of(roster))
        shared = client_machine.step(state, event, policy=policy).state
    assert isinstance(shared, client.Shared)
    return plain, shared.self_mask_seed


def test_shares_of_two_rosters_of_one_session_do_not_combine():
    # R7.1-2
    session = InProcessSession(
        parameters_for(
            CLIENTS, dimension=2, threshold=THRESHOLD, min_clients=THRESHOLD
        ),
        [one_hot(number, 2, 1 << 20) for number in range(CLIENTS)],
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    whole = session.server_state.cohort.roster
    fewer = Roster(whole.adverts[:-1])
    policy = accepting(session.parameters)
    state = session.clients[0]
    first, seed = dealt_on(state, whole, policy)
    second, same_seed = dealt_on(state, fewer, policy)
    assert seed.reveal() == same_seed.reveal()  # one secret, shared twice

    def rebuilt(*shares):
        points = np.array([point for point, _ in shares], np.int64)
        stacked = np.stack([share for _, share in shares])[:, None]
        (secret,) = reconstruct(points, stacked)
        return secret

    points = [2, 3, 4, 5]
    for dealt in (first, second):
        whole_set = rebuilt(*((p, dealt[p]) for p in points))
        assert whole_set.reveal() == seed.reveal()
    # Two of each are four distinct abscissae; of one polynomial they would do.
    mixed = rebuilt(
        *((p, first[p]) for p in points[:2]), *((p, second[p]) for p in points[2:])
    )
    assert mixed is None or mixed.reveal() != seed.reveal()
