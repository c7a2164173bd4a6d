"""What U2 settles about the noise: in ctx2, and checked at both ends."""

from dataclasses import replace
from functools import partial

import pytest
from secagg_testing.cohorts import any_noise, one_hot, parameters_for, with_noise
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import InputReady, NoisyVector, Received
from secagg.protocol.messages import Envelope, Round, Survivors
from secagg.protocol.server import machine as server
from secagg.simulation import identity_of, run_session

CLIENTS = 6
PARAMETERS = with_noise(parameters_for(CLIENTS, dimension=8, threshold=3))
MODULUS, BLOCK = PARAMETERS.modulus, PARAMETERS.noise_block


def tolerating(losses):
    """Read a block that tolerates so many losses, whatever the parameters say."""

    def read(parameters, share_holders):
        return replace(any_noise(parameters, share_holders), tolerated_losses=losses)

    return read


def session_of(read_noise=any_noise):
    vectors = [one_hot(number, 8, MODULUS) for number in range(CLIENTS)]
    return ObservedSession(
        PARAMETERS,
        [partial(NoisyVector, vector, BLOCK) for vector in vectors],
        read_noise=read_noise,
    )


def masked(session):
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    session.play(Round.MASKED_INPUT_COLLECTION)
    return session


LOST = {4: Round.MASKED_INPUT_COLLECTION, 5: Round.MASKED_INPUT_COLLECTION}


def test_a_session_with_noise_ends_with_the_sum():
    result = run_session(session_of(tolerating(2)), LOST)
    assert result.survivors == (0, 1, 2, 3)
    assert result.total.tolist() == [MODULUS - 1] * 4 + [0] * 4


def test_the_server_ends_a_session_with_more_losses_than_the_noise_tolerates():
    """R3.5-1: the parameters alone would let it continue."""
    session = session_of(tolerating(1))
    assert run_session(session, LOST).code is ErrorCode.TOO_MANY_DROPOUTS
    assert "at most 1" in session.server_state.outcome.reason


def test_a_client_does_not_answer_for_more_losses_than_the_noise_tolerates():
    for lost, refused in (((), False), ((5,), False), ((4, 5), True)):
        session = masked(session_of(tolerating(1)))
        bitmap = encode_set(set(range(CLIENTS)) - set(lost), CLIENTS)
        outputs = session.to_client(0, Received(Envelope.of(Survivors(bitmap))))
        state = session.clients[0]
        if not refused:
            assert isinstance(state, client.Answered)
            continue
        assert isinstance(state, client.Failed)
        assert state.code is ErrorCode.TOO_MANY_DROPOUTS
        assert "noise" in state.reason
        assert len(outputs) == 1  # that it is over


def test_both_sides_read_the_noise_for_the_size_of_u2():
    asked = []

    def read(parameters, share_holders):
        asked.append(share_holders)
        return any_noise(parameters, share_holders)

    session = session_of(read)
    run_session(session, {5: Round.SHARE_KEYS})
    assert set(asked) == {5}


def test_a_client_with_different_noise_is_rejected_before_its_vector_counts():
    # R5.3-14
    session = session_of()
    session.clients[2] = client_machine.start(
        lambda parameters, share_holders: any_noise(parameters, share_holders + 1)
    )
    with pytest.raises(RemoteProtocolError) as caught:
        masked(session)
    assert caught.value.code is ErrorCode.VIEW_DIFFERS
    assert caught.value.sender == identity_of(2)
    session.play(Round.MASKED_INPUT_COLLECTION, [0, 1, 3, 4, 5])
    session.close(Round.MASKED_INPUT_COLLECTION)
    session.play(Round.UNMASKING, [0, 1, 3, 4, 5])
    session.close(Round.UNMASKING)
    others = [0 if number == 2 else MODULUS - 1 for number in range(CLIENTS)]
    assert session.total.tolist() == others + [0] * 2


def test_a_client_that_draws_other_noise_has_masks_that_do_not_cancel():
    """Another build, or another |U2| told: garbage, and never a sum with less noise."""
    session = session_of()
    session.takes_every_view = True
    session.clients[2] = client_machine.start(
        lambda parameters, share_holders: any_noise(parameters, share_holders + 1)
    )
    masked(session)
    contexts = [state.delivered.ctx2 for state in session.clients.values()]
    assert len(set(contexts)) == 2
    session.close(Round.MASKED_INPUT_COLLECTION)
    session.play(Round.UNMASKING)
    session.close(Round.UNMASKING)
    assert session.total.tolist() != [MODULUS - 1] * CLIENTS + [0] * 2


def test_an_error_of_the_noise_reader_ends_the_session_of_this_client():
    def refuse(_, __):
        raise RemoteProtocolError("no such noise", code=ErrorCode.BAD_CONFIG)

    session = session_of()
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    alone = replace(
        session.clients[0],
        facts=replace(session.clients[0].facts, read_noise=refuse),
    )
    step = client_machine.step(
        alone, Received(session.fetch(0)), policy=session._accepting
    )
    assert isinstance(step.state, client.Failed)
    assert step.state.code is ErrorCode.BAD_CONFIG


def test_a_core_without_a_noise_reader_does_not_join_tasks_with_noise():
    session = session_of()
    session.clients[0] = client_machine.start()
    session.server_state = server.start(
        session.descriptor, packed_bytes=session.packed_bytes
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.SHARE_KEYS)
    with pytest.raises(LocalProtocolError, match="without a reader"):
        session.close(Round.SHARE_KEYS)
    session.server_state = replace(
        session.server_state,
        session=replace(session.server_state.session, read_noise=any_noise),
    )
    session.close(Round.SHARE_KEYS)
    with pytest.raises(LocalProtocolError, match="without a reader"):
        session.update(0)
    session.update(1)
    assert isinstance(session.clients[1], client.Masked)
    with pytest.raises(LocalProtocolError):
        session.to_client(0, InputReady(session.inputs[0]))


def test_without_a_noise_block_the_noise_reader_is_not_called():
    def never(_, __):
        raise AssertionError

    vectors = [one_hot(number, CLIENTS, 1 << 20) for number in range(CLIENTS)]
    session = ObservedSession(
        parameters_for(CLIENTS, dimension=CLIENTS, threshold=3),
        vectors,
        read_noise=never,
    )
    assert len(run_session(session, LOST).survivors) == 4
    assert session.server_state.session.read_noise is never
