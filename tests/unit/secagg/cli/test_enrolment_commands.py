"""`secagg pki enrol` and `secagg pki identity`, as people and programs use them."""

import json
import stat
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.pki.client_identity import load_client_identity
from secagg.pki.key_files import parse_key

EXIT_STORAGE_FAILED = 55
EXIT_BAD_CREDENTIAL = 38
EXIT_BAD_CERTIFICATE = 74
EXIT_BAD_ENCODING = 36


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        assert main(["pki", *words, "--json"]) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


@pytest.fixture
def issuer(run):
    return run("enrol", "init", "issuer", "--trust-domain", "example.org")


def create_identity(run, name="hospital-a", directory="id"):
    return run(
        "identity",
        "new",
        directory,
        "--name",
        name,
        "--trust-domain",
        "example.org",
    )


def load(issuer, *, now, credential="id/credential.bin"):
    return load_client_identity(
        seed=Path("id/identity.seed"),
        credential=Path(credential),
        enrolment_key=parse_key(issuer["enrolment_key"]),
        trust_domain="example.org",
        name="hospital-a",
        now=now,
    )


def test_a_client_is_enrolled_renewed_and_revoked(run, issuer, json_answer):
    json_answer("pki enrol init", issuer)
    request = create_identity(run)
    json_answer("pki identity new", request)
    words = ("enrol", "sign", "issuer", request["request"], "--days", "7", "--key")
    error = run(*words, issuer["enrolment_key"], code=EXIT_BAD_CREDENTIAL)["error"]
    assert request["identity_key"] in error["message"]
    words = (*words, request["identity_key"], "--name")
    error = run(*words, "hospital-b", code=EXIT_BAD_CREDENTIAL)["error"]
    assert "'hospital-a', not 'hospital-b'" in error["message"]
    signed = run(*words, "hospital-a")
    json_answer("pki enrol sign", signed)
    assert (signed["serial"], signed["name"]) == (1, "hospital-a")
    assert signed["identity_key"] == request["identity_key"]
    assert signed["not_after"] - signed["not_before"] == 7 * 24 * 3600 + 3600
    for now in ("not_before", "not_after"):
        load(issuer, now=signed[now])

    renewed = run("enrol", "renew", "issuer", "hospital-a")
    json_answer("pki enrol renew", renewed)
    assert (renewed["serial"], renewed["file"]) == (2, "hospital-a.credential.bin")
    load(issuer, now=renewed["not_after"], credential=renewed["file"])
    again = run("identity", "renew", "id")
    json_answer("pki identity renew", again)
    assert again["identity_key"] == request["identity_key"]
    third = run("enrol", "sign", "issuer", "id/request.bin", "--output", "third.bin")
    assert (third["serial"], third["file"]) == (3, "third.bin")

    revoked = run("enrol", "revoke", "issuer", "2")
    json_answer("pki enrol revoke", revoked)
    assert (revoked["number"], revoked["serials"]) == (1, [1, 2, 3])
    listed = run("enrol", "list", "issuer")
    json_answer("pki enrol list", listed)
    assert listed["enrolment_key"] == issuer["enrolment_key"]
    assert listed["revocation_number"] == 1
    assert [each["state"] for each in listed["credentials"]] == ["revoked"] * 3
    for words in (
        ("enrol", "renew", "issuer", "hospital-a"),
        ("enrol", "sign", "issuer", "id/request.bin"),
    ):
        error = run(*words, code=EXIT_BAD_CREDENTIAL)["error"]
        assert "was revoked" in error["message"]
        assert error["next_step"]
    assert run("enrol", "revoke", "issuer")["number"] == 2


def test_no_output_contains_a_secret_of_the_issuer(run, issuer, capsys):
    create_identity(run)
    run("enrol", "sign", "issuer", "id/request.bin")
    for words in (
        ["enrol", "list", "issuer"],
        ["identity", "renew", "id"],
        ["enrol", "revoke", "issuer", "1"],
        ["enrol", "list", "issuer"],
    ):
        assert main(["pki", *words]) == 0
    said = capsys.readouterr().out
    assert "ed25519:" in said
    for seed in ("issuer/issuer.seed", "id/identity.seed"):
        secret = Path(seed).read_bytes()
        assert stat.S_IMODE(Path(seed).stat().st_mode) == 0o600
        assert secret.hex() not in said
    assert issuer["enrolment_key"] in said


def test_mistakes_are_rejected_and_change_nothing(run, issuer):
    create_identity(run)
    before = Path("id/identity.seed").read_bytes()
    rows = [
        (("enrol", "init", "issuer"), EXIT_STORAGE_FAILED),
        (("identity", "new", "id", "--name", "x"), EXIT_STORAGE_FAILED),
        (("identity", "new", "new", "--name", "a b"), EXIT_BAD_CERTIFICATE),
        (("identity", "new", "new", "--name", ".."), EXIT_BAD_CERTIFICATE),
        (("identity", "renew", "nowhere"), EXIT_BAD_CREDENTIAL),
        (("enrol", "sign", "issuer", "nowhere.bin"), EXIT_BAD_CREDENTIAL),
        (("enrol", "sign", "issuer", "id/identity.seed"), EXIT_BAD_ENCODING),
        (("enrol", "sign", "id", "id/request.bin"), EXIT_BAD_CREDENTIAL),
        (("enrol", "renew", "issuer", "unknown"), EXIT_BAD_CREDENTIAL),
        (("enrol", "revoke", "issuer", "1"), EXIT_BAD_CREDENTIAL),
        (
            ("enrol", "sign", "issuer", "id/request.bin", "--days", "400"),
            EXIT_BAD_CREDENTIAL,
        ),
    ]
    for words, code in rows:
        assert run(*words, code=code)["error"]["next_step"], words
    assert Path("id/identity.seed").read_bytes() == before
    assert not Path("new").exists()
    assert run("enrol", "list", "issuer")["credentials"] == []
    assert issuer["trust_domain"] == "example.org"


def test_a_development_tree_contains_everything_and_keeps_the_issuer_apart(run):
    made = run("init", "dev", "--clients", "2", "--trust-domain", "example.org")
    names = {path.name for path in Path("dev/issuer").iterdir()}
    assert names == {"issued.jsonl", "issuer.seed"}
    for number in (1, 2):
        place = Path(f"dev/identities/client-{number}")
        assert str(place / "credential.bin") in made["files"]
        identity = load_client_identity(
            seed=place / "identity.seed",
            credential=place / "credential.bin",
            enrolment_key=parse_key(made["enrolment_key"]),
            trust_domain="example.org",
            name=f"client-{number}",
            now=run("enrol", "list", "dev/issuer")["credentials"][0]["not_before"],
        )
        assert identity.issued.credential.serial == number
