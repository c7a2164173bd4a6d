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
def test_connections_are_limited_by_available_files(files, most):
    assert AdmissionLimits().connections_within(files) == most


@pytest.mark.parametrize(
    ("connections", "files", "needed"), [(0, 303, 304), (1000, 1024, 3256)]
)
def test_too_many_connections_are_rejected_and_the_unit_setting_named(
    connections, files, needed
):
    with pytest.raises(ServiceError) as caught:
        AdmissionLimits(connections=connections).connections_within(files)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert f"LimitNOFILE={needed}" in caught.value.next_step


def test_a_configured_number_of_connections_is_used():
    assert AdmissionLimits(connections=17).connections_within(65_536) == 17


def test_probe_connections_fit_into_the_reserved_files():
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
def test_a_relay_is_used_where_unauthenticated_peers_can_connect(
    monkeypatch, relay, address, platform, has_one
):
    monkeypatch.setattr(sys, "platform", platform)
    assert AdmissionLimits(relay=relay).has_relay_at(address) is has_one


def test_a_relay_on_an_unsupported_platform_is_rejected(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ServiceError, match="Linux only") as caught:
        AdmissionLimits(relay="on").has_relay_at(PUBLIC)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_the_soft_file_limit_is_raised_to_the_hard_limit(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *both: asked.append(both))
    assert raise_file_limit() == 4096
    assert asked == [(resource.RLIMIT_NOFILE, (4096, 4096))]


def test_a_file_limit_that_cannot_be_raised_is_kept(monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1024


@pytest.mark.parametrize(
    ("connections", "files", "most"),
    [(0, 65_536, 65_280), (0, 256, 16), (2, 1024, 2), (768, 1024, 768)],
)
def test_a_connection_without_a_relay_uses_one_file(connections, files, most):
    admission = AdmissionLimits(connections=connections)
    assert admission.connections_within(files, through_relay=False) == most


def test_more_connections_than_files_are_rejected_without_a_relay():
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
def test_addresses_are_grouped_by_their_assigned_prefix(address, group):
    assert address_group(address) == group
