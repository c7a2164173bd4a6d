"""What the doctor looks at: numbered checks, in the order in which things break.

Rule 1: looking changes nothing: it joins no session and spends no budget.

D1xx are an aggregator's checks, D2xx a client's.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from secagg.cli.findings import Caution, Finding, branch
from secagg.cli.preflight import (
    check_client_enrolment,
    check_port,
    check_server_enrolment,
    check_server_paths,
    check_state_dir,
    check_writable,
    identity_of,
)
from secagg.cli.way_to_aggregator import WayToAggregator
from secagg.client.program import client_policy, privacy_floors
from secagg.client.total import look_at_use, turn_at_claims
from secagg.config import (
    ClientSettings,
    HostSettings,
    TaskSettings,
    load_client_settings,
    load_host_settings,
    load_server_settings,
    load_task_settings,
    names_a_task,
)
from secagg.config.data_total import total_budget
from secagg.config.paths import client_paths, refuse_shared_paths
from secagg.config.program import TLSSection
from secagg.config.server import ServerSection
from secagg.distributed_dp import text_above
from secagg.engine import EngineLostError, open_engine
from secagg.enrolment.keys import is_readable_by_others
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.server.admin_channel import admin_socket_of, call_admin
from secagg.server.sum_release import MOST_ATTEMPTS
from secagg.server.task_setup import prepare_task
from secagg.storage.blobs import STORE_HOME
from secagg.storage.book import StateDamagedError
from secagg.storage.book_reader import BookInUseError, looking
from secagg.storage.change import Role as BookRole
from secagg.storage.journal import decode_server_event, sums_begun
from secagg.storage.network_disk import refuse_network_disk
from secagg.storage.open_blobs import open_blobs
from secagg.storage.open_book import BOOK_FILE
from secagg.storage.other_names import refuse_other_names
from secagg.storage.reading_book import NoBookError
from secagg.storage.rollback_mark import (
    RollbackMark,
    default_mark,
    refuse_set_back,
)
from secagg.storage.stored import Replica
from secagg.transport.address import Address
from secagg.transport.admission import (
    FILES_PER_CONNECTION,
    RESERVED_FILES,
    raise_file_limit,
)
from secagg.transport.certificate_expiry import expiries_of, level_of
from secagg.transport.identity import Role
from secagg.transport.revoked import read_revoked
from secagg.transport.tls import read_certificates

__all__ = ["client_findings", "server_findings"]

_SLOW_DISK_SECONDS: Final = 0.1


async def server_findings(path: Path) -> list[Finding]:
    """Look at everything that an aggregator needs.

    Args:
        path: Its settings file.
    """
    loaded: list[tuple[HostSettings, list[TaskSettings]]] = []

    def settings() -> str:
        host = load_host_settings(path, environment=os.environ).settings
        tasks = _tasks_of(path, host)
        loaded.append((host, tasks))
        return f"{path}: {len(tasks)} task(s) in files"

    def paths() -> str:
        ((host, tasks),) = loaded
        return check_server_paths(host, path, tasks)

    findings = await branch([("D100", "settings", settings), ("D105", "paths", paths)])
    if not loaded:
        return findings
    ((host, tasks),) = loaded
    server, tls = host.server, host.tls
    owner = await _owner(host)
    return [
        *findings,
        *await branch(
            [
                ("D110", "certificate files", lambda: _files(tls)),
                ("D120", "certificate", lambda: _certificate(tls, Role.SERVER)),
                *(
                    ("D125", "revoked certificates", _bound(_revoked, path, tls.ca))
                    for path in [server.revoked]
                    if path is not None
                ),
                *(
                    (
                        f"D13{min(index, 9)}",
                        f"enrolment of task {task.task.id!r}",
                        _bound(check_server_enrolment, tls, task),
                    )
                    for index, task in enumerate(tasks)
                    if task.enrolment.enrolment_key is not None
                ),
            ]
        ),
        *await branch([("D140", "open files", lambda: _open_files(host, tasks))]),
        *await branch(
            [
                (
                    "D150",
                    "state directory",
                    lambda: check_state_dir(
                        server.state_dir, tasks[0] if tasks else None
                    ),
                ),
                ("D155", "disk", lambda: _disk(server.state_dir)),
                *(
                    ("D157", "uploads", _bound(_blobs, blobs))
                    for blobs in [server.blobs]
                    if blobs is not None
                ),
                ("D160", "book", lambda: _server_book(server, owner)),
                ("D161", "sums", lambda: _sums(server, owner)),
                *(
                    ("D163", "other aggregators", lambda: _others(host))
                    for _ in [server.store]
                    if server.store is not None and server.blobs is not None
                ),
            ]
        ),
        *await branch([("D165", "engine", lambda: _engine(server.engine))]),
        *await branch(
            [("D170", "output directory", lambda: check_writable(server.output_dir))]
        ),
        *await branch(
            [
                ("D180", "address", lambda: str(Address.parse(server.listen))),
                ("D185", "port", lambda: _port(host, owner)),
            ]
        ),
        *[
            finding
            for task in tasks
            for finding in await branch(
                [("D190", f"task {task.task.id!r}", _bound(_plan, task))]
            )
        ],
    ]


async def client_findings(path: Path) -> list[Finding]:
    """Look at everything that a client needs, up to the offer of its task.

    Args:
        path: Its settings file.
    """
    loaded: list[ClientSettings] = []

    def read() -> str:
        loaded.append(load_client_settings(path, environment=os.environ).settings)
        client_policy(loaded[0])
        privacy_floors(loaded[0])
        return str(path)

    findings = await branch(
        [
            ("D200", "settings", read),
            (
                "D205",
                "paths",
                lambda: refuse_shared_paths(client_paths(loaded[0], path)),
            ),
        ]
    )
    if findings[0].error is not None:
        return findings
    settings = loaded[0]
    tls, state_dir = settings.tls, settings.client.state_dir
    way = WayToAggregator(settings)
    storage = await branch(
        [
            ("D240", "state directory", lambda: check_writable(state_dir)),
            ("D250", "book", lambda: _book(state_dir, settings.client.rollback_mark)),
            ("D255", "claims on data", lambda: _claims(settings)),
        ]
    )
    found = [
        *findings,
        *storage,
        *await branch(
            [
                ("D210", "certificate files", lambda: _files(tls)),
                ("D220", "certificate", lambda: _certificate(tls, Role.CLIENT)),
                ("D230", "enrolment", lambda: check_client_enrolment(settings)),
                ("D260", "name of the aggregator", way.resolve),
                ("D270", "way to the aggregator", way.connect),
                ("D280", "TLS", way.speaks_tls),
                ("D290", "who the aggregator is", way.meets),
                ("D300", "task", way.asks),
                ("D310", "clock", way.clock),
                ("D320", "policy", way.judges),
            ]
        ),
    ]
    return sorted(found, key=lambda each: each.number)


# --- this machine ---------------------------------------------------------------------


def _tasks_of(path: Path, host: HostSettings) -> list[TaskSettings]:
    """Return the tasks of the file itself and of the folder of tasks."""
    tasks: list[TaskSettings] = []
    if names_a_task(path):
        tasks.append(
            load_server_settings(path, environment=os.environ).settings.own_task
        )
    folder = host.server.tasks_dir
    if folder is not None:
        if not folder.is_dir():
            raise ServiceError(
                f"server.tasks_dir {folder} is no directory",
                code=ErrorCode.BAD_SETTINGS,
                next_step="Make it, or leave the setting out.",
            )
        tasks += [load_task_settings(each) for each in sorted(folder.glob("*.toml"))]
    return tasks


def _files(tls: TLSSection) -> str | Caution:
    for path in (tls.ca, tls.certificate, tls.key):
        try:
            with path.open("rb") as stream:
                stream.read(1)
        except OSError as error:
            raise ServiceError(
                f"{path} cannot be read: {error.strerror}",
                code=ErrorCode.BAD_CERTIFICATE,
                next_step="Check the path under [tls] and who may read the file.",
            ) from None
    if is_readable_by_others(tls.key):
        return Caution(f"others may read the key {tls.key}", f"chmod 600 {tls.key}")
    return "all three can be read, the key by nobody else"


def _certificate(tls: TLSSection, role: Role) -> str | Caution:
    identity, now = identity_of(tls, role), datetime.now(UTC)
    first = min(expiries_of(identity), key=lambda each: each.moment)
    until = identity.not_valid_after
    found = f"{identity.identity.uri}, valid until {until:%Y-%m-%d %H:%M} UTC"
    level = level_of(first.moment, now)
    if not level:
        return found
    urgent = ": this week" if level == logging.ERROR else ""
    return Caution(
        f"{found}; {first.path} ends in {(first.moment - now).days} days",
        f"Put a new one under the same file name{urgent}; no restart is needed.",
    )


def _revoked(path: Path, authority: Path) -> str | Caution:
    revoked = read_revoked(path)
    known = {each.subject for each in read_certificates(authority)}
    strange = sum(each.issuer not in known for each in revoked)
    found = f"{path}: {len(revoked)} certificates"
    if strange:
        return Caution(
            f"{found}, {strange} of issuers that are not in {authority}",
            "Compare the issuers' names: a line with another one takes nobody back.",
        )
    return found


def _has_relay(host: HostSettings) -> bool:
    try:
        listen = Address.parse(host.server.listen, name="server.listen")
    except ServiceError:
        return False  # D180 says it
    return host.admission.limits().has_relay_at(listen)


def _open_files(host: HostSettings, tasks: Sequence[TaskSettings]) -> str:
    files = raise_file_limit()  # as the server will
    each = FILES_PER_CONNECTION if _has_relay(host) else 1
    clients = sum(task.cohort.max_clients for task in tasks)
    needed = each * clients + RESERVED_FILES
    if files < needed:
        raise ServiceError(
            f"this process may open {files} files; {clients} clients need {needed}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Raise the limit: LimitNOFILE=65536 in the unit, or "
            "`ulimit -n 65536` before the command.",
        )
    return f"{files} may be open, {needed} are needed"


def _disk(directory: Path) -> str | Caution:
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
        raise ServiceError(
            f"{place} cannot be written: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check the disk, its owner and the free space.",
        ) from None
    lasted = time.monotonic() - began
    found = f"a write reaches it in {1000 * lasted:.1f} ms"
    if lasted > _SLOW_DISK_SECONDS:
        return Caution(found, "Every message waits for one: use a faster disk.")
    return found


async def _owner(host: HostSettings) -> str | None:
    """Return what the aggregator that runs with these settings says of itself."""
    try:
        answer = await call_admin(admin_socket_of(host), "status")
    except SecAggError:
        return None
    server = answer["server"]
    return f"an aggregator runs with it, process {server['pid']}"


def _blobs(url: str) -> str:
    blobs, begun = open_blobs(url), time.monotonic()
    place = f"{STORE_HOME}/doctor"
    blobs.remove(place)
    blobs.create(place, b"1")
    blobs.sync(place)
    blobs.remove(place)
    return f"{url} takes {1000 * (time.monotonic() - begun):.0f} ms for an object"


async def _engine(setting: str) -> str | Caution:
    try:
        async with open_engine(setting) as engine:
            return f"{setting}, {await engine.parts()} workers"
    except EngineLostError as error:
        return Caution(str(error), error.next_step)


async def _server_book(server: ServerSection, owner: str | None) -> str | Caution:
    if owner is not None:
        return owner
    is_shared = server.store is not None and server.blobs is not None
    mark = server.rollback_mark
    return await _book(server.state_dir, mark, server.store, is_shared=is_shared)


async def _book(
    directory: Path,
    mark_path: Path | None,
    store: str | None = None,
    *,
    is_shared: bool = False,
) -> str | Caution:
    path = directory / BOOK_FILE
    if store is None:
        refuse_network_disk(directory)
    try:
        async with looking(directory, store=store) as book:
            faults, stands = await book.check(), await book.mark()
    except NoBookError:
        return "there is none yet: nothing has run with this state"
    except BookInUseError:
        return Caution(
            f"a process has {path} open, so it was not read",
            "Stop that process first, unless it is yours and meant to run.",
        )
    if faults:
        raise StateDamagedError(faults[0].complaint, key=faults[0].key)
    mark = RollbackMark(mark_path or default_mark(directory))
    marked = mark.read()
    # Of those that share a book, one that is new is let in by the others.
    if stands is not None and not (is_shared and marked is None):
        refuse_set_back(stands, marked, mark.path)
    return f"{path if store is None else 'the database'} is sound"


async def _claims(settings: ClientSettings) -> str | Caution:
    """Look at what tasks have claimed of the data that a client gives."""
    total = total_budget(settings.policy)
    if total is None:
        return "policy.data is not set: every task has its own budget, and no total"
    if (shared := total.directory) is not None:
        # A client that has its turn is waited for, and none is refused meanwhile.
        is_there = (shared / BOOK_FILE).exists()
        async with turn_at_claims(shared) if is_there else nullcontext():
            looked = await _book(shared, total.rollback_mark)
        if isinstance(looked, Caution):
            return looked
    try:
        use = await look_at_use(total, settings.client.state_dir)
    except NoBookError:
        return f"nothing is claimed of {total.data!r} yet"
    except BookInUseError as error:
        return Caution(str(error), error.next_step)
    found = (
        f"epsilon {text_above(use.spent_epsilon, 4)} of {use.total_epsilon:g} is "
        f"claimed of {use.data!r} at delta {text_above(use.spent_delta, 3)} of "
        f"{use.total_delta:g}, tasks: {len(use.claims)}; kept in {use.kept_in}"
    )
    if not use.fits:
        return Caution(found, "The total was lowered below that: no task is joined.")
    return found


async def _sums(server: ServerSection, owner: str | None) -> str | Caution:
    """Look for a sum that has ended who computed it."""
    if owner is not None:
        return owner
    begun: dict[str, int] = {}
    try:
        async with looking(server.state_dir, store=server.store) as book:
            for row in await book.sessions(role=BookRole.SERVER):
                stored = await book.load(row.key)
                if stored is not None and not stored.ended:
                    events = map(decode_server_event, stored.records)
                    begun[f"session {row.number} of task {row.task!r}"] = sums_begun(
                        events
                    )
    except (NoBookError, BookInUseError):
        return "nobody has begun one"
    for which, times in begun.items():
        if times:
            return Caution(
                f"the sum of {which} was begun {times} time(s) and is not done: unless "
                "somebody computes it now, it has ended its aggregator",
                f"After {MOST_ATTEMPTS} times the session ends without it. Does "
                "the system's log say that a process was killed for want of memory?",
            )
    return "none has ended its aggregator"


async def _others(host: HostSettings) -> str:
    """Compare names with the aggregators that share the book."""
    server = host.server
    own = identity_of(host.tls, Role.SERVER).identity.name
    try:
        async with looking(server.state_dir, store=server.store) as book:
            rows = await book.replicas()
    except NoBookError:
        return "there is none yet"
    refuse_other_names(Replica("", "", "", own), rows)
    return f"all have the name {own!r}" if rows else "there is none yet"


def _port(host: HostSettings, owner: str | None) -> str:
    if owner is not None:
        return owner
    check_port(host)
    return f"{host.server.listen} is free"


def _plan(task: TaskSettings) -> str:
    prepared = prepare_task(task)
    parameters = prepared.parameters
    cohort = f"{parameters.min_clients} to {parameters.max_clients} clients"
    if prepared.report is None:
        return f"{cohort}, exact sums"
    return f"{cohort}, {prepared.report.server.figures()} against the server"


def _bound(
    look: Callable[..., "str | Caution"], *arguments: object
) -> Callable[[], "str | Caution"]:
    return lambda: look(*arguments)
