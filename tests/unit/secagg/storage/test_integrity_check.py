"""A state directory, verified; and what may be moved aside."""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256

import pytest

from secagg.cli import main
from secagg.protocol.events import Received
from secagg.protocol.messages import Envelope, Upload
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.journal import record_of
from secagg.storage.open_store import open_state, open_store
from secagg.storage.rollback_mark import SLOT_BYTES, Mark, RollbackMark
from secagg.storage.spool import UploadSpool

SETTINGS = """
[server]
state_dir = "state"
rollback_mark = "the.mark"
[tls]
ca = "a"
certificate = "b"
key = "c"
"""
SESSION = "ab" * 32
UPLOADS = {"a": b"vector", "c": b"another"}


@pytest.fixture
async def place(tmp_path):
    (tmp_path / "server.toml").write_text(SETTINGS)
    state = tmp_path / "state"
    store = await open_state(state, mark=tmp_path / "the.mark")
    new = NewSession(role=Side.SERVER, task="t", number=1, header=b"h")
    records = tuple(
        record_of(
            Received(Envelope.of(Upload(len(data), sha256(data).digest())), sender)
        )
        for sender, data in UPLOADS.items()
    )
    await store.commit(Change(key=f"server/{SESSION}", create=new, records=records))
    await store.close()
    spool = UploadSpool(FileBlobs(state / "spool"), min_free_bytes=0)
    session, digest = bytes.fromhex(SESSION), sha256(b"vector").digest()
    spool.append(session, "a", digest, offset=0, total_size=6, data=b"vector")
    spool.commit(session, "a", digest)
    digest = sha256(b"another").digest()
    spool.append(session, "c", digest, offset=0, total_size=7, data=b"ano")
    spool.append(session, "c", digest, offset=3, total_size=7, data=b"ther")
    spool.commit(session, "c", digest)
    spool.append(session, "b", bytes(32), offset=0, total_size=6, data=b"half")
    return tmp_path


@pytest.fixture
def check(place, capsys):
    def run(*words):
        config = str(place / "server.toml")
        code = main(["state", "check", "--config", config, "--json", *words])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_an_intact_state_has_no_faults(check, json_answer):
    code, answer = check()
    json_answer("state check", answer)
    assert (code, answer["ok"], answer["faults"]) == (0, True, [])


def test_files_of_no_session_are_noted_and_can_be_moved(place, check, json_answer):
    spool = place / "state" / "spool"
    (spool / ("cd" * 32)).mkdir()
    (spool / "z").write_bytes(b"foreign")
    code, answer = check()
    assert (code, answer["ok"]) == (0, True)
    json_answer("state check with faults", answer)
    assert [fault["is_damage"] for fault in answer["faults"]] == [False, False]
    assert answer["moved"] == []
    code, answer = check("--repair-quarantine")
    assert len(answer["moved"]) == 2
    assert sorted(path.name for path in spool.iterdir()) == [SESSION]
    assert (place / "state" / "quarantine" / "spool" / "z").read_bytes() == b"foreign"
    assert check()[1]["faults"] == []
    # The same name again does not replace what was moved before.
    (spool / "z").write_bytes(b"again")
    check("--repair-quarantine")
    moved = place / "state" / "quarantine" / "spool" / "z.1"
    assert moved.read_bytes() == b"again"


def test_a_changed_upload_is_reported_as_damage(place, check):
    uploads = place / "state" / "spool" / SESSION / "uploads"
    (path,) = uploads.glob(f"*/{sha256(b'another').hexdigest()}")
    (path / f"{3:012}").write_bytes(b"THER")
    code, answer = check("--repair-quarantine")
    assert (code, answer["exit_code"], answer["ok"]) == (77, 77, False)
    assert path.name in answer["faults"][0]["where"]
    assert not path.exists()


def test_uploads_are_checked_in_the_configured_blob_store(place, check):
    shared = place / "shared"
    (place / "state" / "spool").rename(shared)
    settings = place / "server.toml"
    settings.write_text(SETTINGS.replace("[tls]", f'blobs = "file:{shared}"\n[tls]'))
    assert check()[1]["faults"] == []
    (whole,) = shared.glob(f"*/uploads/{sha256(b'vector').hexdigest()}.whole")
    whole.write_bytes(b"Vector")
    code, answer = check("--repair-quarantine")
    assert (code, len(answer["moved"])) == (77, 1)
    assert not whole.exists()


def test_a_changed_record_is_reported_as_damage_and_left_in_place(place, check):
    store = place / "state" / "store.sqlite3"
    with closing(sqlite3.connect(store)) as database:
        database.execute("UPDATE record SET body = x'00'")
        database.commit()
    before = store.read_bytes()
    code, answer = check("--repair-quarantine")
    assert (code, answer["moved"]) == (77, [])
    assert answer["faults"][0]["where"] == f"server/{SESSION}"
    assert store.read_bytes() == before


async def test_a_state_in_use_is_not_checked(place, capsys):
    held = await open_store(f"sqlite:{place / 'state' / 'store.sqlite3'}")
    assert (
        await asyncio.to_thread(
            main, ["state", "check", "--config", str(place / "server.toml"), "--json"]
        )
        == 55
    )
    assert "a process uses" in capsys.readouterr().out
    await held.close()


def test_missing_uploads_are_reported_as_damage(place, check):
    session = place / "state" / "spool" / SESSION
    (whole,) = session.glob("uploads/*.whole")
    whole.unlink()
    code, answer = check()
    assert code == 77
    (fault,) = answer["faults"]
    assert fault["where"] == f"server/{SESSION}"
    assert "'a', 6 bytes: it is gone" in fault["complaint"]
    shutil.rmtree(place / "state" / "spool")
    code, answer = check()
    assert (code, len(answer["faults"])) == (77, 2)


def test_a_missing_chunk_of_an_upload_is_reported_as_damage(place, check):
    uploads = place / "state" / "spool" / SESSION / "uploads"
    (path,) = uploads.glob(f"*/{sha256(b'another').hexdigest()}")
    (path / f"{3:012}").unlink()
    code, answer = check()
    assert code == 77
    assert any("3 of 7 are there" in each["complaint"] for each in answer["faults"])


def put_back(place):
    """Leave the store as it was before its last commits, as without its WAL."""
    store = place / "state" / "store.sqlite3"
    with closing(sqlite3.connect(store)) as database:
        database.execute("UPDATE store SET generation = 0")
        database.commit()


@pytest.mark.parametrize(
    "lose",
    [
        lambda place: (place / "the.mark").unlink(),
        put_back,
        lambda place: shutil.rmtree(place / "state"),
        lambda place: (place / "state" / "store.sqlite3").unlink(),
    ],
    ids=["mark", "commits", "state", "store"],
)
def test_a_state_that_does_not_match_its_mark_exits_with_78(place, check, lose):
    lose(place)
    code, answer = check()
    assert code == 78
    assert answer["error"]["name"] == "RESTORED_STATE"


def test_the_journal_mode_is_reported(check):
    assert check()[1]["journal_mode"] == "wal"


def test_nothing_is_moved_when_the_mark_does_not_match(place, check):
    """What an older store does not name may be all that the newest one has."""
    stranger = place / "state" / "spool" / ("cd" * 32)
    stranger.mkdir()
    mark = place / "the.mark"
    stands = RollbackMark(mark).read()
    later = Mark(stands.store_id, stands.generation + 1)
    mark.write_bytes(2 * later.encode().ljust(SLOT_BYTES, b"\0"))
    assert check("--repair-quarantine")[0] == 78
    assert stranger.is_dir()


def test_a_copy_is_verified_without_the_mark_of_its_original(place, check):
    """As docs/backup.md has it; the original has gone on since."""
    shutil.copytree(place / "state", place / "backup")
    for mark in ('rollback_mark = "the.mark"\n', ""):
        text = SETTINGS.replace('rollback_mark = "the.mark"\n', mark)
        (place / "server.toml").write_text(text.replace('"state"', '"backup"'))
        code, answer = check("--copy")
        assert (code, answer["ok"], answer["is_restored"]) == (0, True, False)
    assert check()[0] == 78  # it would not start
    (place / "backup" / "spool" / SESSION / "uploads").rename(place / "lost")
    assert check("--copy")[0] == 77
