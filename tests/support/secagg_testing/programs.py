"""Starts `secagg` as users start it, in processes, and leaves none behind."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from secagg.testbed.child_process import child_environment

# Far beyond what is needed: only a hang reaches it.
TIMEOUT_SECONDS: Final = 240


class Programs:
    """Programs that run in one directory; use it as a context manager.

    Args:
        directory: Where they run.
        environment: Variables added to the environment of this process; settings of
            `secagg` that this one has are kept from them.

    Attributes:
        directory: Where they run.
        environment: Their whole environment.
        started: All that were started, in order.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.directory: Final = directory
        self.environment: Final = child_environment(environment)
        self.started: Final[list[subprocess.Popen[str]]] = []

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run one command of `secagg` to its end, which may be a failure."""
        return subprocess.run(
            [sys.executable, "-m", "secagg", *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def start(self, *words: str, **changed: Any) -> "subprocess.Popen[str]":
        """Start one command of `secagg`; its two streams are one, to be read.

        Args:
            words: Its command line.
            changed: Arguments of `subprocess.Popen` that are others than usual.
        """
        return self.python("-m", "secagg", *words, **changed)

    def python(self, *words: str, **changed: Any) -> "subprocess.Popen[str]":
        """Start Python, in a group of its own: signals of a terminal are for it."""
        usual: dict[str, Any] = {
            "cwd": self.directory,
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }
        process = subprocess.Popen(
            [sys.executable, *words], text=True, **{**usual, **changed}
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
