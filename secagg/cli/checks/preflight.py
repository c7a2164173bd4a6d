"""Checks of a set-up before anything costs time or budget, in branches.

Rule 1: what this machine alone can check is checked first: before a server plans its
        noise, and before a client joins a session.
Rule 2: a check changes nothing: no file stays behind, no port stays taken.
Rule 3: a check reports its result in one line; its error is the one that the program
        would meet later, with the same exit code and a next step.
Rule 4: checks form branches.  A failure ends its branch, because all that follows
        would fail for the same reason; other branches continue.
The planner decides whether the budget can be met, and the peer reports what it
demands.  `--show-settings` prints every setting, and the result of each check.
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

from secagg.cli.output import Output, moment
from secagg.client.enrolment_files import read_enrolled
from secagg.client.program import client_enrolment
from secagg.config import ClientSettings, HostSettings, TaskSettings
from secagg.config.common import TLSSection
from secagg.config.files import identity_of
from secagg.config.paths import refuse_shared_paths, server_paths
from secagg.config.server import HostSection
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.pki.expiry import expiries_of, level_of
from secagg.pki.key_files import PublishedEnrolment, is_readable_by_others, parse_key
from secagg.protocol.enrolment import read_revocations
from secagg.protocol.packing import packed_size
from secagg.runtime.files import SESSION_PLACE, nearest_existing
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import read_certificates

S = TypeVar("S")


class CheckState:
    """State of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its result.

    Attributes:
        number: Such as D120; never reused.
        subject: What was checked.
        state: One of `CheckState`.
        found: What exists, or what is wrong.
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
    """A result that is no failure and should be corrected."""

    found: str
    next_step: str


Found: TypeAlias = str | Caution | None


@dataclass(frozen=True, slots=True)
class SetupCheck(Generic[S]):
    """One numbered need of a part.

    Attributes:
        number: Such as D120; never reused.
        subject: What is checked: the setting or option that names it, or a noun.
        run: Returns what exists; None where the settings name no such thing.  Raises
            the error that the program would raise.
        starts: Whether a start runs it before anything else; other failures meet the
            program later, with the same error.
        is_local: Whether this machine alone can check it; else only the doctor does.
    """

    number: str
    subject: str
    run: Callable[[S], Found | Awaitable[Found]]
    starts: bool = False
    is_local: bool = True


Branch: TypeAlias = tuple[SetupCheck[S], ...]


async def results_of(
    branches: Sequence[Branch[S]],
    setup: S,
    *,
    only: Callable[[SetupCheck[S]], bool] = lambda _: True,
) -> list[CheckResult]:
    """Run checks, and skip those after a failure in their branch.

    Args:
        branches: Checks that depend on each other, in the order in which they run.
        setup: What they check.
        only: Returns whether a check is run.

    Returns:
        The results, by number.
    """
    findings: list[CheckResult] = []
    for branch in branches:
        failed = ""
        for check in filter(only, branch):
            if failed:
                reason = f"needs {failed} to be right"
                findings.append(
                    CheckResult(check.number, check.subject, CheckState.SKIPPED, reason)
                )
                continue
            finding = await _result_of(check, setup)
            if finding is not None:
                findings.append(finding)
                failed = check.number if finding.error else ""
    return sorted(findings, key=lambda each: each.number)


async def _result_of(check: SetupCheck[S], setup: S) -> CheckResult | None:
    """Run one check, and return its result; None where it does not apply."""
    number, subject = check.number, check.subject
    try:
        found = check.run(setup)
        if not isinstance(found, str | Caution | None):
            found = await found
    except SecAggError as error:
        step = error.at_command or error.next_step
        return CheckResult(number, subject, CheckState.FAILED, str(error), step, error)
    if found is None:
        return None
    if isinstance(found, str):
        return CheckResult(number, subject, CheckState.OK, found)
    return CheckResult(
        number, subject, CheckState.WARNING, found.found, found.next_step
    )


def written_files(outputs: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Return every file that options of a client have it write, with its option.

    The receipt of a session lies beside its sum, as do those of sessions without one.
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
    """Refuse settings of a server by which it would overwrite its own files.

    Args:
        settings: The server's.
        file: The settings file.
        tasks: Those in files.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    from secagg.server.task.stored import folder_of

    sums = settings.server.output_dir
    folders = [sums / folder_of(each.task.id) for each in tasks]
    return refuse_shared_paths(server_paths(settings, file, tasks, folders=folders))


def check_port(listening: Mapping[str, str | None]) -> None:
    """Check that an aggregator could listen.

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
                # As the server does: what an earlier one left closing does not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError:
            raise address.bind_error() from None


class DiskFullError(ServiceError):
    """A full disk, which may have room by the time that a session needs it."""


def require_all(findings: Iterable[CheckResult], *, may_be_full: str = "") -> list[str]:
    """Raise the first problem, unless it may resolve itself.

    Args:
        findings: Results of the checks.
        may_be_full: The number of a check whose disk may get room later.

    Returns:
        What is waited for, and what should be corrected, in words.

    Raises:
        SecAggError: The first problem.
    """
    said = []
    for finding in findings:
        if isinstance(finding.error, DiskFullError) and finding.number == may_be_full:
            said.append(f"{finding.found}: sums will wait for room")
        elif finding.error is not None:
            raise finding.error
        elif finding.state == CheckState.WARNING:
            said.append(f"{finding.found}; {finding.next_step}")
    return said


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
    """Refuse an enrolment of another trust domain than the certificate's."""
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
    return f"; WARNING: other users may read {key}, try chmod 600"


def check_server_enrolment(tls: TLSSection, settings: TaskSettings) -> str | None:
    """Check what a server publishes of the enrolment; None where nothing is set.

    Raises:
        ServiceError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    section, key = settings.enrolment, settings.enrolment.enrolment_key
    if key is None:
        return None
    own = identity_of(tls, Role.SERVER, quiet=True).identity.trust_domain
    _refuse_other_domain(settings, own)
    published = PublishedEnrolment.load(
        trust_domain=own,
        enrolment_key=parse_key(key),
        revocations=section.revocations,
    )
    newest = read_revocations(published.revocations, published.trust)
    if newest is None:
        return "no revocation list"
    found = f"revocation list {newest.number}, made {moment(newest.made_at)}"
    return found + _issuer_beside(section.revocations)


def _issuer_beside(revocations: Path | None) -> str:
    """Return a warning where the issuer's seed lies beside its list; "" elsewhere."""
    # An operator who can read it can enrol clients that do not exist.
    from secagg.pki.credential_issuer import ISSUER_SEED

    seed = None if revocations is None else revocations.with_name(ISSUER_SEED)
    if seed is None or not os.access(seed, os.R_OK):
        return ""
    return f"; WARNING: this user can read {seed}; keep the issuer elsewhere"


def check_client_enrolment(settings: ClientSettings) -> str | None:
    """Check what a client has of the enrolment; None where nothing is set.

    Raises:
        SecAggError: BAD_SETTINGS, BAD_CERTIFICATE or BAD_CREDENTIAL.
    """
    files = client_enrolment(settings)
    if files is None:
        return None
    own = identity_of(settings.tls, Role.CLIENT, quiet=True).identity
    loaded = read_enrolled(files, name=own.name, trust_domain=own.trust_domain)
    credential = loaded.identity.issued.credential
    return (
        f"serial {credential.serial}, valid until {moment(credential.not_after)}"
        + _readable(files.seed)
    )


def check_state_dir(path: Path, task: TaskSettings | None) -> str:
    """Check the directory of a server's state, and the free space.

    Args:
        path: Of the directory.
        task: One that the server will run; None for none.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    from secagg.storage.spool import MIN_FREE_BYTES

    found = check_writable(path)
    needed = MIN_FREE_BYTES
    if task is not None:
        # The planner may choose more bits, and a rotation a longer vector; never fewer.
        one = packed_size(task.vector.dimension, task.vector.modulus_bits or 1)
        needed += task.cohort.min_clients * one
    needed -= _directory_size(path)  # what a session has stored already has its room
    free = shutil.disk_usage(nearest_existing(path)).free
    if free < needed:
        raise ErrorCode.STORAGE_FAILED.error(
            f"the disk under {path} has {free:,} bytes left, one session needs "
            f"{needed:,} at least",
            fix="Free disk space, or set server.state_dir to another disk.",
        )
    return f"{found}, {free / 2**30:.1f} GiB free"


def _directory_size(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            total += path.stat().st_size
    return total


def check_payload(settings: TaskSettings) -> str | None:
    """Check the file that a task hands to every client; None for no file.

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
    """Check that a file can be created.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    if path.is_dir():
        raise _unwritable(path, "it is a directory")
    return check_writable(path.parent)


def check_writable(directory: Path) -> str:
    """Check that files can be created in a directory, or the directory itself.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    place = nearest_existing(directory)
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
    return "can be written" if place == directory else "can be created"


def _unwritable(
    path: Path, reason: str, kind: type[ServiceError] = ServiceError
) -> ServiceError:
    """Return the error of a path that cannot be written."""
    return kind(
        f"{path} cannot be written: {reason}",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Check the path, its owner and the free space, or choose another.",
    )


def print_checks(
    rows: Sequence[tuple[str, str, str]],
    findings: Sequence[CheckResult],
    output: Output,
) -> None:
    """Print settings and checks; the settings for programs, too.

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
    output.result({key: value for key, value, _ in rows})


def check_tls_files(tls: TLSSection) -> str | Caution:
    """Check that three files can be read, and the key by its owner alone."""
    for path in (tls.ca, tls.certificate, tls.key):
        try:
            with path.open("rb") as stream:
                stream.read(1)
        except OSError as error:
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"{path} cannot be read: {error.strerror}",
                fix="Check the path under [tls] and which users may read the file.",
            ) from None
    if is_readable_by_others(tls.key):
        return Caution(f"other users may read {tls.key}", f"chmod 600 {tls.key}")
    return "all three can be read, the key only by its owner"


def check_certificate(tls: TLSSection, role: Role) -> str | Caution:
    """Check a certificate's identity and expiry."""
    identity, now = identity_of(tls, role, quiet=True), datetime.now(UTC)
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
    """Check the revocation lists, and name what they lack."""
    from secagg.pki.certificate_revocations import (
        read_revocation_lists,
        revocation_file,
    )

    file = revocation_file(own.revoked, own.max_revocation_days, own.state_dir)
    if file is None:
        return None
    trusted, now = read_certificates(tls.ca), datetime.now(UTC).timestamp()
    lists = read_revocation_lists(file, trusted, now=now)
    until = min(each.ends for each in lists)
    found = (
        f"{file.path}: {sum(len(each.revoked) for each in lists)} certificates, valid "
        f"until {moment(until)}"
    )
    if any(each.is_short(now) for each in lists):
        return Caution(
            found, "Copy the authority's next list over it; no restart is needed."
        )
    if len(lists) < len(trusted):
        return Caution(
            f"{found}; {len(trusted) - len(lists)} authorities of {tls.ca} lack a list",
            "Add the list of each authority: without one it revokes no certificate.",
        )
    return found
