"""`secagg pki`: certificates for mutual TLS, and the enrolment of clients."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli import enrolment
from secagg.cli.options import JSONOption
from secagg.cli.output import Output, moment

if TYPE_CHECKING:
    from secagg.pki.issuance_ledger import IssuanceLedger
    from secagg.transport.peer_identity import PeerIdentity


app = typer.Typer(
    help="Issue, renew, revoke and list certificates; enrol clients.",
    no_args_is_help=True,
)
app.add_typer(enrolment.enrol, name="enrol")
app.add_typer(enrolment.identity, name="identity")

_DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Where ca.pem and ca.key lie.")
]
_HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="DNS name or address under which clients reach the server; may be "
        "repeated. Default: 127.0.0.1 and localhost.",
    ),
]
DaysOption = Annotated[
    int, typer.Option("--days", help="How long the certificates are valid.")
]
_RequestArgument = Annotated[
    Path, typer.Argument(metavar="REQUEST", help="What `secagg enrol request` made.")
]
_DestinationOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Where to write the certificate."),
]
_FINGERPRINT_HELP = "The key as its owner reports it; any other is refused."
_LOOPBACK = ("127.0.0.1", "localhost")


@app.command("init")
def init(  # noqa: PLR0913 - one parameter per flag
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="New directory for all files.")
    ],
    clients: Annotated[
        int,
        typer.Option("--clients", min=1, max=65_535, help="How many clients to name."),
    ] = 3,
    host: _HostOption = None,
    trust_domain: enrolment.TrustDomainOption = "secagg.local",
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Make an authority, one server and N enrolled clients (client-1 ... client-N).

    For development: authority and issuer lie beside what they issue.

    Example: secagg pki init pki --clients 3 --host 127.0.0.1
    """
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.development import DevelopmentEnrolment
    from secagg.pki.issuance_ledger import IssuanceLedger
    from secagg.pki.key_files import key_text

    output = Output(as_json=as_json)
    hosts = tuple(host or _LOOPBACK)
    names = [f"client-{number}" for number in range(1, clients + 1)]
    written = [*IssuanceLedger.create(directory, trust_domain)]
    with IssuanceLedger.open(directory) as office:
        written += _issue_certificate(
            office, directory, "server/aggregator", hosts, days, stem="server"
        )
        for name in names:
            written += _issue_certificate(office, directory, f"client/{name}", (), days)
    output.line(f"{directory}: an authority, a server for {', '.join(hosts)}")
    output.line(f"and {clients} clients, valid for {days} days.")
    output.line(
        "Give each machine its own .pem and .key and ca.pem; keep ca.key offline."
    )
    made, key = DevelopmentEnrolment.create(
        directory,
        trust_domain=trust_domain,
        names=names,
        now=int(time.time()),
        entropy=SystemEntropy(),
        days=days,
    )
    output.line(
        f"{made.issuer}: the issuer; {made.identities}: one identity for each client."
    )
    output.line(f"Clients pin the enrolment key {key_text(key)}")
    enrolled = [made.credential(name) for name in names]
    output.result(
        {
            "files": [str(path) for path in (*written, *enrolled)],
            "enrolment_key": key_text(key),
        }
    )


@app.command("ca")
def ca(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write ca.pem and ca.key.")
    ],
    trust_domain: enrolment.TrustDomainOption = "secagg.local",
    as_json: JSONOption = False,
) -> None:
    """Make an authority and nothing else.

    Example: secagg pki ca pki --trust-domain example.org
    """
    from secagg.pki.issuance_ledger import IssuanceLedger

    output = Output(as_json=as_json)
    written = IssuanceLedger.create(directory, trust_domain)
    output.line(f"{directory}: an authority for {trust_domain}. Keep ca.key offline.")
    _report_files(output, written)


@app.command("server")
def server(
    *,
    directory: _DirectoryArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")],
    host: _HostOption = None,
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Make a server's key and issue its certificate, NAME.pem and NAME.key.

    A key that is made where it is used is better: `secagg enrol request`, `pki sign`.

    Example: secagg pki server pki aggregator --host aggregator.example.org
    """
    from secagg.pki.issuance_ledger import IssuanceLedger

    output = Output(as_json=as_json)
    with IssuanceLedger.open(directory) as office:
        written = _issue_certificate(
            office, directory, f"server/{name}", tuple(host or _LOOPBACK), days
        )
    output.line(f"{written[0]} and {written[1].name}, valid for {days} days.")
    _report_files(output, written)


@app.command("client")
def client(
    *,
    directory: _DirectoryArgument,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The clients' names.")
    ],
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Make clients' keys and issue their certificates, NAME.pem and NAME.key each.

    A key that is made where it is used is better: `secagg enrol request`, `pki sign`.

    Example: secagg pki client pki hospital-a hospital-b
    """
    from secagg.pki.issuance_ledger import IssuanceLedger

    output = Output(as_json=as_json)
    written: list[Path] = []
    with IssuanceLedger.open(directory) as office:
        for name in names:
            written += _issue_certificate(office, directory, f"client/{name}", (), days)
    output.line(f"{directory}: {len(names)} clients, valid for {days} days.")
    _report_files(output, written)


@app.command("sign")
def sign(  # noqa: PLR0913 - one parameter per flag
    *,
    directory: _DirectoryArgument,
    request: _RequestArgument,
    holder: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="client/NAME",
            help="Holder of the certificate, client/NAME or server/NAME; the name "
            "in the request is ignored.",
        ),
    ],
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="sha256:...", help=_FINGERPRINT_HELP),
    ] = None,
    host: _HostOption = None,
    days: DaysOption = 90,
    destination: _DestinationOption = None,
    as_json: JSONOption = False,
) -> None:
    """Issue the certificate of a request, whose key stays where it is.

    Have the owner read out the fingerprint that `secagg enrol request` has shown, by
    another channel than the request.

    Example: secagg pki sign pki hospital-a.csr --as client/hospital-a --fingerprint ...
    """
    from secagg.pki.certificate_authority import read_request
    from secagg.pki.issuance_ledger import IssuanceLedger, parse_holder
    from secagg.transport.peer_identity import Role

    output = Output(as_json=as_json)
    public = read_request(request)
    with IssuanceLedger.open(directory) as office:
        identity = parse_holder(holder, office.trust_domain)
        hosts = tuple(host or (_LOOPBACK if identity.role is Role.SERVER else ()))
        certificate = office.sign(
            identity,
            public,
            now=int(time.time()),
            hosts=hosts,
            days=days,
            fingerprint=_require_fingerprint(fingerprint, request),
        )
    path = destination or request.with_name(f"{identity.name}.pem")
    _write_certificate(path, certificate)
    output.line(f"{path}: for {holder}, valid for {days} days; send it with ca.pem.")
    if hosts:
        output.line(f"Clients reach it as {', '.join(hosts)}; change it with --host.")
    _report_files(output, [path])


@app.command("renew")
def renew(  # noqa: PLR0913 - one parameter per flag
    *,
    directory: _DirectoryArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Whose; without it, all that end within --within."
        ),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(
            "--request", metavar="FILE", help="A new key's, with its --fingerprint."
        ),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="sha256:...", help=_FINGERPRINT_HELP),
    ] = None,
    days: DaysOption = 90,
    within: Annotated[
        int, typer.Option("--within", min=0, help="Days, for all that end soon.")
    ] = 30,
    destination: _DestinationOption = None,
    as_json: JSONOption = False,
) -> None:
    """Issue the next certificate of a name: the same client, with the same budget.

    Keys that were made here (NAME.key lies in DIR) are replaced. A key that lies with
    its owner stays, unless the owner sends a request with another one. What is issued
    is public and may be sent by any channel.

    Example: secagg pki renew pki hospital-a
    """
    from secagg.errors import ErrorCode
    from secagg.pki.certificate_authority import read_request
    from secagg.pki.issuance_ledger import IssuanceLedger, parse_holder

    output, now = Output(as_json=as_json), int(time.time())
    if name is None and (request is not None or destination is not None):
        raise ErrorCode.BAD_SETTINGS.error(
            "--request and --output are about one NAME", fix="Name the client."
        )
    public = None if request is None else read_request(request)
    written: list[Path] = []
    with IssuanceLedger.open(directory) as office:
        rows = (
            office.expiring(now + within * 86_400, now=now)
            if name is None
            else office.find([name])[-1:]
        )
        for row in rows:
            holder = parse_holder(row.holder, office.trust_domain)
            if request is not None:
                confirmed = _require_fingerprint(fingerprint, request)
                certificate = office.renew(
                    holder, public, now=now, days=days, fingerprint=confirmed
                )
                path = destination or request.with_name(f"{row.name}.pem")
                _write_certificate(path, certificate)
                written.append(path)
            else:
                written += _renew_locally(
                    office, directory, holder, days, now, destination
                )
    if not rows:
        output.line(f"no certificate ends within {within} days")
    for path in written:
        output.line(f"wrote {path}")
    _report_files(output, written)


@app.command("revoke")
def revoke(
    *,
    directory: _DirectoryArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|SERIAL...]", help="What `pki list` shows, of either."
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", help="As RFC 5280 has it, such as keyCompromise or superseded."
        ),
    ] = "unspecified",
    days: Annotated[
        int, typer.Option("--days", help="When the next list is due, 1 to 398.")
    ] = 90,
    as_json: JSONOption = False,
) -> None:
    """Revoke certificates, with all others of the same keys.

    Writes the next revocation list (CRL), also without a name or number.

    Example: secagg pki revoke pki hospital-a
    """
    from secagg.pki.issuance_ledger import REVOKED, IssuanceLedger

    output = Output(as_json=as_json)
    with IssuanceLedger.open(directory) as office:
        new = office.revoke(
            office.find(words or ()), now=int(time.time()), reason=reason, days=days
        )
    path = directory / REVOKED
    output.line(f"{path}: {len(new)} certificate(s) more are revoked.")
    output.line("Copy it to every aggregator, where server.revoked names it. Revoked")
    output.line("certificates are refused within a minute.")
    output.line(f"Write the next list within {days} days: an aggregator whose list has")
    output.line("ended accepts no certificate.")
    output.line("At an HTTP edge the credential counts: `secagg pki enrol revoke`.")
    output.result({"file": str(path), "serials": [f"{serial:x}" for serial in new]})


@app.command("list")
def list_issued(*, directory: _DirectoryArgument, as_json: JSONOption = False) -> None:
    """Show what was issued, to whom, and which of it is valid.

    Example: secagg pki list pki
    """
    from secagg.pki.issuance_ledger import IssuanceLedger

    output, now = Output(as_json=as_json), int(time.time())
    with IssuanceLedger.open(directory) as office:
        rows = [(row, office.state_of(row, now)) for row in office.issued()]
    output.table(
        ("serial", "holder", "state", "until", "key"),
        [
            (
                f"{row.serial:x}",
                row.holder,
                state,
                moment(row.not_after),
                row.fingerprint,
            )
            for row, state in rows
        ],
    )
    output.result(
        {
            "certificates": [
                {
                    "serial": f"{row.serial:x}",
                    "holder": row.holder,
                    "state": state,
                    "not_after": row.not_after,
                    "fingerprint": row.fingerprint,
                }
                for row, state in rows
            ]
        }
    )


def _issue_certificate(  # noqa: PLR0913, PLR0917 - whom, with which hosts, where to
    office: "IssuanceLedger",
    directory: Path,
    holder: str,
    hosts: tuple[str, ...],
    days: int,
    stem: str = "",
) -> tuple[Path, Path]:
    """Make a key, issue its certificate and write both."""
    from secagg.errors import ErrorCode
    from secagg.pki.issuance_ledger import parse_holder

    identity = parse_holder(holder, office.trust_domain)
    stem = stem or identity.name
    if (directory / f"{stem}.key").exists():  # before anything is issued
        raise ErrorCode.STORAGE_FAILED.error(
            f"{directory / f'{stem}.key'} exists already",
            fix="`secagg pki renew` replaces a key; or choose another name.",
        )
    issued = office.issue(identity, now=int(time.time()), hosts=hosts, days=days)
    return issued.write(directory, stem)


def _renew_locally(  # noqa: PLR0913, PLR0917 - whose, for how long, where to
    office: "IssuanceLedger",
    directory: Path,
    holder: "PeerIdentity",
    days: int,
    now: int,
    destination: Path | None,
) -> list[Path]:
    """Renew a certificate without a request, and its key too if it was made here."""
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.certificate_authority import key_pem, new_key
    from secagg.runtime.files import disk, replace_file

    stem = _stem_of(directory, holder)
    path, key_path = directory / f"{stem}.pem", directory / f"{stem}.key"
    if destination is not None or not key_path.exists():
        path = destination or path
        _write_certificate(path, office.renew(holder, None, now=now, days=days))
        return [path]
    key = new_key(SystemEntropy())
    certificate = office.renew(holder, key.public_key(), now=now, days=days)
    with disk(key_path):
        replace_file(key_path, key_pem(key), mode=0o600)
    _write_certificate(path, certificate)
    return [path, key_path]


def _stem_of(directory: Path, holder: "PeerIdentity") -> str:
    """Return how the files of a holder are called: `init` has a name of its own."""
    from secagg.errors import ServiceError
    from secagg.transport.tls import identity_of, read_certificates

    try:
        leaf = read_certificates(directory / "server.pem")[0]
        if identity_of(leaf) == holder:
            return "server"
    except ServiceError:
        pass
    return holder.name


def _write_certificate(path: Path, certificate: bytes) -> None:
    """Write a certificate, whole or not at all."""
    from secagg.runtime.files import disk, replace_file

    with disk(path):
        replace_file(path, certificate)


def _require_fingerprint(fingerprint: str | None, request: Path) -> str:
    """Return the fingerprint that its owner has confirmed; else name the one to ask."""
    from secagg.errors import ErrorCode
    from secagg.pki.certificate_authority import fingerprint_of, read_request

    if fingerprint is None:
        shown = fingerprint_of(read_request(request))
        raise ErrorCode.BAD_CERTIFICATE.error(
            f"the key of {request} is {shown}, and its owner has not confirmed it",
            fix="Have its owner read it out, by another channel than the request, "
            "and give it as --fingerprint.",
        )
    return fingerprint


def _report_files(output: Output, written: "list[Path] | tuple[Path, ...]") -> None:
    """Report the files that were written."""
    output.result({"files": [str(path) for path in written]})
