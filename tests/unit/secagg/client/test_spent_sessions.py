import stat

import pytest

from secagg.client.spent_sessions import SpentSessions
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError

NOISE = b"noise block"


def session(number: int) -> bytes:
    return number.to_bytes(32, "big")


def refused(action) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        action()
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    return caught.value


def test_a_task_gets_as_many_sessions_as_its_budget_covers(tmp_path):
    ledger = SpentSessions(tmp_path / "spent")
    for number in (1, 2):
        ledger.charge("t", NOISE, session(number), allowed=2)
    refused(lambda: ledger.check("t", NOISE, session(99), allowed=2))
    error = refused(lambda: ledger.charge("t", NOISE, session(3), allowed=2))
    assert "budget covers 2" in str(error)
    ledger.charge("another", NOISE, session(3), allowed=1)


def test_charging_a_session_again_changes_nothing(tmp_path):
    ledger = SpentSessions(tmp_path / "spent")
    for _ in range(3):
        ledger.charge("t", NOISE, session(1), allowed=1)
    assert len((tmp_path / "spent").read_bytes().splitlines()) == 1


def test_a_restart_remembers(tmp_path):
    SpentSessions(tmp_path / "spent").charge("t", NOISE, session(1), allowed=1)
    again = SpentSessions(tmp_path / "spent")
    again.charge("t", NOISE, session(1), allowed=1)
    refused(lambda: again.charge("t", NOISE, session(2), allowed=1))
    assert stat.S_IMODE((tmp_path / "spent").stat().st_mode) == 0o600


def test_a_task_cannot_change_its_noise_under_the_same_name(tmp_path):
    ledger = SpentSessions(tmp_path / "spent")
    ledger.charge("t", NOISE, session(1), allowed=5)
    error = refused(lambda: ledger.check("t", b"less noise", session(2), allowed=5))
    assert "new task id" in error.next_step


def test_a_line_torn_by_a_crash_is_forgotten_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "spent"
    SpentSessions(path).charge("t", NOISE, session(1), allowed=3)
    with path.open("ab") as stream:
        stream.write(b'{"task": "t", "noi')
    SpentSessions(path).charge("t", NOISE, session(2), allowed=3)
    again = SpentSessions(path)
    again.charge("t", NOISE, session(3), allowed=3)
    refused(lambda: again.check("t", NOISE, session(99), allowed=3))


@pytest.mark.parametrize("content", [b"nonsense\n", b"{}\n", b"[1]\n"])
def test_a_damaged_ledger_is_never_taken_for_an_empty_one(tmp_path, content):
    (tmp_path / "spent").write_bytes(content)
    with pytest.raises(ServiceError, match="damaged") as caught:
        SpentSessions(tmp_path / "spent")
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_a_ledger_that_cannot_be_written_stops_the_upload(tmp_path):
    ledger = SpentSessions(tmp_path / "absent" / "spent")
    with pytest.raises(ServiceError, match="cannot be written"):
        ledger.charge("t", NOISE, session(1), allowed=1)


def test_a_session_that_was_aborted_is_given_back_also_after_a_restart(tmp_path):
    ledger = SpentSessions(tmp_path / "spent")
    ledger.charge("t", NOISE, session(1), allowed=1)
    ledger.give_back("t", session(1))
    again = SpentSessions(tmp_path / "spent")
    again.charge("t", NOISE, session(2), allowed=1)
    refused(lambda: again.check("t", NOISE, session(99), allowed=1))
    with pytest.raises(RemoteProtocolError, match="changed its noise"):
        SpentSessions(tmp_path / "spent").check("t", b"less", session(99), allowed=9)


def test_what_was_never_charged_cannot_be_given_back(tmp_path):
    ledger = SpentSessions(tmp_path / "spent")
    ledger.give_back("t", session(1))
    assert not (tmp_path / "spent").exists()
