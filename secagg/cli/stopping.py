"""How a command ends when somebody stops it: quietly, and with one code per signal.

Rule 1: SIGTERM (a supervisor) and SIGHUP (a closed terminal) take the way of Ctrl-C:
        the work is cancelled, and whatever was opened is closed.  The code is 128 + the
        number of the signal, as shells count: 129, 130, 143.
Rule 2: a signal that was ignored when the process started (`nohup`) stays ignored.
Rule 3: a server that listens is the exception: it takes SIGINT and SIGTERM over, drains
        and ends with 0 (`secagg.server.rpc.grpc_server.run_until_signalled`).

Nothing heavy is imported here: signals are caught before the libraries are loaded.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any, Final, NoReturn, Self

from secagg.cli.exit_codes import FIRST_SIGNAL_EXIT_CODE
from secagg.cli.failures import write_failure

_LIKE_CTRL_C: Final = (signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Lets SIGTERM and SIGHUP do what Ctrl-C does; use it as a context manager.

    Attributes:
        received: The signal that stopped the command; None while it runs.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python runs handlers on the main thread only, and refuses them elsewhere.
        if threading.current_thread() is threading.main_thread():
            for number in _LIKE_CTRL_C:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        # asyncio puts a handler there that cancels its main task; else Python's own
        # raises KeyboardInterrupt.
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(number, frame)
        else:
            # A background job of a shell: SIGINT is ignored, this signal is not.
            _interrupt()

    def end(self, *, as_json: bool) -> int:
        """Say that the command was stopped.

        Args:
            as_json: Whether a program reads standard output.

        Returns:
            The exit code.
        """
        received = self.received or signal.SIGINT
        code = FIRST_SIGNAL_EXIT_CODE + received
        write_failure(
            f"stopped by {received.name}",
            next_step="Run it again; a server or a client goes on where it stood.",
            name="STOPPED",
            exit_code=code,
            as_json=as_json,
        )
        return code


def _interrupt() -> None:
    """End the loop that runs, or what runs without one."""
    asyncio = sys.modules.get("asyncio")
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        _raise()
    # Not at once: a finaliser may be at work, out of which no exception comes.
    loop.call_soon_threadsafe(_raise)


def _raise() -> NoReturn:
    raise KeyboardInterrupt
