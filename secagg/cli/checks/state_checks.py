"""Checks of what a part keeps: its disk, store, uploads, rollback mark and claims.

Rule 1: a check changes nothing, also in a state that no process has open.
"""

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from secagg.cli.checks.preflight import Caution, check_writable
from secagg.client.total_ledger import claims_explained, exclusive_claims
from secagg.config import ClientSettings, HostSettings
from secagg.config.common import total_budget
from secagg.config.files import identity_of
from secagg.config.server import ServerSection
from secagg.config.two_aggregators import SharingClientSettings
from secagg.distributed_dp import text_above
from secagg.errors import ErrorCode
from secagg.storage.change import Side
from secagg.storage.directories import STORE_FILE, refuse_network_disk
from secagg.storage.journal import decode_server_event, sums_begun
from secagg.storage.open_store import StoreInUseError, open_reader, store_exists
from secagg.storage.queries import (
    FindFaults,
    ListReplicas,
    ListSessions,
    LoadSession,
    ReadMark,
)
from secagg.storage.rollback_mark import (
    STORE_ID_BYTES,
    Mark,
    RollbackMark,
    default_mark,
    refuse_restored,
)
from secagg.storage.rows import Replica
from secagg.storage.store import StateDamagedError, StoreNotFoundError, StoreReader
from secagg.transport.peer_identity import Role

_SLOW_DISK_SECONDS: Final = 0.1


def check_disk(directory: Path) -> str | Caution:
    """Measure how long a write takes to reach the disk."""
    place = next(each for each in (directory, *directory.parents) if each.is_dir())
    path = place / f".secagg-doctor-{os.getpid()}"
    began = time.monotonic()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{place} cannot be written: {error.strerror}",
            fix="Check the disk, its owner and the free space.",
        ) from None
    lasted = time.monotonic() - began
    found = f"a write reaches it in {1000 * lasted:.1f} ms"
    if lasted > _SLOW_DISK_SECONDS:
        return Caution(found, "Every message waits for one: use a faster disk.")
    return found


def check_blobs(url: str) -> str:
    """Create and remove one object in the store of uploads."""
    from secagg.storage.blobs import STORE_HOME
    from secagg.storage.open_blobs import directory_of, open_blobs

    if (directory := directory_of(url)) is not None and not directory.is_dir():
        return f"{url} {check_writable(directory)}"  # a check creates nothing
    blobs, begun = open_blobs(url), time.monotonic()
    place = f"{STORE_HOME}/doctor"
    blobs.remove(place)
    blobs.create(place, b"1")
    blobs.sync(place)
    blobs.remove(place)
    return f"{url} takes {1000 * (time.monotonic() - begun):.0f} ms for an object"


async def check_server_store(server: ServerSection, owner: str | None) -> str | Caution:
    """Check the store of an aggregator, unless an aggregator runs with it."""
    if owner is not None:
        return owner
    is_shared = server.store is not None and server.blobs is not None
    mark = server.rollback_mark
    return await check_store(server.state_dir, mark, server.store, is_shared=is_shared)


async def check_store(
    directory: Path,
    mark_path: Path | None,
    store_url: str | None = None,
    *,
    is_shared: bool = False,
) -> str | Caution:
    """Verify every row of a store, and its rollback mark."""
    path = directory / STORE_FILE
    if store_url is None:
        refuse_network_disk(directory)
    try:
        async with open_reader(directory, store=store_url) as store:
            faults = await store.read(FindFaults())
            if not faults:
                await refuse_unmarked(store, directory, mark_path, is_shared=is_shared)
    except StoreNotFoundError:
        return "no store exists yet: nothing has run with this state"
    except StoreInUseError:
        return Caution(
            f"a process has {path} open, so it was not read",
            "Stop that process first, unless it is yours and meant to run.",
        )
    if faults:
        raise StateDamagedError(faults[0].complaint, key=faults[0].key)
    return f"{path if store_url is None else 'the database'} is sound"


async def check_claims(
    settings: ClientSettings | SharingClientSettings,
) -> str | Caution:
    """Check what tasks have claimed of the data that a client contributes."""
    total = total_budget(settings.policy)
    if total is None:
        return "policy.data is not set: every task has its own budget, and no total"
    from secagg.cli.budget import read_data_usage

    if (shared := total.directory) is not None:
        # A client that holds the lock delays this check; no client is refused for it.
        check_writable(shared)
        is_there = store_exists(shared / STORE_FILE)
        turn = exclusive_claims if is_there else claims_explained
        with turn(shared):
            check_mark_alone(shared, total.rollback_mark)
            looked = await check_store(shared, total.rollback_mark)
        if isinstance(looked, Caution):
            return looked
    try:
        use = await read_data_usage(total, settings.client.state_dir)
    except StoreNotFoundError:
        return f"nothing is claimed of {total.data!r} yet"
    except StoreInUseError as error:
        return Caution(str(error), error.next_step)
    found = (
        f"epsilon {text_above(use.spent_epsilon, 4)} of {use.total_epsilon:g} is "
        f"claimed of {use.data!r} at delta {text_above(use.spent_delta, 3)} of "
        f"{use.total_delta:g}, tasks: {len(use.claims)}; kept in {use.kept_in}"
    )
    if not use.fits:
        return Caution(found, "The total was lowered below that: no task is joined.")
    return found


async def check_sums(server: ServerSection, owner: str | None) -> str | Caution:
    """Check for a sum whose computation has ended its aggregator."""
    from secagg.server.session.runner import MOST_ATTEMPTS

    if owner is not None:
        return owner
    begun: dict[str, int] = {}
    try:
        async with open_reader(server.state_dir, store=server.store) as store:
            for row in await store.read(ListSessions(role=Side.SERVER)):
                stored = await store.read(LoadSession(row.key))
                if stored is not None and not stored.ended:
                    events = map(decode_server_event, stored.records)
                    begun[f"session {row.number} of task {row.task!r}"] = sums_begun(
                        events
                    )
    except (StoreNotFoundError, StoreInUseError):
        return "no sum was begun"
    for which, times in begun.items():
        if times:
            return Caution(
                f"the sum of {which} was begun {times} time(s) and is not done: unless "
                "a process computes it now, it has ended its aggregator",
                f"After {MOST_ATTEMPTS} times the session ends without it. Check "
                "the system's log for a process that was killed for want of memory.",
            )
    return "no sum has ended its aggregator"


async def check_replicas(host: HostSettings) -> str | None:
    """Compare names with the aggregators that share the store."""
    from secagg.storage.leases import refuse_other_names

    server = host.server
    if server.store is None or server.blobs is None:
        return None
    own = identity_of(host.tls, Role.SERVER, quiet=True).identity.name
    try:
        async with open_reader(server.state_dir, store=server.store) as store:
            rows = await store.read(ListReplicas())
    except StoreNotFoundError:
        return "no store exists yet"
    refuse_other_names(Replica("", "", "", own), rows)
    return f"all have the name {own!r}" if rows else "no aggregator has joined yet"


def check_modes(directory: Path, given: Path | None) -> str | Caution:
    """Check who may read files with seeds and shares: 0700, and 0600 for files."""
    mark = given or default_mark(directory)
    files = [directory, *directory.glob(f"{STORE_FILE}*"), mark]
    known = [(each, _mode(each)) for each in files]
    wide = [(each, mode) for each, mode in known if mode is not None and mode & 0o077]
    if not wide:
        return "for its owner alone"
    path, mode = wide[0]
    return Caution(
        f"other users may use {path}, mode {mode:04o}: it holds seeds and shares, or "
        "distinguishes an old state from the newest",
        f"chmod {'700' if path.is_dir() else '600'} {path}",
    )


def _mode(path: Path) -> int | None:
    """Return the mode of a file; None for one that cannot be read."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def check_mark_alone(
    directory: Path, given: Path | None, *, accepts_restored: bool = False
) -> str | None:
    """Refuse a rollback mark whose state is gone, as a start would.

    Args:
        directory: Of the state.
        given: Its mark; None for the one by default.
        accepts_restored: Whether that is accepted.

    Raises:
        ServiceError: RESTORED_STATE.
    """
    if accepts_restored or store_exists(directory / STORE_FILE):
        return None
    mark = RollbackMark(given or default_mark(directory))
    refuse_restored(Mark(bytes(STORE_ID_BYTES), 0), mark.read(), mark.path)
    return None


async def refuse_unmarked(
    store: StoreReader, directory: Path, given: Path | None, *, is_shared: bool = False
) -> None:
    """Refuse a store that does not fit its rollback mark, as a start would.

    Args:
        store: What is read.
        directory: Of the state.
        given: Its mark; None for the one by default.
        is_shared: Whether other aggregators share the store, and may admit a new one.

    Raises:
        ServiceError: RESTORED_STATE.
    """
    stands, mark = (
        await store.read(ReadMark()),
        RollbackMark(given or default_mark(directory)),
    )
    marked = mark.read()
    if stands is not None and not (is_shared and marked is None):
        refuse_restored(stands, marked, mark.path)


def first_warning(found: Iterable[str | Caution]) -> str | Caution:
    """Return the first warning, or all results in one line."""
    known = list(found)
    cautions = [each for each in known if isinstance(each, Caution)]
    return cautions[0] if cautions else "; ".join(map(str, known))
