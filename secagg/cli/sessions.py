"""`secagg sessions`: lists and shows an aggregator's sessions, verifies receipts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secagg.cli.failures import exit_code_of
from secagg.cli.operator import ServerFileOption, ask, look, settings_of
from secagg.cli.options import JSONOption
from secagg.cli.output import Output
from secagg.errors import ErrorCode, printable

if TYPE_CHECKING:
    from secagg.errors import RemoteProtocolError
    from secagg.protocol.receipts.verifier import ShownSession, Verdict


app = typer.Typer(
    help="List, explain, watch and abort sessions; verify their receipts.",
    no_args_is_help=True,
)

_TaskOption = Annotated[
    str | None, typer.Option("--task", metavar="ID", help="Only this task.")
]


@app.command("list")
def list_sessions(  # noqa: PLR0913 - one argument per option
    *,
    config: ServerFileOption = None,
    task: _TaskOption = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", help="Only those opened since, in UTC."),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome", help="Only these: running, released, or the name of a code."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Show so many at most.")
    ] = 50,
    as_json: JSONOption = False,
) -> None:
    """List the sessions of an aggregator, the newest first.

    Example: secagg sessions list --task digits --config server.toml
    """
    seconds = None if since is None else int(since.replace(tzinfo=UTC).timestamp())
    if outcome is not None:
        _check_outcome(outcome)

    answer = look(
        config,
        "session.list",
        task=task,
        since=seconds,
        outcome=outcome,
        limit=limit,
    )
    output = Output(as_json=as_json)
    if not as_json:
        output.table(
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
    output.result(answer)


def _check_outcome(outcome: str) -> None:
    """Refuse an unknown outcome, and name the closest one."""
    import difflib

    known = ["running", "released", *(code.name for code in ErrorCode)]
    if outcome not in known:
        close = difflib.get_close_matches(outcome, known, n=1, cutoff=0.5)
        raise typer.BadParameter(
            f"no session ends as {outcome!r}"
            + (f"; did you mean {close[0]}?" if close else ""),
            param_hint="--outcome",
        )


@app.command("show")
def show_one(
    *,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)],
    task: Annotated[str, typer.Option("--task", metavar="ID", help="Of which task.")],
    config: ServerFileOption = None,
    as_json: JSONOption = False,
) -> None:
    """Show all that is known of one session: its outcome, clients and times.

    Example: secagg sessions show 7 --task digits --config server.toml
    """
    answer = look(config, "session.show", task=task, number=number)
    output = Output(as_json=as_json)
    if not as_json:
        _print_session(answer, output)
    output.result(answer)


@app.command("watch")
def watch(
    *,
    config: ServerFileOption = None,
    task: _TaskOption = None,
    as_json: JSONOption = False,
) -> None:
    """Follow the sessions of an aggregator that runs, until it ends or Ctrl-C.

    With --json one object for every change.

    Example: secagg sessions watch --config server.toml
    """
    import asyncio

    from secagg.server.admin.channel import admin_socket_of, watch_admin

    output = Output(as_json=as_json)
    socket = admin_socket_of(settings_of(config).server)

    async def follow() -> None:
        async for each in watch_admin(socket, "session.watch", {"task": task}):
            if not each:
                output.line("following the sessions; Ctrl-C ends it")
                continue
            output.result(each)
            if not as_json:
                output.line(
                    f"{each['task']} session {each['number']}: {each['round']}, "
                    f"{_answers(each)}, {len(each['lost'])} lost"
                    + (f": {each['reason']}" if each["reason"] else "")
                )

    asyncio.run(follow())


def _answers(session: dict[str, Any]) -> str:
    """Return how many joined; the number needed differs in every round."""
    joined, needed = session["joined"], session["needed"]
    if session["round"] == "joining":
        return f"{joined} joined, {needed} needed"
    return f"{joined} joined, {session['answered']} of {session['expected']} answered"


@app.command("abort")
def abort(
    *,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)],
    task: Annotated[str, typer.Option("--task", metavar="ID", help="Of which task.")],
    reason: Annotated[
        str, typer.Option("--reason", help="Why, in words for the clients.")
    ] = "the operator has ended the session",
    config: ServerFileOption = None,
    as_json: JSONOption = False,
) -> None:
    """End a session without a sum; the next one of its task follows.

    Example: secagg sessions abort 7 --task digits --reason "wrong model"
    """
    answer = ask(config, "session.abort", task=task, number=number, reason=reason)
    output = Output(as_json=as_json)
    output.line(f"session {number} of task {task!r} ends without a sum")
    output.result(answer)


_SHOWN_BELOW = {"receipt", "report", "live", "next_step", "came", "did_not_come"}


def _in_time(lasted: tuple[str, float]) -> int:
    """Return the place of a round among others; the sum comes last."""
    from secagg.protocol.messages import Round

    names = [each.name for each in Round]
    return names.index(lasted[0]) if lasted[0] in names else len(names)


def _print_session(answer: dict[str, Any], output: Output) -> None:
    """Print one session with its receipt."""
    receipt = answer.get("receipt")
    output.pairs(
        (name.replace("_", " "), "" if value is None else str(value))
        for name, value in answer.items()
        if name not in _SHOWN_BELOW
    )
    if receipt is None:
        return
    output.table(
        ("set", "clients"),
        [(name, str(count)) for name, count in receipt["sets"].items()],
        title="How many took part (joined, shared, uploaded, unmasked)",
        numeric=(1,),
    )
    summed = set(receipt["survivors"])
    lost = [name for name in answer["came"] if name not in summed]
    absent = answer["did_not_come"]
    output.pairs(
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
        output.table(
            ("client", "lost in", "because"), receipt["lost"], title="Who was lost"
        )
    if receipt["warning"]:
        output.line(f"warning: {receipt['warning']}")
    if answer["next_step"]:
        output.line(f"next step: {answer['next_step']}")


@app.command("verify")
def verify(  # noqa: PLR0913 - one parameter per flag
    *,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="The receipts: receipt-<n>.bin."),
    ],
    enrolment_key: Annotated[
        str,
        typer.Option(
            "--enrolment",
            metavar="KEY",
            help="ed25519:..., as clients pin it; needed where clients sign.",
        ),
    ] = "",
    revocations: Annotated[
        Path | None,
        typer.Option(
            "--revocations",
            metavar="FILE",
            help="The revocation list of the session, to refuse the clients on it.",
        ),
    ] = None,
    leader_key: Annotated[
        str,
        typer.Option(
            "--leader",
            metavar="KEY",
            help="ed25519:..., what the leader of two aggregators signs with.",
        ),
    ] = "",
    helper_key: Annotated[
        str,
        typer.Option(
            "--helper", metavar="KEY", help="ed25519:..., the same of the helper."
        ),
    ] = "",
    as_json: JSONOption = False,
) -> None:
    """Recompute from receipts which parties agreed to the sets that were summed.

    Several receipts are compared, too: those of one session must show one session.
    A receipt of two aggregators needs the keys of both.

    Example: secagg sessions verify sums/receipt-1.bin --enrolment ed25519:...
    """
    output = Output(as_json=as_json)
    keys = _Keys(enrolment_key, revocations, leader_key, helper_key)
    results = [_checked(file, keys) for file in files]
    # The worse of two faults decides: two rosters matter more than a damaged file.
    contradiction = _equivocation(results)
    error = contradiction or next(
        (each.error for each in results if each.error is not None), None
    )
    is_alone = len(results) == 1
    for each in results:
        if not is_alone:
            output.heading(str(each.file))
        if each.error is None:
            output.line(each.sentence)
            facts = each.facts.items()
            rows = [(n, str(value)) for n, value in facts if value not in {None, ""}]
            output.table(("fact", "value"), rows)
        elif as_json or not is_alone:
            output.line(f"not valid: {each.error}")
    if error is not None and not as_json:
        raise error
    if contradiction is not None:
        output.line(f"not valid: {contradiction}")
    if is_alone:
        output.result(results[0].facts)
    else:
        output.result(
            _ending(error)
            | {"receipts": [{"file": str(e.file)} | e.facts for e in results]}
        )
    if error is not None:
        raise typer.Exit(code=exit_code_of(error))


@dataclass(frozen=True, slots=True)
class _Keys:
    """Inputs of the verification of receipts.

    Attributes:
        enrolment: Which clients pin; empty for none.
        revocations: File of the revocation list; None for none.
        leader: Of the leader of two aggregators; empty for none.
        helper: The same of the helper.
    """

    enrolment: str
    revocations: Path | None
    leader: str
    helper: str


@dataclass(frozen=True, slots=True)
class _Checked:
    """Outcome of the verification of one receipt.

    Attributes:
        file: Its file.
        facts: For programs.
        sentence: For people; empty for a receipt that does not hold.
        error: Why it does not hold; None if it does.
        shown: What it shows of its session; None if it does not hold.
    """

    file: Path
    facts: dict[str, object]
    sentence: str = ""
    error: "RemoteProtocolError | None" = None
    shown: "ShownSession | None" = None


def _checked(file: Path, keys: _Keys) -> _Checked:
    """Verify a receipt of one aggregator or of two."""
    from secagg.errors import RemoteProtocolError

    data = _read(file)
    try:
        if _is_shared(data):
            return _checked_shared(file, data, keys)
        return _checked_single(file, data, keys)
    except RemoteProtocolError as error:
        return _Checked(file, _ending(error), error=error)


def _ending(error: "RemoteProtocolError | None") -> dict[str, object]:
    if error is None:
        return {"valid": True, "reason": ""}
    return {"valid": False, "reason": str(error), "name": error.code.name}


def _equivocation(results: "list[_Checked]") -> "RemoteProtocolError | None":
    """Return how two receipts of one session contradict each other."""
    from secagg.errors import RemoteProtocolError
    from secagg.protocol.receipts.verifier import check_one_session

    try:
        check_one_session(each.shown for each in results if each.shown is not None)
    except RemoteProtocolError as error:
        return error
    return None


def _checked_single(file: Path, data: bytes, keys: _Keys) -> _Checked:
    """Verify the receipt of one aggregator."""
    from secagg.distributed_dp import TaskNoiseVerifier
    from secagg.pki.key_files import parse_key
    from secagg.protocol.receipts.verifier import shown_in, verify_receipt

    listed = keys.revocations
    verdict = verify_receipt(
        data,
        enrolment_key=parse_key(keys.enrolment) if keys.enrolment else None,
        revocations=None if listed is None else _read(listed),
        noise=TaskNoiseVerifier(),
    )
    return _Checked(
        file,
        _facts(verdict),
        _SENTENCES[str(verdict.finding)],
        shown=shown_in(verdict, source=str(file)),
    )


def _is_shared(data: bytes) -> bool:
    from secagg.protocol.receipts.receipt import SHARED_MAGIC

    return data.startswith(SHARED_MAGIC)


def _checked_shared(file: Path, data: bytes, keys: _Keys) -> _Checked:
    """Verify the receipt of two aggregators."""
    from secagg.pki.key_files import parse_key
    from secagg.two_aggregators.verification import (
        shown_between_two,
        verify_shared_receipt,
    )

    if not keys.leader or not keys.helper:
        raise ErrorCode.BAD_SETTINGS.error(
            "this receipt is one of two aggregators, and needs the keys of both",
            fix="Give --leader and --helper the keys that their operators publish; "
            "each aggregator prints its own when it starts.",
        )
    verdict = verify_shared_receipt(
        data,
        leader_key=parse_key(keys.leader),
        helper_key=parse_key(keys.helper),
    )
    leader, receipt = verdict.leader, verdict.receipt
    finding = "agreed" if verdict.is_released else "no sum"
    facts: dict[str, object] = {
        "valid": True,
        "reason": "",
        "finding": finding,
        "aggregator": printable(leader.aggregator, max_bytes=255),
        "helper": printable(verdict.helper.aggregator, max_bytes=255),
        "task": printable(leader.task_id, max_bytes=256),
        "session_number": leader.session_number,
        "session_id": leader.session_id.hex(),
        "epsilon_aggregator": verdict.privacy.aggregator.epsilon,
        "epsilon_reader": verdict.privacy.reader.epsilon,
        "delta": verdict.privacy.aggregator.delta,
        "status": str(verdict.privacy.aggregator.status),
        "proof": str(verdict.privacy.aggregator.proof),
        "noise_stddev": verdict.privacy.noise_stddev,
        "charges": verdict.privacy.charges,
        "shared": verdict.roster,
        "survivors": verdict.survivors,
        "client": printable(receipt.reader, max_bytes=256),
        "is_included": verdict.is_included,
        "outcome": receipt.outcome.name.lower(),
        "code": receipt.code,
        "ended": receipt.ended,
        "sum_sha256": receipt.sum_hash.hex() if receipt.size else "",
    }
    shown = shown_between_two(verdict, source=str(file))
    return _Checked(file, facts, _SHARED_SENTENCES[finding], shown=shown)


_SHARED_SENTENCES = {
    "agreed": "agreed: both aggregators have signed offers, roster, survivors and "
    "noise of this sum.",
    "no sum": "no sum: the leader says that the session ended without one; the helper "
    "has signed nothing.",
}

_SENTENCES = {
    "agreed": "agreed: a quorum of enrolled clients has signed roster, U2 and U3.",
    "stated": "stated: the aggregator says who took part; no client has signed it.",
    "no sum": "no sum: the session ended before it was fixed whom a sum adds up.",
}


def _facts(verdict: "Verdict") -> dict[str, object]:
    """Return what a verified receipt states, as JSON values."""
    descriptor, receipt = verdict.descriptor, verdict.receipt
    parameters, cost = descriptor.parameters, verdict.cost
    return {
        "valid": True,
        "reason": "",
        "finding": str(verdict.finding),
        "aggregator": printable(descriptor.aggregator, max_bytes=255),
        "task": printable(descriptor.task_id, max_bytes=256),
        "session_number": descriptor.session_number,
        "session_id": descriptor.session_id.hex(),
        "ctx1": verdict.ctx1.hex(),
        "writer": receipt.writer.name.lower(),
        "profile": parameters.profile.label,
        "epsilon_server": None if cost is None else cost.epsilon,
        "status": None if cost is None else cost.status,
        "proof": None if cost is None else cost.proof,
        "delta": None if cost is None else cost.delta,
        "joined": verdict.clients,
        "shared": len(verdict.share_holders),
        "survivors": len(verdict.survivors),
        "signed": len(verdict.signers),
        "outcome": receipt.outcome.name.lower(),
        "code": receipt.code,
        "sum_sha256": receipt.sum_hash.hex() if receipt.size else "",
        "disputes": len(receipt.disputes),
    }


def _read(path: Path) -> bytes:
    """Read a receipt, and one byte more than the largest one has."""
    from secagg.protocol.receipts.receipt import MAX_RECEIPT_BYTES

    try:
        with path.open("rb") as stream:
            # One byte more than is allowed shows that there was more.
            return stream.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} cannot be read: {error.strerror}",
            fix="Check the path.",
        ) from None
