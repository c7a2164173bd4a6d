"""The file of a node, and the clients that a process keeps open by it."""

import importlib
import os
import re
import sys
from dataclasses import replace

import pytest
from secagg_testing.carrier import memory_directory, prepared
from secagg_testing.cohorts import signing_parameters_for

from secagg.crypto.cipher_suite import CipherSuite
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.integrations.flower.open_clients import OpenClients
from secagg.integrations.flower.task import SecureTask
from secagg.integrations.flower.terms import (
    SETTING,
    node_name,
    terms_of_node,
    terms_of_simulation,
)
from secagg.protocol.policy import ExactSumWaiver
from secagg.protocol.profiles import Profile
from secagg.storage.directories import FileLock

FILE = """
[node]
tasks = ["digits", "words"]
state_dir = "state"
rollback_mark = "elsewhere/mark"
[policy]
max_epsilon = 4.0
max_delta = 1e-6
min_clients = 5
max_clients = 50
min_survivors = 4
max_dropouts = 2
max_dimension = 1000
max_modulus_bits = 30
min_local_noise_stddev = 0.1
max_local_epsilon = 9.0
suites = ["aes-256-ctr"]
"""
TOTAL = 'data = "scans"\ntotal_epsilon = 8.0\ntotal_delta = 1e-5\ndata_dir = "claims"\n'


@pytest.fixture
def home():
    with memory_directory() as place:
        yield place


def terms_in(home, text=FILE):
    path = home / "terms.toml"
    path.write_text(text)
    return terms_of_node({SETTING: str(path)})


def test_a_node_accepts_the_terms_of_its_file(home):
    terms = terms_in(home, FILE + TOTAL)
    assert terms.tasks == {"digits", "words"}
    assert terms.state_dir == home / "state"
    assert terms.rollback_mark == home / "elsewhere" / "mark"
    assert not terms.evaluate
    assert (terms.privacy_limits.max_epsilon, terms.privacy_limits.max_delta) == (
        4.0,
        1e-6,
    )
    assert terms.privacy_limits.min_local_noise_stddev == 0.1
    assert terms.privacy_limits.max_local_epsilon == 9.0
    cohort = terms.cohort
    assert (cohort.min_clients, cohort.max_clients, cohort.min_survivors) == (5, 50, 4)
    assert (cohort.max_dropouts, cohort.max_dimension) == (2, 1000)
    assert cohort.max_modulus_bits == 30
    assert cohort.suites == {CipherSuite.AES_256_CTR}
    assert cohort.profiles == {Profile.HONEST_CURIOUS_SERVER}
    assert terms.total.data == "scans"
    assert terms.total.directory == home / "claims"


def test_a_changed_terms_file_is_read_again(home):
    assert terms_in(home) is terms_of_node({SETTING: str(home / "terms.toml")})
    stricter = terms_in(home, FILE.replace("max_epsilon = 4.0", "max_epsilon = 0.5"))
    assert stricter.privacy_limits.max_epsilon == 0.5
    (home / "terms.toml").unlink()
    with pytest.raises(ServiceError, match="cannot read"):
        terms_of_node({SETTING: str(home / "terms.toml")})


def test_exact_sums_are_accepted_only_with_the_full_sentence(home):
    without = re.sub("max_(epsilon|delta).*\n", "", FILE)
    with pytest.raises(ServiceError, match="how much"):
        terms_in(home, without)
    without += "require_noise = false\n"
    with pytest.raises(ServiceError, match="limits noise"):
        terms_in(home, without)
    without = re.sub("m.._local.*\n", "", without)
    with pytest.raises(ServiceError, match="limits noise"):
        terms_in(home, without + "max_delta = 1e-6\n")
    terms = terms_in(home, without)
    assert isinstance(terms.privacy_limits, ExactSumWaiver)
    assert not terms.cohort.require_noise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE.replace("max_epsilon", "max_epsilom"), "Did you mean max_epsilon"),
        (FILE.replace('tasks = ["digits", "words"]\n', ""), "node.tasks is missing"),
        (FILE.replace('state_dir = "state"\n', ""), "node.state_dir is missing"),
        (FILE + "profiles = ['malicious-server']\n", "unknown key policy.profiles"),
        (FILE.replace("aes-256", "aes-255"), "policy.suites"),
        (FILE + TOTAL + "require_noise = false\n", "no epsilon bounds"),
        ("[node", "not valid TOML"),
    ],
)
def test_an_incomplete_file_is_rejected(home, text, words):
    with pytest.raises(ServiceError) as caught:
        terms_in(home, text)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert words in f"{caught.value} {caught.value.next_step}"


@pytest.mark.parametrize("config", [{}, {SETTING: ""}, {SETTING: 1}])
def test_a_node_without_a_file_answers_nothing(config):
    with pytest.raises(ServiceError, match="its operator") as caught:
        terms_of_node(config)
    assert "--node-config" in caught.value.next_step


def test_a_simulation_does_not_use_the_budget_of_a_node(home):
    (home / "terms.toml").write_text(FILE + TOTAL)
    names = node_name(1), node_name(2)
    first, second = (terms_of_simulation(home, name) for name in names)
    assert first.state_dir == home / "state" / names[0]
    assert first.rollback_mark == home / "marks" / names[0]
    assert second.state_dir == home / "state" / names[1]
    assert first.total.directory is None
    assert first.privacy_limits == second.privacy_limits


def test_names_of_nodes_sort_like_their_numbers():
    assert node_name(9) < node_name(10) < node_name(2**64 - 1)


# --- the clients that stay open -------------------------------------------------------


def test_a_client_stays_open_until_its_terms_or_its_name_change(home):
    opened, terms = OpenClients(), terms_in(home)
    with opened.client(terms, "a") as first, opened.client(terms, "a") as same:
        assert first is same
    stricter = replace(terms, tasks=frozenset({"digits"}))
    with opened.client(stricter, "a") as second:
        assert second is not first
    with opened.client(stricter, "b") as third:
        assert third is not second
    with pytest.raises(LocalProtocolError, match="not open"):
        second.sessions_left("digits")
    opened.close()
    with pytest.raises(LocalProtocolError, match="not open"):
        third.sessions_left("digits")
    with opened.client(terms, "a") as again:
        assert again.sessions_left("digits") is None
    opened.close()


def failing(opened, terms, error):
    with pytest.raises(type(error)), opened.client(terms, "a") as client:
        raise error
    return client


def test_only_a_client_with_a_failed_disk_is_opened_again(home):
    opened, terms = OpenClients(), terms_in(home)
    kept = failing(opened, terms, ErrorCode.POLICY_VIOLATION.error("no"))
    assert failing(opened, terms, ErrorCode.POLICY_VIOLATION.error("no")) is kept
    failed = failing(opened, terms, ErrorCode.STORAGE_FAILED.error("full"))
    assert failed is kept
    with opened.client(terms, "a") as client:
        assert client is not failed
    opened.close()


def test_a_second_process_of_a_node_is_rejected_while_the_first_is_open(
    home, monkeypatch
):
    monkeypatch.setattr(FileLock, "acquire_within", lambda lock, _: lock.acquire())
    opened, other, terms = OpenClients(), OpenClients(), terms_in(home)
    with (
        opened.client(terms, "a"),
        pytest.raises(ServiceError, match="held by process") as caught,
        other.client(terms, "a"),
    ):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    opened.close()
    with other.client(terms, "a") as client:
        assert client.sessions_left("digits") is None
    other.close()


def test_a_forked_process_uses_no_client_of_its_parent(home, monkeypatch):
    opened, terms = OpenClients(), terms_in(home)
    with opened.client(terms, "a") as parents:
        pass
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        opened.close()
    assert opened._entries == {}
    assert parents.sessions_left("digits") is None  # and it was not closed
    parents.close()


# --- tasks ----------------------------------------------------------------------------


def test_a_task_has_the_dimension_of_its_model_and_tolerates_losses():
    class Array:
        dtype, shape, stype = "float32", (4, 3), "numpy.ndarray"

    task = SecureTask.planned(
        "digits",
        {"a": Array, "b": Array},
        clients=8,
        epsilon=8.0,
        delta=1e-5,
        rounds=3,
        l2_clip=0.5,
        train_seconds=900,
        stage_seconds=30,
        spare=1,
    )
    parameters = task.prepared.parameters
    assert task.prepared.noised.dim == 24
    assert (parameters.min_clients, parameters.max_clients) == (7, 8)
    assert parameters.min_survivors == 7
    assert dict(parameters.deadlines)["masked_input"] == 900
    assert dict(parameters.deadlines)["unmasking"] == 30
    budget = task.prepared.noised.budget
    assert (budget.participations, budget.spare) == (3, 1)


def test_an_unsupported_task_is_rejected():
    signed = prepared(signing_parameters_for(4, dimension=5))
    with pytest.raises(LocalProtocolError, match="no node knows the keys"):
        SecureTask("digits", signed)
    with pytest.raises(LocalProtocolError, match="a task has a name"):
        SecureTask("", signed)
    with pytest.raises(LocalProtocolError, match="PreparedTask"):
        SecureTask("digits", None)


# --- the extra ------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["grid", "mod", "wire"])
def test_without_flower_the_extra_is_named(module, monkeypatch):
    name = f"secagg.integrations.flower.{module}"
    for each in [*sys.modules]:
        if each == name or each.partition(".")[0] == "flwr":
            monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(ServiceError, match="Flower is not installed") as caught:
        importlib.import_module(name)
    assert caught.value.code is ErrorCode.MISSING_EXTRA
    assert "secagg[flower]" in caught.value.next_step
