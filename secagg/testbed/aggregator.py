"""The aggregator process of a run: `secagg server`, which reports to its parent.

Rule 1: it is the product's own server with the product's own limits, complete and
        unchanged; a run adds what it hands out and what it does with a sum.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from secagg.config import load_server_settings
from secagg.server.service import Observer, plan_task, serve
from secagg.server.session.events import SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.testbed.child_process import report
from secagg.transport.address import Address


def report_progress(progress: SessionProgress) -> None:
    """Report a change of a session."""
    report(
        "progress",
        session=progress.session_number,
        phase=progress.phase,
        round=progress.round.name,
        joined=progress.joined,
        needed=progress.needed,
        answered=progress.answered,
        expected=progress.expected,
        upload_bytes=progress.upload_bytes,
        dropped=[
            {"name": lost.identity, "round": lost.round.name, "reason": lost.reason}
            for lost in progress.dropped
        ],
        reason=progress.reason,
    )


def report_listening(address: Address) -> None:
    """Report that clients can connect."""
    report("listening", address=str(address))


async def serve_run(
    settings: Path,
    *,
    take_sum: Callable[[ReleasedSum], Awaitable[None]],
    payload: Callable[[int], bytes] | None = None,
    listening: Callable[[Address], None] = report_listening,
    progress: Callable[[SessionProgress], None] = report_progress,
) -> None:
    """Serve the task of a run to its end.

    Args:
        settings: The aggregator's settings file.
        take_sum: Called with each sum; repeated with the same session after a crash.
        payload: Returns what the clients of a session get, by its number.
        listening: Called once with the address, when clients can connect.
        progress: Called with every change of a session.

    Raises:
        SecAggError: As `plan_task` and `serve` do.
    """
    loaded = load_server_settings(settings, environment={}).settings
    await serve(
        loaded,
        await plan_task(loaded),
        payload=payload,
        on_sum=take_sum,
        observer=Observer(
            listening=listening,
            progress=progress,
            nothing_to_do=lambda sentence: report("nothing_to_do", message=sentence),
        ),
    )
