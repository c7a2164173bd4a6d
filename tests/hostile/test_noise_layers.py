"""Noise that losses have not made necessary is taken back, to the last bit (R6.7-1)."""

import hmac
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.modular import add_into, subtract_into, zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import domain_tag
from secagg.distributed_dp import NoisyTask, plan
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import machine as client
from secagg.protocol.client import states as client_states
from secagg.protocol.events import ComputeSum, InputReady, Received
from secagg.protocol.messages import Envelope, Round, Shares
from secagg.protocol.noise_terms import layer_secret, noise_secrets
from secagg.protocol.profiles import MaliciousParameters, RoundDeadlines
from secagg.protocol.rounds import DropReason
from secagg.protocol.server import states as server_states
from secagg.simulation import InProcessSession, run_session
from secagg.simulation.driver import identity_of, simulated_trust

CLIENTS, DIM, LADDER, BITS = 10, 1000, 4, 20
MODULUS = 1 << BITS


PROFILES = {
    "honest-curious-server": {},
    "malicious-server": {
        "tail": MaliciousParameters(simulated_trust()),
        "deadlines": RoundDeadlines(consistency=60),
        "threshold": 6,
    },
}


def noised_task(profile="honest-curious-server", **overrides):
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=6.0,
        delta=1e-4,
        bits=BITS,
        scale_factor=64.0,
        mechanism="skellam",
        min_survivors=6,
        colluders=1,
        **({"ladder": LADDER} | overrides),
    )
    fields = {"threshold": 6, "min_clients": 6, "min_survivors": 6, "colluders": 1}
    protocol = parameters_for(CLIENTS, dimension=1, **(fields | PROFILES[profile]))
    return NoisyTask.from_plan(made, protocol)


@pytest.fixture(name="task", scope="module", params=PROFILES)
def _task(request):
    return noised_task(request.param)


class NoisySession(InProcessSession):
    """Clients that encode what they are given, with the noise of the session."""

    def __init__(self, task, tamper=lambda _number, data: data):
        self.task, self.tamper, self.sent = task, tamper, {}
        super().__init__(task.parameters, [None] * CLIENTS)

    def supply_input(self, number):
        seed = SecretBytes(self.seed_of(number))
        secrets = client.noise_secrets(self.clients[number], seed)
        made = self.task.encode(
            vector_of(number), session_id=self.descriptor.session_id, secrets=secrets
        )
        self.sent[number] = made.vector.residues
        return self.to_client(number, InputReady(made.vector))

    def message(self, number, output):
        received = super().message(number, output)
        if received is not None and received.envelope.kind is Shares:
            data = self.tamper(number, received.envelope.data)
            return Received(Envelope.of(Shares(data)), identity_of(number))
        return received

    def step_server(self, event):
        outputs = super().step_server(event)
        for output in outputs:
            if isinstance(output, ComputeSum):
                self.job = output
        return outputs


def vector_of(number):
    row = np.sin(np.arange(DIM) + number)
    return row / np.linalg.norm(row)


def run(task, lost=(), tamper=lambda _number, data: data, silent=()):
    session = NoisySession(task, tamper)
    absent = dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION)
    absent |= dict.fromkeys(silent, Round.UNMASKING)
    result = run_session(session, absent)
    assert isinstance(session.server_state, server_states.Completed), (
        session.server_state
    )
    return session, result


def uploaded(session, numbers):
    total = zeros(session.parameters.dimension, MODULUS)
    for number in numbers:
        add_into(total, session.sent[number], MODULUS)
    return total % MODULUS


@pytest.mark.parametrize("lost", [(), (9,), (2, 5), (1, 3, 7), (0, 1, 2, 3)])
def test_survivors_reveal_the_layers_that_the_losses_made_unnecessary(task, lost):
    session, result = run(task, lost)
    alive = [number for number in range(CLIENTS) if number not in lost]
    assert result.survivors == tuple(alive)
    noise = task.session_noise(CLIENTS)
    asked = noise.removed_layers(len(lost))
    # Each of them comes from every survivor; with no losses left to tolerate, none.
    given = Counter(layer for layer, _ in session.job.noise.seeds) if asked else {}
    assert given == dict.fromkeys(asked, len(alive))
    assert bool(asked) == (len(lost) < noise.tolerated_losses)
    left = uploaded(session, alive)
    for layer, secret in session.job.noise.seeds if asked else ():
        drawn = task.mechanism.layer_noise(
            [(noise.layers[layer], secret.reveal())], start=0, count=left.size
        )
        subtract_into(left, drawn, MODULUS)
    assert result.total.tolist() == (left % MODULUS).tolist()
    assert not session.dropped.keys() & {identity_of(number) for number in alive}
    certificate = task.certificate(
        clients=CLIENTS,
        share_holders=CLIENTS,
        survivors=len(alive),
        given=given or None,
    )
    assert certificate.required <= certificate.present
    assert certificate.present <= certificate.required * Fraction("1.04")


def test_the_remaining_noise_has_the_variance_of_the_certificate(task):
    """Five deviations of the mean of 1000 squared normals: false alarms 5.7e-7."""
    session, result = run(task, (4,))
    noise = task.session_noise(CLIENTS)
    alive = [number for number in range(CLIENTS) if number != 4]
    exact = sum(vector_of(number) for number in alive)
    estimate = task.decode(result.total, session_id=session.descriptor.session_id)
    scale = task.mechanism.parameters.scale_factor
    given = Counter(layer for layer, _ in session.job.noise.seeds)
    total = task.certificate(
        clients=CLIENTS, share_holders=CLIENTS, survivors=9, given=given
    ).total
    assert total == 9 * noise.remaining(1)
    # Rounding adds less than a quarter for each client.
    expected = float(total) + 9 / 4
    measured = float(np.mean((scale * (estimate - exact)) ** 2))
    assert abs(measured / expected - 1) < 5 * np.sqrt(2 / DIM) + 9 / 4 / float(total)


def test_an_invalid_layer_seed_is_not_subtracted_and_does_not_end_the_session(task):
    asked = task.session_noise(CLIENTS).removed_layers(1)

    def tamper(number, data):
        if number == 3:  # its last layer: zeros
            return data[:-32] + bytes(32)
        if number == 5:  # all of them: those of no client
            return data[: -32 * len(asked)] + b"x" * 32 * len(asked)
        return data

    session, result = run(task, (9,), tamper)
    reason = DropReason.BAD_NOISE_REVEAL.value
    assert session.dropped[identity_of(3)] == session.dropped[identity_of(5)] == reason
    given = Counter(layer for layer, _ in session.job.noise.seeds)
    assert given == {layer: 7 if layer == asked[-1] else 8 for layer in asked}
    # Their inputs are in the sum, and more noise than was needed.
    assert result.survivors == tuple(range(9))
    certificate = task.certificate(
        clients=CLIENTS, share_holders=CLIENTS, survivors=9, given=given
    )
    noise = task.session_noise(CLIENTS)
    unsubtracted = 2 * sum(noise.layers[i] for i in asked) - sum(
        noise.layers[i] for i in asked[:-1]
    )
    assert certificate.total == 9 * noise.remaining(1) + unsubtracted
    assert certificate.is_sufficient


def test_a_survivor_that_does_not_answer_keeps_all_its_noise(task):
    session, result = run(task, (), silent=(8,))
    assert result.survivors == tuple(range(CLIENTS))
    given = Counter(layer for layer, _ in session.job.noise.seeds)
    assert set(given.values()) == {CLIENTS - 1}


@pytest.mark.parametrize("cut", [-32, 32, 1])
def test_an_answer_of_another_size_is_refused(task, cut):
    def tamper(number, data):
        if number:
            return data
        return data[:cut] if cut < 0 else data + bytes(cut)

    session = NoisySession(task, tamper)
    with pytest.raises(RemoteProtocolError) as caught:
        run_session(session)
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_layer_seeds_are_committed_before_the_losses_are_known(task):
    session = NoisySession(task)
    session.play(Round.ADVERTISE_KEYS, range(CLIENTS - 1))
    adverts = session.server_state.adverts.values()
    commitments = [c for advert in adverts for c in advert.noise_commitments]
    assert len(set(commitments)) == (CLIENTS - 1) * (LADDER + 1)
    short = replace(
        next(iter(adverts)), noise_commitments=commitments[:LADDER], identity="x"
    )
    with pytest.raises(RemoteProtocolError, match="commits to 4 layers") as caught:
        session.to_server(Received(Envelope.of(short), "x"))
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_client_rejects_a_roster_with_a_wrong_number_of_commitments(task):
    session = NoisySession(task)
    session.play(Round.ADVERTISE_KEYS)
    for advert in session.server_state.adverts.values():
        if advert.identity == identity_of(3):
            object.__setattr__(advert, "noise_commitments", ())
    session.close(Round.ADVERTISE_KEYS)
    session.update(0)
    assert isinstance(session.clients[0], client_states.Failed)
    assert session.clients[0].code is ErrorCode.BAD_ENCODING


def test_a_client_reveals_only_the_layers_required_by_the_losses(task):
    session = NoisySession(task)
    run_session(session, dict.fromkeys((7, 8), Round.MASKED_INPUT_COLLECTION))
    asked = task.session_noise(CLIENTS).removed_layers(2)
    assert 0 < len(asked) < LADDER + 1
    state = session.clients[0]
    assert isinstance(state, client_states.Completed)
    answers = session.job.noise.seeds
    assert {layer for layer, _ in answers} == set(asked)


def test_a_roster_without_dropouts_removes_no_layers(task):
    """Seeds are committed to all the same, and never asked for."""
    session = NoisySession(task)
    result = run_session(session, dict.fromkeys(range(4), Round.SHARE_KEYS))
    assert result.survivors == tuple(range(4, 10))
    assert session.job.noise is None
    assert result.total.tolist() == uploaded(session, result.survivors).tolist()
    certificate = task.certificate(clients=6, share_holders=6, survivors=6, given={})
    assert certificate.is_sufficient
    assert certificate.layers == ()


def test_the_stream_of_a_layer_follows_section_6_7():
    """Base and layers never share a seed, whichever g_i is whose."""
    suite, ctx2, seed = CipherSuite.AES_256_CTR, b"c" * 32, b"g" * 32
    for layer in (0, 4):
        info = domain_tag("client", "noise", suite)
        info += len(ctx2).to_bytes(4, "big") + ctx2 + (layer + 1).to_bytes(4, "big")
        expected = hmac.digest(seed, info + b"\x01", "sha256")
        found = layer_secret(SecretBytes(seed), layer, context=ctx2, suite=suite)
        assert found.reveal() == expected
    all_alike = noise_secrets(
        SecretBytes(seed),
        [SecretBytes(seed)] * 2,
        share_holders=3,
        context=ctx2,
        suite=suite,
    )
    drawn_from = {all_alike.seed.reveal(), *(s.reveal() for s in all_alike.layers)}
    assert len(drawn_from) == 3


def test_without_a_ladder_no_layers_are_exchanged():
    plain = noised_task(ladder=0)
    assert plain.parameters.noise_layers == 0
    session, result = run(plain, (2,))
    assert session.job.noise is None
    assert result.total.tolist() == uploaded(session, result.survivors).tolist()


def test_noise_block_and_parameters_must_agree_on_the_layers(task):
    # R3.2-10
    for layers in (0, LADDER, LADDER + 2):
        with pytest.raises(RemoteProtocolError, match="noise layers") as caught:
            NoisyTask.from_parameters(replace(task.parameters, noise_layers=layers))
        assert caught.value.code is ErrorCode.BAD_CONFIG
