"""What the doctor looks at: numbered checks, in the order in which things break.

Rule 1: checks stand in branches.  What fails ends its branch, because all that follows
        would fail for the same reason; other branches go on.
Rule 2: a check says what it found in one line; its error is the one that the program
        would meet, with the same exit code and a next step.
Rule 3: looking changes nothing: it joins no session and spends no budget.

D1xx are an aggregator's checks, D2xx a client's.
"""

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from secagg.cli.preflight import (
    check_client_enrolment,
    check_port,
    check_server_enrolment,
    check_state_dir,
    check_writable,
)
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.judge import judge_offer
from secagg.client.program import client_policy, privacy_floors
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
from secagg.config.program import TLSSection
from secagg.config.server import ServerSection
from secagg.descriptor import SessionDescriptor
from secagg.distributed_dp import NoisedTask, PrivacyReport
from secagg.engine import EngineLostError, open_engine
from secagg.enrolment.keys import is_readable_by_others
from secagg.errors import ErrorCode, SecAggError, ServiceError, printable
from secagg.runtime.clock import SystemClock
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
from secagg.transport.handshake import Expected, meet
from secagg.transport.identity import Role
from secagg.transport.revoked import read_revoked
from secagg.transport.tls import TLSIdentity, read_certificates
from secagg.wire.calls import GetOffer, Wait

__all__ = ["Finding", "State", "client_findings", "server_findings"]

_SLOW_DISK_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 5.0


class State:
    """What became of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and what it found.

    Attributes:
        number: Such as D120; never reused.
        subject: What was looked at.
        state: One of `State`.
        found: What there is, or what is wrong.
        next_step: What to do about it; "" where nothing is wrong.
        error: Of a check that failed.
    """

    number: str
    subject: str
    state: str
    found: str
    next_step: str = ""
    error: SecAggError | None = None


@dataclass(frozen=True, slots=True)
class _Warning:
    """Something that works and should not stay so."""

    found: str
    next_step: str


_Look = Callable[[], Awaitable["str | _Warning"] | str | _Warning]
_Step = tuple[str, str, _Look]


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

    findings = await _branch([("D100", "settings", settings)])
    if not loaded:
        return findings
    ((host, tasks),) = loaded
    server, tls = host.server, host.tls
    owner = await _owner(host)
    return [
        *findings,
        *await _branch(
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
        *await _branch([("D140", "open files", lambda: _open_files(host, tasks))]),
        *await _branch(
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
        *await _branch([("D165", "engine", lambda: _engine(server.engine))]),
        *await _branch(
            [("D170", "output directory", lambda: check_writable(server.output_dir))]
        ),
        *await _branch(
            [
                ("D180", "address", lambda: str(Address.parse(server.listen))),
                ("D185", "port", lambda: _port(host, owner)),
            ]
        ),
        *[
            finding
            for task in tasks
            for finding in await _branch(
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

    findings = await _branch([("D200", "settings", read)])
    if findings[0].error is not None:
        return findings
    settings = loaded[0]
    tls, state_dir = settings.tls, settings.client.state_dir
    way = _Way(settings)
    storage = await _branch(
        [
            ("D240", "state directory", lambda: check_writable(state_dir)),
            ("D250", "book", lambda: _book(state_dir, settings.client.rollback_mark)),
        ]
    )
    found = [
        *findings,
        *storage,
        *await _branch(
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


async def _branch(steps: Sequence[_Step]) -> list[Finding]:
    """Look at one thing after the other; what follows a failure is skipped."""
    findings: list[Finding] = []
    failed = ""
    for number, subject, look in steps:
        if failed:
            findings.append(
                Finding(number, subject, State.SKIPPED, f"needs {failed} to be right")
            )
            continue
        try:
            found = look()
            if not isinstance(found, str | _Warning):
                found = await found
        except SecAggError as error:
            failed = number
            findings.append(
                Finding(
                    number,
                    subject,
                    State.FAILED,
                    str(error),
                    error.next_step,
                    error,
                )
            )
            continue
        if isinstance(found, str):
            findings.append(Finding(number, subject, State.OK, found))
        else:
            findings.append(
                Finding(number, subject, State.WARNING, found.found, found.next_step)
            )
    return findings


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


def _files(tls: TLSSection) -> str | _Warning:
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
        return _Warning(f"others may read the key {tls.key}", f"chmod 600 {tls.key}")
    return "all three can be read, the key by nobody else"


def _identity(tls: TLSSection, role: Role) -> TLSIdentity:
    return TLSIdentity.load(
        certificate=tls.certificate,
        private_key=tls.key,
        authority=tls.ca,
        role=role,
        quiet=True,
    )


def _certificate(tls: TLSSection, role: Role) -> str | _Warning:
    identity, now = _identity(tls, role), datetime.now(UTC)
    first = min(expiries_of(identity), key=lambda each: each.moment)
    until = identity.not_valid_after
    found = f"{identity.identity.uri}, valid until {until:%Y-%m-%d %H:%M} UTC"
    level = level_of(first.moment, now)
    if not level:
        return found
    urgent = ": this week" if level == logging.ERROR else ""
    return _Warning(
        f"{found}; {first.path} ends in {(first.moment - now).days} days",
        f"Put a new one under the same file name{urgent}; no restart is needed.",
    )


def _revoked(path: Path, authority: Path) -> str | _Warning:
    revoked = read_revoked(path)
    known = {each.subject for each in read_certificates(authority)}
    strange = sum(each.issuer not in known for each in revoked)
    found = f"{path}: {len(revoked)} certificates"
    if strange:
        return _Warning(
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


def _disk(directory: Path) -> str | _Warning:
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
        return _Warning(found, "Every message waits for one: use a faster disk.")
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


async def _engine(setting: str) -> str | _Warning:
    try:
        async with open_engine(setting) as engine:
            return f"{setting}, {await engine.parts()} workers"
    except EngineLostError as error:
        return _Warning(str(error), error.next_step)


async def _server_book(server: ServerSection, owner: str | None) -> str | _Warning:
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
) -> str | _Warning:
    path = directory / BOOK_FILE
    if store is None:
        refuse_network_disk(directory)
    try:
        async with looking(directory, store=store) as book:
            faults, stands = await book.check(), await book.mark()
    except NoBookError:
        return "there is none yet: nothing has run with this state"
    except BookInUseError:
        return _Warning(
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


async def _sums(server: ServerSection, owner: str | None) -> str | _Warning:
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
            return _Warning(
                f"the sum of {which} was begun {times} time(s) and is not done: unless "
                "somebody computes it now, it has ended its aggregator",
                f"After {MOST_ATTEMPTS} times the session ends without it. Does "
                "the system's log say that a process was killed for want of memory?",
            )
    return "none has ended its aggregator"


async def _others(host: HostSettings) -> str:
    """Compare names with the aggregators that share the book."""
    server = host.server
    own = _identity(host.tls, Role.SERVER).identity.name
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
    look: Callable[..., "str | _Warning"], *arguments: object
) -> Callable[[], "str | _Warning"]:
    return lambda: look(*arguments)


# --- the way to the aggregator --------------------------------------------------------


class _Computes:
    """Computes reports, and keeps none."""

    def report_of(self, task: NoisedTask) -> PrivacyReport:
        return task.report()


class _Way:
    """One step after the other towards the offer of a client's task."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._address: Address | None = None
        self._offer: SessionDescriptor | Wait | None = None

    @property
    def _to(self) -> Address:
        if self._address is None:
            self._address = Address.parse(self._settings.client.server)
        return self._address

    async def resolve(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                self._to.host, self._to.port, type=socket.SOCK_STREAM
            )
        except (socket.gaierror, UnicodeError):
            raise _unreachable(
                f"the host name {self._to.host!r} is not known to the name service",
                "Check the spelling of client.server and this machine's DNS.",
            ) from None
        places = sorted({str(each[4][0]) for each in found})
        return f"{self._to.host} is at {', '.join(places)}"

    async def connect(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(self._to.host, self._to.port)
        except ConnectionRefusedError:
            raise _unreachable(
                f"{self._to} refuses connections: nothing listens there",
                "Start the aggregator, or correct the port in client.server.",
            ) from None
        except TimeoutError:
            raise _unreachable(
                f"{self._to} does not answer within {_ANSWER_SECONDS:g} seconds: "
                "packets are lost or filtered on the way",
                "Check firewalls, port forwarding and VPN between the two machines.",
            ) from None
        except OSError as error:
            raise _unreachable(
                f"there is no way to {self._to}: {error.strerror}",
                "Check this machine's network, VPN and routes.",
            ) from None
        writer.transport.abort()
        return f"{self._to} takes connections"

    async def speaks_tls(self) -> str:
        """Shake hands with whoever it is: the next step asks who."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        files = self._settings.tls
        context.load_cert_chain(files.certificate, files.key, password=b"")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(
                    self._to.host, self._to.port, ssl=context
                )
        except (OSError, TimeoutError):  # an ssl.SSLError is an OSError
            raise ServiceError(
                f"what listens at {self._to} does not speak TLS 1.3",
                code=ErrorCode.BAD_CERTIFICATE,
                next_step="Check the address and the port; no proxy on the way may end "
                "TLS.",
            ) from None
        spoken = writer.get_extra_info("ssl_object")
        protocol = spoken.selected_alpn_protocol()
        writer.transport.abort()
        if protocol != "h2":
            raise ServiceError(
                f"what listens at {self._to} speaks TLS, but not HTTP/2",
                code=ErrorCode.BAD_CERTIFICATE,
                next_step="Check the address; a proxy on the way must pass TLS on.",
            )
        return f"{spoken.version()} with HTTP/2"

    async def meets(self) -> str:
        identity = _identity(self._settings.tls, Role.CLIENT)
        expected = Expected(
            identity.identity.trust_domain, self._settings.client.aggregator
        )
        peer = await meet(
            self._to, identity, expected, SystemClock(), as_ourselves=True
        )
        return f"{peer.uri}, and it accepts this client's certificate"

    async def asks(self) -> str | _Warning:
        client = self._settings.client
        identity = _identity(self._settings.tls, Role.CLIENT)
        async with GrpcConnection(
            self._to, identity=identity, aggregator=client.aggregator
        ) as connection:
            # Between two sessions there is none for a moment.
            clock = SystemClock()
            patience = clock.now() + _ANSWER_SECONDS
            while True:
                self._offer = await connection.call(GetOffer(client.task, 0))
                if not isinstance(self._offer, Wait) or clock.now() >= patience:
                    break
                await clock.sleep_until(clock.now() + 1.0)
        if isinstance(self._offer, Wait):
            return _Warning(
                f"task {client.task!r} is there, and no session of it takes clients "
                "now",
                "Nothing to do: the client waits for one. Its policy could not be "
                "compared.",
            )
        number = self._offer.session_number
        return f"task {client.task!r} is there, session {number} takes clients"

    def clock(self) -> str:
        if not isinstance(self._offer, SessionDescriptor):
            return "cannot be compared without an offer"
        self._offer.check_clock(int(time.time()))
        return "fits the session that is offered"

    def judges(self) -> str:
        if not isinstance(self._offer, SessionDescriptor):
            return "cannot be compared without an offer"
        session = judge_offer(
            self._offer,
            floors=privacy_floors(self._settings),
            cohort=client_policy(self._settings),
            storage=_Computes(),
        )
        task = printable(session.task, max_bytes=256)
        if session.privacy is None:
            return f"takes part in {task!r}: exact sums, which it accepts"
        spent = session.privacy.server.figures()
        return f"takes part in {task!r}: {spent} for the whole task"


def _unreachable(complaint: str, next_step: str) -> ServiceError:
    return ServiceError(complaint, code=ErrorCode.UNREACHABLE, next_step=next_step)
