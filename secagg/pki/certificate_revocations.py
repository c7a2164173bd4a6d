"""Revoked certificates: X.509 revocation lists (CRL, RFC 5280) of the authorities.

A file holds one list in DER, or in PEM the lists of several authorities, one of each.

Rule 1: issuer and serial number together identify a certificate (RFC 5280, 4.1.2.2):
        two authorities may assign the same number.
Rule 2: a file is accepted whole or refused whole.  A running process keeps the lists
        that it has: a mistake readmits no client.
Rule 3: a list is signed by an authority that the process trusts now. It is complete: a
        critical extension that this module does not know may say the opposite.
Rule 4: numbers only grow, also over restarts: the highest of each authority is kept in
        the state directory.  A process does not start if it cannot be written, nor
        without any list after one.
Rule 5: a list ends at its nextUpdate, or earlier by the limit of the settings.  With a
        list that has ended no certificate is accepted: later revocations are unknown.

The members of a session use `secagg.protocol.enrolment` about each
other.
"""

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.arguments import check_real
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS
from secagg.runtime.files import disk, read_small, replace_file
from secagg.runtime.log_events import (
    CRL_EXPIRES,
    CRL_REJECTED,
    CRL_RELOADED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.tls import CertificateNumber

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# Sixty thousand entries in PEM: more certificates than an authority of `secagg pki`
# issues. They take half a second to read, in which the process does nothing else.
MAX_CRL_BYTES: Final = 4 << 20
# As many as a file of trusted authorities may hold.
_MAX_LISTS: Final = 8
# The mark has a line of 150 bytes for each authority that was ever trusted.
_MAX_MARK_BYTES: Final = 64 * 1024
# RFC 5280, 5.2.3: numbers have at most 20 bytes.
_MAX_NUMBER: Final = (1 << 159) - 1
# Above the longest age that settings may name; a date in that past can be written.
_TOO_MANY_DAYS: Final = 3651.0
_SECONDS_A_DAY: Final = 86_400.0
_NOTHING: Final = (b"", b"")
_WARNED_SHARE: Final = 0.25

_PEM_BEGINS: Final = b"-----BEGIN "
# A search ends at the next dash: a file of many beginnings takes no longer than others.
_PEM_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----[^-]*-----END X509 CRL-----")
# Extensions that may be critical, since this module follows them.
_FOLLOWED: Final = (
    x509.CRLNumber,
    x509.AuthorityKeyIdentifier,
    x509.CRLReason,
    x509.InvalidityDate,
)
# A list of a part of an authority's certificates, critical or not.
_PARTIAL: Final = (x509.IssuingDistributionPoint, x509.DeltaCRLIndicator)
_MALFORMED: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationFile:
    """A file of revocation lists, and the limits that apply to it.

    Attributes:
        path: The lists.
        max_days: Greatest age of a list, counted from its thisUpdate; None for no limit
            but its own nextUpdate.
        mark: File of the state directory that holds the highest number of each
            authority; None detects no older list after a restart.
    """

    path: Path
    max_days: float | None = None
    mark: Path | None = None


def revocation_file(
    path: Path | None, max_days: float | None, state_dir: Path | None
) -> RevocationFile | None:
    """Return the file that settings name; None without one.

    Args:
        path: The lists.
        max_days: Greatest age of a list.
        state_dir: Where the highest numbers are kept; None for nowhere.

    Raises:
        ServiceError: BAD_SETTINGS for an age without a file, which limits nothing; and
            for no file where lists were used before.
        LocalProtocolError: The age is not a positive number below 3651.
    """
    if max_days is not None:
        check_real("max_revocation_days", max_days, above=0.0, below=_TOO_MANY_DAYS)
    mark = None if state_dir is None else state_dir / "crl-numbers.json"
    if path is None:
        if mark is not None and mark.exists():
            raise ErrorCode.BAD_SETTINGS.error(
                f"server.revoked names no list, and {mark} says that lists were used "
                "before: certificates revoked by them would be accepted again",
                fix="Name the newest list as server.revoked. Or remove that file, if "
                "no authority of those lists is trusted any more.",
            )
        if max_days is not None:
            raise ErrorCode.BAD_SETTINGS.error(
                "max_revocation_days limits the age of a list, and no list is named",
                fix="Name the list as server.revoked, or leave max_revocation_days "
                "out.",
            )
        return None
    return RevocationFile(path=path, max_days=max_days, mark=mark)


@dataclass(frozen=True, slots=True)
class AcceptedCRL:
    """A list of one authority, checked.

    Attributes:
        authority: SHA-256 of the authority's public key, in hexadecimal digits.
        number: Its CRL number.
        digest: SHA-256 of the list, in hexadecimal digits.
        begins: Its thisUpdate, in Unix seconds.
        ends: When it may no longer be used, in Unix seconds.
        revoked: The certificates.
    """

    authority: str
    number: int
    digest: str
    begins: float
    ends: float
    revoked: frozenset[CertificateNumber]

    def is_short(self, now: float) -> bool:
        """Return whether the last quarter of its time has begun."""
        return self.ends - now < _WARNED_SHARE * (self.ends - self.begins)


class _FinalError(ServiceError):
    """Reports a file that is refused until it changes.

    One that is refused for its time alone is read at each look: a corrected clock
    accepts it.  With `MAX_CRL_BYTES` that takes half a second a minute at most.
    """


class CertificateRevocations:
    """The lists that are in force; `refresh` reads their file again.

    Args:
        file: The file; None for a deployment without revocations.
        authorities: Returns the trusted authorities in PEM, as they are now.
        date: The present in Unix seconds; the host's by default.

    Raises:
        ServiceError: BAD_CERTIFICATE; the file is refused.  STATE_DAMAGED or
            STORAGE_FAILED for the mark.
    """

    def __init__(
        self,
        file: RevocationFile | None,
        authorities: Callable[[], bytes] = bytes,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._file: Final = file
        self._authorities: Final = authorities
        self._date: Final = date
        self._numbers: frozenset[CertificateNumber] = frozenset()
        self._lists: tuple[AcceptedCRL, ...] = ()
        self._complaint = ""
        self._file_stamp = _NOTHING
        self._warned = (logging.NOTSET, -math.inf)
        self._marks: dict[str, tuple[int, str]] = {}
        if file is not None:
            self._marks = _read_marks(file.mark)
            self._accept_lists(file, _contents(file.path), authorities())
            self._warn_before_end(file)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def is_current(self) -> bool:
        """Return whether no list in force has ended."""
        now = self._date()
        return all(now < each.ends for each in self._lists)

    def refresh(self) -> bool:
        """Read the file again; return whether it revokes further certificates.

        A file that is refused leaves the present lists in force, and is an error in the
        log, once for each reason.  It is not read again until it changes.
        """
        if self._file is None:
            return False
        before, found = self._numbers, _NOTHING
        try:
            # Other authorities may lack their list, or leave one that none has signed.
            found = _contents(self._file.path), self._authorities()
            if found != self._file_stamp:
                self._accept_lists(self._file, *found)
                self._complaint = ""
        except ServiceError as error:
            # After every other failure the next look tries again.
            self._file_stamp = found if isinstance(error, _FinalError) else _NOTHING
            if str(error) != self._complaint:
                self._complaint = str(error)
                log_event(
                    _LOG,
                    logging.ERROR,
                    CRL_REJECTED,
                    reason=error,
                    next_step=error.next_step,
                )
        self._warn_before_end(self._file)
        new, given_back = self._numbers - before, before - self._numbers
        if new or given_back:
            log_event(
                _LOG,
                logging.WARNING if given_back else logging.INFO,
                CRL_RELOADED,
                path=self._file.path,
                revoked=len(new),
                given_back=len(given_back),
            )
        return bool(new)

    def _accept_lists(
        self, file: RevocationFile, data: bytes, authorities: bytes
    ) -> None:
        """Use the lists of a file, and store their numbers."""
        trusted = x509.load_pem_x509_certificates(authorities)
        found = _check_lists(file, data, trusted, self._date(), self._marks)
        # Before the mark is written: a full disk must not keep a revoked client in.
        self._lists = found
        self._marks |= {each.authority: (each.number, each.digest) for each in found}
        self._numbers = frozenset[CertificateNumber]().union(
            *(each.revoked for each in found)
        )
        if file.mark is not None:
            marks = json.dumps(self._marks, sort_keys=True).encode()
            with disk(file.mark):
                replace_file(file.mark, marks)
        self._file_stamp = (data, authorities)

    def _warn_before_end(self, file: RevocationFile) -> None:
        """Log once a day that a list ends soon, and at once that it has ended."""
        now, level = self._date(), logging.NOTSET
        first = min(self._lists, key=lambda each: each.ends)
        if first.is_short(now):
            level = logging.WARNING if now < first.ends else logging.ERROR
        before, when = self._warned
        if level <= before and (level < before or now - when < _SECONDS_A_DAY):
            self._warned = (level, when)
            return
        self._warned = (level, now)
        if level:
            log_event(
                _LOG,
                level,
                CRL_EXPIRES,
                path=file.path,
                ends=datetime.fromtimestamp(first.ends, UTC).isoformat(),
                next_step=_COPY_NEWEST,
            )


def read_revocation_lists(
    file: RevocationFile, trusted: Sequence[x509.Certificate], *, now: float
) -> tuple[AcceptedCRL, ...]:
    """Return the lists of a file, and write nothing.

    Args:
        file: The file and its limits.
        trusted: The trusted authorities.
        now: Unix seconds.

    Raises:
        ServiceError: BAD_CERTIFICATE; states why the file is refused. STATE_DAMAGED for
            the mark.
    """
    marks = _read_marks(file.mark)
    return _check_lists(file, _contents(file.path), trusted, now, marks)


def _contents(path: Path) -> bytes:
    """Read a file of revocation lists of at most `MAX_CRL_BYTES`."""
    return read_small(
        path,
        most=MAX_CRL_BYTES,
        code=ErrorCode.BAD_CERTIFICATE,
        if_unreadable="Check path and permissions; `secagg pki revoke DIR` writes a "
        "list that revokes nothing.",
        if_large="Publish a list without the certificates that have expired.",
    )


def _check_lists(
    file: RevocationFile,
    data: bytes,
    trusted: Sequence[x509.Certificate],
    now: float,
    marks: dict[str, tuple[int, str]],
) -> tuple[AcceptedCRL, ...]:
    """Return the lists of a file by authority; an older one is refused."""
    found: dict[str, AcceptedCRL] = {}
    for crl in _parsed(file.path, data):
        checked = _check(file, crl, trusted, datetime.fromtimestamp(now, UTC))
        if checked.authority in found:
            raise _list_error(
                f"{file.path} holds two lists of {_shown_name(crl.issuer)}",
                "Keep the newest list of each authority in it.",
            )
        number, digest = marks.get(checked.authority, (-1, ""))
        if checked.number < number:
            raise _list_error(
                f"{file.path} is list {checked.number} of {_shown_name(crl.issuer)}, "
                f"and list {number} was used before: certificates revoked since would "
                "be accepted again",
                _COPY_NEWEST,
            )
        if checked.number == number and checked.digest != digest:
            raise _list_error(
                f"{file.path} is another list {number} of {_shown_name(crl.issuer)} "
                "than the one that was used before",
                "Publish a list with the next number; the authority was restored from "
                "a backup, or signs two lists of one number.",
            )
        found[checked.authority] = checked
    for authority in trusted:
        key = _key_digest(authority)
        if key in marks and key not in found:
            raise _list_error(
                f"{file.path} lacks the list of {_shown_name(authority.subject)}, "
                "which was used before and is still trusted",
                "Put the newest list of each trusted authority into the file.",
            )
    return tuple(found.values())


def _parsed(path: Path, data: bytes) -> list[x509.CertificateRevocationList]:
    """Parse the lists of a file in PEM or DER."""
    blocks = _PEM_LIST.findall(data) if _PEM_BEGINS in data else [data]
    if not 1 <= len(blocks) <= _MAX_LISTS or (
        _PEM_BEGINS in data and data.count(_PEM_BEGINS) != len(blocks)
    ):
        raise _list_error(
            f"{path} holds {len(blocks)} whole revocation lists in PEM, 1 to "
            f"{_MAX_LISTS} and nothing else are needed",
            _COPY_NEWEST,
        )
    load = (
        x509.load_pem_x509_crl
        if blocks[0].startswith(_PEM_BEGINS)
        else x509.load_der_x509_crl
    )
    try:
        return [load(block) for block in blocks]
    except _MALFORMED:
        raise _list_error(
            f"{path} is not an X.509 revocation list in PEM or DER", _COPY_NEWEST
        ) from None


def _check(
    file: RevocationFile,
    crl: x509.CertificateRevocationList,
    trusted: Sequence[x509.Certificate],
    now: datetime,
) -> AcceptedCRL:
    """Return what a list says, after every check that needs no earlier list."""
    path = file.path
    try:
        issuer = crl.issuer  # parsed whenever it is asked for
        signers = [each for each in trusted if each.subject == issuer]
        if not signers:
            raise _list_error(
                f"{path} is a list of {_shown_name(issuer)}, which is not a trusted "
                "authority",
                "Name the list of an authority in tls.ca.",
            )
        authority = next((each for each in signers if _has_signed(each, crl)), None)
        if authority is None:
            raise _list_error(
                f"{path} is not signed by {_shown_name(issuer)}, whose list it claims "
                "to be",
                "Do not use this file; get the list from the authority's operator.",
            )
        _refuse_extensions(path, crl.extensions)
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        if not 0 <= number <= _MAX_NUMBER:
            raise ValueError("its number is out of range")
        begins, ends = _validity_times(file, crl, now)
        return AcceptedCRL(
            authority=_key_digest(authority),
            number=number,
            digest=hashlib.sha256(crl.public_bytes(Encoding.DER)).hexdigest(),
            begins=begins.timestamp(),
            ends=ends.timestamp(),
            revoked=frozenset(_revoked_entries(path, crl, issuer)),
        )
    except x509.ExtensionNotFound:
        raise _list_error(
            f"{path} has no CRL number, so an older list cannot be recognised",
            "Have the authority number its lists; `openssl ca` needs `crlnumber`.",
        ) from None
    except _MALFORMED as error:
        raise _list_error(f"{path} is malformed: {error}", _COPY_NEWEST) from None


def _has_signed(
    authority: x509.Certificate, crl: x509.CertificateRevocationList
) -> bool:
    """Return whether an authority may sign lists and has signed this one."""
    try:
        usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
        if not usage.crl_sign:
            return False
    except x509.ExtensionNotFound:
        pass  # RFC 5280, 6.3.3: without the extension a key may be used for all
    key: Any = authority.public_key()  # a key that cannot sign is a TypeError
    return crl.is_signature_valid(key)  # False for SHA-1, and what is weaker


def _validity_times(
    file: RevocationFile, crl: x509.CertificateRevocationList, now: datetime
) -> tuple[datetime, datetime]:
    """Return when a list begins and ends; one that is not in force is refused."""
    begins, ends = crl.last_update_utc, crl.next_update_utc
    if begins > now + timedelta(seconds=CLOCK_TOLERANCE_SECONDS):
        raise _untimely(
            f"{file.path} is valid only from {begins:%Y-%m-%d %H:%M} UTC",
            "Check the clocks of this host and of the authority.",
        )
    if ends is None:
        raise _list_error(
            f"{file.path} has no nextUpdate, so it would never end",
            "Have the authority state when its next list is due.",
        )
    if now >= ends:
        raise _untimely(
            f"{file.path} expired on {ends:%Y-%m-%d %H:%M} UTC", _COPY_NEWEST
        )
    if file.max_days is not None:
        oldest = begins + timedelta(days=file.max_days)
        if now >= oldest:
            raise _untimely(
                f"{file.path} is of {begins:%Y-%m-%d %H:%M} UTC, older than the "
                f"{file.max_days:g} days of server.max_revocation_days",
                _COPY_NEWEST,
            )
        ends = min(ends, oldest)
    return begins, ends


def _revoked_entries(
    path: Path, crl: x509.CertificateRevocationList, issuer: x509.Name
) -> Iterator[CertificateNumber]:
    """Yield the numbers of the certificates that a list revokes."""
    for entry in crl:
        _refuse_extensions(path, entry.extensions)
        yield CertificateNumber(issuer, entry.serial_number)


def _refuse_extensions(path: Path, extensions: x509.Extensions) -> None:
    """Refuse a partial list, and a critical extension that is not supported."""
    for each in extensions:
        if isinstance(each.value, _PARTIAL):
            raise _list_error(
                f"{path} is about a part of the authority's certificates",
                "Have the authority publish a complete list.",
            )
        if each.critical and not isinstance(each.value, _FOLLOWED):
            raise _list_error(
                f"{path} has the critical extension {each.oid.dotted_string}, which is "
                "not supported",
                "Have the authority publish a list without it.",
            )


def _key_digest(authority: x509.Certificate) -> str:
    """Return the digest of an authority's public key."""
    spki = authority.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(spki).hexdigest()


def _read_marks(path: Path | None) -> dict[str, tuple[int, str]]:
    """Return the number and digest of the newest list of each authority."""
    if path is None or not path.exists():
        return {}
    data = read_small(
        path,
        most=_MAX_MARK_BYTES,
        code=ErrorCode.STATE_DAMAGED,
        if_large=_REMOVE_MARK,
    )
    try:
        return {
            str(key): (int(number), str(digest))
            for key, (number, digest) in json.loads(data).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ErrorCode.STATE_DAMAGED.error(
            f"{path} does not hold numbers of revocation lists", fix=_REMOVE_MARK
        ) from None


def _shown_name(name: x509.Name) -> str:
    """Return a name for an error, cut to a length that fits a line."""
    return repr(name.rfc4514_string()[:200])  # no control characters in a log


_COPY_NEWEST: Final = "Copy the newest list of the authority, of `secagg pki revoke`."
_REMOVE_MARK: Final = "Remove it once server.revoked holds the authority's newest list."


def _untimely(complaint: str, next_step: str) -> SecAggError:
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)


def _list_error(complaint: str, next_step: str) -> ServiceError:
    """Return the error of a list that is refused."""
    return ErrorCode.BAD_CERTIFICATE.error(complaint, kind=_FinalError, fix=next_step)
