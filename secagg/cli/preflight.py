"""Looks at everything that settings name before anything costs time or budget.

Rule 1: what can be found out from this machine alone is found out first: before a
        server plans its noise, and before a client joins a session.
Rule 2: looking changes nothing: no file stays behind, no port stays taken.
Rule 3: a check says what it found in one line; its error is the one that the program
        would meet later, with the same exit code.

Whether the budget can be met is the planner's to say, and what the other side demands
is said by the other side.
"""

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from secagg.client.enrolment import load_enrolled
from secagg.client.program import client_enrolment
from secagg.config import ClientSettings, HostSettings, TaskSettings
from secagg.config.paths import client_paths, refuse_shared_paths, server_paths
from secagg.config.program import TLSSection
from secagg.disk import SESSION_PLACE, nearest_place
from secagg.engine import open_engine
from secagg.enrolment.issuer import ISSUER_SEED
from secagg.enrolment.keys import is_readable_by_others, parse_key
from secagg.enrolment.published import PublishedEnrolment
from secagg.enrolment.revocation import read_revocations
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.server.task_folder import folder_of
from secagg.storage.open_blobs import open_blobs
from secagg.storage.postgres_address import judged_address
from secagg.storage.spool import MIN_FREE_BYTES
from secagg.transport.address import Address
from secagg.transport.identity import Role
from secagg.transport.revoked import read_revoked
from secagg.transport.tls import TLSIdentity
from secagg.wire.packing import packed_size

__all__ = [
    "Check",
    "check_client_enrolment",
    "check_port",
    "check_server_enrolment",
    "check_server_paths",
    "check_state_dir",
    "check_writable",
    "client_checks",
    "identity_of",
    "require_all",
    "server_checks",
    "written_files",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        subject: The setting or option that names it.
        found: What is there, in a few words; "" when there is a problem.
        problem: What is wrong with it; None when it will do.
    """

    subject: str
    found: str
    problem: SecAggError | None = None


def server_checks(
    settings: HostSettings, task: TaskSettings | None = None, *, file: Path
) -> list[Check]:
    """Look at everything that the settings of a server name, but for its port.

    Args:
        settings: The server's.
        task: The one in its file; None for none.
        file: The settings file.
    """
    server = settings.server
    own = [] if task is None else [task]
    checks = [
        _look("paths", lambda: check_server_paths(settings, file, own)),
        _look("tls", lambda: _certificates(settings.tls, Role.SERVER)),
        *_revoked(server.revoked),
        *([] if task is None else _server_enrolment(settings.tls, task)),
        _address("server.listen", server.listen),
    ]
    health = server.health_listen
    payload = None if task is None else task.task.payload
    for name, given in (
        ("health_listen", health),
        ("metrics_listen", server.metrics_listen),
        ("page_listen", server.page_listen),
    ):
        if given is not None:
            checks.append(_address(f"server.{name}", given))
    checks += [
        _look("server.state_dir", lambda: check_state_dir(server.state_dir, task)),
        *_store(server.store),
        *_blobs(server.blobs),
        _look("server.engine", lambda: open_engine(server.engine).name),
        _look("server.output_dir", lambda: check_writable(server.output_dir)),
    ]
    if payload is not None:
        checks.append(_look("task.payload", lambda: _payload(payload)))
    return checks


def client_checks(
    settings: ClientSettings,
    *,
    describe_input: Callable[[], str] | None = None,
    outputs: Mapping[str, Path],
    file: Path,
    vector: Path,
) -> list[Check]:
    """Look at everything that the settings and options of a client name.

    Args:
        settings: The client's.
        describe_input: Reads the input and says what it is; raises what is wrong.  None
            where it is judged later: not if a session is under way (R3.5-5).
        outputs: Files to be written, by the option that names them.
        file: The settings file.
        vector: The file of --input.
    """
    paths = client_paths(
        settings,
        file,
        inputs=[("--input", vector)],
        outputs=written_files(outputs),
    )
    return [
        _look("paths", lambda: refuse_shared_paths(paths)),
        _look("tls", lambda: _certificates(settings.tls, Role.CLIENT)),
        *_client_enrolment(settings),
        _address("client.server", settings.client.server),
        _look("client.state_dir", lambda: check_writable(settings.client.state_dir)),
        *(() if describe_input is None else (_look("--input", describe_input),)),
        *(_look(option, partial(_output, path)) for option, path in outputs.items()),
    ]


def written_files(outputs: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Return every file that options of a client have it write, with its option.

    Beside the sum of a session goes its receipt, and those of sessions without a sum.
    """
    files: list[tuple[str, Path]] = []
    for option, path in outputs.items():
        files.append((option, path))
        if option == "--output":
            files.append((option, path.with_suffix(".receipt.bin")))
            aborted = path.with_suffix(f".receipt-{SESSION_PLACE}.bin")
            files.append((option, aborted))
    return files


def check_server_paths(
    settings: HostSettings, file: Path, tasks: Sequence[TaskSettings]
) -> str:
    """Refuse settings of a server by which it would write over its own files.

    Args:
        settings: The server's.
        file: The settings file.
        tasks: Those in files.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    sums = settings.server.output_dir
    folders = [sums / folder_of(each.task.id) for each in tasks]
    return refuse_shared_paths(server_paths(settings, file, tasks, folders=folders))


def check_port(settings: HostSettings) -> None:
    """Find out whether the server could listen.

    Raises:
        ServiceError: PORT_IN_USE or BAD_SETTINGS.
    """
    for name in ("listen", "health_listen", "metrics_listen", "page_listen"):
        text = getattr(settings.server, name)
        if text is None:
            continue
        address = Address.parse(text, name=f"server.{name}")
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # As the server will: what an earlier one left closing does not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError:
            raise address.why_not() from None


class NoRoomError(ServiceError):
    """A disk is full; it may have room by the time that somebody needs it."""


def require_all(checks: Iterable[Check], *, may_be_full: str = "") -> list[str]:
    """Raise the first problem, if there is one that does not mend itself.

    Args:
        checks: What was found.
        may_be_full: The subject of a check whose disk is waited for later.

    Returns:
        What is waited for, in words.

    Raises:
        ServiceError: The first problem.
    """
    waited_for = []
    for check in checks:
        if isinstance(check.problem, NoRoomError) and check.subject == may_be_full:
            waited_for.append(str(check.problem))
        elif check.problem is not None:
            raise check.problem
    return waited_for


def _address(setting: str, text: str) -> Check:
    return _look(setting, lambda: str(Address.parse(text, name=setting)))


def _look(subject: str, describe: Callable[[], str]) -> Check:
    try:
        return Check(subject, describe())
    except SecAggError as error:
        return Check(subject, "", error)


def _certificates(files: TLSSection, role: Role) -> str:
    identity = identity_of(files, role)
    found = (
        f"{identity.identity.uri}, valid until "
        f"{identity.not_valid_after:%Y-%m-%d %H:%M} UTC"
    )
    return found + _readable(files.key)


def identity_of(files: TLSSection, role: Role) -> TLSIdentity:
    """Load what [tls] names, and tell no log of it.

    Raises:
        ServiceError: BAD_CERTIFICATE.
    """
    return TLSIdentity.load(
        certificate=files.certificate,
        private_key=files.key,
        authority=files.ca,
        role=role,
        quiet=True,
    )


def _revoked(path: Path | None) -> list[Check]:
    if path is None:
        return []
    return [
        _look("server.revoked", lambda: f"{len(read_revoked(path))} certificates"),
    ]


def _readable(key: Path) -> str:
    # Not an error: orchestrators mount secrets with modes of their own.
    if not is_readable_by_others(key):
        return ""
    return f"; WARNING: others may read {key}, try chmod 600"


def _server_enrolment(tls: TLSSection, settings: TaskSettings) -> list[Check]:
    if settings.enrolment.enrolment_key is None:
        return []
    return [_look("enrolment", lambda: check_server_enrolment(tls, settings))]


def check_server_enrolment(tls: TLSSection, settings: TaskSettings) -> str:
    """Look at what a server publishes of the enrolment.

    Raises:
        ServiceError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    section, key = settings.enrolment, settings.enrolment.enrolment_key
    if key is None:
        return "none is asked for"
    own = identity_of(tls, Role.SERVER).identity.trust_domain
    if own != section.trust_domain:
        raise ServiceError(
            f"enrolment.trust_domain is {section.trust_domain!r}, the certificate "
            f"names {own!r}: no client would take part",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Set it to what the certificate names.",
        )
    published = PublishedEnrolment.load(
        trust_domain=own,
        enrolment_key=parse_key(key),
        revocations=section.revocations,
    )
    newest = read_revocations(published.revocations, published.trust)
    if newest is None:
        return "no revocation list"
    found = f"revocation list {newest.number}, made {_time(newest.made_at)}"
    return found + _issuer_beside(section.revocations)


def _issuer_beside(revocations: Path | None) -> str:
    # An operator who can read it can enrol clients that do not exist.
    seed = None if revocations is None else revocations.with_name(ISSUER_SEED)
    if seed is None or not os.access(seed, os.R_OK):
        return ""
    return f"; WARNING: this user can read {seed}, the issuer belongs elsewhere"


def _client_enrolment(settings: ClientSettings) -> list[Check]:
    if client_enrolment(settings) is None:
        return []
    return [_look("enrolment", lambda: check_client_enrolment(settings))]


def check_client_enrolment(settings: ClientSettings) -> str:
    """Look at what a client has of the enrolment.

    Raises:
        SecAggError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    files = client_enrolment(settings)
    if files is None:
        return "none is set"
    own = identity_of(settings.tls, Role.CLIENT).identity
    loaded = load_enrolled(files, name=own.name, trust_domain=own.trust_domain)
    credential = loaded.identity.issued.credential
    return (
        f"serial {credential.serial}, valid until {_time(credential.not_after)}"
        + _readable(files.seed)
    )


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _blobs(blobs: str | None) -> list[Check]:
    """Write into the store of uploads, as an upload would."""
    if blobs is None:
        return []
    return [_look("server.blobs", lambda: repr(open_blobs(blobs)))]


def _store(address: str | None) -> list[Check]:
    if address is None:
        return []
    return [_look("server.store", lambda: judged_address(address))]


def check_state_dir(path: Path, task: TaskSettings | None) -> str:
    """Look at the directory of a server's state and at the free space.

    Args:
        path: Of the directory.
        task: One that the server will run; None for none.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    found = check_writable(path)
    needed = MIN_FREE_BYTES
    if task is not None:
        # The planner may choose more bits, and a rotation a longer vector; not fewer.
        one = packed_size(task.vector.dimension, task.vector.modulus_bits or 1)
        needed += task.cohort.min_clients * one
    needed -= _size(path)  # what a session has stored needs no room twice
    free = shutil.disk_usage(nearest_place(path)).free
    if free < needed:
        raise ServiceError(
            f"the disk under {path} has {free:,} bytes left, one session needs "
            f"{needed:,} at least",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Free disk space, or set server.state_dir to another disk.",
        )
    return f"{found}, {free / 2**30:.1f} GiB free"


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            total += path.stat().st_size
    return total


def _payload(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.read(1)
            return f"{os.fstat(stream.fileno()).st_size:,} bytes"
    except OSError as error:
        raise ServiceError(
            f"the payload {path} cannot be read: {error.strerror}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Correct task.payload, or remove it.",
        ) from None


def _output(path: Path) -> str:
    if path.is_dir():
        raise _unwritable(path, "it is a directory")
    return check_writable(path.parent)


def check_writable(directory: Path) -> str:
    """Prove that files can be made in a directory, or the directory itself.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    place = nearest_place(directory)
    if not place.is_dir():
        raise _unwritable(directory, f"{place} is not a directory")
    try:
        # Where the system can, this file never has a name.
        with tempfile.TemporaryFile(dir=place) as proof:
            proof.write(b"\0")
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise _unwritable(
            directory,
            error.strerror or type(error).__name__,
            NoRoomError if is_full else ServiceError,
        ) from None
    return "can be written" if place == directory else "can be made"


def _unwritable(
    path: Path, reason: str, kind: type[ServiceError] = ServiceError
) -> ServiceError:
    return kind(
        f"{path} cannot be written: {reason}",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Check the path, its owner and the free space, or choose another.",
    )
