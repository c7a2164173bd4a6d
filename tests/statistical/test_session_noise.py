"""The noise of whole sessions against the law that their certificates state.

Clients contribute zeros, so that a released sum is its noise.  It must follow the
Skellam law of the certificate's variance, whatever clients did.  Seeds are
fixed; each test was to fail with a chance of 1e-6 when they were chosen.
"""

from collections import Counter

import numpy as np
import pytest
import scipy
from secagg_testing import reference_samplers as reference
from secagg_testing.cohorts import parameters_for

from dpnoise.encoding import centre
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, plan
from secagg.protocol.client import machine as client
from secagg.protocol.events import ComputeSum, InputReady, Received
from secagg.protocol.messages import Envelope, Round, Shares
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    MaliciousParameters,
    RoundDeadlines,
)
from secagg.protocol.server import states as server_states
from secagg.simulation import InProcessSession, run_session
from secagg.simulation.driver import identity_of, simulated_trust

FALSE_ALARM = 1e-6
CLIENTS, SURVIVORS, DIM, LADDER = 10, 6, 1 << 18, 4
PROFILES = {
    "honest-curious-server": {"tail": HonestCuriousParameters()},
    "malicious-server": {
        "tail": MaliciousParameters(simulated_trust()),
        "deadlines": RoundDeadlines(consistency=60),
    },
}


class SessionOfZeros(InProcessSession):
    """Clients that contribute zeros and their noise; some forge what they reveal."""

    def __init__(self, task, forgers):
        self.task, self.forgers, self.job = task, forgers, None
        super().__init__(task.parameters, [None] * CLIENTS)

    def supply_input(self, number):
        seed = SecretBytes(self.seed_of(number))
        secrets = client.noise_secrets(self.clients[number], seed)
        made = self.task.encode(
            np.zeros(DIM), session_id=self.descriptor.session_id, secrets=secrets
        )
        return self.to_client(number, InputReady(made.vector))

    def message(self, number, output):
        received = super().message(number, output)
        if number in self.forgers and received.envelope.kind is Shares:
            data = received.envelope.data[:-32] + bytes(32)
            return Received(Envelope.of(Shares(data)), identity_of(number))
        return received

    def step_server(self, event):
        outputs = super().step_server(event)
        self.job = next((o for o in outputs if isinstance(o, ComputeSum)), self.job)
        return outputs


@pytest.fixture(name="task", scope="module", params=PROFILES)
def _task(request):
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=4.0,
        delta=1e-5,
        scale_factor=2.0,
        rotation="none",
        accountant="mixture-rdp",
        min_survivors=SURVIVORS,
        colluders=1,
        ladder=LADDER,
    )
    protocol = parameters_for(
        CLIENTS,
        dimension=1,
        threshold=SURVIVORS,
        min_clients=SURVIVORS,
        min_survivors=SURVIVORS,
        colluders=1,
        **PROFILES[request.param],
    )
    return NoisyTask.from_plan(made, protocol)


@pytest.mark.parametrize(
    ("absent", "lost", "silent", "forgers"),
    [
        ((), (), (), ()),
        ((), (3,), (), ()),
        ((), (3, 4), (5,), (6,)),
        ((), (0, 1, 2, 3), (), ()),
        ((8, 9), (2,), (), ()),
        ((6, 7, 8, 9), (), (), ()),
    ],
    ids=["none", "one", "liars", "all", "eight", "six"],
)
def test_a_sum_contains_the_noise_of_its_certificate(
    task, absent, lost, silent, forgers
):
    session = SessionOfZeros(task, forgers)
    result = run_session(
        session,
        dict.fromkeys(absent, Round.SHARE_KEYS)
        | dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION)
        | dict.fromkeys(silent, Round.UNMASKING),
    )
    assert isinstance(session.server_state, server_states.Completed), (
        session.server_state
    )
    removal = session.job.noise
    given = Counter(layer for layer, _ in removal.seeds) if removal else {}
    certificate = task.certificate(
        clients=CLIENTS,
        share_holders=CLIENTS - len(absent),
        survivors=len(result.survivors),
        given=given,
    )
    assert certificate.is_sufficient
    if silent:
        assert len(set(given.values())) == 2  # one seed was forged, others withheld
    noise = centre(result.total, task.parameters.modulus)
    statistic, freedom = pearson(noise, certificate.total)
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, freedom)
    # A variance that is off by five percent would have been seen.
    for wrong in (certificate.total * 95 / 100, certificate.total * 105 / 100):
        statistic, freedom = pearson(noise, wrong)
        assert statistic > scipy.stats.chi2.isf(FALSE_ALARM, freedom)


def pearson(noise, variance):
    """Pearson's statistic against the Skellam law, and its degrees of freedom."""
    reach = int(np.abs(noise).max())
    expected = noise.size * np.array(
        [float(reference.skellam_pmf(k, variance)) for k in range(-reach, reach + 1)]
    )
    observed = np.bincount(noise + reach, minlength=2 * reach + 1)
    thick = expected >= 30
    statistic = float(((observed - expected)[thick] ** 2 / expected[thick]).sum())
    rest = noise.size - expected[thick].sum()
    statistic += float((observed[~thick].sum() - rest) ** 2 / rest)
    return statistic, int(thick.sum())
