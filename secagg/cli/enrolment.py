"""`secagg pki enrol`, `secagg pki identity` and `secagg enrol`: enrol clients.

Nothing secret is printed; private keys stay in the directory where they were made, on
the machine that uses them.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import JSONOption
from secagg.cli.output import Output, moment

if TYPE_CHECKING:
    from secagg.pki.credential_issuer import Issued
    from secagg.protocol.enrolment import CredentialRequest, IssuedCredential

enrol = typer.Typer(
    help="Run an issuer: sign, renew, revoke and list credentials.",
    no_args_is_help=True,
)
identity = typer.Typer(
    help="Make a client's identity, on the client's machine.",
    no_args_is_help=True,
)

_IssuerArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The issuer's directory.")
]
_IdentityArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The identity's directory.")
]
TrustDomainOption = Annotated[
    str,
    typer.Option("--trust-domain", help="Name of the deployment; in every identity."),
]
DaysOption = Annotated[
    int, typer.Option("--days", help="How long the credential is valid, 1 to 398.")
]


@enrol.command("init")
def init(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="New directory of the issuer.")
    ],
    trust_domain: TrustDomainOption = "secagg.local",
    as_json: JSONOption = False,
) -> None:
    """Make an issuer, on a machine that no aggregator's operator has access to.

    Example: secagg pki enrol init issuer --trust-domain example.org
    """
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.credential_issuer import Issuer
    from secagg.pki.key_files import key_text

    output = Output(as_json=as_json)
    key = Issuer.create(directory, trust_domain=trust_domain, entropy=SystemEntropy())
    output.line(f"{directory}: an issuer for {trust_domain}. Keep it offline.")
    output.line("Every client pins its enrolment key:")
    output.line(key_text(key))
    output.result(
        {
            "directory": str(directory),
            "trust_domain": trust_domain,
            "enrolment_key": key_text(key),
        }
    )


@enrol.command("sign")
def sign(  # noqa: PLR0913 - one parameter per flag
    *,
    directory: _IssuerArgument,
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="What the client has sent.")
    ],
    days: DaysOption = 90,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The client's name as you know it; any other is refused."
        ),
    ] = None,
    confirmed: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="ed25519:...",
            help="The key as the client's owner reports it; any other is refused.",
        ),
    ] = None,
    destination: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The credential. Default: credential.bin beside the request.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Issue the credential that a client asks for.

    Give the name of the client, and the key as `pki identity new` showed it to the
    client's owner. The owner reports both by another channel than the request.

    Example: secagg pki enrol sign issuer request.bin --name hospital-a --days 90
    """
    from secagg.pki.client_identity import CREDENTIAL, read_request
    from secagg.pki.credential_issuer import Issuer
    from secagg.pki.key_files import parse_key

    output = Output(as_json=as_json)
    asked = read_request(request)
    key = None if confirmed is None else parse_key(confirmed)
    path = destination or request.with_name(CREDENTIAL)
    with Issuer.open(directory) as issuer:
        issued = issuer.sign(
            asked, now=_unix_seconds(), days=days, name=name, confirmed=key
        )
    _write_credential(output, issued, path)


@enrol.command("renew")
def renew(
    *,
    directory: _IssuerArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client.")],
    days: DaysOption = 90,
    destination: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The credential. Default: NAME.credential.bin here.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Issue a further credential for the last key of a client.

    Example: secagg pki enrol renew issuer hospital-a
    """
    from secagg.pki.client_identity import CREDENTIAL
    from secagg.pki.credential_issuer import Issuer

    output = Output(as_json=as_json)
    with Issuer.open(directory) as issuer:
        issued = issuer.renew(name, now=_unix_seconds(), days=days)
    path = destination or Path(f"{issued.credential.name}.{CREDENTIAL}")
    _write_credential(output, issued, path)


@enrol.command("revoke")
def revoke(
    *,
    directory: _IssuerArgument,
    serials: Annotated[
        list[int] | None,
        typer.Argument(metavar="[SERIAL...]", help="What `enrol list` shows."),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Revoke credentials, with all others of the same keys.

    Without a serial it only makes a newer list.

    Example: secagg pki enrol revoke issuer 17
    """
    from secagg.pki.credential_issuer import REVOCATIONS, Issuer

    output = Output(as_json=as_json)
    with Issuer.open(directory) as issuer:
        revocations = issuer.revoke(serials or (), now=_unix_seconds())
    path = directory / REVOCATIONS
    output.line(
        f"{path}: list {revocations.number}, {len(revocations.serials)} serials."
    )
    output.line("Give it to every aggregator: enrolment.revocations in its settings.")
    output.line("Over gRPC the certificate lets a client in: `secagg pki revoke`.")
    output.result(
        {
            "file": str(path),
            "number": revocations.number,
            "serials": list(revocations.serials),
            "sha256": revocations.digest.hex(),
        }
    )


@enrol.command("list")
def list_issued(*, directory: _IssuerArgument, as_json: JSONOption = False) -> None:
    """Show what was issued, which of it is valid, and the key to pin.

    Example: secagg pki enrol list issuer
    """
    from secagg.pki.credential_issuer import Issuer
    from secagg.pki.key_files import key_text

    output, now = Output(as_json=as_json), _unix_seconds()
    with Issuer.open(directory) as issuer:
        issued, revocations = issuer.issued(), issuer.revocations
        key, trust_domain = key_text(issuer.enrolment_key), issuer.trust_domain
    rows = [(each.credential, _credential_state(each, now)) for each in issued]
    output.table(
        ("serial", "name", "state", "until", "key"),
        [
            (
                str(credential.serial),
                credential.name,
                state,
                moment(credential.not_after),
                key_text(credential.identity_key),
            )
            for credential, state in rows
        ],
        numeric=(0,),
    )
    number = 0 if revocations is None else revocations.number
    output.line(f"{trust_domain}, revocation list {number}, enrolment key {key}")
    output.result(
        {
            "trust_domain": trust_domain,
            "enrolment_key": key,
            "revocation_number": number,
            "credentials": [
                {
                    "serial": credential.serial,
                    "name": credential.name,
                    "state": state,
                    "not_before": credential.not_before,
                    "not_after": credential.not_after,
                    "identity_key": key_text(credential.identity_key),
                }
                for credential, state in rows
            ],
        }
    )


@identity.command("new")
def new(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="New directory of the identity.")
    ],
    name: Annotated[
        str, typer.Option("--name", help="The client's name, as in its certificate.")
    ],
    trust_domain: TrustDomainOption = "secagg.local",
    as_json: JSONOption = False,
) -> None:
    """Make a client's private key and the request for its credential.

    Example: secagg pki identity new identity --name hospital-a
    """
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.client_identity import new_identity
    from secagg.transport.peer_identity import PeerIdentity, Role

    # Stricter than for a credential: a certificate has to carry the name, too.
    PeerIdentity(trust_domain, Role.CLIENT, name)
    request = new_identity(
        directory,
        trust_domain=trust_domain,
        name=name,
        now=_unix_seconds(),
        entropy=SystemEntropy(),
    )
    _report_request(Output(as_json=as_json), directory, request)


@identity.command("renew")
def renew_identity(
    *, directory: _IdentityArgument, as_json: JSONOption = False
) -> None:
    """Request a further credential for the same key.

    Example: secagg pki identity renew identity
    """
    from secagg.pki.client_identity import renew_request

    request = renew_request(directory, now=_unix_seconds())
    _report_request(Output(as_json=as_json), directory, request)


def _report_request(
    output: Output, directory: Path, request: "CredentialRequest"
) -> None:
    """Print where a request is, and the key to confirm."""
    from secagg.pki.client_identity import IDENTITY_SEED, REQUEST
    from secagg.pki.key_files import key_text

    path, key = directory / REQUEST, key_text(request.identity_key)
    output.line(f"{path}: send it to the issuer; confirm the key by another channel:")
    output.line(f"{request.name}  {key}")
    output.line(f"{directory / IDENTITY_SEED} never leaves this machine.")
    output.result(
        {
            "request": str(path),
            "name": request.name,
            "trust_domain": request.trust_domain,
            "identity_key": key,
        }
    )


def _write_credential(output: Output, issued: "IssuedCredential", path: Path) -> None:
    """Print an issued credential."""
    from secagg.pki.client_identity import write_credential
    from secagg.pki.key_files import key_text

    write_credential(path, issued)
    credential = issued.credential
    key = key_text(credential.identity_key)
    output.line(f"{path}: serial {credential.serial} for {credential.name},")
    output.line(f"valid until {moment(credential.not_after)}, key {key}")
    output.result(
        {
            "file": str(path),
            "serial": credential.serial,
            "name": credential.name,
            "trust_domain": issued.trust_domain,
            "identity_key": key,
            "not_before": credential.not_before,
            "not_after": credential.not_after,
        }
    )


def _credential_state(issued: "Issued", now: int) -> str:
    """Return the state of a credential in a word."""
    if issued.is_revoked:
        return "revoked"
    return "live" if issued.is_live(now) else "expired"


def _unix_seconds() -> int:
    """Return this moment in Unix seconds."""
    return int(time.time())


app = typer.Typer(
    help="Request a certificate from an operator; the key never leaves this machine.",
    no_args_is_help=True,
)


@app.callback()
def _options() -> None:
    """Request a certificate from an operator; the key never leaves this machine."""


@app.command("request")
def request(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the key.")
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name to ask for, such as hospital-a.")
    ],
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help="The aggregator; prints the settings of its client, too.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Make a private key and a request for its certificate, NAME.key and NAME.csr.

    Send the request to the operator, and report the fingerprint by another channel.
    You receive two public files, NAME.pem and ca.pem.

    Example: secagg enrol request tls --name hospital-a --server sums.example.org:7400
    """
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.certificate_authority import new_request
    from secagg.transport.address import Address

    output = Output(as_json=as_json)
    if server is not None:
        Address.parse(server, name="--server")
    path, fingerprint = new_request(directory, name, entropy=SystemEntropy())
    key = path.with_suffix(".key")
    output.line(f"{path}: send it to the operator, and report by another channel:")
    output.line(f"{name}  {fingerprint}")
    output.line(f"{key} never leaves this machine.")
    if server is not None:
        output.line("When the certificate is here, its settings name the files:")
        output.line(
            f'[client]\nserver = "{server}"\n'
            f'[tls]\nca = "{directory.absolute() / "ca.pem"}"\n'
            f'certificate = "{path.absolute().with_suffix(".pem")}"\n'
            f'key = "{key.absolute()}"'
        )
    output.result(
        {
            "request": str(path),
            "key": str(key),
            "name": name,
            "fingerprint": fingerprint,
        }
    )
