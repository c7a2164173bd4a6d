"""`secagg pki`: development certificates for mutual TLS, and enrolment."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli import enrolment
from secagg.cli.options import JSONOption
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.transport.certificates import Authority

__all__ = ["app"]

AUTHORITY_STEM = "ca"

app = typer.Typer(
    help="Certificates for development, and who is enrolled as a client.",
    no_args_is_help=True,
)
app.add_typer(enrolment.enrol, name="enrol")
app.add_typer(enrolment.identity, name="identity")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Where ca.pem and ca.key lie.")
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="DNS name or address under which clients reach the server; may be "
        "repeated. Default: 127.0.0.1 and localhost.",
    ),
]
TrustDomainOption = Annotated[
    str,
    typer.Option("--trust-domain", help="Name of the deployment; in every identity."),
]
DaysOption = Annotated[
    int, typer.Option("--days", help="How long the certificates are valid.")
]
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
    host: HostOption = None,
    trust_domain: TrustDomainOption = "secagg.local",
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Make an authority, one server and N enrolled clients (client-1 ... client-N).

    For development: authority and issuer lie beside what they issue.

    Example: secagg pki init pki --clients 3 --host 127.0.0.1
    """
    from secagg.enrolment.development import DevelopmentEnrolment
    from secagg.enrolment.keys import key_text
    from secagg.primitives.entropy import SystemEntropy
    from secagg.transport.certificates import Authority

    output = Output(as_json=as_json)
    hosts = tuple(host or _LOOPBACK)
    written = Authority.create(trust_domain).issue_all(
        directory, hosts=hosts, clients=clients, days=days
    )
    names = [f"client-{number}" for number in range(1, clients + 1)]
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
    trust_domain: TrustDomainOption = "secagg.local",
    as_json: JSONOption = False,
) -> None:
    """Make an authority and nothing else.

    Example: secagg pki ca pki --trust-domain example.org
    """
    from secagg.transport.certificates import Authority

    output = Output(as_json=as_json)
    written = Authority.create(trust_domain).issued().write(directory, AUTHORITY_STEM)
    output.line(f"{directory}: an authority for {trust_domain}. Keep ca.key offline.")
    _report(output, written)


@app.command("server")
def server(
    *,
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")],
    host: HostOption = None,
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Issue a server's certificate, NAME.pem and NAME.key.

    Example: secagg pki server pki aggregator --host aggregator.example.org
    """
    output = Output(as_json=as_json)
    issued = _authority_in(directory).issue_server(
        name, tuple(host or _LOOPBACK), days=days
    )
    written = issued.write(directory, name)
    output.line(f"{written[0]} and {written[1].name}, valid for {days} days.")
    _report(output, written)


@app.command("client")
def client(
    *,
    directory: DirectoryArgument,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The clients' names.")
    ],
    days: DaysOption = 90,
    as_json: JSONOption = False,
) -> None:
    """Issue clients' certificates, NAME.pem and NAME.key each.

    Example: secagg pki client pki hospital-a hospital-b
    """
    output = Output(as_json=as_json)
    authority = _authority_in(directory)
    written: list[Path] = []
    for name in names:
        written += authority.issue_client(name, days=days).write(directory, name)
    output.line(f"{directory}: {len(names)} clients, valid for {days} days.")
    _report(output, written)


def _authority_in(directory: Path) -> "Authority":
    from secagg.transport.certificates import Authority

    return Authority.load(
        directory / f"{AUTHORITY_STEM}.pem", directory / f"{AUTHORITY_STEM}.key"
    )


def _report(output: Output, written: "list[Path] | tuple[Path, ...]") -> None:
    output.result({"files": [str(path) for path in written]})
