"""Several aggregators of one book: they crash, are cut off, and hear nothing.

Every call of a client goes to a replica that chance names.  Whatever happens, each sum
is exact, each session is opened, closed and charged once, and nobody sends two messages
for one round (`Deployment.run` checks what the aggregators may know).
"""

import os
from collections import Counter

import numpy as np
import pytest

from secagg.client.conductor import SessionOutcome
from secagg.errors import SessionAbortedError
from secagg.server.receipt import SessionReceipt
from secagg.simulation import identity_of
from secagg.storage.change import Role
from secagg.storage.stored import SessionState
from secagg.testing import manual_clock
from secagg.testing.cohorts import parameters_for
from secagg.testing.crash_points import CrashSwitch
from secagg.testing.deployment import entropy_of
from secagg.testing.inline_book import ask, inline_book
from secagg.testing.replicas import Replicas

CLIENTS = 4
# `make chaos` runs many more.
SCHEDULES = int(os.environ.get("SECAGG_REPLICA_SCHEDULES", "4"))
PARAMETERS = parameters_for(CLIENTS, dimension=7, threshold=3, colluders=1)


number_of = {identity_of(number): number for number in range(CLIENTS)}


def run(**options):
    async def main(clock):
        deployment = Replicas(
            clock,
            PARAMETERS,
            CLIENTS,
            payload=b"a query",
            server_book=inline_book(now=clock.date),
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def receipts_of(deployment):
    book = deployment.server_book
    rows = ask(book.sessions(role=Role.SERVER, state=SessionState.ALL))
    found = [ask(book.load(row.key)).receipt for row in reversed(rows)]
    assert None not in found  # every session has ended
    return [SessionReceipt.decode(each) for each in found]


def assert_right(deployment, endings, sums):
    assert_safe(deployment)
    assert not deployment.errors
    assert len(deployment.sums) == sums
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def assert_safe(deployment):
    """Every session exact or a typed abort, none summed twice, nothing left open."""
    assert deployment.contradictions() == {}
    receipts = receipts_of(deployment)
    numbers = [receipt.descriptor.session_number for receipt in receipts]
    assert numbers == list(range(1, len(numbers) + 1))
    released = [each for each in receipts if each.outcome_name == "released"]
    assert len(released) == len(deployment.sums)
    assert all(isinstance(each, SessionAbortedError) for each in deployment.errors)
    for total in deployment.sums:
        added = {number_of[name] for name in total.receipt.survivors}
        assert len(added) == total.survivors >= PARAMETERS.min_survivors
        np.testing.assert_array_equal(total.residues, deployment.expected_sum(added))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("deaf", [frozenset(), frozenset({0, 1, 2})], ids=str)
def test_replicas_do_the_work_of_one(replicas, deaf):
    # Longer than a lease lasts that nobody renews.
    deployment, endings = run(
        replicas=replicas, sessions=3, deaf=deaf, taking_seconds=40.0
    )
    assert_right(deployment, endings, sums=3)
    assert set(Counter(number for _, number in deployment.given).values()) == {1}


def points_of_a_replica():
    switch = CrashSwitch()
    run(crashes={0: switch})
    return switch.points


@pytest.mark.parametrize("at", range(0, len(points_of_a_replica()), 7))
def test_a_replica_that_dies_is_not_missed(at):
    deployment, endings = run(crashes={0: CrashSwitch(at)}, sessions=2)
    assert_right(deployment, endings, sums=2)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_replicas_die_and_are_cut_off_at_any_time(seed):
    """Both die once, and the third is stopped for longer than its lease lasts."""
    chance = entropy_of(f"schedule {seed}")
    first, second, at, lasts = (chance.token(1)[0] for _ in range(4))
    deployment, endings = run(
        replicas=3,
        seed=str(seed),
        crashes={0: CrashSwitch(first % 60), 1: CrashSwitch(second % 60)},
        cuts={2: (at / 8, float(lasts))},
        deaf=frozenset({seed % 4}),
        sessions=2,
        allowed=8,
    )
    assert_safe(deployment)
    # A client whose call hung for longer than its round lasts is out, and says so.
    for ending in endings.values():
        assert isinstance(ending, SessionOutcome | SessionAbortedError)
