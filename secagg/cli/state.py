"""`secagg state`: what a server or a client keeps on its disk, verified."""

from pathlib import Path
from typing import Annotated

import typer

from secagg.cli.operator import EitherFileOption, server_file
from secagg.cli.options import JSONOption
from secagg.cli.output import Output

__all__ = ["app"]

app = typer.Typer(
    help="Verify the state of a server or a client that does not run.",
    no_args_is_help=True,
)


@app.callback()
def state() -> None:
    """Verify the state of a server or a client that does not run."""


@app.command("check")
def check(
    *,
    config: EitherFileOption = None,
    repair_quarantine: Annotated[
        bool,
        typer.Option(
            "--repair-quarantine",
            help="Move files that belong to no session, or are damaged, into "
            "state_dir/quarantine. The book itself is never changed.",
        ),
    ] = False,
    as_json: JSONOption = False,
) -> None:
    """Verify every row, chain and upload of a state directory.

    Ends with 77 when something is lost. The program must not run meanwhile.

    Example: secagg state check --config server.toml
    """
    import asyncio

    from secagg.cli.exit_codes import EXIT_OK, exit_code_of
    from secagg.errors import ErrorCode
    from secagg.storage.book_reader import looking
    from secagg.storage.open_blobs import open_blobs
    from secagg.storage.state_check import StateFault, find_state_faults, set_aside

    output = Output(as_json=as_json)
    directory, store, where = _state_of(server_file(config))

    async def looked() -> tuple[list[StateFault], list[Path]]:
        async with looking(directory, store=store) as book:
            blobs = None if where is None else open_blobs(where)
            faults = await find_state_faults(book, blobs)
            moved = set_aside(directory, blobs, faults) if repair_quarantine else []
            return faults, moved

    faults, moved = asyncio.run(looked())
    for fault in faults:
        output.line(
            f"{'DAMAGED' if fault.is_damage else 'note'}: {fault.where or 'the book'} "
            f"{fault.complaint}",
            style="bold red" if fault.is_damage else "yellow",
        )
    for path in moved:
        output.line(f"moved to {path}")
    damaged = [fault for fault in faults if fault.is_damage]
    code = exit_code_of(ErrorCode.STATE_DAMAGED) if damaged else EXIT_OK
    output.line(
        f"{len(damaged)} damaged; docs/exit-codes.md says under 77 what to do"
        if damaged
        else f"{directory} is sound"
    )
    output.result(
        {
            "state_dir": str(directory),
            "ok": not damaged,
            "exit_code": code,
            "faults": [
                {
                    "where": fault.where,
                    "complaint": fault.complaint,
                    "is_damage": fault.is_damage,
                }
                for fault in faults
            ],
            "moved": [str(path) for path in moved],
        }
    )
    raise typer.Exit(code)


def _state_of(file: Path) -> tuple[Path, str | None, str | None]:
    """Return the state directory, and where book and uploads are, if there are any."""
    import os

    from secagg.config import is_client_file, load_client_settings, load_host_settings

    if is_client_file(file):
        loaded = load_client_settings(file, environment=os.environ)
        return loaded.settings.client.state_dir, None, None
    server = load_host_settings(file, environment=os.environ).settings.server
    spool = (server.state_dir / "spool").absolute()
    own = f"file:{spool}" if spool.is_dir() else None
    return server.state_dir, server.store, server.blobs or own
