"""What a server and a client find out about enrolment before they start."""

import json

import pytest

from secagg.cli import main
from secagg.cli.checks.setup_checks import local_checks
from secagg.cli.checks.setups import ClientSetup, ServerSetup
from secagg.config import load_client_settings, load_server_settings
from secagg.errors import ErrorCode

LOAD = {"client": load_client_settings, "server": load_server_settings}


@pytest.fixture(scope="module")
def pki(tmp_path_factory, settings_texts):
    directory = tmp_path_factory.mktemp("checks")
    for role, text in settings_texts.items():
        (directory / f"{role}.toml").write_text(text)
    tree = str(directory / "pki")
    assert main(["pki", "init", tree, "--clients", "2", "--json"]) == 0
    assert main(["pki", "enrol", "init", str(directory / "other")]) == 0
    return directory


@pytest.fixture
def key(pki, capsys):
    assert main(["pki", "enrol", "list", str(pki / "pki/issuer"), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["enrolment_key"]


@pytest.fixture
def other_key(pki, capsys):
    assert main(["pki", "enrol", "list", str(pki / "other"), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["enrolment_key"]


def checks_of(pki, role, section):
    path, text = pki / "settings.toml", (pki / f"{role}.toml").read_text()
    lines = "\n".join(f'{name} = "{value}"' for name, value in section.items())
    path.write_text(f"{text}\n[enrolment]\n{lines}\n")
    settings = LOAD[role](path, environment={}).settings
    if role == "server":
        setup = ServerSetup(path, settings.host, [settings.own_task])
    else:
        setup = ClientSetup(path, settings)
    return [each for each in local_checks(setup) if each.subject == "enrolment"]


def client(pki, key, **changes):
    section = {
        "identity": "pki/identities/client-1/identity.seed",
        "credential": "pki/identities/client-1/credential.bin",
        "enrolment_key": key,
    }
    return checks_of(pki, "client", section | changes)


def server(pki, key, **changes):
    section = {"enrolment_key": key}
    return checks_of(pki, "server", section | changes)


def test_without_settings_no_enrolment_check_runs(pki):
    assert checks_of(pki, "client", {}) == []
    assert checks_of(pki, "server", {}) == []


def test_an_identity_that_matches_its_certificate_is_described(pki, key):
    (check,) = client(pki, key)
    assert check.error is None
    assert check.found.startswith("serial 1, valid until ")
    assert "WARNING" not in check.found


def test_a_private_key_readable_by_others_is_reported(pki, key):
    seed = pki / "pki/identities/client-1/identity.seed"
    seed.chmod(0o644)
    try:
        (check,) = client(pki, key)
    finally:
        seed.chmod(0o600)
    assert f"other users may read {seed}" in check.found


def test_a_mismatched_identity_is_an_error(pki, key, other_key):
    rows = [
        {"credential": "pki/identities/client-2/credential.bin"},
        {"identity": "pki/identities/client-2/identity.seed"},
        {
            "identity": "pki/identities/client-2/identity.seed",
            "credential": "pki/identities/client-2/credential.bin",
        },
        {"enrolment_key": other_key},
    ]
    for changes in rows:
        (check,) = client(pki, key, **changes)
        assert check.error is not None, changes
        assert check.error.code is ErrorCode.BAD_CREDENTIAL


def test_the_revocation_list_of_the_issuer_is_checked(pki, key, other_key, capsys):
    (check,) = server(pki, key)
    assert (check.found, check.error) == ("task 't': no revocation list", None)
    issuer = pki / "pki/issuer"
    assert main(["pki", "enrol", "revoke", str(issuer), "2"]) == 0
    capsys.readouterr()
    published = pki / "revocations.bin"
    published.write_bytes((issuer / "revocations.bin").read_bytes())
    (check,) = server(pki, key, revocations="revocations.bin")
    assert check.found.startswith("task 't': revocation list 1, made ")
    assert "WARNING" not in check.found
    (check,) = server(pki, key, revocations="pki/issuer/revocations.bin")
    assert f"this user can read {issuer / 'issuer.seed'}" in check.found

    published.with_name("long.bin").write_bytes(bytes((4 << 20) + 1))
    rows = [
        ({"revocations": "none.bin"}, ErrorCode.BAD_CREDENTIAL),
        ({"revocations": "long.bin"}, ErrorCode.BAD_CREDENTIAL),
        ({"revocations": "pki/server.pem"}, ErrorCode.BAD_ENCODING),
        (
            {"enrolment_key": other_key, "revocations": "revocations.bin"},
            ErrorCode.BAD_CREDENTIAL,
        ),
        ({"trust_domain": "b.example"}, ErrorCode.BAD_SETTINGS),
    ]
    for changes, code in rows:
        (check,) = server(pki, key, **changes)
        assert check.error is not None, changes
        assert check.error.code is code, changes
        assert check.error.next_step
