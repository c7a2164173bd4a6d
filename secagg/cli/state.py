"""`secagg state`: what a server or a client keeps on its disk, verified."""

from dataclasses import dataclass
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
def check(  # noqa: C901 - what was found is said in one place
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

    Every upload that an open session has accepted is asked for, and the book is
    compared with its rollback mark. Ends with 77 when something is lost, and with 78
    when an older state was put back. The program must not run meanwhile.

    Example: secagg state check --config server.toml
    """
    import asyncio

    from secagg.cli.exit_codes import EXIT_OK, exit_code_of
    from secagg.cli.setup_checks import check_mark_alone, refuse_unmarked
    from secagg.errors import ErrorCode, SecAggError
    from secagg.storage.book_reader import looking
    from secagg.storage.open_blobs import open_blobs
    from secagg.storage.state_check import StateFault, find_state_faults, set_aside

    output = Output(as_json=as_json)
    kept = _state_of(server_file(config))
    directory = kept.directory
    if kept.store is None:
        check_mark_alone(directory, kept.mark)

    async def looked() -> tuple[list[StateFault], list[Path], SecAggError | None]:
        async with looking(directory, store=kept.store) as book:
            blobs = None if kept.blobs is None else open_blobs(kept.blobs)
            faults = await find_state_faults(
                book, blobs, names_uploads=kept.names_uploads
            )
            moved = set_aside(directory, blobs, faults) if repair_quarantine else []
            try:
                await refuse_unmarked(
                    book, directory, kept.mark, is_shared=kept.is_shared
                )
            except SecAggError as error:
                return faults, moved, error
            return faults, moved, None

    faults, moved, restored = asyncio.run(looked())
    journal = None if kept.store is not None else journal_of(directory)
    if journal is not None:
        output.line(
            f"the book has journal_mode {journal}; synchronous = FULL and "
            "secure_delete = ON are set at every opening"
        )
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
    if damaged:
        output.line(
            f"{len(damaged)} damaged; docs/exit-codes.md says under 77 what to do"
        )
    if restored is not None and not damaged:
        raise restored
    if restored is not None:
        output.line(f"{restored}", style="bold red")
    elif not damaged:
        output.line(f"{directory} is sound")
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
            "journal_mode": journal,
            "is_restored": restored is not None,
        }
    )
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where the state of a party is kept.

    Attributes:
        directory: Its own.
        mark: Its rollback mark; None for the one by default.
        store: Its book, where that is elsewhere.
        blobs: Its uploads, if there are any.
        names_uploads: See `find_state_faults`.
    """

    directory: Path
    mark: Path | None
    store: str | None = None
    blobs: str | None = None
    names_uploads: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether other aggregators may use the same book."""
        return self.store is not None and self.blobs is not None


def journal_of(directory: Path) -> str:
    """Return how the book's file keeps changes, from its header: ``wal`` or else."""
    from secagg.storage.open_book import BOOK_FILE

    try:
        with (directory / BOOK_FILE).open("rb") as stream:
            header = stream.read(20)
    except OSError:
        return "unknown"
    return "wal" if header[18:20] == b"\x02\x02" else "delete"


def _state_of(file: Path) -> _Kept:
    """Return where a party keeps its state, by its settings file."""
    import os

    from secagg.config import is_client_file, load_client_settings, load_host_settings
    from secagg.config.files import is_file_of_two_aggregators, party_of
    from secagg.config.two_servers import (
        HelperSettings,
        LeaderSettings,
        SharingClientSettings,
        load_two_server_settings,
    )

    if is_client_file(file) and is_file_of_two_aggregators(file):
        sharing = load_two_server_settings(
            SharingClientSettings, file, environment=os.environ
        ).settings.client
        return _Kept(sharing.state_dir, sharing.rollback_mark)
    if is_client_file(file):
        client = load_client_settings(file, environment=os.environ).settings.client
        return _Kept(client.state_dir, client.rollback_mark)
    kind = party_of(file)
    if kind is not None:
        # Their journals name uploads in their own way, which their start reads.
        settings: LeaderSettings | HelperSettings
        if kind is LeaderSettings:
            settings = load_two_server_settings(
                LeaderSettings, file, environment=os.environ
            ).settings
        else:
            settings = load_two_server_settings(
                HelperSettings, file, environment=os.environ
            ).settings
        aggregator = settings.aggregator
        return _Kept(aggregator.state_dir, aggregator.rollback_mark)
    server = load_host_settings(file, environment=os.environ).settings.server
    spool = (server.state_dir / "spool").absolute()
    own = f"file:{spool}" if spool.is_dir() else None
    return _Kept(
        server.state_dir,
        server.rollback_mark,
        server.store,
        server.blobs or own,
        names_uploads=True,
    )
