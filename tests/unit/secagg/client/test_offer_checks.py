from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of

from secagg.client.gate import SessionInfo
from secagg.client.input_files import FileInput
from secagg.client.program import client_policy
from secagg.config import ClientSettings, load_client_settings
from secagg.config.policy import privacy_limits_of
from secagg.errors import ErrorCode, InputError, LocalProtocolError, ServiceError
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ExactSumWaiver,
    PrivacyLimits,
)

PARAMETERS = ProtocolParameters(
    modulus=256,
    dimension=4,
    min_clients=3,
    max_clients=3,
    threshold=2,
    min_survivors=2,
    max_dropouts=1,
    max_losses=1,
)
DESCRIPTOR = offer_of(PARAMETERS)


def session(descriptor=DESCRIPTOR, dimension=4, payload=b""):
    return SessionInfo(descriptor, dimension, None, payload)


def settings(tmp_path, *overrides) -> ClientSettings:
    path = tmp_path / "client.toml"
    path.write_text(
        '[client]\nserver = "localhost:1"\ntask = "t"\n'
        '[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
        "[policy]\nmax_epsilon = 1.0\nmax_delta = 1e-6\n"
    )
    return load_client_settings(path, environment={}, overrides=overrides).settings


def test_every_limit_of_the_settings_is_passed_to_the_policy(tmp_path):
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


def test_the_privacy_limits_of_the_settings_are_passed_to_the_client(tmp_path):
    privacy_limits = PrivacyLimits(
        max_epsilon=1.0,
        max_delta=1e-6,
        statuses=frozenset({"proven"}),
        min_local_noise_stddev=0.5,
    )
    given = ("policy.grounds=proven", "policy.min_local_noise_stddev=0.5")
    assert privacy_limits_of(settings(tmp_path, *given).policy) == privacy_limits
    exact = settings(tmp_path, *given, "policy.require_noise=false")
    waived = privacy_limits_of(exact.policy)
    assert waived == ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT, noised=privacy_limits)


@pytest.mark.parametrize("sentence", ["", "yes", NO_NOISE_ACKNOWLEDGEMENT[:-1]])
def test_only_the_exact_sentence_waives_noise(sentence):
    with pytest.raises(LocalProtocolError, match="one sentence and no other"):
        ExactSumWaiver(sentence)


def test_an_unknown_profile_is_a_bad_setting(tmp_path):
    with pytest.raises(ServiceError) as caught:
        client_policy(settings(tmp_path, "policy.profiles=wild"))
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_an_input_of_another_length_is_rejected_at_the_offer(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    source = FileInput(tmp_path / "x.npy")
    three = replace(DESCRIPTOR, parameters=replace(PARAMETERS, dimension=3))
    source.check(session(three, 3))
    with pytest.raises(InputError, match="vectors of 4"):
        source.check(session())


@pytest.mark.parametrize("entry", [0.5, 128, -129])
def test_an_invalid_input_of_an_exact_task_is_rejected_at_the_offer(tmp_path, entry):
    np.save(tmp_path / "x.npy", np.array([0, 0, 0, entry]))
    source = FileInput(tmp_path / "x.npy")
    with pytest.raises(InputError, match="entry 3"):
        source.check(session())


def test_every_session_reads_the_file_of_its_number(tmp_path):
    for number in (1, 2):
        np.save(tmp_path / f"x-{number}.npy", np.full(4, number))
    source = FileInput(
        tmp_path / "x-{session}.npy", payload_path=tmp_path / "model-{session}"
    )
    for number in (1, 2):
        numbered = replace(DESCRIPTOR, session_number=number)
        source.check(session(numbered))
        given = source.vector(session(numbered, payload=b"weights"))
        np.testing.assert_array_equal(given, np.full(4, number))
        assert (tmp_path / f"model-{number}").read_bytes() == b"weights"
    with pytest.raises(InputError, match=r"x-3\.npy"):
        source.check(session(replace(DESCRIPTOR, session_number=3)))


def test_a_file_is_not_read_again_between_offer_and_upload(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(4))
    source = FileInput(path)
    source.check(session())
    np.save(path, np.ones(4))
    np.testing.assert_array_equal(source.vector(session()), np.zeros(4))
