"""One list of checks for each part: its start, `--show-settings` and the doctor run it.

Rule 1: looking changes nothing: it joins no session and spends no budget.
Rule 2: what a start refuses, the doctor has said: under a number, with the same error.
Rule 3: a start runs what this machine can tell at once.  What it meets by itself, such
        as its book or the planner's answer, is for `--show-settings` and the doctor;
        what takes a peer is for the doctor alone.

D1xx are an aggregator's checks, D2xx a client's.
"""

import asyncio
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from secagg.cli.checks.connectivity import ConnectivityCheck
from secagg.cli.checks.preflight import (
    Branch,
    Caution,
    Finding,
    Found,
    SetupCheck,
    State,
    check_client_enrolment,
    check_output,
    check_payload,
    check_port,
    check_server_enrolment,
    check_server_paths,
    check_state_dir,
    check_writable,
    findings_of,
    identity_of,
    written_files,
)
from secagg.client.program import client_policy, read_privacy_limits
from secagg.client.total_budget import look_at_use, turn_at_claims
from secagg.client.total_ledger import claims_explained
from secagg.config import (
    ClientSettings,
    HostSettings,
    TaskSettings,
    is_client_file,
    load_client_settings,
    load_host_settings,
    load_server_settings,
    load_task_settings,
    names_a_task,
)
from secagg.config.common import TLSSection, total_budget
from secagg.config.files import is_file_of_two_aggregators, party_of
from secagg.config.paths import (
    client_paths,
    refuse_shared_paths,
    two_aggregator_paths,
)
from secagg.config.server import HostSection, ServerSection, files_in
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    OtherSection,
    PartySettings,
    SharedTaskSection,
    SharingClientSettings,
    load_two_server_settings,
    tasks_of_party,
)
from secagg.distributed_dp import text_above
from secagg.errors import ErrorCode, InternalError, SecAggError, ServiceError
from secagg.pki.certificate_revocations import read_revoked
from secagg.pki.expiry import expiries_of, level_of
from secagg.pki.key_files import is_readable_by_others
from secagg.protocol.profiles import Profile
from secagg.server.admin.channel import (
    admin_socket_of,
    call_admin,
    refuse_no_socket,
)
from secagg.server.engine.engine import EngineLostError
from secagg.server.engine.opening import open_engine
from secagg.server.http_edge.listener import WebCertificate
from secagg.server.service import check_collector, edge_options, meter_of, page_address
from secagg.server.session.runner import MOST_ATTEMPTS
from secagg.server.task.setup import prepare_task
from secagg.storage.blobs import STORE_HOME, directory_of, open_blobs
from secagg.storage.change import Role as StoreRole
from secagg.storage.directories import STORE_FILE, refuse_network_disk
from secagg.storage.journal import decode_server_event, sums_begun
from secagg.storage.open_store import (
    StoreInUseError,
    check_postgres_package,
    looking,
    store_exists,
)
from secagg.storage.postgres.address import checked_address
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
from secagg.storage.rows import Replica, refuse_other_names
from secagg.storage.store import StateDamagedError, StoreNotFoundError, StoreReader
from secagg.transport.address import Address
from secagg.transport.grpc_channel import aggregator_named
from secagg.transport.handshake_limits import (
    FILES_PER_CONNECTION,
    RESERVED_FILES,
    raise_file_limit,
)
from secagg.transport.peer_identity import Role
from secagg.transport.tls import read_certificates
from secagg.two_aggregators.client import refuse_one_key
from secagg.two_aggregators.program import (
    check_name,
    noise_of,
    receipt_key_of,
    sharing_cohort,
    sharing_limits,
    state_of,
    sums_of,
)

S = TypeVar("S")
C = TypeVar("C", ClientSettings, SharingClientSettings)

_SLOW_DISK_SECONDS: Final = 0.1
_ANY_DOMAIN: Final = "any"
_LISTENING: Final = ("listen", "health_listen", "metrics_listen", "page_listen")


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What `secagg server` is run with.

    Attributes:
        file: Its settings file.
        host: Its settings.
        tasks: Those in files that are looked at.
        owner: What the aggregator that runs with them says of itself; None for none.
        accepts_restored: Whether a state that was put back is accepted.
    """

    file: Path
    host: HostSettings
    tasks: Sequence[TaskSettings] = ()
    owner: str | None = None
    accepts_restored: bool = False

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark; None for the mark by default."""
        own = self.host.server
        return [(own.state_dir, own.rollback_mark)]


@dataclass(frozen=True, slots=True)
class GivingSetup(Generic[C]):
    """What a client of either kind is run with.

    Attributes:
        file: Its settings file.
        settings: The client's.
        vector: The file of --input; None for the doctor, which is handed none.
        describe_input: Reads it and says what it is; None where it is read later.
        outputs: Files to be written, by the option that names them.
        accepts_restored: Whether a state that was put back is accepted.
    """

    file: Path
    settings: C
    vector: Path | None = None
    describe_input: Callable[[], str] | None = None
    outputs: Mapping[str, Path] = field(default_factory=dict)
    accepts_restored: bool = False

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark; None for the mark by default."""
        own = self.settings.client
        return [(own.state_dir, own.rollback_mark)]

    @property
    def inputs(self) -> list[tuple[str, Path]]:
        """Files to be read, by the option that names them."""
        return [] if self.vector is None else [("--input", self.vector)]


@dataclass(frozen=True, slots=True)
class ClientSetup(GivingSetup[ClientSettings]):
    """What `secagg client` is run with.

    Attributes:
        way: Leads to the aggregator.
    """

    way: ConnectivityCheck | None = None

    def to_aggregator(self) -> ConnectivityCheck:
        """Return the way to the aggregator, which every check of it shares."""
        if self.way is None:
            raise InternalError("a setup without a way is not looked at from afar")
        return self.way


class SharingSetup(GivingSetup[SharingClientSettings]):
    """What a client of two aggregators is run with."""


@dataclass(frozen=True, slots=True)
class PartySetup:
    """What the leader or the helper of two aggregators is run with.

    Attributes:
        file: Its settings file.
        settings: The party's.
        owner: What the aggregator that runs with them says of itself; None for none.
        accepts_restored: Whether a state that was put back is accepted.
    """

    file: Path
    settings: PartySettings
    owner: str | None = None
    accepts_restored: bool = False

    @property
    def tasks(self) -> tuple[SharedTaskSection, ...]:
        """The tasks of its file and of server.tasks_dir."""
        return tasks_of_party(self.settings)

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark of each task."""
        return [state_of(self.settings.server, each.id) for each in self.tasks]


Setup: TypeAlias = ServerSetup | ClientSetup | PartySetup | SharingSetup


def checks_of(setup: Setup) -> tuple[Branch[Any], ...]:
    """Return the checks of a part, in branches."""
    if isinstance(setup, ServerSetup):
        return SETUP_CHECKS["server"]
    if isinstance(setup, ClientSetup):
        return SETUP_CHECKS["client"]
    if isinstance(setup, SharingSetup):
        return SETUP_CHECKS["sharing client"]
    is_leader = isinstance(setup.settings, LeaderSettings)
    return SETUP_CHECKS["leader" if is_leader else "helper"]


def start_findings(setup: Setup) -> list[Finding]:
    """Run the checks of a start, before the program has an event loop."""
    return asyncio.run(
        findings_of(checks_of(setup), setup, only=lambda check: check.starts)
    )


def shown_findings(setup: Setup) -> list[Finding]:
    """Run the checks of `--show-settings`: all that this machine can tell."""
    return asyncio.run(
        findings_of(checks_of(setup), setup, only=lambda check: check.is_local)
    )


async def doctor_findings(
    path: Path, *, overrides: Sequence[str] = ()
) -> tuple[str, list[Finding]]:
    """Load the settings of a file, and run every check of its part.

    Args:
        path: The settings file; its sections say whose it is.
        overrides: As they are given to the program, by ``--set``.

    Returns:
        The part, and what was found.
    """
    role, number = ("client", "D200") if is_client_file(path) else ("server", "D100")
    try:
        setup = load_setup(path, overrides)
        if isinstance(setup, ServerSetup):
            tasks = _tasks_of(path, setup.host, overrides)
            owner = await owner_of(setup.host.server)
            setup = replace(setup, tasks=tasks, owner=owner)
        elif isinstance(setup, PartySetup):
            setup = replace(setup, owner=await owner_of(setup.settings.server))
    except SecAggError as error:
        found = Finding(
            number, "settings", State.FAILED, str(error), error.next_step, error
        )
        return role, [found]
    found = Finding(number, "settings", State.OK, "they can be read")
    return role, [found, *await findings_of(checks_of(setup), setup)]


def load_setup(path: Path, overrides: Sequence[str] = ()) -> Setup:
    """Load the settings of any part; of an aggregator no task is read.

    Args:
        path: The settings file; its sections say whose it is.
        overrides: As for `doctor_findings`.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    given: dict[str, Any] = {"environment": os.environ, "overrides": overrides}
    if is_file_of_two_aggregators(path):
        two = load_two_server_settings(SharingClientSettings, path, **given)
        return SharingSetup(path, two.settings)
    if is_client_file(path):
        one = load_client_settings(path, **given).settings
        return ClientSetup(path, one, way=ConnectivityCheck(one))
    kind = party_of(path)
    if kind is LeaderSettings:
        leader = load_two_server_settings(LeaderSettings, path, **given)
        return PartySetup(path, leader.settings)
    if kind is not None:
        helper = load_two_server_settings(HelperSettings, path, **given)
        return PartySetup(path, helper.settings)
    return ServerSetup(path, load_host_settings(path, **given).settings)


# --- this machine ---------------------------------------------------------------------


def _tasks_of(
    path: Path, host: HostSettings, overrides: Sequence[str]
) -> list[TaskSettings]:
    """Return the tasks of the file itself and of the folder of tasks."""
    tasks: list[TaskSettings] = []
    if names_a_task(path):
        loaded = load_server_settings(path, environment=os.environ, overrides=overrides)
        tasks.append(loaded.settings.own_task)
    return tasks + tasks_in_folder(host)


def tasks_in_folder(host: HostSettings) -> list[TaskSettings]:
    """Return the tasks of ``server.tasks_dir``, in the order of their files' names.

    Raises:
        ServiceError: BAD_SETTINGS; the folder or a file of it cannot be read.
    """
    folder = host.server.tasks_dir
    if folder is None:
        return []
    return [load_task_settings(each) for each in files_in(folder)]


def _files(tls: TLSSection) -> str | Caution:
    for path in (tls.ca, tls.certificate, tls.key):
        try:
            with path.open("rb") as stream:
                stream.read(1)
        except OSError as error:
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"{path} cannot be read: {error.strerror}",
                fix="Check the path under [tls] and who may read the file.",
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


def _revoked(path: Path | None, authority: Path) -> str | Caution | None:
    if path is None:
        return None
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


def _has_relay(host: HostSettings | PartySettings) -> bool:
    try:
        listen = Address.parse(host.server.listen, name="server.listen")
    except ServiceError:
        return False  # D180 says it
    return host.admission.limits().has_relay_at(listen)


def _open_files(host: HostSettings | PartySettings, cohorts: Iterable[int]) -> str:
    files = raise_file_limit()  # as the server will
    each = FILES_PER_CONNECTION if _has_relay(host) else 1
    clients = sum(cohorts)
    needed = each * clients + RESERVED_FILES
    if files < needed:
        raise ErrorCode.BAD_SETTINGS.error(
            f"this process may open {files} files; {clients} clients need {needed}",
            fix="Raise the limit: LimitNOFILE=65536 in the unit, or "
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
        raise ErrorCode.STORAGE_FAILED.error(
            f"{place} cannot be written: {error.strerror}",
            fix="Check the disk, its owner and the free space.",
        ) from None
    lasted = time.monotonic() - began
    found = f"a write reaches it in {1000 * lasted:.1f} ms"
    if lasted > _SLOW_DISK_SECONDS:
        return Caution(found, "Every message waits for one: use a faster disk.")
    return found


async def owner_of(server: HostSection) -> str | None:
    """Return what the aggregator that runs with these settings says of itself."""
    try:
        answer = await call_admin(admin_socket_of(server), "status")
    except SecAggError:
        return None
    return f"an aggregator runs with it, process {answer['server']['pid']}"


def _blobs(url: str) -> str:
    if (directory := directory_of(url)) is not None and not directory.is_dir():
        return f"{url} {check_writable(directory)}"  # looking makes nothing
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


async def _server_store(server: ServerSection, owner: str | None) -> str | Caution:
    if owner is not None:
        return owner
    is_shared = server.store is not None and server.blobs is not None
    mark = server.rollback_mark
    return await _store(server.state_dir, mark, server.store, is_shared=is_shared)


async def _store(
    directory: Path,
    mark_path: Path | None,
    store_url: str | None = None,
    *,
    is_shared: bool = False,
) -> str | Caution:
    path = directory / STORE_FILE
    if store_url is None:
        refuse_network_disk(directory)
    try:
        async with looking(directory, store=store_url) as store:
            faults = await store.read(FindFaults())
            if not faults:
                await refuse_unmarked(store, directory, mark_path, is_shared=is_shared)
    except StoreNotFoundError:
        return "there is none yet: nothing has run with this state"
    except StoreInUseError:
        return Caution(
            f"a process has {path} open, so it was not read",
            "Stop that process first, unless it is yours and meant to run.",
        )
    if faults:
        raise StateDamagedError(faults[0].complaint, key=faults[0].key)
    return f"{path if store_url is None else 'the database'} is sound"


async def _claims(settings: ClientSettings | SharingClientSettings) -> str | Caution:
    """Look at what tasks have claimed of the data that a client gives."""
    total = total_budget(settings.policy)
    if total is None:
        return "policy.data is not set: every task has its own budget, and no total"
    if (shared := total.directory) is not None:
        # A client that has its turn is waited for, and none is refused meanwhile.
        check_writable(shared)
        is_there = store_exists(shared / STORE_FILE)
        async with AsyncExitStack() as stack:
            if is_there:
                await stack.enter_async_context(turn_at_claims(shared))
            else:
                stack.enter_context(claims_explained(shared))
            check_mark_alone(shared, total.rollback_mark)
            looked = await _store(shared, total.rollback_mark)
        if isinstance(looked, Caution):
            return looked
    try:
        use = await look_at_use(total, settings.client.state_dir)
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


async def _sums(server: ServerSection, owner: str | None) -> str | Caution:
    """Look for a sum that has ended who computed it."""
    if owner is not None:
        return owner
    begun: dict[str, int] = {}
    try:
        async with looking(server.state_dir, store=server.store) as store:
            for row in await store.read(ListSessions(role=StoreRole.SERVER)):
                stored = await store.read(LoadSession(row.key))
                if stored is not None and not stored.ended:
                    events = map(decode_server_event, stored.records)
                    begun[f"session {row.number} of task {row.task!r}"] = sums_begun(
                        events
                    )
    except (StoreNotFoundError, StoreInUseError):
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


async def _others(host: HostSettings) -> str | None:
    """Compare names with the aggregators that share the book."""
    server = host.server
    if server.store is None or server.blobs is None:
        return None
    own = identity_of(host.tls, Role.SERVER).identity.name
    try:
        async with looking(server.state_dir, store=server.store) as store:
            rows = await store.read(ListReplicas())
    except StoreNotFoundError:
        return "there is none yet"
    refuse_other_names(Replica("", "", "", own), rows)
    return f"all have the name {own!r}" if rows else "there is none yet"


def _port(
    server: HostSection, owner: str | None, more: Mapping[str, str | None]
) -> str:
    if owner is not None:
        return owner
    check_port({**_listening(server), **more})
    return f"{server.listen} is free"


def _plan(task: TaskSettings) -> str:
    prepared = prepare_task(task)
    parameters = prepared.parameters
    cohort = f"{parameters.min_clients} to {parameters.max_clients} clients"
    if prepared.report is None:
        return f"{cohort}, exact sums"
    return f"{cohort}, {prepared.report.server.figures()} against the server"


# --- the lists ------------------------------------------------------------------------


def _server_paths(setup: ServerSetup) -> str:
    return check_server_paths(setup.host, setup.file, setup.tasks)


def _client_paths(setup: ClientSetup) -> str:
    outputs = written_files(setup.outputs)
    return refuse_shared_paths(
        client_paths(setup.settings, setup.file, inputs=setup.inputs, outputs=outputs)
    )


def _sharing_paths(setup: SharingSetup) -> str:
    outputs = setup.outputs.items()
    return refuse_shared_paths(
        two_aggregator_paths(
            setup.settings, setup.file, inputs=setup.inputs, outputs=outputs
        )
    )


def _party_paths(setup: PartySetup) -> str:
    party = setup.settings
    folders: list[Path] = []
    if isinstance(party, LeaderSettings):
        folders = [sums_of(party, each.id) for each in setup.tasks]
    paths = two_aggregator_paths(
        party, setup.file, states=setup.places, folders=folders
    )
    return refuse_shared_paths(paths)


def _of_tasks(
    setup: ServerSetup, look: Callable[[TaskSettings], str | None]
) -> str | None:
    """Return what is found of every task that names something to look at."""
    found = ((task.task.id, look(task)) for task in setup.tasks)
    texts = [f"task {name!r}: {text}" for name, text in found if text is not None]
    return "; ".join(texts) or None


def _admin_socket(server: HostSection, owner: str | None) -> str:
    if owner is not None:
        return owner
    path = admin_socket_of(server)
    refuse_no_socket(path)
    return f"{path} {check_writable(path.parent)}"


def _client_rules(setup: ClientSetup) -> str:
    """Refuse rules of the client's that no program can go by."""
    settings = setup.settings
    client_policy(settings)
    read_privacy_limits(settings)
    if settings.client.aggregator is not None:
        aggregator_named(settings.client.aggregator, trust_domain=_ANY_DOMAIN)
    return "they can be gone by"


def _sharing_rules(setup: SharingSetup) -> str:
    sharing_cohort(setup.settings)
    sharing_limits(setup.settings)
    return "they can be gone by"


def _edge(setup: ServerSetup) -> str | Caution | None:
    """Look at what the HTTP edge needs, as its start would."""
    host = setup.host
    options = edge_options(host)
    if options is None:
        return None
    own = identity_of(host.tls, Role.SERVER).identity.trust_domain
    options.check_trust_domain(own)
    options.published()
    for task in setup.tasks:
        options.check_profile(Profile.from_label(task.task.profile))
    found = WebCertificate(
        options.certificate, options.private_key, options.authority, time.time
    )
    ends = found.ends
    shown = f"https://{options.authority}, valid until {ends:%Y-%m-%d %H:%M} UTC"
    if level_of(ends, datetime.now(UTC)):
        return Caution(
            f"{shown}; {options.certificate} ends in "
            f"{(ends - datetime.now(UTC)).days} days",
            "Put a new one under the same file name; no restart is needed.",
        )
    if is_readable_by_others(options.private_key):
        return Caution(
            f"others may read the key {options.private_key}",
            f"chmod 600 {options.private_key}",
        )
    return shown


def _packages(setup: ServerSetup) -> str:
    """Refuse settings that need a package which is not installed."""
    server = setup.host.server
    meter_of(server)
    check_collector(server)
    if server.store is not None:
        checked_address(server.store)
        check_postgres_package()
    return f"all are there; engine {open_engine(server.engine).name}"


def _party_packages(setup: PartySetup) -> str:
    meter_of(setup.settings.server)
    check_collector(setup.settings.server)
    return "all are there"


def _modes(directory: Path, given: Path | None) -> str | Caution:
    """Look who may read what holds seeds and shares: 0700, and 0600 for files."""
    mark = given or default_mark(directory)
    files = [directory, *directory.glob(f"{STORE_FILE}*"), mark]
    known = [(each, _mode(each)) for each in files]
    wide = [(each, mode) for each, mode in known if mode is not None and mode & 0o077]
    if not wide:
        return "for its owner alone"
    path, mode = wide[0]
    return Caution(
        f"others may use {path}, mode {mode:04o}: it holds seeds and shares, or tells "
        "an old state from the newest",
        f"chmod {'700' if path.is_dir() else '600'} {path}",
    )


def _mode(path: Path) -> int | None:
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
    """Refuse a book that does not fit its rollback mark, as a start would.

    Args:
        book: What is read.
        directory: Of the state.
        given: Its mark; None for the one by default.
        is_shared: Whether others share the book, which let in a new one.

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


def _server_mark(setup: ServerSetup) -> str | None:
    return None if setup.host.server.store is not None else _mark(setup)


def _mark(setup: Setup) -> str | None:
    for directory, given in setup.places:
        check_writable((given or default_mark(directory)).parent)
        check_mark_alone(directory, given, accepts_restored=setup.accepts_restored)
    return None


def _listening(server: HostSection) -> dict[str, str | None]:
    """Return the addresses of an aggregator, by their settings."""
    return {f"server.{name}": getattr(server, name) for name in _LISTENING}


def _parse_all(addresses: Mapping[str, str | None]) -> None:
    for name, given in addresses.items():
        if given is not None:
            Address.parse(given, name=name)


def _addresses(setup: ServerSetup) -> str:
    server = setup.host.server
    _parse_all(_listening(server))
    _parse_all({"edge.listen": setup.host.edge.listen})
    page_address(server)
    if setup.host.edge.listen is not None:
        Address.parse(setup.host.edge.listen, name="edge.listen")
    return server.listen


def _party_addresses(setup: PartySetup) -> str:
    own = setup.settings.server
    _parse_all(_listening(own))
    page_address(own)
    if isinstance(setup.settings, LeaderSettings):
        Address.parse(setup.settings.helper.address, name="helper.address")
    return own.listen


def _input(setup: ClientSetup | SharingSetup) -> str | None:
    return None if setup.describe_input is None else setup.describe_input()


def _outputs(setup: ClientSetup | SharingSetup) -> str | None:
    found = [f"{name} {check_output(path)}" for name, path in setup.outputs.items()]
    return ", ".join(found) or None


def _party_name(setup: PartySetup) -> str:
    own = setup.settings.server
    for files, role in _party_certificates(setup):
        check_name(own, identity_of(files, role).identity.name, files.certificate)
    return own.name


def _party_certificates(setup: PartySetup) -> list[tuple[TLSSection, Role]]:
    found: list[tuple[TLSSection, Role]] = [(setup.settings.tls, Role.SERVER)]
    if isinstance(setup.settings, LeaderSettings):
        found.append((setup.settings.helper, Role.CLIENT))
    return found


def _shared(setup: Setup) -> list[tuple[Path, Path | None]]:
    """Return the directory that holds the states of a party's tasks, and its key."""
    if isinstance(setup, PartySetup):
        return [(setup.settings.server.state_dir, None)]
    return []


async def _stores(setup: ClientSetup | SharingSetup | PartySetup) -> str | Caution:
    owner = setup.owner if isinstance(setup, PartySetup) else None
    if owner is not None:
        return owner
    return _first_caution([await _store(*each) for each in setup.places])


def _first_caution(found: Iterable[str | Caution]) -> str | Caution:
    """Return the first thing to look at, or all that was found."""
    known = list(found)
    cautions = [each for each in known if isinstance(each, Caution)]
    return cautions[0] if cautions else "; ".join(map(str, known))


def _sections_of(setup: SharingSetup) -> tuple[tuple[str, OtherSection], ...]:
    return ("leader", setup.settings.leader), ("helper", setup.settings.helper)


def _sharing_addresses(setup: SharingSetup) -> str:
    return ", ".join(
        str(Address.parse(each.address, name=f"{name}.address"))
        for name, each in _sections_of(setup)
    )


def _total(setup: SharingSetup) -> str | None:
    total = total_budget(setup.settings.policy)
    return None if total is None else f"of {total.data!r}, epsilon {total.epsilon:g}"


def _sums_dir(setup: PartySetup) -> str | None:
    leader = setup.settings
    if not isinstance(leader, LeaderSettings):
        return None
    return "; ".join(check_writable(sums_of(leader, each.id)) for each in setup.tasks)


def _receipt_keys(setup: PartySetup | SharingSetup) -> str | None:
    settings = setup.settings
    if isinstance(settings, HelperSettings):
        return None
    helper_key = receipt_key_of("helper", settings.helper)
    if isinstance(settings, SharingClientSettings):
        refuse_one_key(receipt_key_of("leader", settings.leader), helper_key)
    return "what the others sign with can be read"


def _party_task(setup: PartySetup) -> str:
    texts = (
        f"task {task.id!r}: {noise_of(task).report().lines()[1]}"
        for task in setup.tasks
    )
    return "; ".join(texts)


def _starts(
    number: str, subject: str, run: Callable[[S], Found | Awaitable[Found]]
) -> SetupCheck[S]:
    """Return a check that a start runs."""
    return SetupCheck(number, subject, run, starts=True)


def _state_checks(
    directory: str, modes: str, store: str, mark: str
) -> tuple[SetupCheck[Any], ...]:
    """Return the checks of a state directory, under these numbers."""
    return (
        _starts(
            directory,
            "state directory",
            lambda s: _first_caution(check_writable(each) for each, _ in s.places),
        ),
        _starts(
            modes,
            "modes",
            lambda s: _first_caution(
                _modes(*each) for each in (*_shared(s), *s.places)
            ),
        ),
        SetupCheck(store, "store", _stores),
        _starts(mark, "mark", _mark),
    )


_SERVER: Final[tuple[Branch[ServerSetup], ...]] = (
    (_starts("D105", "paths", _server_paths),),
    (
        _starts("D110", "certificate files", lambda s: _files(s.host.tls)),
        _starts("D120", "certificate", lambda s: _certificate(s.host.tls, Role.SERVER)),
        _starts(
            "D125",
            "revoked certificates",
            lambda s: _revoked(s.host.server.revoked, s.host.tls.ca),
        ),
        _starts(
            "D130",
            "enrolment",
            lambda s: _of_tasks(s, partial(check_server_enrolment, s.host.tls)),
        ),
        _starts("D127", "HTTP edge", _edge),
    ),
    (
        SetupCheck(
            "D140",
            "open files",
            lambda s: _open_files(s.host, (t.cohort.max_clients for t in s.tasks)),
        ),
    ),
    (_starts("D145", "packages", _packages),),
    (
        _starts(
            "D150",
            "state directory",
            lambda s: check_state_dir(
                s.host.server.state_dir, s.tasks[0] if s.tasks else None
            ),
        ),
        _starts("D152", "modes", lambda s: _modes(*s.places[0])),
        SetupCheck("D155", "disk", lambda s: _disk(s.host.server.state_dir)),
        _starts(
            "D157",
            "uploads",
            lambda s: s.host.server.blobs and _blobs(s.host.server.blobs),
        ),
        SetupCheck("D160", "store", lambda s: _server_store(s.host.server, s.owner)),
        SetupCheck("D161", "sums", lambda s: _sums(s.host.server, s.owner)),
        _starts("D162", "mark", _server_mark),
        SetupCheck("D163", "other aggregators", lambda s: _others(s.host)),
        SetupCheck(
            "D186", "admin socket", lambda s: _admin_socket(s.host.server, s.owner)
        ),
    ),
    (SetupCheck("D165", "engine", lambda s: _engine(s.host.server.engine)),),
    (
        _starts(
            "D170",
            "output directory",
            lambda s: check_writable(s.host.server.output_dir),
        ),
    ),
    (
        _starts("D180", "address", _addresses),
        _starts(
            "D185",
            "port",
            lambda s: _port(
                s.host.server, s.owner, {"edge.listen": s.host.edge.listen}
            ),
        ),
    ),
    (_starts("D188", "payload", lambda s: _of_tasks(s, check_payload)),),
    (SetupCheck("D190", "task", lambda s: _of_tasks(s, _plan), is_local=False),),
)

_CLIENT: Final[tuple[Branch[ClientSetup], ...]] = (
    (_starts("D202", "rules", _client_rules),),
    (_starts("D205", "paths", _client_paths),),
    (
        *_state_checks("D240", "D245", "D250", "D252"),
        SetupCheck("D255", "claims on data", lambda s: _claims(s.settings)),
    ),
    (SetupCheck("D242", "--input", _input),),
    (_starts("D243", "--output", _outputs),),
    (
        _starts("D210", "certificate files", lambda s: _files(s.settings.tls)),
        _starts(
            "D220", "certificate", lambda s: _certificate(s.settings.tls, Role.CLIENT)
        ),
        _starts("D230", "enrolment", lambda s: check_client_enrolment(s.settings)),
        _starts(
            "D235",
            "address",
            lambda s: str(
                Address.parse(s.settings.client.server, name="client.server")
            ),
        ),
        *(
            SetupCheck(number, subject, run, is_local=False)
            for number, subject, run in (
                (
                    "D260",
                    "name of the aggregator",
                    lambda s: s.to_aggregator().resolve(),
                ),
                (
                    "D270",
                    "way to the aggregator",
                    lambda s: s.to_aggregator().connect(),
                ),
                ("D280", "TLS", lambda s: s.to_aggregator().speaks_tls()),
                ("D290", "who the aggregator is", lambda s: s.to_aggregator().meets()),
                ("D300", "task", lambda s: s.to_aggregator().asks()),
                ("D310", "clock", lambda s: s.to_aggregator().clock()),
                ("D320", "policy", lambda s: s.to_aggregator().judges()),
            )
        ),
    ),
)

_PARTY: Final[tuple[Branch[PartySetup], ...]] = (
    (
        _starts(
            "D105",
            "paths",
            _party_paths,
        ),
    ),
    (
        _starts(
            "D110",
            "certificate files",
            lambda s: _first_caution(_files(tls) for tls, _ in _party_certificates(s)),
        ),
        _starts(
            "D120",
            "certificate",
            lambda s: _first_caution(
                _certificate(tls, role) for tls, role in _party_certificates(s)
            ),
        ),
        _starts("D122", "name", _party_name),
        _starts(
            "D125",
            "revoked certificates",
            lambda s: _revoked(s.settings.server.revoked, s.settings.tls.ca),
        ),
    ),
    (_starts("D145", "packages", _party_packages),),
    (
        *_state_checks("D150", "D152", "D160", "D162"),
        SetupCheck("D155", "disk", lambda s: _disk(s.settings.server.state_dir)),
        SetupCheck(
            "D186", "admin socket", lambda s: _admin_socket(s.settings.server, s.owner)
        ),
    ),
    (
        SetupCheck(
            "D140",
            "open files",
            lambda s: _open_files(s.settings, (t.max_clients for t in s.tasks)),
        ),
    ),
    (
        _starts("D180", "address", _party_addresses),
        _starts("D185", "port", lambda s: _port(s.settings.server, s.owner, {})),
    ),
    (_starts("D170", "sums", _sums_dir),),
    (_starts("D190", "task", _party_task),),
    (_starts("D195", "receipt keys", _receipt_keys),),
)

_SHARING: Final[tuple[Branch[SharingSetup], ...]] = (
    (_starts("D202", "rules", _sharing_rules),),
    (_starts("D205", "paths", _sharing_paths),),
    (
        _starts(
            "D210",
            "certificate files",
            lambda s: _first_caution(_files(each) for _, each in _sections_of(s)),
        ),
        _starts(
            "D220",
            "certificates",
            lambda s: _first_caution(
                _certificate(each, Role.CLIENT) for _, each in _sections_of(s)
            ),
        ),
    ),
    (_starts("D235", "addresses", _sharing_addresses),),
    (
        *_state_checks("D240", "D245", "D250", "D252"),
        SetupCheck("D255", "claims on data", lambda s: _claims(s.settings)),
    ),
    (SetupCheck("D242", "--input", _input),),
    (_starts("D243", "--output", _outputs),),
    (_starts("D232", "total of the data", _total),),
    (_starts("D295", "receipt keys", _receipt_keys),),
)

SETUP_CHECKS: Final[Mapping[str, tuple[Branch[Any], ...]]] = {
    "server": _SERVER,
    "client": _CLIENT,
    "leader": _PARTY,
    "helper": _PARTY,
    "sharing client": _SHARING,
}
"""Everything that a part needs, by part."""
