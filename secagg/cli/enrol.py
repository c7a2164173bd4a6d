"""`secagg enrol`: become known to an operator, on the machine that keeps the key."""

from pathlib import Path
from typing import Annotated

import typer

from secagg.cli.options import JSONOption
from secagg.cli.output import Output

app = typer.Typer(
    help="Ask an operator for a certificate; the key never leaves this machine.",
    no_args_is_help=True,
)


@app.callback()
def _options() -> None:
    """Ask an operator for a certificate; the key never leaves this machine."""


@app.command("request")
def request(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the key is to lie.")
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

    Send the request to the operator, and tell the fingerprint on another way. What
    comes back are two public files, NAME.pem and ca.pem.

    Example: secagg enrol request tls --name hospital-a --server sums.example.org:7400
    """
    from secagg.crypto.entropy import SystemEntropy
    from secagg.pki.signing_requests import new_request
    from secagg.transport.address import Address

    output = Output(as_json=as_json)
    if server is not None:
        Address.parse(server, name="--server")
    path, fingerprint = new_request(directory, name, entropy=SystemEntropy())
    key = path.with_suffix(".key")
    output.line(f"{path}: send it to the operator, and tell on another way:")
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
