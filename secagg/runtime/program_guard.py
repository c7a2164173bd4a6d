"""Run a program, and end it when the process that asked for it has gone.

This file is run by its path, and is told the program in its arguments.  Its standard
input is a pipe of which the asking process holds the other end: the pipe ends when that
process does, however it ends.  Both are in one process group, which is then killed.
"""

import os
import signal
import subprocess
import sys
import threading

NOT_STARTED = 127


def _kill_group_with_caller() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _main() -> int:
    """Run the program of the command line, and end it with its caller."""
    # A handler, unlike SIG_IGN, is not passed on to the program.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_kill_group_with_caller, daemon=True).start()
    try:
        child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603 - the operator's own words
    except OSError as error:
        print(f"it cannot be started: {error.strerror}", file=sys.stderr)  # noqa: T201 - read by the caller
        return NOT_STARTED
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(_main())
