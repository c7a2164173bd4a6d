"""A state directory, verified; and what may be moved aside."""

import asyncio
import json
import sqlite3
from contextlib import closing
from hashlib import sha256

import pytest

from secagg.cli import main
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Change, NewSession, Record, Role
from secagg.storage.open_book import open_book
from secagg.storage.spool import UploadSpool

SETTINGS = """
[server]
state_dir = "state"
[tls]
ca = "a"
certificate = "b"
key = "c"
"""
SESSION = "ab" * 32


@pytest.fixture
async def place(tmp_path):
    (tmp_path / "server.toml").write_text(SETTINGS)
    state = tmp_path / "state"
    state.mkdir()
    book = await open_book(f"sqlite:{state / 'book.sqlite3'}")
    new = NewSession(role=Role.SERVER, task="t", number=1, header=b"h")
    done = Change(
        key=f"server/{SESSION}", create=new, records=(Record(1, "a", b"body"),)
    )
    await book.commit(done)
    await book.close()
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


def test_a_sound_state_is_sound(check, json_answer):
    code, answer = check()
    json_answer("state check", answer)
    assert (code, answer["ok"], answer["faults"]) == (0, True, [])


def test_what_belongs_to_no_session_is_a_note_and_can_be_moved(
    place, check, json_answer
):
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


def test_an_upload_that_has_changed_is_damage(place, check):
    uploads = place / "state" / "spool" / SESSION / "uploads"
    (path,) = uploads.glob(f"*/{sha256(b'another').hexdigest()}")
    (path / f"{3:012}").write_bytes(b"THER")
    code, answer = check("--repair-quarantine")
    assert (code, answer["exit_code"], answer["ok"]) == (77, 77, False)
    assert path.name in answer["faults"][0]["where"]
    assert not path.exists()


def test_uploads_are_checked_wherever_they_are_kept(place, check):
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


def test_a_record_that_has_changed_is_damage_and_stays_where_it_is(place, check):
    book = place / "state" / "book.sqlite3"
    with closing(sqlite3.connect(book)) as database:
        database.execute("UPDATE record SET body = x'00'")
        database.commit()
    before = book.read_bytes()
    code, answer = check("--repair-quarantine")
    assert (code, answer["moved"]) == (77, [])
    assert answer["faults"][0]["where"] == f"server/{SESSION}"
    assert book.read_bytes() == before


async def test_a_state_in_use_is_not_checked(place, capsys):
    held = await open_book(f"sqlite:{place / 'state' / 'book.sqlite3'}")
    assert (
        await asyncio.to_thread(
            main, ["state", "check", "--config", str(place / "server.toml"), "--json"]
        )
        == 55
    )
    assert "a process uses" in capsys.readouterr().out
    await held.close()
