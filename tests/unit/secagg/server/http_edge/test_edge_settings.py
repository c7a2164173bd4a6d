"""What an operator may say of the HTTP edge, and what is refused before it opens."""

import sys
from dataclasses import replace

import pytest

from secagg.config import load_host_settings
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.profiles import Profile
from secagg.server.http_edge.listener import check_origins, edge_packages, host_of
from secagg.server.service import edge_options

TEXT = """[server]
[tls]
ca = "ca.pem"
certificate = "server.pem"
key = "server.key"
[edge]
listen = "127.0.0.1:0"
authority = "sums.example.org"
certificate = "web.pem"
private_key = "web.key"
origins = ["https://app.example.org"]
[enrolment]
trust_domain = "example.org"
enrolment_key = "ed25519:{key}"
"""
KEY = "d2eb993b63143528e70dcdc7eb9ca21010dd769be95250c2c5babfad15d458e2"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    # The package is looked for elsewhere.
    monkeypatch.setattr("secagg.server.service.edge_packages", lambda: None)
    path = tmp_path / "server.toml"
    path.write_text(TEXT.format(key=KEY))
    return load_host_settings(path, environment={}).settings


def test_settings_are_converted_to_edge_options(settings):
    options = edge_options(settings)
    assert options.authority == "sums.example.org"
    assert options.enrolment_key == bytes.fromhex(KEY)
    assert options.origins == ("https://app.example.org",)
    assert options.revocations is None
    assert not options.behind_proxy
    off = replace(settings, edge=replace(settings.edge, listen=None))
    assert edge_options(off) is None


@pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("edge", {"authority": None}, "edge.authority"),
        ("edge", {"certificate": None}, "edge.certificate"),
        ("edge", {"private_key": None}, "edge.private_key"),
        ("edge", {"listen": "7443"}, "edge.listen"),
        ("edge", {"authority": "Sums.example.org"}, "edge.authority"),
        ("edge", {"origins": ("*",)}, "edge.origins"),
        ("enrolment", {"enrolment_key": None}, "enrolment.enrolment_key"),
    ],
)
def test_invalid_edge_settings_are_named(settings, section, change, key):
    broken = replace(getattr(settings, section), **change)
    with pytest.raises(ServiceError, match=key) as caught:
        edge_options(replace(settings, **{section: broken}))
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_profile_1_is_rejected_behind_a_proxy(settings):
    # R10.3-4.
    options = edge_options(settings)
    for profile in Profile:
        options.check_profile(profile)
        proxied = replace(options, behind_proxy=True)
        if profile.has_identities:
            proxied.check_profile(profile)
            continue
        with pytest.raises(ServiceError) as caught:
            proxied.check_profile(profile)
        assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_without_its_extra_the_edge_states_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "secagg.server.http_edge.protocol", raising=False)
    with pytest.raises(ServiceError, match="uvicorn") as caught:
        edge_packages()
    assert caught.value.code is ErrorCode.MISSING_EXTRA
    assert "secagg[edge]" in caught.value.next_step


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("sums.example.org", "sums.example.org"),
        ("sums.example.org:7443", "sums.example.org"),
        ("192.0.2.1:4433", "192.0.2.1"),
        ("[2001:db8::1]:7443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("a", "a"),
    ],
)
def test_the_host_of_an_authority_is_parsed(authority, host):
    assert host_of(authority) == host


@pytest.mark.parametrize(
    "authority",
    ["", "A", "a:443", "a:0", "a:", "a/b", "a b", "https://a", "a\n", "-a", "a:123456"],
)
def test_invalid_authorities_are_rejected(authority):
    with pytest.raises(ServiceError):
        host_of(authority)


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "https://", "https://a/", "https://A", "ftp://a", "a", "https://*.a"],
)
def test_invalid_origins_are_rejected(origin):
    check_origins(["https://a", "http://localhost:3000"])
    with pytest.raises(ServiceError):
        check_origins([origin])
