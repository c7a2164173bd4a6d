"""Exit codes of the `secagg` command: one per `ErrorCode`, stable.

Rule 1: 0 is success, 2 is a mistake on the command line (as in every Unix tool),
        128 + a number is a signal; every other failure is 10 + the number of its
        `ErrorCode`.
Rule 2: a script may branch on these numbers; `docs/exit-codes.md` explains each.
"""

from typing import Final

from secagg.errors import ErrorCode, SecAggError

EXIT_OK: Final = 0
EXIT_USAGE: Final = 2
# Leaves 3 to 9 for shells and supervisors, which use them for their own purposes.
FIRST_ERROR_EXIT_CODE: Final = 10
# As shells count: 130 for SIGINT, 143 for SIGTERM.
FIRST_SIGNAL_EXIT_CODE: Final = 128
# SIGPIPE, which Python turns into an error: the reader of the output has gone.
EXIT_UNREAD: Final = 141


def exit_code_of(error: SecAggError | ErrorCode) -> int:
    """Return the exit code of a failure, 11 to 89."""
    code = error if isinstance(error, ErrorCode) else error.code
    return FIRST_ERROR_EXIT_CODE + int(code)
