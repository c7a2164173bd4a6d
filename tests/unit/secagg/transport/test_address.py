import socket

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.transport.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7000", "127.0.0.1", 7000),
        ("aggregator.example:443", "aggregator.example", 443),
        ("[::1]:0", "::1", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
    ],
)
def test_an_address_round_trips_as_text(text, host, port):
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "7000", ":7000", "host", "host:", "host:x", "host:-1", "host:65536"),
        *("::1:70", "[]:1", "host:¹", "host: 1"),
    ],
)
def test_an_invalid_address_is_bad_settings(text):
    with pytest.raises(ServiceError, match=r"client\.server: expected host") as caught:
        Address.parse(text, name="client.server")
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "127.0.0.1:7000" in caught.value.next_step


def test_loopback_is_detected_by_address_or_name():
    assert Address("127.0.0.9", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert Address("localhost", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert not Address("localhost.example.org", 1).is_loopback


def test_a_port_in_use_is_distinguished_from_a_foreign_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        why = Address("127.0.0.1", taken.getsockname()[1]).bind_error()
    assert why.code is ErrorCode.PORT_IN_USE
    # TEST-NET-1 belongs to no machine.
    why = Address("192.0.2.1", 7000).bind_error()
    assert why.code is ErrorCode.BAD_SETTINGS
    assert "192.0.2.1:7000" in str(why)
