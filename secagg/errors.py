"""Exceptions and error codes of this package.

The class of an error says whose fault it is:

* `LocalProtocolError`: the calling program requested what the protocol forbids.
* `RemoteProtocolError`: a peer violated the protocol.  A server drops that peer and
  continues; a client leaves the session.
* `SessionAbortedError`: the session ended for all parties without a sum.
* `ServiceError`: network, disk, certificates or configuration failed; the message
  states the next step.

Rule 1: a message states what was expected, what arrived and which party must act.
Rule 2: a message never contains keys, seeds, shares or vector entries.
Rule 3: text of a peer passes `printable` before it is shown.
Rule 4: numbers are never reused.  Peers, dashboards and exit codes match on them; 1 to
        39 are the abort codes of PROTOCOL §9.  docs/errors.md explains each.
"""

from enum import IntEnum, unique
from typing import Any, ClassVar, Final, TypedDict, TypeVar, Unpack, overload

# Codes from here on concern this host: misuse, settings, files.
FIRST_LOCAL: Final = 60
_FIRST_OF_SERVICE: Final = 40

E = TypeVar("E", bound="SecAggError")


@unique
class ErrorCode(IntEnum):
    """Stable numbers: 1-39 protocol, 40-59 service, 60-79 this host."""

    BAD_VERSION = 1
    BAD_CONFIG = 2
    POLICY_VIOLATION = 3
    BAD_SIGNATURE = 4
    BAD_PUBLIC_KEY = 5
    DUPLICATE_KEY = 6
    SELF_MISSING = 7
    ROSTER_TOO_SMALL = 8
    ROSTER_TOO_LARGE = 9
    BAD_SHARE_CIPHERTEXT = 10
    SHARE_CONFUSION = 11
    U2_TOO_SMALL = 12
    U3_INVALID = 13
    U3_TOO_SMALL = 14
    TOO_MANY_DROPOUTS = 15
    NO_QUORUM = 16
    EQUIVOCATION = 17
    REPLAYED_SESSION = 18
    UNEXPECTED_MESSAGE = 19
    BAD_VECTOR = 20
    DEADLINE = 21
    RECONSTRUCTION_FAILED = 22
    BAD_NOISE_REVEAL = 23
    PAYLOAD_MISMATCH = 24
    INTERNAL = 25
    BAD_ENCODING = 26
    TOO_FEW_ANSWERS = 27
    BAD_CREDENTIAL = 28
    BAD_PROOF = 29
    BAD_EDGES = 30
    DISPUTED = 31
    VIEW_DIFFERS = 32
    BAD_CLOCK = 33

    UNKNOWN_SESSION = 40
    UNAUTHENTICATED = 41
    NOT_INVITED = 42
    SESSION_OVER = 43
    OVERLOADED = 44
    STORAGE_FAILED = 45
    SHUTTING_DOWN = 46
    UPLOAD_CORRUPT = 47
    UNREACHABLE = 48
    CANCELLED = 49
    TASK_OVER = 50

    BAD_INPUT = 60
    LOCAL_MISUSE = 61
    BAD_SETTINGS = 62
    PORT_IN_USE = 63
    BAD_CERTIFICATE = 64
    MISSING_EXTRA = 65
    INFEASIBLE = 66
    STATE_DAMAGED = 67
    RESTORED_STATE = 68
    NOT_CONFORMING = 69

    @overload
    def error(
        self, message: str, *, fix: str = "", **facts: Unpack["_Facts"]
    ) -> "SecAggError": ...

    @overload
    def error(
        self, message: str, *, kind: "type[E]", fix: str = "", **facts: Unpack["_Facts"]
    ) -> "E": ...

    def error(
        self,
        message: str,
        *,
        kind: "type[SecAggError] | None" = None,
        fix: str = "",
        **facts: Unpack["_Facts"],
    ) -> "SecAggError":
        """Return an error with this code, for the caller to raise.

        Args:
            message: What was expected and what came.
            kind: Its class, where it is not the usual one of this code.
            fix: The next step, one imperative sentence, or "".
            facts: Further attributes of its class.
        """
        made = kind or _USUAL.get(self) or _class_of_range(self)
        attributes: dict[str, Any] = {**facts}
        return made(message, code=self, next_step=fix, **attributes)


FINAL_CODES: Final = frozenset(
    {
        ErrorCode.BAD_VERSION,
        ErrorCode.BAD_CONFIG,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.BAD_SIGNATURE,
        ErrorCode.SELF_MISSING,
        ErrorCode.U3_INVALID,
        ErrorCode.EQUIVOCATION,
        ErrorCode.REPLAYED_SESSION,
        ErrorCode.BAD_VECTOR,
        ErrorCode.BAD_NOISE_REVEAL,
        ErrorCode.PAYLOAD_MISMATCH,
        ErrorCode.BAD_ENCODING,
        ErrorCode.BAD_CREDENTIAL,
        ErrorCode.BAD_PROOF,
        ErrorCode.VIEW_DIFFERS,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.NOT_INVITED,
        ErrorCode.TASK_OVER,
        ErrorCode.BAD_INPUT,
        ErrorCode.LOCAL_MISUSE,
        ErrorCode.BAD_SETTINGS,
        ErrorCode.PORT_IN_USE,
        ErrorCode.BAD_CERTIFICATE,
        ErrorCode.MISSING_EXTRA,
        ErrorCode.INFEASIBLE,
        ErrorCode.STATE_DAMAGED,
        ErrorCode.RESTORED_STATE,
        ErrorCode.NOT_CONFORMING,
    }
)
"""Codes that end a program outside of a session until an operator acts.

Every other code may pass by itself.  The column `Again?` of docs/errors.md and
`RestartPreventExitStatus` of the units are made from this set.
"""


class SecAggError(Exception):
    """Base of every error of this package.

    Attributes:
        code: Stable number of what went wrong.
        next_step: One sentence for the person who reads it, or "".
        at_command: The same for a person at a command line, who has settings and flags
            in place of arguments; "" where `next_step` says it.
    """

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        next_step: str = "",
        at_command: str = "",
    ) -> None:
        super().__init__(message)
        self.code: Final = self.default_code if code is None else code
        self.next_step: Final = next_step
        self.at_command: Final = at_command
        if next_step:  # a traceback shows it, too
            self.add_note(f"next step: {next_step}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders: one with keywords is rebuilt from its state.
        return _rebuild_error, (type(self), self.args, self.__dict__)


def _rebuild_error(
    kind: type[SecAggError], args: tuple[object, ...], state: dict[str, object]
) -> SecAggError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InternalError(SecAggError):
    """This package has a fault: it reached an impossible state.  Report it."""


class LocalProtocolError(SecAggError):
    """The calling program requested what the protocol forbids."""

    default_code = ErrorCode.LOCAL_MISUSE


class InputError(LocalProtocolError, ValueError):
    """A vector of the caller cannot be encoded: NaN, infinity, length or dtype."""

    default_code = ErrorCode.BAD_INPUT


class RemoteProtocolError(SecAggError):
    """A peer violated the protocol.

    Attributes:
        sender: Identity of the peer at fault, or None when it is the server or
            the message named no sender.
    """

    default_code = ErrorCode.UNEXPECTED_MESSAGE

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        sender: str | None = None,
        next_step: str = "",
        at_command: str = "",
    ) -> None:
        super().__init__(message, code=code, next_step=next_step, at_command=at_command)
        self.sender: Final = sender


class SessionAbortedError(SecAggError):
    """The session ended for all parties; no sum was released."""


class ThresholdNotMetError(SessionAbortedError):
    """Fewer clients are left than the session needs.

    Attributes:
        alive: Clients that are left.
        needed: Clients that the session needs.
    """

    default_code = ErrorCode.TOO_FEW_ANSWERS

    def __init__(self, *, alive: int, needed: int, code: ErrorCode) -> None:
        super().__init__(
            f"{alive} clients are left, the session needs {needed}",
            code=code,
            next_step="Wait for more clients or lower the threshold of the next task.",
        )
        self.alive: Final = alive
        self.needed: Final = needed


class ServiceError(SecAggError):
    """Network, disk, certificate or configuration failed; the protocol is intact.

    Attributes:
        retry_after_seconds: When a retry may succeed; None when it will not.
        next_offset: With UPLOAD_CORRUPT, the byte at which the next chunk must start;
            None when only `GetUploadStatus` knows it.
        server_time: With UNAUTHENTICATED at the HTTP edge, the aggregator's clock in
            Unix seconds if the caller's differs too much; else None.
    """

    def __init__(  # noqa: PLR0913 - one keyword per fact that travels
        self,
        message: str,
        *,
        code: ErrorCode,
        next_step: str = "",
        at_command: str = "",
        retry_after_seconds: float | None = None,
        next_offset: int | None = None,
        server_time: int | None = None,
    ) -> None:
        super().__init__(message, code=code, next_step=next_step, at_command=at_command)
        self.retry_after_seconds: Final = retry_after_seconds
        self.next_offset: Final = next_offset
        self.server_time: Final = server_time


class _Facts(TypedDict, total=False):
    """What an error may tell beside its sentence, by class."""

    at_command: str
    sender: str | None
    retry_after_seconds: float | None
    next_offset: int | None
    server_time: int | None


_USUAL: Final[dict[ErrorCode, type[SecAggError]]] = {
    ErrorCode.DEADLINE: SessionAbortedError,
    ErrorCode.DISPUTED: SessionAbortedError,
    ErrorCode.TOO_FEW_ANSWERS: SessionAbortedError,
    ErrorCode.BAD_CREDENTIAL: ServiceError,
    ErrorCode.BAD_CLOCK: ServiceError,
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.UNAUTHENTICATED: RemoteProtocolError,
    ErrorCode.NOT_INVITED: RemoteProtocolError,
    ErrorCode.SESSION_OVER: RemoteProtocolError,
    ErrorCode.UPLOAD_CORRUPT: RemoteProtocolError,
    ErrorCode.BAD_INPUT: InputError,
    ErrorCode.LOCAL_MISUSE: LocalProtocolError,
}
"""The class of a code where its range does not say it."""


def _class_of_range(code: ErrorCode) -> type[SecAggError]:
    return RemoteProtocolError if code < _FIRST_OF_SERVICE else ServiceError


def error_code(number: int) -> ErrorCode:
    """Return the code that a peer means by a number.

    INTERNAL stands for a code of a later release.  It also stands for a code of this
    host: a peer must not imitate a fault of the local disk or settings.
    """
    try:
        code = ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL
    return code if code < FIRST_LOCAL else ErrorCode.INTERNAL


def printable(text: str, *, max_bytes: int) -> str:
    """Return a peer's text as one line without control characters.

    Terminals obey escape sequences and log readers trust line ends, so a peer must
    write neither.  The text is cut at `max_bytes` of UTF-8.
    """
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.encode(errors="replace")[:max_bytes].decode(errors="ignore")
