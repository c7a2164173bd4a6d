"""What a client does after an error: the next session, the same one again, or nothing.

Rule 1: one table decides, from whose fault it is, its number and how far the client
        had come.  A client that is not at fault continues without its owner.
Rule 2: what no client could prevent (the server's disk, too few others) costs
        none of the attempts that the owner allows, unless an input has left for a
        session whose end is not known: the next one gives away the vector once more.
Rule 3: the peer lies: whatever costs no attempt costs time, growing with every
        repetition.
Rule 4: nothing here gives back a session of the privacy budget.
Rule 5: many clients that lost the same server must not come back at the same moment.
Rule 6: a server may ask for longer waits, but not for absurd ones, and
        not for none.
Rule 7: a client that waits for ever is patient: waits grow from a second to five
        minutes, and each is anything up to that (full jitter), so that a thousand
        clients come back as a trickle.  Within a session there are deadlines, and waits
        stay short.

Source:
    docs/errors.md says the same to people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto, unique
from typing import Final

from secagg.crypto.entropy import Entropy
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 10.0
_SHORTEST_HINT_SECONDS: Final = 0.02
_LONGEST_HINT_SECONDS: Final = 60.0
_PATIENT_FIRST_SECONDS: Final = 1.0
PATIENT_LONGEST_SECONDS: Final = 300.0


@dataclass(slots=True)
class Backoff:
    """The waits between attempts at one call.

    Attributes:
        entropy: Source of the jitter.
        attempts: Failed attempts so far.
        is_patient: Whether no caller waits for the outcome.
    """

    entropy: Entropy
    attempts: int = 0
    is_patient: bool = False

    def next_wait(self, hint_seconds: float | None = None) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Args:
            hint_seconds: What the server asked for, if it did.
        """
        doublings = 2.0 ** min(self.attempts, 16)
        self.attempts += 1
        asked = _clamp_hint(hint_seconds)
        if self.is_patient:
            most = min(PATIENT_LONGEST_SECONDS, _PATIENT_FIRST_SECONDS * doublings)
            return max(asked, _SHORTEST_HINT_SECONDS, most * self._random_fraction())
        return self._with_jitter(
            max(min(LONGEST_SECONDS, FIRST_SECONDS * doublings), asked)
        )

    def poll_wait(self, hint_seconds: float) -> float:
        """Return how long to wait before asking for news again, in seconds."""
        self.attempts = 0
        return self._with_jitter(_clamp_hint(hint_seconds))

    def _with_jitter(self, seconds: float) -> float:
        """Return a wait, longer or shorter by up to a quarter."""
        return seconds * (0.75 + 0.5 * self._random_fraction())

    def _random_fraction(self) -> float:
        """Draw a fraction from [0, 1)."""
        return int.from_bytes(self.entropy.token(2), "big") / 65536


def _clamp_hint(hint_seconds: float | None) -> float:
    """Return what a server asked for, within limits; 0 for no hint."""
    if hint_seconds is None:
        return 0.0
    return min(_LONGEST_HINT_SECONDS, max(_SHORTEST_HINT_SECONDS, hint_seconds))


_C: Final = ErrorCode


@unique
class ErrorStage(Enum):
    """How far the client had come when the error met it."""

    NO_SESSION = auto()
    """It was waiting for an offer, or checking one."""
    JOINED = auto()
    """It was in a session, or about to be; nothing of its input had left."""
    INPUT_LEFT = auto()
    """Bytes of its masked input may have left."""


@unique
class NextAction(Enum):
    """What to do."""

    NEXT_SESSION = auto()
    """Ask for the next offer; costs no attempt."""
    NEXT_ATTEMPT = auto()
    """Ask for the next offer; costs an attempt."""
    SAME_SESSION = auto()
    """Take up the same session again; costs an attempt."""
    FINAL = auto()
    """Stop: a person has to act, or there is nothing left to do."""


# Outcomes of a session that no client could prevent, and of one that continued without
# this client or was full.
_NO_FAULT_OF_CLIENTS: Final = (
    _C.ROSTER_TOO_SMALL,
    _C.ROSTER_TOO_LARGE,
    _C.U2_TOO_SMALL,
    _C.U3_TOO_SMALL,
    _C.TOO_MANY_DROPOUTS,
    _C.NO_QUORUM,
    _C.TOO_FEW_ANSWERS,
    _C.RECONSTRUCTION_FAILED,
    _C.DISPUTED,
    _C.STORAGE_FAILED,
    _C.INTERNAL,
    _C.CANCELLED,
    _C.SHUTTING_DOWN,
    _C.SESSION_OVER,
)
# What other clients can do to this one: the next cohort may be better.
_FAULT_OF_PEERS: Final = (
    _C.BAD_PUBLIC_KEY,
    _C.DUPLICATE_KEY,
    _C.BAD_SHARE_CIPHERTEXT,
    _C.SHARE_CONFUSION,
)
# One call failed; the session may still continue.
_CALL_FAILED: Final = (
    _C.INTERNAL,
    _C.OVERLOADED,
    _C.SHUTTING_DOWN,
    _C.UNREACHABLE,
)

_AGAIN: Final = (NextAction.NEXT_SESSION, NextAction.NEXT_SESSION)
_COUNTED: Final = (NextAction.NEXT_ATTEMPT, NextAction.NEXT_ATTEMPT)
# No party says how the session ended, and whether an input is in its sum.
_NOT_ACKNOWLEDGED: Final = (NextAction.NEXT_SESSION, NextAction.NEXT_ATTEMPT)
_RESUMED: Final = (NextAction.SAME_SESSION, NextAction.SAME_SESSION)

# Class and number of the error: what to do before and after an input has left.
_TABLE: Final[
    Mapping[tuple[type[SecAggError], ErrorCode], tuple[NextAction, NextAction]]
] = {
    **{(SessionAbortedError, code): _AGAIN for code in _NO_FAULT_OF_CLIENTS},
    (RemoteProtocolError, _C.SESSION_OVER): _AGAIN,
    **{(RemoteProtocolError, code): _COUNTED for code in _FAULT_OF_PEERS},
    # A clock that is wrong now may be right for the next offer.
    (RemoteProtocolError, _C.BAD_CLOCK): _COUNTED,
    (ServiceError, _C.BAD_CLOCK): _COUNTED,
    (ServiceError, _C.UPLOAD_CORRUPT): _COUNTED,
    (RemoteProtocolError, _C.UPLOAD_CORRUPT): _COUNTED,
    (ServiceError, _C.UNKNOWN_SESSION): _NOT_ACKNOWLEDGED,
    (SessionAbortedError, _C.DEADLINE): _NOT_ACKNOWLEDGED,
    **{(ServiceError, code): _RESUMED for code in _CALL_FAILED},
}
# What the table does not name: a server that ends a session for a reason of its own is
# tried again, a server that breaks the protocol and a broken machine are not.
_OTHERS: Final[Mapping[type[SecAggError], tuple[NextAction, NextAction]]] = {
    SessionAbortedError: _COUNTED,
    RemoteProtocolError: (NextAction.FINAL, NextAction.FINAL),
    ServiceError: (NextAction.FINAL, NextAction.FINAL),
}


def after_error(error: SecAggError, reach: ErrorStage) -> NextAction:
    """Return what to do after an error of one session.

    Args:
        error: What `ClientRunner.run_session` raised.
        reach: How far that session had come.
    """
    if reach is ErrorStage.NO_SESSION:
        # Offers are waited for inside; whatever ends that wait is for the owner: no
        # such task, task over, policy and budget, certificates, own disk.  But clocks
        # are set by themselves.
        return (
            NextAction.NEXT_ATTEMPT if error.code is _C.BAD_CLOCK else NextAction.FINAL
        )
    for kind in (SessionAbortedError, RemoteProtocolError, ServiceError):
        if isinstance(error, kind):
            before, since = _TABLE.get((kind, error.code), _OTHERS[kind])
            return since if reach is ErrorStage.INPUT_LEFT else before
    return NextAction.FINAL


@dataclass(slots=True)
class AttemptCounter:
    """The attempts at one sum.

    Attributes:
        left: Attempts that remain, the one under way included.
        backoff: The waits between sessions.
    """

    left: int
    backoff: Backoff

    def pause_after(self, error: SecAggError, reach: ErrorStage) -> float | None:
        """Return how long to wait before the next attempt, in seconds; None to stop."""
        what = after_error(error, reach)
        if what is not NextAction.NEXT_SESSION:
            self.left -= 1
        if what is NextAction.FINAL or self.left < 1:
            return None
        return self.backoff.next_wait()
