"""What people read of an operation's answer: lines and tables.

A printer is given to each function; programs read the answer itself, as JSON.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

_Answer = dict[str, Any]


class Printer(Protocol):
    """Prints for people; the command line's is `secagg.cli.output.Output`."""

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line."""

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        numeric: Iterable[int] = (),
    ) -> None:
        """Print a table; `numeric` are the columns to align at the right."""

    def pairs(self, pairs: Iterable[tuple[str, str]], *, title: str = "") -> None:
        """Print names and values."""


def print_pairs(answer: _Answer, to: Printer) -> None:
    """Print what an answer says, name by name."""
    to.pairs(
        (name.replace("_", " "), _value_text(value))
        for name, value in answer.items()
        if value not in (None, "", [])
    )


def _value_text(value: object) -> str:
    """Return a value of an answer as text."""
    if isinstance(value, list):
        return "; ".join(
            _session_line(each) if isinstance(each, dict) else str(each)
            for each in value
        )
    return "" if value is None else str(value)


# --- an aggregator and its tasks ------------------------------------------------------


def print_status(answer: _Answer, to: Printer) -> None:
    """Print an aggregator and its tasks."""
    server = answer["server"]
    free = f"{server['free_bytes'] / 2**30:.1f} GiB free"
    if server["is_running"]:
        draining = ", draining" if server["is_draining"] else ""
        if server["address"] is None:
            to.line("the aggregator is starting: it plans its tasks")
            return
        to.line(
            f"the aggregator runs since {server['started']} at {server['address']}"
            f"{draining}; certificate: {server['certificate_days']} days left; {free}"
        )
        if server["refused_last_hour"]:
            counts = ", ".join(
                f"{name} {count}" for name, count in server["refused_last_hour"].items()
            )
            to.line(f"refused in the last hour: {counts}")
        for replica in server["replicas"]:
            to.line(
                f"replica {replica['name']} {replica['version']} at "
                f"{replica['address'] or 'no address yet'}, since {replica['started']}"
                f", last seen {replica['silent_seconds']:g} s ago"
            )
    else:
        to.line(f"no aggregator runs; the figures are those of its store; {free}")
    print_tasks(answer, to)


def print_tasks(answer: _Answer, to: Printer) -> None:
    """Print one line for each task."""
    to.table(
        ("task", "state", "sums", "sessions left", "now"),
        task_rows(answer["tasks"]),
        numeric=(3,),
    )


def task_rows(tasks: list[_Answer]) -> list[tuple[str, ...]]:
    """Return one line for each task."""
    return [
        (
            each["task"],
            each["state"],
            f"{each['sums']} of {each['sums_wanted']}",
            "" if each["sessions_left"] is None else str(each["sessions_left"]),
            each["unwritten"] or _task_activity(each),
        )
        for each in tasks
    ]


def _task_activity(task: _Answer) -> str:
    """Return what a task does, and whether too few clients are left for it."""
    words = (
        "; ".join(_session_line(session) for session in task["running"])
        or task["reason"]
        or _next_slot_text(task)
    )
    return "; ".join(each for each in (task["short_of_clients"], words) if each)


def _next_slot_text(task: _Answer) -> str:
    """Return when the next session of a task may open, if that is known."""
    from secagg.config.task import Schedule

    now = datetime.now(UTC)
    slot = Schedule.parse(task["schedule"], task["window"]).slot(now.timestamp())
    if task["state"] != "running" or slot is None:
        return ""
    opens = datetime.fromtimestamp(slot.next_start, UTC)
    shown = "%H:%M:%S" if opens.date() == now.date() else "%Y-%m-%d %H:%M:%S"
    return f"the next slot begins at {opens:{shown}} UTC"


def _session_line(session: _Answer) -> str:
    """Return one line about a running session."""
    live = session.get("live")
    words = f"session {session['number']}: {session['round']}"
    if live is None:
        return words
    if session["round"] == "joining":
        words += f", {live['joined']} joined, {live['needed']} needed"
    else:
        words += f", {live['answered']} of {live['expected']} answered"
    if live["seconds_left"] is not None:
        words += f", {live['seconds_left']:.0f} s left"
    return words


def print_drain(answer: _Answer, to: Printer) -> None:
    """Print when the aggregator ends."""
    to.line(
        "the aggregator ends when its sessions are over"
        if answer["finishes_sessions"]
        else "the aggregator ends"
    )


# --- sessions -------------------------------------------------------------------------


def print_sessions(answer: _Answer, to: Printer) -> None:
    """Print one line for each session."""
    to.table(
        ("task", "session", "opened", "outcome", "inputs", "reason"),
        [
            (
                each["task"],
                str(each["number"]),
                each["opened"],
                each["outcome"],
                str(each.get("inputs", "")),
                each["reason"] or each.get("round", ""),
            )
            for each in answer["sessions"]
        ],
        numeric=(1, 4),
    )


def print_session(answer: _Answer, to: Printer) -> None:
    """Print one session with its receipt."""
    receipt = answer.get("receipt")
    below = {"receipt", "report", "live", "next_step", "came", "did_not_come"}
    to.pairs(
        (name.replace("_", " "), "" if value is None else str(value))
        for name, value in answer.items()
        if name not in below
    )
    if receipt is None:
        return
    to.table(
        ("set", "clients"),
        [(name, str(count)) for name, count in receipt["sets"].items()],
        title="How many took part (joined, shared, uploaded, unmasked)",
        numeric=(1,),
    )
    summed = set(receipt["survivors"])
    lost = [name for name in answer["came"] if name not in summed]
    absent = answer["did_not_come"]
    to.pairs(
        [
            ("joined", ", ".join(answer["came"]) or "no client"),
            *([] if absent is None else [("did not join", ", ".join(absent))]),
            ("not in the sum", ", ".join(lost)),
            (
                "disputes",
                "; ".join(
                    f"{one} accuses {two}" for one, two, _ in receipt["disputes"]
                ),
            ),
            ("unconfirmed", ", ".join(receipt["unconfirmed"])),
            *(
                (f"seconds in {name}", f"{lasted:.3f}")
                for name, lasted in sorted(receipt["seconds"].items(), key=_in_time)
            ),
        ],
        title="Clients and times",
    )
    if receipt["lost"]:
        to.table(
            ("client", "lost in", "because"), receipt["lost"], title="Who was lost"
        )
    if receipt["warning"]:
        to.line(f"warning: {receipt['warning']}")
    if answer["next_step"]:
        to.line(f"next step: {answer['next_step']}")


def _in_time(lasted: tuple[str, float]) -> int:
    """Return the place of a round among others; the sum comes last."""
    from secagg.protocol.messages import Round

    names = [each.name for each in Round]
    return names.index(lasted[0]) if lasted[0] in names else len(names)


def print_progress(change: _Answer, to: Printer) -> None:
    """Print one change of a session; without one, that changes will follow."""
    if not change:
        to.line("following the sessions; Ctrl-C ends it")
        return
    answers = f"{change['joined']} joined, "
    # The number needed differs in every later round.
    if change["round"] == "joining":
        answers += f"{change['needed']} needed"
    else:
        answers += f"{change['answered']} of {change['expected']} answered"
    to.line(
        f"{change['task']} session {change['number']}: {change['round']}, "
        f"{answers}, {len(change['lost'])} lost"
        + (f": {change['reason']}" if change["reason"] else "")
    )


def print_abort(answer: _Answer, to: Printer) -> None:
    """Print which session ends."""
    to.line(f"session {answer['number']} of task {answer['task']!r} ends without a sum")


# --- budgets --------------------------------------------------------------------------


def print_budgets(answer: _Answer, to: Printer) -> None:
    """Print what tasks have spent, and of a client what is claimed of its data."""
    if not answer["budgets"]:
        to.line("no task with a privacy budget")
    for each in answer["budgets"]:
        to.pairs(
            (name.replace("_", " "), "" if value is None else str(value))
            for name, value in each.items()
        )
        if each.get("is_short"):
            to.line(
                "WARNING: fewer sessions are left than sums are missing",
                style="bold red",
            )
    if "data" in answer:
        _print_data(answer["data"], to)


def _print_data(data: _Answer, to: Printer) -> None:
    """Print what tasks have claimed of a client's data, and what is left."""
    from secagg.distributed_dp import text_above, text_below

    delta = text_above(data["spent_delta"], 3)
    at = f"and delta {delta} of {data['total_delta']:g} are claimed"
    if data["rule"] == "gaussian":
        at = f"is claimed, at delta {delta} and as Gaussian releases add up"
    to.line(
        f"data {data['data']}: epsilon {text_above(data['spent_epsilon'], 4)} of "
        f"{data['total_epsilon']:g} {at}; kept in {data['kept_in']}"
    )
    left = f"epsilon {text_below(data['remaining_epsilon'], 4)} with delta up to "
    left += text_below(data["remaining_delta"], 3)
    if data["remaining_gaussian_epsilon"] is not None:
        further = text_below(data["remaining_gaussian_epsilon"], 4)
        left += f"; one with Gaussian noise about epsilon {further}"
    to.line(f"any further task may take {left}")
    to.table(
        ("task", "aggregator", "epsilon", "delta", "against", "since"),
        [
            (
                each["task"],
                each["aggregator"],
                text_above(each["epsilon"], 4),
                text_above(each["delta"], 3),
                each["against"],
                each["since"],
            )
            for each in data["claims"]
        ],
        numeric=(2, 3),
    )
