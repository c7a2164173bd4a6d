"""The operator's web page: tasks, sessions, budgets and refusals at a glance.

Rule 1: the page shows and cannot act: no form, no script, no link to another machine.
Rule 2: every text is escaped: clients and peers choose names of tasks and clients, and
        reasons.
Rule 3: its content comes from the operations behind `secagg status`, `sessions list`
        and `budget`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, cast

from secagg.distributed_dp import text_above
from secagg.server.admin.operations import OPERATIONS, Sources, View
from secagg.server.session.events import named
from secagg.storage.rows import TaskState

_REFRESH_SECONDS: Final = 5
_SESSIONS_SHOWN: Final = 25
# A page stays readable when a thousand clients are awaited.
_NAMED_AT_MOST: Final = 50
_RELEASED: Final = "released"

# How many days before its end a certificate needs attention.
_CERTIFICATE_DAYS: Final = 30

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--quiet:#57606a;--line:#d8dee4;
--paper:#fff;--good:#116329;--good-bg:#dafbe1;--warn:#7d4e00;--warn-bg:#fff1c2;
--bad:#a40e26;--bad-bg:#ffebe9;--bar:#2f6feb;--track:#e6eaef}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--quiet:#9198a1;--line:#30363d;
--paper:#0d1117;--good:#56d364;--good-bg:#12261e;--warn:#e3b341;--warn-bg:#2b2111;
--bad:#ff7b72;--bad-bg:#301b1e;--bar:#4c8dff;--track:#262c34}}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:74rem;
padding:0 1rem;color:var(--ink);background:var(--paper);
font-variant-numeric:tabular-nums}
h1{font-size:1.4rem;margin:0 0 .2rem;display:flex;flex-wrap:wrap;gap:.3rem .8rem;
align-items:center}
h2{font-size:1.05rem;margin:1.9rem 0 .3rem}
footer{margin-top:2.5rem}
p,small{color:var(--quiet)}p{margin:.2rem 0}small{display:block;font-size:.87rem}
ul{margin:1rem 0 0;padding:.6rem 1rem .6rem 2rem;border-radius:.4rem;
color:var(--warn);background:var(--warn-bg)}
table{border-collapse:collapse;width:100%}table.narrow{width:auto;min-width:18rem}
th,td{text-align:left;vertical-align:top;padding:.4rem 1.1rem .4rem 0;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{font-weight:600;font-size:.87rem;color:var(--quiet);overflow-wrap:normal}
th.n,td.n{text-align:right}td.t{white-space:nowrap}
b{font-weight:600;font-size:.87rem;padding:.05rem .55rem;border-radius:1rem;
white-space:nowrap;background:var(--track)}
b.good{color:var(--good);background:var(--good-bg)}
b.warn{color:var(--warn);background:var(--warn-bg)}
b.bad{color:var(--bad);background:var(--bad-bg)}
progress{appearance:none;display:block;width:6.5rem;height:.35rem;border:0;
border-radius:1rem;margin-top:.25rem;overflow:hidden;background:var(--track)}
progress::-webkit-progress-bar{background:var(--track)}
progress::-webkit-progress-value{background:var(--bar)}
progress::-moz-progress-bar{background:var(--bar)}
@media(max-width:48rem){thead{display:none}
table,table.narrow,tbody,tr,td{display:block;width:auto;min-width:0}
tr{border-bottom:1px solid var(--line);padding:.5rem 0}
td,td.n{border:0;padding:.12rem 0 .12rem 7.5rem;text-align:left;position:relative}
td::before{content:attr(data-label);position:absolute;left:0;width:7rem;
color:var(--quiet);font-size:.87rem}td:empty{display:none}}
"""

# Headings of columns that hold nothing but numbers, and of those that must not break.
_NUMBERS: Final = frozenset(
    {"session", "joined", "inputs", "calls", "delta", "sessions left", "spare left"}
)
_TIMES: Final = frozenset({"opened", "took", "closes in", "since", "last seen"})

# A running aggregator updates its store every two seconds.
_SILENT_SECONDS: Final = 15
_MINUTE: Final = 60
_HOUR: Final = 3600


class _Markup(str):
    """Marks HTML of this module, in which every inserted text is escaped."""

    __slots__ = ()


_Cell = _Markup | str | int | None


async def operator_page(sources: Sources, complaint: str) -> bytes:
    """Return the present page, HTML in UTF-8.

    Args:
        sources: The sources of its answers, those of an aggregator that runs.
        complaint: Why it cannot serve clients; empty when it can.
    """
    status = await OPERATIONS["status"].call(sources, {})
    process, tasks = cast("View", status["server"]), cast("list[View]", status["tasks"])
    listed = await OPERATIONS["session.list"].call(sources, {"limit": _SESSIONS_SHOWN})
    sessions = cast("list[View]", listed["sessions"])
    ended = [each for each in sessions if each["outcome"] != "running"]
    answer = await OPERATIONS["budget"].call(sources, {})
    budgets = cast("list[View]", answer["budgets"])
    refused = cast("dict[str, int]", process["refused_last_hour"])
    sections = [
        _page_heading(process, complaint),
        _warnings(process, tasks, budgets),
        *_replicas(cast("list[View]", process["replicas"])),
        _table(
            "Under way",
            ("task", "session", "round", "are in", "answered", "closes in", "missing"),
            [
                _running_row(str(task["task"]), session)
                for task in tasks
                for session in cast("list[View]", task["running"])
            ],
            "No session is open.",
        ),
        _table(
            "Tasks",
            ("task", "state", "sums", "sessions left", "schedule", "profile"),
            map(_task_row, tasks),
            "There is no task.",
        ),
        _table(
            "Last sessions",
            ("task", "session", "outcome", "joined", "inputs", "opened", "took", "why"),
            map(_ended_row, ended),
            "None has ended.",
            "The whole story of one: secagg sessions show NUMBER --task TASK",
        ),
        _table(
            "Budgets",
            (
                "task",
                "epsilon, to the server",
                "epsilon, to readers of the sums",
                "delta",
                "grounds",
                "sessions left",
                "spare left",
            ),
            map(_budget_row, budgets),
            "No task has a privacy budget.",
        ),
        _table(
            "Refused in the last hour",
            ("code", "calls"),
            refused.items(),
            "No call was refused.",
            kind="narrow",
        ),
    ]
    return _document("".join(sections)).encode()


def _page_heading(process: View, complaint: str) -> str:
    """Return the heading of the page: the aggregator, its state and its facts."""
    days = process["certificate_days"]
    free = cast("int", process["free_bytes"]) / 2**30
    if process["is_draining"]:
        badge = _badge("draining", "warn")
    elif complaint:
        badge = _badge("not ready", "bad")
    else:
        badge = _badge("ready", "good")
    facts = [
        f"since {_moment(str(process['started']))} UTC",
        *([] if days is None else [f"certificate: {days} days left"]),
        f"{free:.1f} GiB free",
        f"release {process['version']}",
    ]
    return (
        f"<h1>Aggregator at {escape(str(process['address'] or 'no port yet'))} "
        f"{badge}</h1><p>{escape(' · '.join(facts))}</p>"
        + (f"<p>{escape(complaint)}</p>" if complaint else "")
    )


def _warnings(process: View, tasks: Iterable[View], budgets: Iterable[View]) -> str:
    """Return what needs an operator; empty when nothing does."""
    days = cast("int | None", process["certificate_days"])
    wanting = [
        *(
            f"Task {task['task']} is paused: {task['reason']}"
            for task in tasks
            if task["state"] == TaskState.PAUSED.value
        ),
        *(
            f"Files of task {task['task']} cannot be written, and it waits: "
            f"{task['unwritten']}"
            for task in tasks
            if task["unwritten"]
        ),
        *(
            f"Task {task['task']} waits without end: {task['short_of_clients']}"
            for task in tasks
            if task["short_of_clients"]
        ),
        *(
            f"Task {each['task']}: fewer sessions are left than sums are missing"
            for each in budgets
            if each["is_short"]
        ),
        *(
            [f"The certificate ends in {days} days"]
            if days is not None and days < _CERTIFICATE_DAYS
            else []
        ),
    ]
    lines = "".join(f"<li>{escape(each)}</li>" for each in wanting)
    return f"<ul>{lines}</ul>" if lines else ""


def _replicas(replicas: Sequence[View]) -> list[str]:
    """Return the table of the replicas of a shared store."""
    columns = ("aggregator", "state", "since", "last seen", "release", "name")
    table = _table("Replicas of this store", columns, map(_replica_row, replicas), "")
    return [table] if replicas else []


def _replica_row(replica: View) -> tuple[_Cell, ...]:
    """Return the cells of one replica."""
    silent = cast("float", replica["silent_seconds"])
    is_here = silent < _SILENT_SECONDS
    return (
        str(replica["address"] or "no port yet"),
        _badge("here", "good") if is_here else _badge("silent", "warn"),
        _moment(str(replica["started"])),
        f"{_duration_text(silent)} ago",
        str(replica["version"]),
        str(replica["name"]),
    )


def _running_row(task: str, session: View) -> tuple[_Cell, ...]:
    """Return the cells of one running session."""
    head = (task, cast("int", session["number"]), str(session["round"]))
    if "live" not in session:  # clients know its end, or the process begins
        return (*head, "", "", "", "")
    live = cast("dict[str, Any]", session["live"])
    lost = named(live["lost"], _NAMED_AT_MOST)
    return (
        *head,
        # The needed number differs in every later round.
        _progress_cell(live["joined"], live["needed"])
        if session["round"] == "joining"
        else live["joined"],
        _progress_cell(live["answered"], live["expected"]),
        "" if live["seconds_left"] is None else _duration_text(live["seconds_left"]),
        _Markup(
            escape(named(live["missing"], _NAMED_AT_MOST))
            + (f"<small>lost: {escape(lost)}</small>" if lost else "")
        ),
    )


def _task_row(task: View) -> tuple[_Cell, ...]:
    """Return the cells of one task."""
    state = str(task["state"])
    kind = {TaskState.RUNNING.value: "good", TaskState.PAUSED.value: "warn"}
    return (
        str(task["task"]),
        _badge(state, kind.get(state, "")),
        _progress_cell(cast("int", task["sums"]), cast("int", task["sums_wanted"])),
        cast("int | None", task["sessions_left"]),
        str(task["schedule"]),
        str(task["profile"]),
    )


def _ended_row(session: View) -> tuple[_Cell, ...]:
    """Return the cells of one session that is over."""
    outcome = str(session["outcome"])
    seconds = cast("float | None", session["seconds"])
    return (
        str(session["task"]),
        cast("int", session["number"]),
        _badge(outcome, "good" if outcome == _RELEASED else "bad"),
        cast("int", session["joined"]),
        cast("int", session["inputs"]),
        _moment(str(session["opened"])),
        "" if seconds is None else _duration_text(seconds),
        str(session["reason"]),
    )


def _budget_row(budget: View) -> tuple[_Cell, ...]:
    """Return the cells of the privacy budget of one task."""
    return (
        str(budget["task"]),
        text_above(cast("float", budget["epsilon_server"]), 4),
        text_above(cast("float", budget["epsilon_model_reader"]), 4),
        text_above(cast("float", budget["delta"]), 3),
        str(budget["grounds"]),
        cast("int", budget["left"]),
        cast("int", budget["spare_left"]),
    )


def _badge(word: str, kind: str) -> _Markup:
    """Return a word with a colour."""
    return _Markup(f'<b class="{kind}">{escape(word)}</b>')


def _progress_cell(count: int, whole: int) -> _Markup:
    """Return a count of a whole, with a bar."""
    bar = f'<progress max="{max(1, whole)}" value="{min(count, whole)}"></progress>'
    return _Markup(f"{count} of {whole}{bar}")


def _moment(date: str) -> str:
    """Return an ISO date in UTC in readable form."""
    return date.replace("T", " ").removesuffix("+00:00")


def _duration_text(seconds: float) -> str:
    """Return a time span in its largest unit."""
    if seconds < _MINUTE:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h"


def _table(  # noqa: PLR0913 - the content of one table
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[_Cell]],
    nothing: str,
    below: str = "",
    *,
    kind: str = "",
) -> str:
    """Return a table in HTML, or a sentence where it has no row."""
    head = "".join(f"<th{_class(name)}>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(_cell(*each) for each in zip(columns, row, strict=True))}</tr>"
        for row in rows
    )
    if not body:
        return f"<h2>{escape(title)}</h2><p>{escape(nothing)}</p>"
    return (
        f'<h2>{escape(title)}</h2><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
        + (f"<p><small>{escape(below)}</small></p>" if below else "")
    )


def _class(name: str) -> str:
    """Return the attribute that aligns a column."""
    if name in _NUMBERS:
        return ' class="n"'
    return ' class="t"' if name in _TIMES else ""


def _cell(name: str, value: _Cell) -> str:
    """Return a cell of a table; a text is escaped."""
    if not isinstance(value, _Markup):
        value = _Markup("" if value is None else escape(str(value)))
    return f'<td{_class(name)} data-label="{escape(name)}">{value}</td>'


def _document(body: str) -> str:
    """Return the whole page around its body."""
    now = _moment(datetime.now(UTC).isoformat(timespec="seconds"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        f"<title>secagg</title><style>{_STYLE}</style></head>"
        f"<body>{body}<footer><small>{now} UTC, refreshed every "
        f"{_REFRESH_SECONDS} seconds. "
        "This page shows and cannot act; who acts types secagg tasks, sessions, drain."
        "</small></footer></body></html>"
    )
