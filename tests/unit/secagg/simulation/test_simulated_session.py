import sys

import numpy as np
import pytest

from secagg.crypto.entropy import SeededEntropy, SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import HonestCuriousParameters, Profile
from secagg.protocol.rounds import rounds_of
from secagg.simulation import LossPlan, plan_losses, simulate_session


def seeded(number=1):
    return SeededEntropy(SecretBytes(number.to_bytes(32, "big")), b"test")


def parameters(clients, *, modulus=1 << 20, dimension=50, degree=0, survivors=0):
    threshold = (degree or clients) // 2 + 1
    survivors = survivors or threshold
    return ProtocolParameters(
        modulus=modulus,
        dimension=dimension,
        min_clients=max(survivors, degree + 2 if degree else 2),
        max_clients=clients,
        threshold=threshold,
        degree=degree,
        tail=HonestCuriousParameters(40 if degree else 0),
        min_survivors=survivors,
        max_dropouts=clients - threshold,
        max_losses=clients - threshold,
    )


@pytest.mark.parametrize("modulus", [2, 1 << 8, 1 << 20, 1 << 48, 1_000_003])
def test_the_sum_is_exact_for_every_kind_of_modulus(modulus):
    entropy = SystemEntropy()
    losses = plan_losses(12, 0.34, entropy)
    session = simulate_session(
        parameters(12, modulus=modulus, dimension=7),
        clients=12,
        losses=losses,
        entropy=entropy,
    )
    assert session.is_exact
    assert session.clients_lost == 4
    assert session.survivors == 9  # one of the four vanished after its upload


def test_losses_at_every_point_leave_exactly_the_inputs_of_the_survivors():
    losses = LossPlan(dict(enumerate(rounds_of(Profile.HONEST_CURIOUS_SERVER))))
    session = simulate_session(
        parameters(10), clients=10, losses=losses, entropy=SystemEntropy()
    )
    # Clients 0 to 2 never uploaded; client 3 did, then vanished: it counts.
    expected = np.zeros(50, session.total.dtype)
    expected[3:10] = 1
    np.testing.assert_array_equal(session.total, expected)


def test_a_ring_gives_the_same_sum_as_the_complete_graph():
    losses = plan_losses(30, 0.1, seeded())
    on_ring = simulate_session(
        parameters(30, degree=12), clients=30, losses=losses, entropy=seeded()
    )
    complete = simulate_session(
        parameters(30), clients=30, losses=losses, entropy=seeded()
    )
    assert on_ring.is_exact
    np.testing.assert_array_equal(on_ring.total, complete.total)
    assert on_ring.costs.bytes_up < complete.costs.bytes_up


def test_too_few_survivors_end_in_a_typed_abort():
    losses = LossPlan(dict.fromkeys(range(6), Round.MASKED_INPUT_COLLECTION))
    with pytest.raises(SessionAbortedError) as caught:
        simulate_session(
            parameters(10), clients=10, losses=losses, entropy=SystemEntropy()
        )
    assert caught.value.code is ErrorCode.U3_TOO_SMALL


def test_too_few_answers_end_in_a_typed_abort():
    losses = LossPlan(dict.fromkeys(range(6), Round.UNMASKING))
    with pytest.raises(SessionAbortedError) as caught:
        simulate_session(
            parameters(10), clients=10, losses=losses, entropy=SystemEntropy()
        )
    assert caught.value.code is ErrorCode.TOO_FEW_ANSWERS


def test_costs_count_every_client_and_every_round():
    session = simulate_session(
        parameters(8, dimension=1000),
        clients=8,
        losses=LossPlan({}),
        entropy=SystemEntropy(),
    )
    costs = session.costs
    assert set(costs.server_cpu_seconds) == {
        "advertise_keys",
        "share_keys",
        "masked_input",
        "unmasking",
    }
    assert costs.client_cpu_seconds_max >= costs.client_cpu_seconds_mean > 0
    assert costs.bytes_up >= 8 * 1000 * 20 // 8
    rounds = costs.rounds
    assert sum(each.client_cpu_seconds for each in rounds.values()) == pytest.approx(
        8 * costs.client_cpu_seconds_mean
    )
    # Vectors go up in one round, and nothing is as large.
    assert max(rounds, key=lambda name: rounds[name].bytes_up) == "masked_input"
    assert rounds["advertise_keys"].bytes_down == 8 * (
        rounds["advertise_keys"].bytes_down // 8
    )
    assert costs.bytes_down == 8 * costs.bytes_down_per_client
    assert costs.peak_rss_bytes > 1 << 20


def test_client_memory_does_not_grow_with_the_cohort():
    """But for one bit of each client in U2 and in U3.

    Indices of neighbours above 256 are objects of their own in Python; where on the
    ring a client comes to sit is chance.
    """
    indices = 2 * (6 + 1) * sys.getsizeof(300)
    kept = [
        simulate_session(
            parameters(clients, degree=6, survivors=clients),
            clients=clients,
            losses=LossPlan({}),
            entropy=seeded(),
        ).costs.client_state_bytes
        for clients in (30, 300)
    ]
    assert kept[1] - kept[0] <= 4 * (300 - 30) // 8 + indices
    assert indices < 8 * (300 - 30) // 4  # a reference to each would not go unnoticed


def test_losses_are_spread_over_the_rounds_and_follow_from_the_seed():
    plan = plan_losses(100, 0.22, seeded())
    assert [
        plan.count(which) for which in rounds_of(Profile.HONEST_CURIOUS_SERVER)
    ] == [6, 6, 5, 5]
    assert plan == plan_losses(100, 0.22, seeded())
    assert plan != plan_losses(100, 0.22, seeded(2))
    assert not plan_losses(10, 0.0, seeded()).losses


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_zero_and_one_is_refused(rate):
    with pytest.raises(ValueError, match="dropout_rate"):
        plan_losses(10, rate, seeded())


def test_progress_is_reported_for_every_client_of_every_round():
    told = []
    losses = LossPlan({3: Round.MASKED_INPUT_COLLECTION})
    simulate_session(
        parameters(8),
        clients=8,
        losses=losses,
        entropy=seeded(),
        on_progress=lambda *state: told.append(state),
    )
    for which in rounds_of(Profile.HONEST_CURIOUS_SERVER):
        here = [(done, of) for each, done, of in told if each is which]
        clients = 8 if which < Round.MASKED_INPUT_COLLECTION else 7
        assert here == [(done, clients) for done in range(1, clients + 1)]
