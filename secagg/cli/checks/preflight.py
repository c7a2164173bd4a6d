"""Checks of a set-up before anything costs time or budget, and how they hang together.

Rule 1: what can be found out from this machine alone is found out first: before a
        server plans its noise, and before a client joins a session.
Rule 2: looking changes nothing: no file stays behind, no port stays taken.
Rule 3: a check says what it found in one line; its error is the one that the program
        would meet later, with the same exit code and a next step.
Rule 4: checks stand in branches.  What fails ends its branch, because all that follows
        would fail for the same reason; other branches go on.
Whether the budget can be met is the planner's to say, and what the other side demands
is said by the other side.  `--show-settings` prints every setting, and what each check
of them found.
"""

import contextlib
import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from secagg.cli.output import Output
from secagg.client.enrolment_files import read_enrolled
from secagg.client.program import client_enrolment
from secagg.config import ClientSettings, HostSettings, TaskSettings
from secagg.config.common import TLSSection
from secagg.config.paths import refuse_shared_paths, server_paths
from secagg.config.server import HostSection
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.pki.certificate_revocations import (
    read_revocation_lists,
    revocation_file,
)
from secagg.pki.credential_issuer import ISSUER_SEED
from secagg.pki.expiry import expiries_of, level_of
from secagg.pki.key_files import PublishedEnrolment, is_readable_by_others, parse_key
from secagg.protocol.enrolment.revocation_list import read_revocations
from secagg.protocol.packing import packed_size
from secagg.runtime.files import SESSION_PLACE, nearest_place
from secagg.server.task.stored import folder_of
from secagg.storage.spool import MIN_FREE_BYTES
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity, read_certificates

S = TypeVar("S")


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
class Caution:
    """Something that works and should not stay so."""

    found: str
    next_step: str


Found: TypeAlias = str | Caution | None


@dataclass(frozen=True, slots=True)
class SetupCheck(Generic[S]):
    """One numbered thing that a part needs.

    Attributes:
        number: Such as D120; never reused.
        subject: What is looked at: the setting or option that names it, or a noun.
        run: Says what there is; None where the settings name no such thing.  Raises
            what is wrong, as the program would.
        starts: Whether a start looks at it before anything else; what it does not look
            at it meets by itself, with the same error.
        is_local: Whether this machine alone can tell; else the doctor alone looks.
    """

    number: str
    subject: str
    run: Callable[[S], Found | Awaitable[Found]]
    starts: bool = False
    is_local: bool = True


Branch: TypeAlias = tuple[SetupCheck[S], ...]


async def findings_of(
    branches: Sequence[Branch[S]],
    setup: S,
    *,
    only: Callable[[SetupCheck[S]], bool] = lambda _: True,
) -> list[Finding]:
    """Run checks; what follows a failure in its branch is skipped.

    Args:
        branches: Checks that hang together, in the order in which they are run.
        setup: What they look at.
        only: Says which are run.

    Returns:
        What was found, by number.
    """
    findings: list[Finding] = []
    for branch in branches:
        failed = ""
        for check in filter(only, branch):
            if failed:
                reason = f"needs {failed} to be right"
                findings.append(
                    Finding(check.number, check.subject, State.SKIPPED, reason)
                )
                continue
            finding = await _finding_of(check, setup)
            if finding is not None:
                findings.append(finding)
                failed = check.number if finding.error else ""
    return sorted(findings, key=lambda each: each.number)


async def _finding_of(check: SetupCheck[S], setup: S) -> Finding | None:
    number, subject = check.number, check.subject
    try:
        found = check.run(setup)
        if not isinstance(found, str | Caution | None):
            found = await found
    except SecAggError as error:
        step = error.at_command or error.next_step
        return Finding(number, subject, State.FAILED, str(error), step, error)
    if found is None:
        return None
    if isinstance(found, str):
        return Finding(number, subject, State.OK, found)
    return Finding(number, subject, State.WARNING, found.found, found.next_step)


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


def check_port(listening: Mapping[str, str | None]) -> None:
    """Find out whether an aggregator could listen.

    Args:
        listening: Its addresses, by their settings; None for those that are not set.

    Raises:
        ServiceError: PORT_IN_USE or BAD_SETTINGS.
    """
    for name, text in listening.items():
        if text is None:
            continue
        address = Address.parse(text, name=name)
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


class DiskFullError(ServiceError):
    """A disk is full; it may have room by the time that somebody needs it."""


def require_all(findings: Iterable[Finding], *, may_be_full: str = "") -> list[str]:
    """Raise the first problem, if there is one that does not mend itself.

    Args:
        findings: What was found.
        may_be_full: The number of a check whose disk is waited for later.

    Returns:
        What is waited for, and what should not stay as it is, in words.

    Raises:
        SecAggError: The first problem.
    """
    said = []
    for finding in findings:
        if isinstance(finding.error, DiskFullError) and finding.number == may_be_full:
            said.append(f"{finding.found}: sums will wait for room")
        elif finding.error is not None:
            raise finding.error
        elif finding.state == State.WARNING:
            said.append(f"{finding.found}; {finding.next_step}")
    return said


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


def check_task_rules(
    settings: HostSettings, file: Path, trust_domain: str, task: TaskSettings
) -> None:
    """Refuse a task that hands out a file of the server's, or that no client joins.

    Args:
        settings: The server's.
        file: Their file.
        trust_domain: Of the server's certificate.
        task: The task, of a file or of an operator.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    check_server_paths(settings, file, (task,))
    _refuse_other_domain(task, trust_domain)


def _refuse_other_domain(settings: TaskSettings, own: str) -> None:
    section = settings.enrolment
    if section.enrolment_key is not None and own != section.trust_domain:
        raise ErrorCode.BAD_SETTINGS.error(
            f"enrolment.trust_domain is {section.trust_domain!r}, the certificate "
            f"names {own!r}: no client would take part",
            fix="Set it to what the certificate names.",
        )


def _readable(key: Path) -> str:
    # Not an error: orchestrators mount secrets with modes of their own.
    if not is_readable_by_others(key):
        return ""
    return f"; WARNING: others may read {key}, try chmod 600"


def check_server_enrolment(tls: TLSSection, settings: TaskSettings) -> str | None:
    """Look at what a server publishes of the enrolment; None where none is wanted.

    Raises:
        ServiceError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    section, key = settings.enrolment, settings.enrolment.enrolment_key
    if key is None:
        return None
    own = identity_of(tls, Role.SERVER).identity.trust_domain
    _refuse_other_domain(settings, own)
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


def check_client_enrolment(settings: ClientSettings) -> str | None:
    """Look at what a client has of the enrolment; None where nothing is set.

    Raises:
        SecAggError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    files = client_enrolment(settings)
    if files is None:
        return None
    own = identity_of(settings.tls, Role.CLIENT).identity
    loaded = read_enrolled(files, name=own.name, trust_domain=own.trust_domain)
    credential = loaded.identity.issued.credential
    return (
        f"serial {credential.serial}, valid until {_time(credential.not_after)}"
        + _readable(files.seed)
    )


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


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
        raise ErrorCode.STORAGE_FAILED.error(
            f"the disk under {path} has {free:,} bytes left, one session needs "
            f"{needed:,} at least",
            fix="Free disk space, or set server.state_dir to another disk.",
        )
    return f"{found}, {free / 2**30:.1f} GiB free"


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            total += path.stat().st_size
    return total


def check_payload(settings: TaskSettings) -> str | None:
    """Look at the file that a task hands to every client; None for no file.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    path = settings.task.payload
    if not path:
        return None
    try:
        with path.open("rb") as stream:
            stream.read(1)
            return f"{os.fstat(stream.fileno()).st_size:,} bytes"
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"the payload {path} cannot be read: {error.strerror}",
            fix="Correct task.payload, or remove it.",
        ) from None


def check_output(path: Path) -> str:
    """Prove that a file can be made.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
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
            DiskFullError if is_full else ServiceError,
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


def show_checked(
    rows: Sequence[tuple[str, str, str]], findings: Sequence[Finding], output: Output
) -> None:
    """Print settings and checks.

    Raises:
        SecAggError: The first problem among the checks; all of them are printed.
    """
    output.table(("setting", "value", "from"), rows, title="Settings")
    output.table(
        ("check", "of", "found"),
        [
            (
                each.number,
                each.subject,
                f"ERROR: {each.found}"
                if each.error
                else f"{each.found}; {each.next_step}"
                if each.next_step
                else each.found,
            )
            for each in findings
        ],
        title="Checks",
    )
    require_all(findings)


def check_tls_files(tls: TLSSection) -> str | Caution:
    """Check that three files can be read, and the key by its owner alone."""
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


def check_certificate(tls: TLSSection, role: Role) -> str | Caution:
    """Check a certificate's identity, and when it ends."""
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


def check_revoked(own: HostSection, tls: TLSSection) -> str | Caution | None:
    """Read the revocation lists, and name what they lack."""
    file = revocation_file(own.revoked, own.max_revocation_days, own.state_dir)
    if file is None:
        return None
    trusted, now = read_certificates(tls.ca), datetime.now(UTC).timestamp()
    lists = read_revocation_lists(file, trusted, now=now)
    until = min(each.ends for each in lists)
    found = (
        f"{file.path}: {sum(len(each.revoked) for each in lists)} certificates, valid "
        f"until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC"
    )
    if any(each.is_short(now) for each in lists):
        return Caution(
            found, "Copy the authority's next list over it; no restart is needed."
        )
    if len(lists) < len(trusted):
        return Caution(
            f"{found}; {len(trusted) - len(lists)} authorities of {tls.ca} have none",
            "Add the list of each authority: without one it revokes no certificate.",
        )
    return found
