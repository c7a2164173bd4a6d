"""`secagg sessions`: what is left of a session, judged by anybody."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import JSONOption
from secagg.cli.output import Output
from secagg.errors import ErrorCode, ServiceError, printable

if TYPE_CHECKING:
    from secagg.audit.verifier import Verdict

__all__ = ["app"]

app = typer.Typer(
    help="Judge what is left of a session, without network or state.",
    no_args_is_help=True,
)


@app.callback()
def sessions() -> None:
    """Judge what is left of a session, without network or state."""


@app.command("verify")
def verify(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The receipt: receipt-<n>.bin.")
    ],
    enrolment_key: Annotated[
        str,
        typer.Option(
            "--enrolment-key",
            metavar="KEY",
            help="ed25519:..., as clients pin it; needed where clients sign.",
        ),
    ] = "",
    revocations: Annotated[
        Path | None,
        typer.Option(
            "--revocations",
            metavar="FILE",
            help="The revocation list of the session, to refuse who is on it.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Recompute from a receipt who has agreed to the sets that were summed.

    Example: secagg sessions verify sums/receipt-1.bin --enrolment-key ed25519:...
    """
    from secagg.audit.verifier import verify_receipt
    from secagg.distributed_dp import certify, read_noise_terms
    from secagg.enrolment.keys import parse_key

    verdict = verify_receipt(
        _read(file),
        enrolment_key=parse_key(enrolment_key) if enrolment_key else None,
        revocations=None if revocations is None else _read(revocations),
        read_noise=read_noise_terms,
        certify=certify,
    )
    output = Output(as_json=as_json)
    if as_json:
        output.result(_facts(verdict))
        return
    output.line(_SENTENCES[str(verdict.finding)])
    rows = [(name, str(value)) for name, value in _facts(verdict).items()]
    output.table(("fact", "value"), rows)


_SENTENCES = {
    "agreed": "agreed: a quorum of enrolled clients has signed roster, U2 and U3.",
    "stated": "stated: the aggregator says who took part; no client has signed it.",
    "no sum": "no sum: the session ended before it was fixed whom a sum adds up.",
}


def _facts(verdict: "Verdict") -> dict[str, str | int]:
    descriptor, receipt = verdict.descriptor, verdict.receipt
    return {
        "finding": str(verdict.finding),
        "aggregator": printable(descriptor.aggregator, max_bytes=255),
        "task": printable(descriptor.task_id, max_bytes=256),
        "session_number": descriptor.session_number,
        "session_id": descriptor.session_id.hex(),
        "profile": descriptor.parameters.profile.label,
        "joined": verdict.clients,
        "shared": len(verdict.sharers),
        "summed": len(verdict.survivors),
        "signed": len(verdict.signers),
        "outcome": receipt.outcome.name.lower(),
        "code": receipt.code,
        "sum_sha256": receipt.sum_hash.hex() if receipt.size else "",
        "disputes": len(receipt.disputes),
    }


def _read(path: Path) -> bytes:
    from secagg.audit.receipt import MAX_RECEIPT_BYTES

    try:
        with path.open("rb") as stream:
            # One byte more than is allowed shows that there was more.
            return stream.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ServiceError(
            f"{path} cannot be read: {error.strerror}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Check the path.",
        ) from None
