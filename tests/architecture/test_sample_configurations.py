"""The files under deploy/config stay in step with the settings classes."""

import dataclasses
import tomllib
import typing
from pathlib import Path

import pytest
from secagg_testing.cohorts import offer_of

from secagg.client.program import client_policy
from secagg.config import (
    ClientSettings,
    ServerSettings,
    load_client_settings,
    load_server_settings,
)
from secagg.config.policy import privacy_limits_of
from secagg.distributed_dp import NoisyTask
from secagg.server.task.setup import prepare_task

CONFIG = Path(__file__).parents[2] / "deploy" / "config"
KINDS = {"server": ServerSettings, "client": ClientSettings}
LOADERS = {"server": load_server_settings, "client": load_client_settings}


def keys_of(kind):
    hints = typing.get_type_hints(kind)
    return {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(kind)
        for field in dataclasses.fields(hints[section.name])
    }


@pytest.mark.parametrize("size", ["minimal", "full", "malicious"])
@pytest.mark.parametrize("role", ["server", "client"])
def test_every_sample_is_accepted_by_its_program(role, size):
    LOADERS[role](CONFIG / f"{role}.{size}.toml", environment={})


@pytest.mark.parametrize("size", ["minimal", "malicious"])
def test_server_and_client_samples_are_compatible(size):
    client = LOADERS["client"](CONFIG / f"client.{size}.toml", environment={}).settings
    served = LOADERS["server"](
        CONFIG / f"server.{size}.toml",
        environment={},
        overrides=["enrolment.revocations="],  # a file of the deployment
    ).settings
    assert client.client.task == served.task.id
    assert client.enrolment.enrolment_key == served.enrolment.enrolment_key
    parameters = prepare_task(served).parameters
    offer = offer_of(
        parameters,
        aggregator=client.client.aggregator or "aggregator",
        task_id=served.task.id,
        session_end=1_800_000_000,
    )
    client_policy(client).check(offer)
    task = NoisyTask.from_parameters(parameters)
    privacy_limits = privacy_limits_of(client.policy)
    task.check_noise(privacy_limits)
    task.check(privacy_limits, report=task.report())


@pytest.mark.parametrize("role", ["server", "client"])
def test_the_full_sample_lists_every_setting(role):
    document = tomllib.loads((CONFIG / f"{role}.full.toml").read_text())
    listed = {f"{name}.{key}" for name, keys in document.items() for key in keys}
    assert listed == keys_of(KINDS[role])


@pytest.mark.parametrize("role", ["server", "client"])
def test_the_full_sample_lists_the_defaults(role):
    document = tomllib.loads((CONFIG / f"{role}.full.toml").read_text())
    hints = typing.get_type_hints(KINDS[role])
    for section in dataclasses.fields(KINDS[role]):
        for field in dataclasses.fields(hints[section.name]):
            shown = document[section.name][field.name]
            if field.default is dataclasses.MISSING or isinstance(field.default, Path):
                continue  # an example of a required value, or a path of a service
            if field.default is None:
                assert shown == "" or field.name in BUDGET, field.name
                continue
            expected = (
                list(field.default)
                if isinstance(field.default, tuple)
                else field.default
            )
            assert shown == expected, f"{section.name}.{field.name}"


# Optional for the loader because the sentence in noise.none can replace them.
BUDGET = {"epsilon", "delta", "l2_clip", "max_epsilon", "max_delta"}


@pytest.mark.parametrize("role", ["server", "client"])
def test_every_key_of_the_full_sample_has_a_comment(role):
    previous = ""
    for line in (CONFIG / f"{role}.full.toml").read_text().splitlines():
        if line and not line.startswith("#"):
            assert previous.startswith("#"), line
        previous = line
