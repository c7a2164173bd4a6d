from dataclasses import replace

import numpy as np
import pytest

from secagg.client.file_input import FileInput
from secagg.client.offer_check import OfferCheckingConnection
from secagg.client.program import client_policy
from secagg.config import ClientSettings, load_client_settings
from secagg.errors import ErrorCode, InputError, RemoteProtocolError, ServiceError
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.testing.scripted_service import ScriptedService
from secagg.transport.in_memory import InMemoryConnection
from secagg.wire.calls import GetOffer, Wait

PARAMETERS = ProtocolParameters(
    modulus=256,
    dimension=4,
    min_clients=3,
    max_clients=3,
    threshold=2,
    min_survivors=2,
    max_dropouts=1,
)
DESCRIPTOR = SessionDescriptor(
    task_id="t",
    session_number=1,
    server_nonce=bytes(32),
    payload_hash=b"",
    parameters=PARAMETERS,
)


def offering(answer):
    return InMemoryConnection(ScriptedService(script={GetOffer: answer}), "me")


async def refusing(_):
    raise RemoteProtocolError("no", code=ErrorCode.POLICY_VIOLATION)


async def test_an_offer_is_judged_before_the_client_sees_it():
    connection = OfferCheckingConnection(offering(DESCRIPTOR), refusing)
    with pytest.raises(RemoteProtocolError):
        await connection.call(GetOffer("t", after_session=0))
    judged = []

    async def judge(offered):
        judged.append(offered)

    connection = OfferCheckingConnection(offering(DESCRIPTOR), judge)
    assert await connection.call(GetOffer("t", after_session=0)) == DESCRIPTOR
    assert judged == [DESCRIPTOR]
    assert connection.has_answered


async def test_there_is_nothing_to_judge_while_waiting():
    connection = OfferCheckingConnection(offering(Wait(1.0)), refusing)
    assert not connection.has_answered
    assert await connection.call(GetOffer("t", after_session=0)) == Wait(1.0)
    assert connection.has_answered


def settings(tmp_path, *overrides) -> ClientSettings:
    path = tmp_path / "client.toml"
    path.write_text(
        '[client]\nserver = "localhost:1"\ntask = "t"\n'
        '[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
        "[policy]\nmax_epsilon = 1.0\nmax_delta = 1e-6\n"
    )
    return load_client_settings(path, environment={}, overrides=overrides).settings


def test_every_floor_of_the_settings_reaches_the_core(tmp_path):
    policy = client_policy(
        settings(
            tmp_path,
            "policy.min_clients=11",
            "policy.max_clients=12",
            "policy.min_survivors=13",
            "policy.max_dropouts=14",
            "policy.min_colluders=15",
            "policy.require_majority=false",
            "policy.max_dimension=16",
            "policy.max_modulus_bits=17",
            "policy.require_noise=false",
        )
    )
    assert policy.min_clients == 11
    assert policy.max_clients == 12
    assert policy.min_survivors == 13
    assert policy.max_dropouts == 14
    assert policy.min_colluders == 15
    assert not policy.require_majority
    assert policy.max_dimension == 16
    assert policy.max_modulus_bits == 17
    assert not policy.require_noise
    defaults = client_policy(settings(tmp_path))
    assert defaults.require_majority
    assert defaults.require_noise


def test_an_unknown_profile_is_a_bad_setting(tmp_path):
    with pytest.raises(ServiceError) as caught:
        client_policy(settings(tmp_path, "policy.profiles=wild"))
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_an_input_of_another_length_is_refused_at_the_offer(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    source = FileInput(tmp_path / "x.npy")
    source.check(replace(DESCRIPTOR, parameters=replace(PARAMETERS, dimension=3)), 3)
    with pytest.raises(InputError, match="vectors of 4"):
        source.check(DESCRIPTOR, 4)


@pytest.mark.parametrize("entry", [0.5, 128, -129])
def test_an_input_that_an_exact_task_cannot_take_is_refused_at_the_offer(
    tmp_path, entry
):
    np.save(tmp_path / "x.npy", np.array([0, 0, 0, entry]))
    source = FileInput(tmp_path / "x.npy")
    with pytest.raises(InputError, match="entry 3"):
        source.check(DESCRIPTOR, 4)


def test_every_session_is_given_the_file_of_its_number(tmp_path):
    for number in (1, 2):
        np.save(tmp_path / f"x-{number}.npy", np.full(4, number))
    source = FileInput(
        tmp_path / "x-{session}.npy", payload_path=tmp_path / "model-{session}"
    )
    for number in (1, 2):
        session = replace(DESCRIPTOR, session_number=number)
        source.check(session, 4)
        given = source.vector(session, b"weights")
        np.testing.assert_array_equal(given, np.full(4, number))
        assert (tmp_path / f"model-{number}").read_bytes() == b"weights"
    with pytest.raises(InputError, match=r"x-3\.npy"):
        source.check(replace(DESCRIPTOR, session_number=3), 4)


def test_a_file_that_changes_between_offer_and_upload_is_not_read_again(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(4))
    source = FileInput(path)
    source.check(DESCRIPTOR, 4)
    np.save(path, np.ones(4))
    np.testing.assert_array_equal(source.vector(DESCRIPTOR, b""), np.zeros(4))
