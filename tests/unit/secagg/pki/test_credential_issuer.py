import dataclasses
import json
import stat
from contextlib import contextmanager

import pytest

from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, SecAggError
from secagg.pki.credential_issuer import ISSUER_SEED, RECORD, REVOCATIONS, Issuer
from secagg.pki.key_files import key_text
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS
from secagg.protocol.enrolment import (
    CredentialRequest,
    EnrolmentRules,
    RevocationList,
    check_credential,
    enrolment_tag,
)

DOMAIN = "deployment.example"
DAY = 24 * 3600
NOW = 1_000_000


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "issuer"
    Issuer.create(made, trust_domain=DOMAIN, entropy=SystemEntropy())
    return made


def new_key():
    return IdentityKey.generate(SystemEntropy())


def request(name, key=None, *, domain=DOMAIN):
    return CredentialRequest.make(
        key or new_key(), trust_domain=domain, name=name, made_at=NOW
    )


@contextmanager
def refused(code, match):
    with pytest.raises(SecAggError, match=match) as caught:
        yield
    assert caught.value.code is code
    assert caught.value.next_step


def signed(directory, *args, now=NOW, days=90):
    with Issuer.open(directory) as issuer:
        return issuer.sign(*args, now=now, days=days)


def revoked(directory, *serials, now=NOW):
    with Issuer.open(directory) as issuer:
        return issuer.revoke(serials, now=now)


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- issuing --------------------------------------------------------------------------


def test_an_issued_credential_passes_the_checks_of_a_session(directory):
    key = new_key()
    issued = signed(directory, request("phone-7", key), days=2)
    with Issuer.open(directory) as issuer:
        enrolment_key = issuer.enrolment_key
    assert issued.trust_domain == DOMAIN
    assert issued.credential.identity_key == key.public_bytes
    assert (issued.credential.not_before, issued.credential.not_after) == (
        NOW - 3600,
        NOW + 2 * DAY,
    )
    # Also at once, by a clock that is an hour behind.
    for session_end in (NOW - 3600, NOW + 2 * DAY):
        rules = EnrolmentRules(
            trust_domain=DOMAIN, enrolment_key=enrolment_key, session_end=session_end
        )
        check_credential(issued.credential, rules, identity="phone-7")


def test_serials_continue_from_the_last_one(directory):
    serials = [signed(directory, request(f"c{i}")).credential.serial for i in range(3)]
    with Issuer.open(directory) as issuer:
        serials.append(issuer.sign(request("c3"), now=NOW).credential.serial)
        serials.append(issuer.sign(request("c4"), now=NOW).credential.serial)
    assert serials == [1, 2, 3, 4, 5]


def test_the_key_can_be_read_by_its_owner_only(directory):
    for name in (ISSUER_SEED, RECORD):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (directory / ISSUER_SEED).chmod(0o640)
    with (
        refused(ErrorCode.BAD_CREDENTIAL, "others than its owner"),
        Issuer.open(directory),
    ):
        pass


def test_an_issuer_never_overwrites_another(directory):
    before = files(directory)
    with refused(ErrorCode.STORAGE_FAILED, "exists already"):
        Issuer.create(directory, trust_domain=DOMAIN, entropy=SystemEntropy())
    assert files(directory) == before


@pytest.mark.parametrize("domain", ["", "a/b", "x" * 256])
def test_a_bad_trust_domain_is_refused(tmp_path, domain):
    with refused(ErrorCode.BAD_CREDENTIAL, "is not 1 to 255"):
        Issuer.create(tmp_path / "x", trust_domain=domain, entropy=SystemEntropy())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("days", [0, -1, 399])
def test_a_bad_duration_is_refused(directory, days):
    with refused(ErrorCode.BAD_CREDENTIAL, "1 to 398 days"):
        signed(directory, request("phone-7"), days=days)


def test_a_request_that_its_key_did_not_sign_is_refused(directory):
    good = request("phone-7")
    data = bytearray(good.encode())
    data[-1] ^= 1
    with refused(ErrorCode.BAD_SIGNATURE, "not signed by the key"):
        signed(directory, CredentialRequest.decode(bytes(data)))


def test_a_request_made_by_hand_for_an_invalid_name_is_refused(directory):
    key = new_key()
    unsigned = dataclasses.replace(request("phone-7", key), name="a b", signature=b"")
    tag = enrolment_tag("client", "enrolment request")
    by_hand = dataclasses.replace(unsigned, signature=key.sign(tag + unsigned.encode()))
    by_hand.check()
    with refused(ErrorCode.BAD_CREDENTIAL, "is not 1 to 255"):
        signed(directory, by_hand)
    with Issuer.open(directory) as issuer:
        assert issuer.issued() == ()


def test_a_request_for_a_key_other_than_the_confirmed_one_is_rejected(directory):
    asked = request("phone-7")
    with Issuer.open(directory) as issuer:
        with refused(ErrorCode.BAD_CREDENTIAL, "asks for another key"):
            issuer.sign(asked, now=NOW, confirmed=new_key().public_bytes)
        assert issuer.issued() == ()
        issuer.sign(asked, now=NOW, confirmed=asked.identity_key)


def test_a_request_of_another_client_than_expected_is_refused(directory):
    asked = request("phone-7")
    with Issuer.open(directory) as issuer:
        with refused(ErrorCode.BAD_CREDENTIAL, "name 'phone-7', not 'phone-8'"):
            issuer.sign(asked, now=NOW, name="phone-8")
        assert issuer.issued() == ()
        issuer.sign(asked, now=NOW, name="phone-7")


def test_a_request_for_another_trust_domain_is_refused(directory):
    with refused(ErrorCode.BAD_CREDENTIAL, "trust domain 'b.example'"):
        signed(directory, request("phone-7", domain="b.example"))


def test_a_name_has_one_live_key(directory):
    key = new_key()
    first = signed(directory, request("phone-7", key), days=1)
    with refused(ErrorCode.BAD_CREDENTIAL, "enrolled with another key"):
        signed(directory, request("phone-7"))
    # The last second of its validity counts, and the next one begins an hour back.
    last = first.credential.not_after + CLOCK_TOLERANCE_SECONDS
    with refused(ErrorCode.BAD_CREDENTIAL, "enrolled with another key"):
        signed(directory, request("phone-7"), now=last)
    second = signed(directory, request("phone-7"), now=last + 1).credential
    assert (second.serial, second.not_before) == (2, first.credential.not_after + 1)


def test_a_revoked_key_can_be_replaced_under_the_same_name(directory):
    signed(directory, request("phone-7"))
    revoked(directory, 1)
    assert signed(directory, request("phone-7")).credential.serial == 2


def test_a_key_has_one_live_name(directory):
    key = new_key()
    signed(directory, request("phone-7", key), days=1)
    with refused(ErrorCode.BAD_CREDENTIAL, "enrolled as 'phone-7'"):
        signed(directory, request("phone-8", key))
    last = NOW + DAY + CLOCK_TOLERANCE_SECONDS  # no session takes it for both
    with refused(ErrorCode.BAD_CREDENTIAL, "enrolled as 'phone-7'"):
        signed(directory, request("phone-8", key), now=last)
    later = signed(directory, request("phone-8", key), now=last + 1)
    assert later.credential.name == "phone-8"


def test_a_revoked_key_is_never_enrolled_again(directory):  # R2.1-7
    key = new_key()
    old = request("phone-7", key)
    signed(directory, old, days=1)
    revoked(directory, 1)
    for again in (old, request("phone-8", key)):
        with refused(ErrorCode.BAD_CREDENTIAL, "was revoked with serial 1"):
            signed(directory, again, now=NOW + 10 * DAY)
    with (
        refused(ErrorCode.BAD_CREDENTIAL, "was revoked with serial 1"),
        Issuer.open(directory) as issuer,
    ):
        issuer.renew("phone-7", now=NOW)


def test_a_credential_is_renewed_for_the_last_key_of_a_name(directory):
    signed(directory, request("phone-7"), days=1)
    key = new_key()
    signed(directory, request("phone-7", key), now=NOW + 2 * DAY)
    with Issuer.open(directory) as issuer:
        renewed = issuer.renew("phone-7", now=NOW + 3 * DAY, days=5).credential
    assert (renewed.serial, renewed.identity_key) == (3, key.public_bytes)
    assert renewed.not_after == NOW + 8 * DAY
    with (
        refused(ErrorCode.BAD_CREDENTIAL, "never had a credential"),
        Issuer.open(directory) as issuer,
    ):
        issuer.renew("phone-9", now=NOW)


# --- revoking -------------------------------------------------------------------------


def test_revoking_creates_the_next_complete_list(directory):
    for i in range(4):
        signed(directory, request(f"c{i}"))
    first = revoked(directory, 3)
    second = revoked(directory, 1, 4, now=NOW + 1)
    third = revoked(directory, now=NOW + 2)
    assert [each.number for each in (first, second, third)] == [1, 2, 3]
    assert [each.serials for each in (first, second, third)] == [
        (3,),
        (1, 3, 4),
        (1, 3, 4),
    ]
    assert third.made_at == NOW + 2
    assert RevocationList.decode((directory / REVOCATIONS).read_bytes()) == third
    with Issuer.open(directory) as issuer:
        third.check(trust_domain=DOMAIN, enrolment_key=issuer.enrolment_key)
        assert issuer.revocations == third
        assert [each.is_revoked for each in issuer.issued()] == [
            True,
            False,
            True,
            True,
        ]


def test_revoking_revokes_all_credentials_of_the_key(directory):
    key = new_key()
    signed(directory, request("phone-7", key))
    signed(directory, request("phone-8"))
    signed(directory, request("phone-7", key))
    assert revoked(directory, 3).serials == (1, 3)


@pytest.mark.parametrize("serial", [0, 2, -1])
def test_a_serial_that_was_never_issued_cannot_be_revoked(directory, serial):
    signed(directory, request("phone-7"))
    with refused(ErrorCode.BAD_CREDENTIAL, "was never issued"):
        revoked(directory, serial)
    assert not (directory / REVOCATIONS).exists()


def test_a_serial_is_revoked_once(directory):
    signed(directory, request("phone-7"))
    revoked(directory, 1)
    with refused(ErrorCode.BAD_CREDENTIAL, "is revoked already"):
        revoked(directory, 1)


# --- backups, crashes, damage ---------------------------------------------------------


def test_a_restored_record_is_refused(directory):
    signed(directory, request("c0"))
    signed(directory, request("c1"))
    old = (directory / RECORD).read_bytes()
    revoked(directory, 2)
    (directory / RECORD).write_bytes(old)
    with refused(ErrorCode.RESTORED_STATE, "older record"), Issuer.open(directory):
        pass


def test_a_record_that_ends_below_a_revoked_serial_is_rejected(directory):
    # The same number of lists, but fewer credentials than the list knows.
    signed(directory, request("c0"))
    path = directory / RECORD
    old = path.read_bytes()
    signed(directory, request("c1"))
    revoked(directory, 2)
    path.write_bytes(old + b'{"made_at":1000000,"revocation":1,"serials":[1]}\n')
    with refused(ErrorCode.RESTORED_STATE, "older record"), Issuer.open(directory):
        pass


def test_a_lost_or_restored_list_is_created_again(directory):
    signed(directory, request("c0"))
    signed(directory, request("c1"))
    first = revoked(directory, 1)
    path = directory / REVOCATIONS
    older = path.read_bytes()
    newest = revoked(directory, 2)
    for content in (older, None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with Issuer.open(directory) as issuer:
            assert issuer.revocations == newest
        assert path.read_bytes() == newest.encode() != first.encode()


def test_a_list_of_another_issuer_is_rejected(directory, tmp_path):
    other = tmp_path / "other"
    Issuer.create(other, trust_domain=DOMAIN, entropy=SystemEntropy())
    signed(directory, request("c0"))
    signed(other, request("c0"))
    revoked(directory, 1)
    revoked(other, 1)
    (directory / REVOCATIONS).write_bytes((other / REVOCATIONS).read_bytes())
    with refused(ErrorCode.STATE_DAMAGED, "not signed"), Issuer.open(directory):
        pass
    (directory / REVOCATIONS).write_bytes(b"\1")
    with (
        refused(ErrorCode.STATE_DAMAGED, "is not this issuer's list"),
        Issuer.open(directory),
    ):
        pass


def test_a_different_list_with_the_same_number_is_rejected(directory):
    signed(directory, request("c0"))
    signed(directory, request("c1"))
    before = (directory / RECORD).read_bytes()
    revoked(directory, 2)
    (directory / RECORD).write_bytes(
        before + b'{"made_at":1000000,"revocation":1,"serials":[1]}\n'
    )
    with (
        refused(ErrorCode.STATE_DAMAGED, "not match the record"),
        Issuer.open(directory),
    ):
        pass


def change_serial(lines):
    lines[1] = lines[1].replace(b'"serial":1', b'"serial":2')


def change_name(lines):
    lines[1] = lines[1].replace(b"c0", b"c9")


def swap(lines):
    lines[1], lines[2] = lines[2], lines[1]


def drop_header(lines):
    del lines[0]


def spaces(lines):
    lines[1] = lines[1].replace(b":", b": ")


def foreign_key(lines):
    header = json.loads(lines[0])
    header["enrolment_key"] = key_text(new_key().public_bytes)
    lines[0] = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def second_header(lines):
    lines.insert(2, lines[0])


def no_json(lines):
    lines[2] = b"\xff"


def other_values(lines):
    lines[2] = b'{"serial":2}'


def skipped_list(lines):
    lines[3] = lines[3].replace(b'"revocation":1', b'"revocation":2')


def unknown_serial(lines):
    lines[3] = lines[3].replace(b"[1]", b"[3]")


def negative_time(lines):
    lines[3] = lines[3].replace(b'"made_at":', b'"made_at":-')


def revoked_twice(lines):
    lines.append(lines[3].replace(b'"revocation":1', b'"revocation":2'))


def no_line(lines):
    lines.clear()


@pytest.mark.parametrize(
    "damage",
    [
        change_serial,
        change_name,
        swap,
        drop_header,
        spaces,
        foreign_key,
        second_header,
        no_json,
        other_values,
        skipped_list,
        unknown_serial,
        negative_time,
        revoked_twice,
        no_line,
    ],
)
def test_a_modified_record_is_rejected(directory, damage):
    signed(directory, request("c0"))
    signed(directory, request("c1"))
    revoked(directory, 1)
    path = directory / RECORD
    lines = path.read_bytes().splitlines()
    damage(lines)
    changed = b"".join(line + b"\n" for line in lines)
    path.write_bytes(changed)
    with refused(ErrorCode.STATE_DAMAGED, "line"), Issuer.open(directory):
        pass
    assert path.read_bytes() == changed


def test_an_invalid_trust_domain_in_the_record_is_rejected(directory):
    path = directory / RECORD
    path.write_bytes(path.read_bytes().replace(DOMAIN.encode(), b"a/b"))
    with refused(ErrorCode.STATE_DAMAGED, "trust domain"), Issuer.open(directory):
        pass


def test_a_truncated_line_is_rejected_and_can_be_removed(directory):
    signed(directory, request("c0"))
    path = directory / RECORD
    whole = path.read_bytes()
    signed(directory, request("c1"))
    path.write_bytes(path.read_bytes()[:-20])
    with refused(ErrorCode.STATE_DAMAGED, "line 3: it is incomplete"):
        signed(directory, request("c2"))
    path.write_bytes(whole)
    assert signed(directory, request("c2")).credential.serial == 2


def test_two_processes_cannot_use_one_issuer(directory):
    with (
        Issuer.open(directory),
        refused(ErrorCode.STORAGE_FAILED, "in use"),
        Issuer.open(directory),
    ):
        pass
    with Issuer.open(directory):
        pass


def test_a_full_disk_leaves_no_partial_line_and_uses_no_serial(directory, monkeypatch):
    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    signed(directory, request("c0"))
    before = (directory / RECORD).read_bytes()
    with Issuer.open(directory) as issuer:
        with monkeypatch.context() as patch:
            patch.setattr("secagg.runtime.files.os.fsync", fail)
            with refused(ErrorCode.STORAGE_FAILED, "No space left"):
                issuer.sign(request("c1"), now=NOW)
        assert (directory / RECORD).read_bytes() == before
        assert len(issuer.issued()) == 1
        assert issuer.sign(request("c1"), now=NOW).credential.serial == 2


def test_an_invalid_issuer_directory_is_rejected(tmp_path):
    with refused(ErrorCode.BAD_CREDENTIAL, "cannot read"), Issuer.open(tmp_path):
        pass
    (tmp_path / ISSUER_SEED).write_bytes(b"short")
    with refused(ErrorCode.BAD_CREDENTIAL, "32 bytes"), Issuer.open(tmp_path):
        pass


def test_no_secret_is_in_the_record_or_in_a_representation(directory):
    signed(directory, request("c0"))
    revoked(directory, 1)
    seed = (directory / ISSUER_SEED).read_bytes()
    others = b"".join(
        content for name, content in files(directory).items() if name != ISSUER_SEED
    )
    assert seed not in others
    assert seed.hex().encode() not in others
    with Issuer.open(directory) as issuer:
        assert seed.hex() not in repr(issuer)
