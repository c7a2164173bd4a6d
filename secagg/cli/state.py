"""`secagg state`: verifies what a server or a client keeps on its disk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.operator import EitherFileOption, server_file
from secagg.cli.options import JSONOption, SetOption, accepts_restored, restored_option
from secagg.cli.output import Output
from secagg.errors import ErrorCode

if TYPE_CHECKING:
    from secagg.storage.integrity_check import SpoolUse, StateFault

app = typer.Typer(
    help="Verify the state of a server or a client that does not run.",
    no_args_is_help=True,
)


@app.callback()
def state() -> None:
    """Verify the state of a server or a client that does not run."""


@app.command("check")
def check(  # noqa: C901 - the results are printed in one place
    *,
    config: EitherFileOption = None,
    repair_quarantine: Annotated[
        bool,
        typer.Option(
            "--repair-quarantine",
            help="Move files that belong to no session, or are damaged, into "
            "state_dir/quarantine, unless the rollback mark does not fit. The store "
            "itself is never changed.",
        ),
    ] = False,
    is_copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="The state is a copy, such as a backup, and runs nowhere: its "
            "rollback mark is that of the original and is not read.",
        ),
    ] = False,
    overrides: SetOption = None,
    as_json: JSONOption = False,
) -> None:
    """Verify every row, hash chain and upload of a state directory.

    Every upload that an open session has accepted must exist, and the store is
    compared with its rollback mark. Ends with 77 when something is lost, and with 78
    when an older state was restored. The program must not run meanwhile.

    Example: secagg state check --config server.toml
    """
    import asyncio

    from secagg.cli.checks.state_checks import check_mark_alone, refuse_unmarked
    from secagg.cli.failures import EXIT_OK, exit_code_of
    from secagg.errors import SecAggError
    from secagg.storage.directories import STORE_FILE
    from secagg.storage.integrity_check import StateFault, find_state_faults, quarantine
    from secagg.storage.open_blobs import open_blobs
    from secagg.storage.open_store import open_reader, store_exists

    output = Output(as_json=as_json)
    place, states = _states_of(server_file(config), overrides or ())
    for kept in states:
        if kept.store is None and not is_copy:
            check_mark_alone(kept.directory, kept.mark)
    # A task of two aggregators that has not run yet delays no other one.
    there = [kept for kept in states if store_exists(kept.directory / STORE_FILE)]

    async def inspect_state(
        kept: _Kept,
    ) -> tuple[list[StateFault], list[Path], SecAggError | None]:
        directory = kept.directory
        async with open_reader(directory, store=kept.store) as store:
            blobs = None if kept.blobs is None else open_blobs(kept.blobs)
            faults = await find_state_faults(store, blobs, use=kept.use)
            try:
                if not is_copy:
                    await refuse_unmarked(
                        store, directory, kept.mark, is_shared=kept.is_shared
                    )
            except SecAggError as error:
                # An older store may not name uploads that only the newest one names.
                return kept.named(faults), [], error
            moved = quarantine(directory, blobs, faults) if repair_quarantine else []
            return kept.named(faults), moved, None

    faults: list[StateFault] = []
    moved: list[Path] = []
    restored: SecAggError | None = None
    journal = None
    for kept in there if len(states) > 1 and there else states:
        found, aside, error = asyncio.run(inspect_state(kept))
        faults, moved, restored = faults + found, moved + aside, restored or error
        journal = None if kept.store is not None else _journal_of(kept.directory)
    if journal is not None:
        output.line(
            f"the store has journal_mode {journal}; synchronous = FULL and "
            "secure_delete = ON are set at every opening"
        )
    for fault in faults:
        output.line(
            f"{'DAMAGED' if fault.is_damage else 'note'}: {fault.where or 'the store'} "
            f"{fault.complaint}",
            style="bold red" if fault.is_damage else "yellow",
        )
    for path in moved:
        output.line(f"moved to {path}")
    damaged = [fault for fault in faults if fault.is_damage]
    code = exit_code_of(ErrorCode.STATE_DAMAGED) if damaged else EXIT_OK
    if damaged:
        output.line(f"{len(damaged)} damaged; docs/errors.md says under 77 what to do")
    if restored is not None and not damaged:
        raise restored
    if restored is not None:
        output.line(f"{restored}", style="bold red")
    elif not damaged:
        output.line(f"{place} is sound")
    output.result(
        {
            "state_dir": str(place),
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


@app.command("forget")
def forget(
    *,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The state directory, gone or empty."),
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Whose state it was."),
    ] = None,
    overrides: SetOption = None,
    restored: Annotated[
        str | None,
        restored_option("For a client whose data have a total, and without --config."),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Remove the rollback mark of a state that is gone, to start from nothing.

    A state itself is never removed: DIR must be gone or empty.

    Example: secagg state forget client-state --config client.toml
    """
    from functools import partial

    from secagg.storage.rollback_mark import RollbackMark, default_mark

    output = Output(as_json=as_json)
    is_accepted = accepts_restored(restored)
    kept = _Kept(directory, None)
    if config is not None:
        _, states = _states_of(config, overrides or ())
        own = (each for each in states if _is_same(each.directory, directory))
        kept = next(own, states[0])

    check = partial(_refuse_to_forget, directory, kept, is_accepted=is_accepted)
    check()
    mark = RollbackMark(kept.mark or default_mark(directory))
    was_there = mark.delete_mark(check=check)
    output.line(
        f"removed {mark.path}: the numbers and budgets of {directory} are forgotten"
        if was_there
        else f"there is no rollback mark {mark.path}: nothing to forget"
    )
    if was_there and kept.is_client is not True:
        output.line(
            "a server needs new task ids: clients refuse numbers they have seen"
        )
    if was_there and kept.is_client is not False:
        output.line(
            "a client has forgotten what it was charged: lower policy.max_epsilon by "
            "what was spent, or take a new name"
        )
    output.result({"mark": str(mark.path), "removed": was_there})


def _refuse_to_forget(directory: Path, kept: "_Kept", *, is_accepted: bool) -> None:
    """Refuse to forget a state that exists, or claims that a total needs.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    complaint = remedy = ""
    if not _is_same(kept.directory, directory):
        complaint = f"the settings name the state {kept.directory}, not {directory}"
        remedy = (
            "Name the settings file of this state, and what its program was given by "
            "--set."
        )
    elif kept.store is not None:
        complaint = "the store of this state is in a database, which still exists"
        remedy = "Empty the database first, and remove its mark by hand."
    elif not _is_missing_or_empty(directory):
        complaint = f"{directory} is not empty: a state is never forgotten"
        remedy = "Move its files away first, or keep state and mark as they are."
    elif not is_accepted and (kept.has_total or not isinstance(kept.is_client, bool)):
        complaint = (
            "claims on data with a total would be forgotten"
            if kept.has_total
            else "without --config this command cannot tell whose state it was"
        )
        remedy = "Write --restored with its sentence, if it is true."
    if complaint:
        raise ErrorCode.BAD_SETTINGS.error(complaint, fix=remedy)


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _is_missing_or_empty(directory: Path) -> bool:
    """Return whether nothing is left of a state.

    A link whose target does not exist is a state: its disk may return.
    """
    from secagg.runtime.files import disk

    with disk(directory):
        try:
            return not any(directory.iterdir())
        except NotADirectoryError:
            return False
        except FileNotFoundError:
            return not directory.is_symlink()


@dataclass(frozen=True, slots=True)
class _Kept:
    """Places where a party keeps a state.

    Attributes:
        directory: Its own.
        mark: Its rollback mark; None for the one by default.
        store: URL of its store, where that is a database.
        blobs: Its uploads, if there are any.
        use: What its sessions name of them; see `find_state_faults`.
        is_client: Whose it is; None where no settings say.
        has_total: Whether its claims on data count against a total.
        name: Which of several states it is; "" where there is one.
    """

    directory: Path
    mark: Path | None
    store: str | None = None
    blobs: str | None = None
    use: "SpoolUse | None" = None
    is_client: bool | None = None
    has_total: bool = False
    name: str = ""

    def named(self, faults: "list[StateFault]") -> "list[StateFault]":
        """Return faults with the name of this state, where there are several."""
        if not self.name:
            return faults
        return [
            replace(each, where=f"{self.name}: {each.where or 'the store'}")
            for each in faults
        ]

    @property
    def is_shared(self) -> bool:
        """Whether other aggregators may use the same store."""
        return self.store is not None and self.blobs is not None


def _journal_of(directory: Path) -> str:
    """Return the journal mode of the store's file, from its header: ``wal`` or else."""
    from secagg.storage.directories import STORE_FILE

    try:
        with (directory / STORE_FILE).open("rb") as stream:
            header = stream.read(20)
    except OSError:
        return "unknown"
    return "wal" if header[18:20] == b"\x02\x02" else "delete"


def _states_of(file: Path, overrides: Sequence[str]) -> tuple[Path, list[_Kept]]:
    """Return where a party keeps its states, by its settings file and `--set`.

    Each of two aggregators has one for each task, in a directory that holds them all.
    """
    from secagg.cli.checks.setups import PartySetup, ServerSetup, load_setup
    from secagg.config.two_aggregators import LeaderSettings
    from secagg.storage.integrity_check import USE_OF_AGGREGATOR
    from secagg.two_aggregators.helper import USE_OF_HELPER
    from secagg.two_aggregators.leader import USE_OF_LEADER

    setup = load_setup(file, overrides)
    if isinstance(setup, PartySetup):
        is_leader = isinstance(setup.settings, LeaderSettings)
        states = [
            _Kept(
                directory,
                mark,
                blobs=_own_blobs(directory),
                use=USE_OF_LEADER if is_leader else USE_OF_HELPER,
                is_client=False,
                name=f"task {task.id!r}" if len(setup.tasks) > 1 else "",
            )
            for task, (directory, mark) in zip(setup.tasks, setup.places, strict=True)
        ]
        return setup.settings.server.state_dir, states
    ((directory, mark),) = setup.places
    if not isinstance(setup, ServerSetup):
        has_total = setup.settings.policy.data is not None
        return directory, [_Kept(directory, mark, is_client=True, has_total=has_total)]
    server = setup.host.server
    one = _Kept(
        directory,
        mark,
        server.store,
        server.blobs or _own_blobs(directory),
        use=USE_OF_AGGREGATOR,
        is_client=False,
    )
    return directory, [one]


def _own_blobs(directory: Path) -> str | None:
    """Return where a party keeps uploads in its own state; None where it has none."""
    from secagg.runtime.files import disk

    spool = (directory / "spool").absolute()
    with disk(directory):
        return f"file:{spool}" if spool.is_dir() else None
