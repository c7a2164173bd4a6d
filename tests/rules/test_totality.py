"""Every demand of a client holds at every entry, or is exempt there by name.

A new field of a class of demands fails the first test until it has its strictest value,
and the second until it has a setting.
"""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.client import program
from secagg.client.enrolment import ClientEnrolment
from secagg.config import load_client_settings
from secagg.config.common import total_budget
from secagg.config.policy import privacy_limits_of
from secagg.config.two_aggregators import (
    SharingClientSettings,
    load_two_aggregator_settings,
)
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy, PrivacyLimits, TotalBudget
from secagg.protocol.profiles import Profile
from secagg.two_aggregators import program as two_aggregators_program
from tests.rules import drivers
from tests.rules.drivers import Settings

# A value of each field that the sound session of its entry breaks.
STRICTEST = {
    PrivacyLimits: {
        "max_epsilon": 1e-9,
        "max_delta": 1e-300,
        "statuses": frozenset(),
        "min_local_noise_stddev": 1e9,
        "min_local_noise_multiplier": 1e9,
        "min_colluder_fraction": 0.99,
        "max_local_epsilon": 1e-9,
    },
    ClientPolicy: {
        "profiles": frozenset({Profile.MALICIOUS_SERVER}),
        "suites": frozenset(),
        "aggregators": frozenset({"another"}),
        "graphs": frozenset({Graph.RING}),
        "min_graph_bits": 200,
        "min_clients": 60_000,
        "max_clients": 2,
        "min_survivors": 60_000,
        "max_dropouts": 0,
        "min_colluders": 60_000,
        "require_majority": True,
        "whole_roster": True,
        "max_dimension": 0,
        "max_modulus_bits": 0,
        "require_noise": True,
    },
    TotalBudget: {
        "data": "other data",
        "epsilon": 1e-9,
        "delta": 1e-300,
        "directory": Path("elsewhere"),
        "rollback_mark": Path("mark elsewhere"),
    },
    ClientEnrolment: {
        "seed": Path("another seed"),
        "credential": Path("another credential"),
        "enrolment_key": "ed25519:" + "17" * 32,
        "max_revocation_days": 1.0,
    },
}
# Fields that refuse nothing anywhere, with the reason.
DEMANDS_NOTHING = {
    (ClientPolicy, "whole_roster"): "it asks for more to read, and refuses no session",
    (TotalBudget, "data"): "it names what is counted",
    (TotalBudget, "directory"): "it says where claims are kept",
    (TotalBudget, "rollback_mark"): "it says where claims are kept",
    (ClientEnrolment, "seed"): "it says who the client is",
    (ClientEnrolment, "credential"): "it says who the client is",
}
NO_ROUNDS = "no client shares secrets with others between two aggregators"
NOT_ENROLLED = "clients are not enrolled between two aggregators"
# Fields that two aggregators do not ask about, with the reason.
BETWEEN_TWO = {
    (PrivacyLimits, "min_colluder_fraction"): "no noise of clients is counted there",
    (ClientPolicy, "profiles"): NO_ROUNDS,
    (ClientPolicy, "graphs"): NO_ROUNDS,
    (ClientPolicy, "min_graph_bits"): NO_ROUNDS,
    (ClientPolicy, "max_dropouts"): NO_ROUNDS,
    (ClientPolicy, "min_colluders"): NO_ROUNDS,
    (ClientPolicy, "require_majority"): NO_ROUNDS,
    (ClientPolicy, "require_noise"): "every session between two aggregators has noise",
    (ClientEnrolment, "enrolment_key"): NOT_ENROLLED,
    (ClientEnrolment, "max_revocation_days"): NOT_ENROLLED,
}
FIELDS = [(kind, name) for kind, fields in STRICTEST.items() for name in fields]
TOTAL = TotalBudget(data="data", epsilon=1e6, delta=1e-3)


def case(kind, name):
    """Return a session, settings that accept it, and settings that are stricter."""
    if kind is ClientEnrolment:
        lax = replace(drivers.WAIVED, enrolment=drivers.enrolled().files)
        offer = drivers.enrolled().offer()
        part = "enrolment"
    elif (kind, name) == (ClientPolicy, "min_graph_bits"):
        lax, offer, part = drivers.WAIVED, drivers.ring_offer(), "cohort"
    elif (kind, name) == (ClientPolicy, "require_majority"):
        lax, offer, part = drivers.WAIVED, drivers.minority_offer(), "cohort"
    elif (kind, name) == (ClientPolicy, "require_noise"):
        # The limits decide, whatever the field says: the client of exact sums waives.
        offer = drivers.exact_offer()
        return offer, drivers.WAIVED, Settings()
    else:
        lax, offer = Settings(total=TOTAL), drivers.offered()
        part = {PrivacyLimits: "limits", ClientPolicy: "cohort", TotalBudget: "total"}[
            kind
        ]
    strict = replace(getattr(lax, part), **{name: STRICTEST[kind][name]})
    return offer, lax, replace(lax, **{part: strict})


# What is wrong is found before any offer.
CODES = {(ClientEnrolment, "enrolment_key"): ErrorCode.BAD_CREDENTIAL}


def refused(work, code=ErrorCode.POLICY_VIOLATION):
    with pytest.raises(SecAggError) as caught:
        work()
    assert caught.value.code is code


def accepted(work):
    with pytest.raises(drivers.TookPartError):
        work()


def test_every_field_of_every_limit_has_a_value_that_a_session_violates():
    for kind, values in STRICTEST.items():
        assert set(values) == {each.name for each in dataclasses.fields(kind)}


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_each_limit_is_enforced_at_an_offer(kind, name):
    if (kind, name) in DEMANDS_NOTHING:
        return
    offer, lax, strict = case(kind, name)
    accepted(lambda: drivers.offer(lax, offer))
    code = CODES.get((kind, name), ErrorCode.POLICY_VIOLATION)
    refused(lambda: drivers.offer(strict, offer), code)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_each_limit_is_enforced_when_a_session_is_resumed(kind, name):
    if (kind, name) in DEMANDS_NOTHING:
        return
    offer, lax, strict = case(kind, name)
    accepted(lambda: drivers.resume(lax, offer, begun_under=lax))
    code = CODES.get((kind, name), ErrorCode.POLICY_VIOLATION)
    refused(lambda: drivers.resume(strict, offer, begun_under=lax), code)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_each_limit_is_enforced_at_a_step(kind, name):
    if (kind, name) in DEMANDS_NOTHING:
        return
    offer, lax, strict = case(kind, name)
    code = CODES.get((kind, name), ErrorCode.POLICY_VIOLATION)
    accepted(lambda: drivers.step(lax, offer))
    refused(lambda: drivers.step(strict, offer), code)
    accepted(lambda: drivers.step(lax, offer, begun_under=lax))
    refused(lambda: drivers.step(strict, offer, begun_under=lax), code)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_each_limit_is_enforced_with_two_aggregators(kind, name):
    if (kind, name) in DEMANDS_NOTHING or kind is ClientEnrolment:
        return
    lax = Settings(total=TOTAL)
    part = {PrivacyLimits: "limits", ClientPolicy: "cohort", TotalBudget: "total"}[kind]
    strict = replace(getattr(lax, part), **{name: STRICTEST[kind][name]})

    def work():
        drivers.two_aggregators(replace(lax, **{part: strict}))

    (accepted if (kind, name) in BETWEEN_TWO else refused)(work)


def test_a_sound_session_of_two_aggregators_is_joined():
    accepted(lambda: drivers.two_aggregators(Settings(total=TOTAL)))


def test_every_exemption_names_an_existing_field():
    assert (set(DEMANDS_NOTHING) | set(BETWEEN_TWO)) <= set(FIELDS)


# --- settings ----

KEY = "ed25519:" + "17" * 32
# A line that changes each demand, in the settings file of a client.
SETTINGS = {
    (PrivacyLimits, "max_epsilon"): "policy.max_epsilon=0.5",
    (PrivacyLimits, "max_delta"): "policy.max_delta=1e-9",
    (PrivacyLimits, "statuses"): "policy.grounds=proven",
    (PrivacyLimits, "min_local_noise_stddev"): "policy.min_local_noise_stddev=1",
    (PrivacyLimits, "min_local_noise_multiplier"): (
        "policy.min_local_noise_multiplier=1"
    ),
    (PrivacyLimits, "min_colluder_fraction"): "policy.min_colluder_fraction=0.2",
    (PrivacyLimits, "max_local_epsilon"): "policy.max_local_epsilon=9",
    (ClientPolicy, "profiles"): "policy.profiles=",
    (ClientPolicy, "suites"): "policy.suites=aes-256-ctr",
    (ClientPolicy, "aggregators"): "client.aggregator=sums-1",
    (ClientPolicy, "graphs"): "policy.graphs=ring",
    (ClientPolicy, "min_graph_bits"): "policy.min_graph_bits=50",
    (ClientPolicy, "min_clients"): "policy.min_clients=9",
    (ClientPolicy, "max_clients"): "policy.max_clients=99",
    (ClientPolicy, "min_survivors"): "policy.min_survivors=9",
    (ClientPolicy, "max_dropouts"): "policy.max_dropouts=1",
    (ClientPolicy, "min_colluders"): "policy.min_colluders=1",
    (ClientPolicy, "require_majority"): "policy.require_majority=false",
    (ClientPolicy, "whole_roster"): "policy.whole_roster=true",
    (ClientPolicy, "max_dimension"): "policy.max_dimension=9",
    (ClientPolicy, "max_modulus_bits"): "policy.max_modulus_bits=9",
    (ClientPolicy, "require_noise"): "policy.require_noise=false",
    (TotalBudget, "data"): "policy.data=others",
    (TotalBudget, "epsilon"): "policy.total_epsilon=2",
    (TotalBudget, "delta"): "policy.total_delta=1e-9",
    (TotalBudget, "directory"): "policy.data_dir=elsewhere",
    (TotalBudget, "rollback_mark"): "policy.data_rollback_mark=elsewhere",
    (ClientEnrolment, "seed"): "enrolment.identity=other",
    (ClientEnrolment, "credential"): "enrolment.credential=other",
    (ClientEnrolment, "enrolment_key"): f"enrolment.enrolment_key={KEY}",
    (ClientEnrolment, "max_revocation_days"): "policy.max_revocation_days=1",
}
NO_SETTING_BETWEEN_TWO = {
    (PrivacyLimits, name): "no session between two keeps it"
    for name in (
        "min_local_noise_stddev",
        "min_local_noise_multiplier",
        "max_local_epsilon",
    )
} | {
    (ClientPolicy, "aggregators"): "leader.name and helper.name say it",
    (ClientPolicy, "min_clients"): "it is min_survivors between two",
    (ClientPolicy, "whole_roster"): NO_ROUNDS,
}
TOTAL_LINES = 'data = "d"\ntotal_epsilon = 1.0\ntotal_delta = 1e-6\n'
TLS = 'ca = "a"\ncertificate = "b"\nkey = "c"\n'


def from_file(tmp_path, *overrides):
    """Return the demands of a client of one aggregator, by class."""
    path = tmp_path / "client.toml"
    path.write_text(
        f'[client]\nserver = "localhost:1"\ntask = "t"\n[tls]\n{TLS}'
        '[enrolment]\nidentity = "i"\ncredential = "c"\n'
        f'enrolment_key = "ed25519:{"23" * 32}"\n'
        f"[policy]\nmax_epsilon = 1.0\nmax_delta = 1e-6\n{TOTAL_LINES}"
    )
    found = load_client_settings(path, environment={}, overrides=overrides).settings
    return {
        PrivacyLimits: privacy_limits_of(found.policy),
        ClientPolicy: program.client_policy(found),
        TotalBudget: total_budget(found.policy),
        ClientEnrolment: program.client_enrolment(found),
    }


def from_file_of_two(tmp_path, *overrides):
    """Return the demands of a client of two aggregators, by class."""
    path = tmp_path / "client.toml"
    parts = "".join(
        f'[{name}]\nname = "{name}"\naddress = "{name}:1"\nreceipt_key = "{KEY}"\n{TLS}'
        for name in ("leader", "helper")
    )
    path.write_text(
        f'[client]\ntask = "t"\n{parts}[policy]\nmax_epsilon = 1.0\n'
        f"max_delta = 1e-6\nmin_survivors = 5\n{TOTAL_LINES}"
    )
    found = load_two_aggregator_settings(
        SharingClientSettings, path, environment={}, overrides=overrides
    ).settings
    return {
        PrivacyLimits: two_aggregators_program.sharing_limits(found),
        ClientPolicy: two_aggregators_program.sharing_cohort(found),
        TotalBudget: total_budget(found.policy),
    }


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_demand_has_a_key_in_the_settings(kind, name, tmp_path):
    line = SETTINGS[kind, name]
    if (kind, name) == (ClientPolicy, "require_noise"):
        line = (line, "policy.data=", "policy.total_epsilon=", "policy.total_delta=")
    lines = (line,) if isinstance(line, str) else line
    before, after = from_file(tmp_path)[kind], from_file(tmp_path, *lines)[kind]
    assert getattr(after, name) != getattr(before, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        field
        for field in FIELDS
        if field not in {*BETWEEN_TWO, *NO_SETTING_BETWEEN_TWO}
        and field[0] is not ClientEnrolment
    ],
)
def test_every_demand_has_a_key_in_the_settings_of_two(kind, name, tmp_path):
    before = from_file_of_two(tmp_path)[kind]
    after = from_file_of_two(tmp_path, SETTINGS[kind, name])[kind]
    assert getattr(after, name) != getattr(before, name)
