"""The `secagg` command: argument parsing and printing, nothing else."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words after ``secagg``; None for those of the process.

    Returns:
        The exit code, see `secagg.cli.failures`.
    """
    from secagg.cli.failures import StopSignals
    from secagg.runtime.garbage import infrequent_collection

    words = list(sys.argv[1:] if arguments is None else arguments)
    with StopSignals() as signals, infrequent_collection():
        try:
            # Imported here, so that a signal meets its handler while libraries load.
            from secagg.cli.app import run

            return run(words, was_stopped=lambda: signals.received is not None)
        except KeyboardInterrupt:
            return signals.end(as_json="--json" in words)
