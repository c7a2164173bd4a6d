"""`secagg sessions verify`: what receipts prove, and whether they agree."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.failures import exit_code_of
from secagg.cli.options import JSONOption
from secagg.cli.output import Output
from secagg.errors import ErrorCode, printable

if TYPE_CHECKING:
    from secagg.errors import RemoteProtocolError
    from secagg.protocol.receipts.verifier import ShownSession, Verdict


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
    results = [_verify_file(file, keys) for file in files]
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
            _verdict_values(error)
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


def _verify_file(file: Path, keys: _Keys) -> _Checked:
    """Verify a receipt of one aggregator or of two."""
    from secagg.errors import RemoteProtocolError

    data = _read_receipt(file)
    try:
        if _is_shared(data):
            return _checked_shared(file, data, keys)
        return _checked_single(file, data, keys)
    except RemoteProtocolError as error:
        return _Checked(file, _verdict_values(error), error=error)


def _verdict_values(error: "RemoteProtocolError | None") -> dict[str, object]:
    """Return the verdict on a receipt as JSON values."""
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
    from secagg.protocol.receipts.verifier import facts_in, verify_receipt

    listed = keys.revocations
    verdict = verify_receipt(
        data,
        enrolment_key=parse_key(keys.enrolment) if keys.enrolment else None,
        revocations=None if listed is None else _read_receipt(listed),
        noise=TaskNoiseVerifier(),
    )
    return _Checked(
        file,
        _verdict_facts(verdict),
        _SENTENCES[str(verdict.finding)],
        shown=facts_in(verdict, source=str(file)),
    )


def _is_shared(data: bytes) -> bool:
    from secagg.protocol.receipts.receipt import SHARED_MAGIC

    return data.startswith(SHARED_MAGIC)


def _checked_shared(file: Path, data: bytes, keys: _Keys) -> _Checked:
    """Verify the receipt of two aggregators."""
    from secagg.pki.key_files import parse_key
    from secagg.two_aggregators.receipt import pair_facts, verify_shared_receipt

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
    shown = pair_facts(verdict, source=str(file))
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


def _verdict_facts(verdict: "Verdict") -> dict[str, object]:
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


def _read_receipt(path: Path) -> bytes:
    """Read a receipt, and one byte more than the largest one has."""
    from secagg.protocol.receipts.receipt import MAX_RECEIPT_BYTES

    try:
        with path.open("rb") as stream:
            # One byte more than is allowed shows that there was more.
            return stream.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} cannot be read: {error.strerror}", fix="Check the path."
        ) from None
