"""The operator's web page: tasks, sessions, budgets and refusals at one glance.

Rule 1: it shows and cannot act: no form, no script, no link out of this machine.
Rule 2: every word that is shown is escaped: names of tasks and clients, and reasons,
        are chosen by others.
Rule 3: what it says is said by the views that `secagg status`, `sessions` and `budget`
        print.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final, cast

from secagg.protocol.rounds import ROUNDS
from secagg.server.operated_server import OperatedServer
from secagg.server.overview import Overview
from secagg.server.progress import LiveSession
from secagg.server.views import View, budget_view, sessions_view
from secagg.storage.stored import TaskRow

__all__ = ["operator_page"]

_REFRESH_SECONDS: Final = 5
_SESSIONS_SHOWN: Final = 25
# A page stays readable when a thousand clients are awaited.
_NAMED_AT_MOST: Final = 50

_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;
padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .4rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;
border-bottom:1px solid #d0d7de}
th{font-weight:600;color:#57606a}.n{text-align:right}.bad{color:#a40e26;font-weight:600}
p{margin:.3rem 0;color:#57606a}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}
th,p{color:#9198a1}th,td{border-color:#30363d}.bad{color:#ff7b72}}
"""

_UNDER_WAY: Final = (
    "task",
    "number",
    "round",
    "joined",
    "answered",
    "seconds left",
    "missing",
    "lost",
)
_ENDED: Final = ("task", "number", "opened", "outcome", "joined", "inputs", "reason")
_BUDGETS: Final = (
    "task",
    "epsilon against the server",
    "against a reader of the model",
    "delta",
    "sessions left",
    "spare left",
    "warning",
)

_Cell = str | int | float | None


async def operator_page(
    server: OperatedServer, overview: Overview, complaint: str
) -> bytes:
    """Return the page as it stands now, HTML in UTF-8.

    Args:
        server: Open.
        overview: Of the server.
        complaint: Why it cannot serve clients; empty when it can.
    """
    status = await overview.status()
    process, tasks = cast("View", status["server"]), cast("list[View]", status["tasks"])
    book = server.storage.book
    ended = [
        each
        for each in await sessions_view(book, limit=_SESSIONS_SHOWN)
        if each["outcome"] != "running"
    ]
    rows = await book.tasks()
    budgets = await asyncio.to_thread(_budgets, rows, overview.state_dir)
    refused = cast("dict[str, int]", process["refused_last_hour"])
    sections = [
        _head(process, complaint),
        _table(
            "Tasks",
            ("task", "state", "profile", "schedule", "sums", "sessions left", "reason"),
            (
                (
                    str(task["task"]),
                    str(task["state"]),
                    str(task["profile"]),
                    str(task["schedule"]),
                    f"{task['sums']} of {task['sums_wanted']}",
                    cast("int | None", task["sessions_left"]),
                    str(task["reason"]),
                )
                for task in tasks
            ),
            "no task",
        ),
        _table(
            "Under way",
            _UNDER_WAY,
            (_row_of(live) for live in server.live()),
            "no session",
        ),
        _table(
            "Last sessions",
            _ENDED,
            (tuple(cast("_Cell", each.get(name)) for name in _ENDED) for each in ended),
            "none has ended",
        ),
        _table(
            "Budgets",
            _BUDGETS,
            (
                (
                    str(each["task"]),
                    f"{each['epsilon_server']:.4g}",
                    f"{each['epsilon_model_reader']:.4g}",
                    f"{each['delta']:.3g}",
                    cast("int", each["left"]),
                    cast("int", each["spare_left"]),
                    "fewer sessions are left than sums are missing"
                    if each["is_short"]
                    else "",
                )
                for each in budgets
            ),
            "no task with a privacy budget",
        ),
        _table(
            "Refused in the last hour",
            ("code", "calls"),
            refused.items(),
            "nothing",
        ),
    ]
    return _document("".join(sections)).encode()


def _budgets(rows: Iterable[TaskRow], state_dir: Path) -> list[View]:
    views = (budget_view(row, state_dir) for row in rows)
    return [view for view in views if view is not None]


def _head(process: View, complaint: str) -> str:
    days = process["certificate_days"]
    free = cast("int", process["free_bytes"]) / 2**30
    facts = [
        f"since {process['started']}",
        *([] if days is None else [f"certificate: {days} days left"]),
        f"{free:.1f} GiB free",
        f"release {process['version']}",
        *(["draining"] if process["is_draining"] else []),
    ]
    warning = f'<p class="bad">not ready: {escape(complaint)}</p>' if complaint else ""
    return (
        f"<h1>Aggregator at {escape(str(process['address'] or 'no port yet'))}</h1>"
        f"<p>{escape(' · '.join(facts))}</p>{warning}"
    )


def _row_of(live: LiveSession) -> tuple[_Cell, ...]:
    progress = live.progress
    seconds = live.seconds_left
    return (
        progress.task_id,
        progress.session_number,
        ROUNDS[progress.round].title,
        f"{progress.joined} of {progress.needed}",
        f"{progress.answered} of {progress.expected}",
        None if seconds is None else round(seconds),
        _names(live.missing),
        _names([lost.identity for lost in progress.dropped]),
    )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    shown = ", ".join(names[:_NAMED_AT_MOST])
    return f"{shown} and {more} more" if more > 0 else shown


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str
) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not body:
        return f"<h2>{escape(title)}</h2><p>{escape(nothing)}</p>"
    return (
        f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _cell(value: _Cell) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{value}</td>'
    return f"<td>{escape(value or '')}</td>"


def _document(body: str) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        f"<title>secagg</title><style>{_STYLE}</style></head>"
        f"<body>{body}<p>{now}</p></body></html>"
    )
