"""How many connections a process has files for, and where there is a relay."""

import resource
import sys

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.transport.address import Address, address_group
from secagg.transport.handshake_limits import PROBES, AdmissionLimits, raise_file_limit

PUBLIC, LOOPBACK = Address("0.0.0.0", 7400), Address("127.0.0.1", 7400)


@pytest.mark.parametrize(
    ("files", "most"), [(1024, 256), (65_536, 8192), (304, 16), (24_832, 8192)]
)
def test_as_many_connections_as_there_are_files_for(files, most):
    assert AdmissionLimits().connections_within(files) == most


@pytest.mark.parametrize(
    ("connections", "files", "needed"), [(0, 303, 304), (1000, 1024, 3256)]
)
def test_what_does_not_fit_is_refused_and_the_setting_of_the_unit_is_named(
    connections, files, needed
):
    with pytest.raises(ServiceError) as caught:
        AdmissionLimits(connections=connections).connections_within(files)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert f"LimitNOFILE={needed}" in caught.value.next_step


def test_what_is_asked_for_is_what_is_taken():
    assert AdmissionLimits(connections=17).connections_within(65_536) == 17


def test_probes_fit_into_the_files_that_are_kept_for_all_else():
    assert 3 * PROBES.connections_within(1024) <= 128


@pytest.mark.parametrize(
    ("relay", "address", "platform", "has_one"),
    [
        ("auto", PUBLIC, "linux", True),
        ("auto", LOOPBACK, "linux", False),
        ("auto", PUBLIC, "darwin", False),
        ("on", LOOPBACK, "linux", True),
        ("off", PUBLIC, "linux", False),
    ],
)
def test_where_unauthenticated_peers_can_come_there_is_a_relay(
    monkeypatch, relay, address, platform, has_one
):
    monkeypatch.setattr(sys, "platform", platform)
    assert AdmissionLimits(relay=relay).has_relay_at(address) is has_one


def test_a_relay_that_cannot_work_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ServiceError, match="Linux only") as caught:
        AdmissionLimits(relay="on").has_relay_at(PUBLIC)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_the_soft_limit_of_files_becomes_the_hard_one(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *both: asked.append(both))
    assert raise_file_limit() == 4096
    assert asked == [(resource.RLIMIT_NOFILE, (4096, 4096))]


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1024


@pytest.mark.parametrize(
    ("connections", "files", "most"),
    [(0, 65_536, 65_280), (0, 256, 16), (2, 1024, 2), (768, 1024, 768)],
)
def test_without_a_relay_a_connection_takes_one_file(connections, files, most):
    admission = AdmissionLimits(connections=connections)
    assert admission.connections_within(files, through_relay=False) == most


def test_more_connections_than_files_are_refused_without_a_relay_too():
    with pytest.raises(ServiceError, match="769 connections need 1025") as caught:
        AdmissionLimits(connections=769).connections_within(1024, through_relay=False)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_counted_by_what_one_holder_has(address, group):
    assert address_group(address) == group
