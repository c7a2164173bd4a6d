"""One list of checks for each part: its start, `--show-settings` and the doctor run it.

Rule 1: a check changes nothing: it joins no session and spends no budget.
Rule 2: what a start refuses, the doctor reports: under a number, with the same error.
Rule 3: a start runs what this machine can check at once.  `--show-settings` and the
        doctor also run what a program meets later, such as its store or the planner's
        answer.  Only the doctor runs the checks that need a peer.

D1xx are an aggregator's checks, D2xx a client's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg.cli.checks.preflight import (
    Branch,
    Caution,
    CheckResult,
    CheckState,
    Found,
    SetupCheck,
    check_certificate,
    check_client_enrolment,
    check_output,
    check_payload,
    check_port,
    check_revoked,
    check_server_enrolment,
    check_server_paths,
    check_state_dir,
    check_tls_files,
    check_writable,
    require_all,
    results_of,
    written_files,
)
from secagg.cli.checks.setups import (
    ClientSetup,
    PartySetup,
    ServerSetup,
    Setup,
    SharingSetup,
    load_setup,
    tasks_of,
)
from secagg.cli.checks.state_checks import (
    check_blobs,
    check_claims,
    check_disk,
    check_mark_alone,
    check_modes,
    check_replicas,
    check_server_store,
    check_store,
    check_sums,
    first_warning,
)
from secagg.cli.output import Output
from secagg.client.program import client_policy
from secagg.config import HostSettings, TaskSettings, is_client_file
from secagg.config.common import total_budget
from secagg.config.files import identity_of
from secagg.config.paths import (
    NamedPath,
    client_paths,
    refuse_shared_paths,
    two_aggregator_paths,
)
from secagg.config.policy import privacy_limits_of
from secagg.config.server import HostSection
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    OtherSection,
    PartySettings,
    SharingClientSettings,
)
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.pki.expiry import level_of
from secagg.pki.key_files import is_readable_by_others
from secagg.protocol.profiles import Profile
from secagg.storage.rollback_mark import default_mark
from secagg.transport.address import Address
from secagg.transport.grpc_channel import aggregator_named
from secagg.transport.handshake_limits import (
    FILES_PER_CONNECTION,
    RESERVED_FILES,
    raise_file_limit,
)
from secagg.transport.peer_identity import Role

S = TypeVar("S")


_ANY_DOMAIN: Final = "any"


_LISTENING: Final = ("listen", "health_listen", "metrics_listen", "page_listen")


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


def start_results(setup: Setup) -> list[CheckResult]:
    """Run the checks of a start, before the program has an event loop."""
    return asyncio.run(
        results_of(checks_of(setup), setup, only=lambda check: check.starts)
    )


def require_start(setup: Setup, output: Output, *, may_be_full: str = "") -> None:
    """Refuse a start that would fail, and print what should be corrected.

    Raises:
        SecAggError: The first problem; see `require_all`.
    """
    for complaint in require_all(start_results(setup), may_be_full=may_be_full):
        output.line(complaint, style="bold red")


def local_checks(setup: Setup) -> list[CheckResult]:
    """Run the checks of `--show-settings`: all that this machine can check."""
    return asyncio.run(
        results_of(checks_of(setup), setup, only=lambda check: check.is_local)
    )


async def doctor_results(
    path: Path, *, overrides: Sequence[str] = ()
) -> tuple[str, list[CheckResult]]:
    """Load the settings of a file, and run every check of its part.

    Args:
        path: The settings file; its sections say whose it is.
        overrides: As they are given to the program, by ``--set``.

    Returns:
        The part, and the results.
    """
    role, number = ("client", "D200") if is_client_file(path) else ("server", "D100")
    try:
        setup = load_setup(path, overrides)
        if isinstance(setup, ServerSetup):
            tasks = tasks_of(path, setup.host, overrides)
            owner = await owner_of(setup.host.server)
            setup = replace(setup, tasks=tasks, owner=owner)
        elif isinstance(setup, PartySetup):
            setup = replace(setup, owner=await owner_of(setup.settings.server))
    except SecAggError as error:
        found = CheckResult(
            number, "settings", CheckState.FAILED, str(error), error.next_step, error
        )
        return role, [found]
    found = CheckResult(number, "settings", CheckState.OK, "they can be read")
    return role, [found, *await results_of(checks_of(setup), setup)]


def _has_relay(host: HostSettings | PartySettings) -> bool:
    """Return whether connections to an aggregator pass its relay."""
    try:
        listen = Address.parse(host.server.listen, name="server.listen")
    except ServiceError:
        return False  # D180 reports it
    return host.admission.limits().has_relay_at(listen)


def _open_files(host: HostSettings | PartySettings, cohorts: Iterable[int]) -> str:
    """Refuse a limit of open files below what the cohorts need."""
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


async def owner_of(server: HostSection) -> str | None:
    """Return a line about the aggregator that runs with these settings, if any."""
    from secagg.server.admin.channel import admin_socket_of, call_admin

    try:
        answer = await call_admin(admin_socket_of(server), "status")
    except SecAggError:
        return None
    return f"an aggregator runs with it, process {answer['server']['pid']}"


async def _engine(setting: str) -> str | Caution:
    """Open the engine that removes masks, and count its workers."""
    from secagg.server.engine.engine import EngineLostError
    from secagg.server.engine.opening import open_engine

    try:
        async with open_engine(setting) as engine:
            return f"{setting}, {await engine.parts()} workers"
    except EngineLostError as error:
        return Caution(str(error), error.next_step)


def _port(
    server: HostSection, owner: str | None, more: Mapping[str, str | None]
) -> str:
    """Check that the ports are free, unless the aggregator runs."""
    if owner is not None:
        return owner
    check_port({**_listening(server), **more})
    return f"{server.listen} is free"


def _plan(task: TaskSettings) -> str:
    """Plan a task, and return what it costs."""
    from secagg.server.task.setup import prepare_task

    prepared = prepare_task(task)
    parameters = prepared.parameters
    cohort = f"{parameters.min_clients} to {parameters.max_clients} clients"
    if prepared.report is None:
        return f"{cohort}, exact sums"
    return f"{cohort}, {prepared.report.server.figures()} against the server"


def _server_paths(setup: ServerSetup) -> str:
    return check_server_paths(setup.host, setup.file, setup.tasks)


def _client_paths(setup: ClientSetup) -> str:
    """Check that no file of a client is written over another."""
    paths: dict[NamedPath, None] = {}  # what several clients share is there once
    if setup.task_file is not None:
        paths[NamedPath("--tasks", setup.task_file)] = None
    for each in (setup, *setup.beside):
        label = "" if each.task_file is None else f"[{each.settings.client.task}] "
        inputs, outputs = (
            [(label + option, path) for option, path in named]
            for named in (each.inputs, written_files(each.outputs))
        )
        paths |= dict.fromkeys(
            client_paths(each.settings, each.file, inputs=inputs, outputs=outputs)
        )
    return refuse_shared_paths(paths)


def _sharing_paths(setup: SharingSetup) -> str:
    """Check that no file of a client of two aggregators is written over."""
    outputs = setup.outputs.items()
    return refuse_shared_paths(
        two_aggregator_paths(
            setup.settings, setup.file, inputs=setup.inputs, outputs=outputs
        )
    )


def _party_paths(setup: PartySetup) -> str:
    """Refuse a leader or helper whose paths name one file twice."""
    from secagg.two_aggregators.program import sums_of

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
    """Return the results of every task that names something to check."""
    found = ((task.task.id, look(task)) for task in setup.tasks)
    texts = [f"task {name!r}: {text}" for name, text in found if text is not None]
    return "; ".join(texts) or None


def _admin_socket(server: HostSection, owner: str | None) -> str:
    """Refuse an admin socket that cannot be made."""
    from secagg.server.admin.channel import admin_socket_of, refuse_no_socket

    if owner is not None:
        return owner
    path = admin_socket_of(server)
    refuse_no_socket(path)
    return f"{path} {check_writable(path.parent)}"


def _client_rules(setup: ClientSetup) -> str:
    """Refuse settings of a client's policy that cannot be applied."""
    settings = setup.settings
    client_policy(settings)
    privacy_limits_of(settings.policy)
    if settings.client.aggregator is not None:
        aggregator_named(settings.client.aggregator, trust_domain=_ANY_DOMAIN)
    return "they can be applied"


def _sharing_rules(setup: SharingSetup) -> str:
    """Check the rules of a client of two aggregators."""
    from secagg.two_aggregators.program import sharing_cohort, sharing_limits

    sharing_cohort(setup.settings)
    sharing_limits(setup.settings)
    return "they can be applied"


def _edge(setup: ServerSetup) -> str | Caution | None:
    """Check what the HTTP edge needs, as its start would."""
    from secagg.server.http_edge.listener import WebCertificate
    from secagg.server.service import edge_options

    host = setup.host
    options = edge_options(host)
    if options is None:
        return None
    own = identity_of(host.tls, Role.SERVER, quiet=True).identity.trust_domain
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
            f"other users may read the key {options.private_key}",
            f"chmod 600 {options.private_key}",
        )
    return shown


def _packages(setup: ServerSetup) -> str:
    """Refuse settings that need a package which is not installed."""
    from secagg.server.engine.opening import open_engine
    from secagg.server.service import check_collector, meter_of
    from secagg.storage.open_store import check_postgres_package
    from secagg.storage.postgres.address import checked_address

    server = setup.host.server
    meter_of(server)
    check_collector(server)
    if server.store is not None:
        checked_address(server.store)
        check_postgres_package()
    return f"all are installed; engine {open_engine(server.engine).name}"


def _party_packages(setup: PartySetup) -> str:
    """Check that the packages of a leader or a helper are installed."""
    from secagg.server.service import check_collector, meter_of

    meter_of(setup.settings.server)
    check_collector(setup.settings.server)
    return "all are installed"


def _server_mark(setup: ServerSetup) -> str | None:
    return None if setup.host.server.store is not None else _check_rollback_marks(setup)


def _check_rollback_marks(setup: Setup) -> str | None:
    """Check that each rollback mark can be written and belongs to one state."""
    for directory, given in setup.places:
        check_writable((given or default_mark(directory)).parent)
        check_mark_alone(directory, given, accepts_restored=setup.accepts_restored)
    return None


def _listening(server: HostSection) -> dict[str, str | None]:
    """Return the addresses of an aggregator, by their settings."""
    return {f"server.{name}": getattr(server, name) for name in _LISTENING}


def _parse_all(addresses: Mapping[str, str | None]) -> None:
    """Parse the addresses that are set, by the names of their settings."""
    for name, given in addresses.items():
        if given is not None:
            Address.parse(given, name=name)


def _addresses(setup: ServerSetup) -> str:
    """Refuse an address of a server that cannot be parsed."""
    from secagg.server.service import page_address

    server = setup.host.server
    _parse_all(_listening(server))
    _parse_all({"edge.listen": setup.host.edge.listen})
    page_address(server)
    return server.listen


def _party_addresses(setup: PartySetup) -> str:
    """Refuse an address of a leader or helper that cannot be parsed."""
    from secagg.server.service import page_address

    own = setup.settings.server
    _parse_all(_listening(own))
    page_address(own)
    if isinstance(setup.settings, LeaderSettings):
        Address.parse(setup.settings.helper.address, name="helper.address")
    return own.listen


def _describe_input(setup: ClientSetup | SharingSetup) -> str | None:
    return None if setup.describe_input is None else setup.describe_input()


def _outputs(setup: ClientSetup | SharingSetup) -> str | None:
    found = [f"{name} {check_output(path)}" for name, path in setup.outputs.items()]
    return ", ".join(found) or None


def _party_name(setup: PartySetup) -> str:
    """Check that the certificates of a leader or a helper bear its name."""
    from secagg.two_aggregators.program import check_name

    own = setup.settings.server
    for files, role in setup.certificates:
        found = identity_of(files, role, quiet=True).identity
        check_name(own, found.name, files.certificate)
    return own.name


def _shared_state_directory(setup: Setup) -> list[tuple[Path, Path | None]]:
    """Return the directory that holds the states of a party's tasks, and its key."""
    if isinstance(setup, PartySetup):
        return [(setup.settings.server.state_dir, None)]
    return []


async def _stores(setup: ClientSetup | SharingSetup | PartySetup) -> str | Caution:
    """Check the stores of all state directories, unless a process has them open."""
    owner = setup.owner if isinstance(setup, PartySetup) else None
    if owner is not None:
        return owner
    return first_warning([await check_store(*each) for each in setup.places])


def _sections_of(setup: SharingSetup) -> tuple[tuple[str, OtherSection], ...]:
    return ("leader", setup.settings.leader), ("helper", setup.settings.helper)


def _sharing_addresses(setup: SharingSetup) -> str:
    """Parse the addresses of leader and helper."""
    return ", ".join(
        str(Address.parse(each.address, name=f"{name}.address"))
        for name, each in _sections_of(setup)
    )


def _describe_total(setup: SharingSetup) -> str | None:
    total = total_budget(setup.settings.policy)
    return None if total is None else f"of {total.data!r}, epsilon {total.epsilon:g}"


def _sums_dir(setup: PartySetup) -> str | None:
    """Check that the leader can write its sums; None at the helper."""
    from secagg.two_aggregators.program import sums_of

    leader = setup.settings
    if not isinstance(leader, LeaderSettings):
        return None
    return "; ".join(check_writable(sums_of(leader, each.id)) for each in setup.tasks)


def _receipt_keys(setup: PartySetup | SharingSetup) -> str | None:
    """Read the receipt keys of the aggregators; a helper needs none."""
    from secagg.two_aggregators.client import refuse_shared_key
    from secagg.two_aggregators.program import receipt_key_of

    settings = setup.settings
    if isinstance(settings, HelperSettings):
        return None
    helper_key = receipt_key_of("helper", settings.helper)
    if isinstance(settings, SharingClientSettings):
        refuse_shared_key(receipt_key_of("leader", settings.leader), helper_key)
    return "the keys that the aggregators sign with can be read"


def _party_task(setup: PartySetup) -> str:
    """Return what each task costs."""
    from secagg.two_aggregators.program import noise_of

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
            lambda s: first_warning(check_writable(each) for each, _ in s.places),
        ),
        _starts(
            modes,
            "modes",
            lambda s: first_warning(
                check_modes(*each) for each in (*_shared_state_directory(s), *s.places)
            ),
        ),
        SetupCheck(store, "store", _stores),
        _starts(mark, "mark", _check_rollback_marks),
    )


def _certificate_checks(
    files: str, certificate: str, *, subject: str = "certificate"
) -> tuple[SetupCheck[Any], ...]:
    """Return the checks of certificates and their files, under these numbers."""
    return (
        _starts(
            files,
            "certificate files",
            lambda s: first_warning(check_tls_files(tls) for tls, _ in s.certificates),
        ),
        _starts(
            certificate,
            subject,
            lambda s: first_warning(check_certificate(*it) for it in s.certificates),
        ),
    )


_REVOKED: Final[SetupCheck[Any]] = _starts(
    "D125",
    "revoked certificates",
    lambda s: check_revoked(s.host.server, s.host.tls),
)
_DISK: Final[SetupCheck[Any]] = SetupCheck(
    "D155", "disk", lambda s: check_disk(s.host.server.state_dir)
)
_ADMIN_SOCKET: Final[SetupCheck[Any]] = SetupCheck(
    "D186", "admin socket", lambda s: _admin_socket(s.host.server, s.owner)
)

_SERVER: Final[tuple[Branch[ServerSetup], ...]] = (
    (_starts("D105", "paths", _server_paths),),
    (
        *_certificate_checks("D110", "D120"),
        _REVOKED,
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
        _starts("D152", "modes", lambda s: check_modes(*s.places[0])),
        _DISK,
        _starts(
            "D157",
            "uploads",
            lambda s: s.host.server.blobs and check_blobs(s.host.server.blobs),
        ),
        SetupCheck(
            "D160", "store", lambda s: check_server_store(s.host.server, s.owner)
        ),
        SetupCheck("D161", "sums", lambda s: check_sums(s.host.server, s.owner)),
        _starts("D162", "mark", _server_mark),
        SetupCheck("D163", "other aggregators", lambda s: check_replicas(s.host)),
        _ADMIN_SOCKET,
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
        SetupCheck("D255", "claims on data", lambda s: check_claims(s.settings)),
    ),
    (SetupCheck("D242", "--input", _describe_input),),
    (_starts("D243", "--output", _outputs),),
    (
        *_certificate_checks("D210", "D220"),
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
                    "connection to the aggregator",
                    lambda s: s.to_aggregator().connect(),
                ),
                ("D280", "TLS", lambda s: s.to_aggregator().speaks_tls()),
                (
                    "D290",
                    "identity of the aggregator",
                    lambda s: s.to_aggregator().perform_handshake(),
                ),
                ("D300", "task", lambda s: s.to_aggregator().request_offer()),
                ("D310", "clock", lambda s: s.to_aggregator().clock()),
                ("D320", "policy", lambda s: s.to_aggregator().accepts_offer()),
            )
        ),
    ),
)


_PARTY: Final[tuple[Branch[PartySetup], ...]] = (
    (_starts("D105", "paths", _party_paths),),
    (
        *_certificate_checks("D110", "D120"),
        _starts("D122", "name", _party_name),
        _REVOKED,
    ),
    (_starts("D145", "packages", _party_packages),),
    (
        *_state_checks("D150", "D152", "D160", "D162"),
        _DISK,
        _ADMIN_SOCKET,
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
    _certificate_checks("D210", "D220", subject="certificates"),
    (_starts("D235", "addresses", _sharing_addresses),),
    (
        *_state_checks("D240", "D245", "D250", "D252"),
        SetupCheck("D255", "claims on data", lambda s: check_claims(s.settings)),
    ),
    (SetupCheck("D242", "--input", _describe_input),),
    (_starts("D243", "--output", _outputs),),
    (_starts("D232", "total of the data", _describe_total),),
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
