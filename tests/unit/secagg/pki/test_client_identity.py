import stat
from contextlib import contextmanager

import pytest

from secagg.crypto.entropy import SystemEntropy
from secagg.errors import ErrorCode, SecAggError
from secagg.pki.client_identity import (
    CREDENTIAL,
    IDENTITY_SEED,
    REQUEST,
    load_client_identity,
    new_identity,
    read_request,
    renew_request,
    write_credential,
)
from secagg.pki.credential_issuer import Issuer
from secagg.pki.key_files import key_text, parse_key
from secagg.runtime.files import create_file, replace_file

DOMAIN = "deployment.example"
NOW = 1_000_000
DAY = 24 * 3600


@contextmanager
def refused(code, match):
    with pytest.raises(SecAggError, match=match) as caught:
        yield
    assert caught.value.code is code
    assert caught.value.next_step


@pytest.fixture
def issuer_directory(tmp_path):
    Issuer.create(tmp_path / "issuer", trust_domain=DOMAIN, entropy=SystemEntropy())
    return tmp_path / "issuer"


def enrolled(issuer_directory, directory, name="phone-7"):
    request = new_identity(
        directory, trust_domain=DOMAIN, name=name, now=NOW, entropy=SystemEntropy()
    )
    with Issuer.open(issuer_directory) as issuer:
        issued = issuer.sign(request, now=NOW)
    write_credential(directory / CREDENTIAL, issued)
    return directory


@pytest.fixture
def directory(tmp_path, issuer_directory):
    return enrolled(issuer_directory, tmp_path / "phone-7")


@pytest.fixture
def load(directory, issuer_directory):
    with Issuer.open(issuer_directory) as issuer:
        enrolment_key = issuer.enrolment_key

    def call(**changes):
        arguments = {
            "seed": directory / IDENTITY_SEED,
            "credential": directory / CREDENTIAL,
            "enrolment_key": enrolment_key,
            "trust_domain": DOMAIN,
            "name": "phone-7",
            "now": NOW,
        }
        return load_client_identity(**(arguments | changes))

    return call


def test_an_enrolled_identity_loads(load):
    identity = load()
    assert identity.issued.credential.identity_key == identity.key.public_bytes
    assert identity.issued.credential.name == "phone-7"


def test_a_seed_is_readable_by_its_owner_only_and_in_no_other_file(directory, load):
    seed = directory / IDENTITY_SEED
    assert stat.S_IMODE(seed.stat().st_mode) == 0o600
    secret = seed.read_bytes()
    for name in (REQUEST, CREDENTIAL):
        content = (directory / name).read_bytes()
        assert secret not in content
        assert secret.hex().encode() not in content
    assert secret.hex() not in repr(load())
    assert repr(secret) not in repr(load())


def test_an_identity_is_never_overwritten(directory):
    before = (directory / IDENTITY_SEED).read_bytes()
    with refused(ErrorCode.STORAGE_FAILED, "exists already"):
        new_identity(
            directory, trust_domain=DOMAIN, name="x", now=NOW, entropy=SystemEntropy()
        )
    assert (directory / IDENTITY_SEED).read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "x" * 256])
def test_an_invalid_name_creates_nothing(tmp_path, name):
    for domain, client in ((DOMAIN, name), (name, "phone-7")):
        with refused(ErrorCode.BAD_CREDENTIAL, "is not 1 to 255"):
            new_identity(
                tmp_path / "new",
                trust_domain=domain,
                name=client,
                now=NOW,
                entropy=SystemEntropy(),
            )
    assert not (tmp_path / "new").exists()


def test_a_renewed_request_has_the_same_name_and_key(directory):
    old = read_request(directory / REQUEST)
    new = renew_request(directory, now=NOW + 5)
    assert new == read_request(directory / REQUEST)
    new.check()
    assert (new.name, new.identity_key) == (old.name, old.identity_key)
    assert new.made_at == NOW + 5


def test_a_request_of_another_key_is_not_renewed(directory, tmp_path, issuer_directory):
    other = enrolled(issuer_directory, tmp_path / "other", "phone-8")
    (directory / REQUEST).write_bytes((other / REQUEST).read_bytes())
    with refused(ErrorCode.BAD_CREDENTIAL, "another key"):
        renew_request(directory, now=NOW)
    changed = bytearray(read_request(other / REQUEST).encode())
    changed[-1] ^= 1
    (other / REQUEST).write_bytes(changed)
    with refused(ErrorCode.BAD_SIGNATURE, "not signed"):
        renew_request(other, now=NOW)
    (directory / REQUEST).write_bytes(bytes(5000))
    with refused(ErrorCode.BAD_CREDENTIAL, "larger than 4096 bytes"):
        renew_request(directory, now=NOW)


def test_an_identity_that_does_not_match_its_credential_is_rejected(
    load, directory, tmp_path, issuer_directory
):
    other = enrolled(issuer_directory, tmp_path / "other", "phone-8")
    new = tmp_path / "new"
    Issuer.create(new, trust_domain=DOMAIN, entropy=SystemEntropy())
    with Issuer.open(new) as issuer:
        foreign = issuer.enrolment_key
    rows = [
        ({"seed": other / IDENTITY_SEED}, "another key than"),
        ({"credential": other / CREDENTIAL}, "another key than"),
        ({"trust_domain": "b.example"}, "trust domain"),
        ({"name": "phone-9"}, "names 'phone-7'"),
        ({"enrolment_key": foreign}, "does not match message and signer"),
        ({"now": NOW + 91 * DAY}, "valid until"),
        ({"now": NOW - 3601}, "becomes valid"),
        ({"seed": directory / "none"}, "cannot read the private key"),
        ({"seed": directory / REQUEST}, "32 bytes"),
        ({"credential": directory / "none"}, "cannot read"),
    ]
    for changes, match in rows:
        with refused(ErrorCode.BAD_CREDENTIAL, match):
            load(**changes)
    with refused(ErrorCode.BAD_ENCODING, "credential is malformed"):
        load(credential=directory / REQUEST)


def test_an_enrolment_key_is_written_and_read(load):
    key = load().enrolment_key
    text = key_text(key)
    assert text == f"ed25519:{key.hex()}"
    assert parse_key(text) == key
    neutral = key_text(bytes([1] + 31 * [0]))
    for bad in (
        key.hex(),
        text.upper(),
        text[:-1],
        text + "0",
        text + "\n",
        "rsa:" + key.hex(),
        neutral,
    ):
        with refused(ErrorCode.BAD_SETTINGS, "is not a public key"):
            parse_key(bad)


# --- files ----------------------------------------------------------------------------


def test_a_file_is_created_once_and_replaced_atomically(tmp_path):
    path = tmp_path / "file"
    create_file(path, b"one", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create_file(path, b"two", mode=0o600)
    assert path.read_bytes() == b"one"
    replace_file(path, b"three")
    assert path.read_bytes() == b"three"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("write", [create_file, replace_file])
def test_a_failed_write_leaves_the_previous_content(tmp_path, monkeypatch, write):
    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    if write is replace_file:
        path.write_bytes(b"old")
    monkeypatch.setattr("secagg.runtime.files.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new", mode=0o600)
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == ({"file": b"old"} if write is replace_file else {})


def test_leftovers_of_a_crashed_process_are_ignored(tmp_path):
    (tmp_path / ".file.partial").write_bytes(b"half")
    create_file(tmp_path / "file", b"whole", mode=0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
