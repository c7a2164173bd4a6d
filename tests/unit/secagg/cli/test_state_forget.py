"""To begin again: a mark is removed, a state never."""

import asyncio
import json

import pytest

from secagg.cli import main
from secagg.cli.options import RESTORED_ACKNOWLEDGEMENT
from secagg.errors import ErrorCode, ServiceError
from secagg.storage.open_store import open_state
from secagg.storage.rollback_mark import RollbackMark

TLS = '[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
TEXTS = {
    "server": f'[server]\nstate_dir = "state"\nrollback_mark = "the.mark"\n{TLS}',
    "client": '[client]\nserver = "127.0.0.1:1"\ntask = "t"\nstate_dir = "state"\n'
    f'rollback_mark = "the.mark"\n{TLS}[policy]\nmax_epsilon = 1.0\n'
    "max_delta = 1e-6\n",
}
TOTAL = 'data = "ours"\ntotal_epsilon = 1.0\ntotal_delta = 1e-6\n'


def opened(place):
    async def run():
        await (await open_state(place / "state", mark=place / "the.mark")).close()

    asyncio.run(run())


def emptied(place):
    for path in (place / "state").iterdir():
        path.unlink()


@pytest.fixture(params=["server", "client"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text(TEXTS[request.param])
    opened(tmp_path)
    return tmp_path


def forget(*words):
    return main(["state", "forget", "state", "--config", "settings.toml", *words])


def test_a_client_restarts_after_its_mark_was_forgotten(place, capsys, json_answer):
    for _ in range(2):
        emptied(place)
        with pytest.raises(ServiceError) as refused:
            opened(place)
        assert refused.value.code is ErrorCode.RESTORED_STATE
        assert "secagg state forget" in refused.value.at_command
        assert "--restored" in refused.value.at_command
        assert "accept_restored=True" in refused.value.next_step
        assert "--" not in refused.value.next_step
        emptied(place)
        assert forget() == 0
        assert "forgotten" in capsys.readouterr().out
        assert not (place / "the.mark").exists()
        opened(place)
    emptied(place)
    assert forget() == 0
    capsys.readouterr()
    assert forget("--json") == 0  # nothing is left of it
    json_answer("state forget", json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_an_existing_state_is_never_forgotten(place, capsys):
    before = sorted(path.name for path in (place / "state").iterdir())
    assert forget() == 72
    assert "not empty" in capsys.readouterr().err
    assert sorted(path.name for path in (place / "state").iterdir()) == before
    assert (place / "the.mark").exists()


def test_the_directory_can_be_given_by_set(place, capsys):
    """Clients of one settings file tell their states apart by `--set`."""
    text = (place / "settings.toml").read_text()
    (place / "settings.toml").write_text(text.replace('"state"', '"of-another"'))
    emptied(place)
    assert forget() == 72
    assert "--set" in capsys.readouterr().err
    section = text[1 : text.index("]")]
    assert forget("--set", f"{section}.state_dir=state") == 0
    assert not (place / "the.mark").exists()


@pytest.mark.parametrize("error", [PermissionError, NotADirectoryError])
def test_an_unreadable_directory_does_not_count_as_deleted(place, monkeypatch, error):
    def refused(_):
        raise error(13, "Permission denied")

    monkeypatch.setattr(type(place), "iterdir", refused)
    assert forget() == (55 if error is PermissionError else 72)
    assert (place / "the.mark").exists()


def test_an_unmounted_directory_does_not_count_as_deleted(place):
    (place / "state").rename(place / "unmounted")
    (place / "state").symlink_to(place / "mounted")
    assert forget() == 72
    assert (place / "the.mark").exists()


def test_a_state_created_meanwhile_is_not_forgotten(place, monkeypatch):
    """The directory is looked at again when no other process can open its state."""
    emptied(place)
    original = RollbackMark.hold

    def hold(mark, *, wait_seconds):
        (place / "state" / "store.sqlite3").write_text("of a process that was faster")
        original(mark, wait_seconds=wait_seconds)

    monkeypatch.setattr(RollbackMark, "hold", hold)
    assert forget() == 72
    assert (place / "the.mark").exists()


def test_claims_on_a_total_are_forgotten_only_with_the_full_sentence(place):
    text = (place / "settings.toml").read_text()
    emptied(place)
    if "[policy]" in text:
        (place / "settings.toml").write_text(text + TOTAL)
        assert forget() == 72
        assert (place / "the.mark").exists()
        assert forget("--restored", "yes") == 72
        assert forget("--restored", RESTORED_ACKNOWLEDGEMENT) == 0
    assert main(["state", "forget", "state"]) == 72  # whose it was is not known
    assert main(["state", "forget", "elsewhere", "--config", "settings.toml"]) == 72
