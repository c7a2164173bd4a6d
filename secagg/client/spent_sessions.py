"""What a client has already given to each task: a small ledger, written ahead.

Rule 1: a session is charged, durably, before its masked input can leave.  Charging it
        again after a restart changes nothing.
Rule 2: a charge is given back only for a session in whose sum, says the server, this
        client has no part: as far as the profile trusts the server at all.  Silence,
        deadlines and this client's own faults give nothing back.
Rule 3: one task has one description of its noise.  A server that changes it would
        begin a second budget under the first one's name.
Rule 4: a task that claims a budget for n sessions gets n sessions of this client, even
        if its server offers more.

The budget of one task is thereby enforced where the vectors are.  Several tasks add
up; which tasks a client serves is its owner's decision.
"""

import json
import os
from hashlib import sha256
from pathlib import Path

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError

__all__ = ["SpentSessions"]


class SpentSessions:
    """The ledger of one client, a file of JSON lines.

    Args:
        path: The file; made with mode 0600 when it does not exist.  The caller makes
            sure that one process uses it at a time.  None keeps the ledger in memory.

    Raises:
        ServiceError: STORAGE_FAILED; the file cannot be read or is damaged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._noise: dict[str, str] = {}
        self._sessions: dict[str, set[str]] = {}
        if path is None:
            return
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) != len(data):
                # The last line was torn by a crash; what it charged never left.
                with path.open("r+b") as stream:
                    stream.truncate(len(whole))
            for line in whole.splitlines():
                entry = json.loads(line)
                self._remember(
                    entry["task"],
                    entry["noise"],
                    entry["session"],
                    is_aborted=entry["aborted"],
                )
        except OSError as error:
            raise self._failure(f"cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise self._failure("is damaged") from None

    def count(self, task_id: str) -> int:
        """Return how many sessions a task is charged for."""
        return len(self._sessions.get(task_id, ()))

    def check(
        self, task_id: str, noise_block: bytes, session_id: bytes, *, allowed: int
    ) -> None:
        """Refuse another session of a task whose budget is spent.

        Args:
            task_id: Name of the task.
            noise_block: Description of its noise.
            session_id: The session; one that was charged before is covered.
            allowed: Sessions that its budget covers.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION.
        """
        noise = sha256(noise_block).hexdigest()
        if self._noise.get(task_id, noise) != noise:
            raise RemoteProtocolError(
                f"task {task_id!r} has changed its noise since this client first took "
                "part",
                code=ErrorCode.POLICY_VIOLATION,
                next_step="Ask the operator to run the new parameters under a new "
                "task id.",
            )
        charged = self._sessions.get(task_id, set())
        spent = len(charged - {session_id.hex()})
        if spent >= allowed:
            raise RemoteProtocolError(
                f"this client has given {spent} sessions to task {task_id!r}, whose "
                f"budget covers {allowed}",
                code=ErrorCode.POLICY_VIOLATION,
                next_step="The budget is spent. A new task id is a new budget, to be "
                "agreed on.",
            )

    def charge(
        self, task_id: str, noise_block: bytes, session_id: bytes, *, allowed: int
    ) -> None:
        """Charge one session; returns when it is on the disk.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; see `check`.
            ServiceError: STORAGE_FAILED; nothing may be sent.
        """
        session = session_id.hex()
        if session in self._sessions.get(task_id, ()):
            return
        self.check(task_id, noise_block, session_id, allowed=allowed)
        self._write(task_id, sha256(noise_block).hexdigest(), session, is_aborted=False)

    def give_back(self, task_id: str, session_id: bytes) -> None:
        """Take note that a charged session released nothing.

        Raises:
            ServiceError: STORAGE_FAILED; the session stays charged.
        """
        session = session_id.hex()
        if session in self._sessions.get(task_id, ()):
            self._write(task_id, self._noise[task_id], session, is_aborted=True)

    def _write(
        self, task_id: str, noise: str, session: str, *, is_aborted: bool
    ) -> None:
        if self._path is not None:
            self._append(self._path, task_id, noise, session, is_aborted=is_aborted)
        self._remember(task_id, noise, session, is_aborted=is_aborted)

    def _append(
        self, path: Path, task_id: str, noise: str, session: str, *, is_aborted: bool
    ) -> None:
        entry = {
            "task": task_id,
            "noise": noise,
            "session": session,
            "aborted": is_aborted,
        }
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as stream:
                stream.write(json.dumps(entry).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise self._failure(f"cannot be written: {error.strerror}") from None

    def _remember(
        self, task_id: str, noise: str, session: str, *, is_aborted: bool
    ) -> None:
        self._noise[task_id] = noise
        spent = self._sessions.setdefault(task_id, set())
        if is_aborted:
            spent.discard(session)
        else:
            spent.add(session)

    def _failure(self, complaint: str) -> ServiceError:
        return ServiceError(
            f"the ledger {self._path} {complaint}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check the disk and the owner of the state directory. Do not "
            "delete the ledger: it is what keeps this client within its budget.",
        )
