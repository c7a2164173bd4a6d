"""Profile `malicious-server`, end to end in one process: enrolled clients, six rounds.

What the state machines check is tested beside them; here it is what stands around
them: who judges the offer, which list is read, what is stored and sent again.
"""

import numpy as np

from secagg.client.conductor import SessionOutcome
from secagg.profiles import MaliciousTail
from secagg.simulation.enrolled import TRUST_DOMAIN, published_in_simulation
from secagg.testing import manual_clock
from secagg.testing.cohorts import signing_parameters_for
from secagg.testing.deployment import Deployment
from secagg.testing.inline_book import ask

CLIENTS = 5


def deploy(*, published=None, parameters=None, **options):
    published = published or published_in_simulation()
    parameters = parameters or signing_parameters_for(
        CLIENTS, dimension=7, colluders=1, tail=MaliciousTail(published.trust)
    )

    async def main(clock):
        deployment = Deployment(
            clock,
            parameters,
            CLIENTS,
            revocations=published.revocations,
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def assert_exact(deployment, numbers):
    assert deployment.contradictions() == {}
    assert len(deployment.sums) == 1
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(numbers))
    )


def test_enrolled_clients_get_their_sum():
    deployment, endings = deploy(payload=b"a query")
    assert_exact(deployment, range(CLIENTS))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    assert all(ending.sharers == CLIENTS for ending in endings.values())


def test_a_list_is_read_and_remembered_by_every_client():
    published = published_in_simulation(3, 99, 100)
    deployment, _ = deploy(published=published)
    assert_exact(deployment, range(CLIENTS))
    for book in deployment.client_books.values():
        seen = ask(book.seen_revocations(published.enrolment_key, TRUST_DOMAIN))
        assert seen == published.trust
