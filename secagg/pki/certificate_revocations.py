"""Revoked certificates: a file of serial numbers and their issuers.

A line is a serial number in hexadecimal digits and the name of its issuer, as
``openssl x509 -noout -serial -issuer -nameopt RFC2253`` shows them::

    5f3a9c...01 CN=secagg authority 1a2b3c4d,O=example.org

Empty lines, and lines that begin with ``#``, are ignored.

Rule 1: issuer and serial number together identify a certificate (RFC 5280, 4.1.2.2):
        two authorities may assign the same number.
Rule 2: a file that cannot be read whole is refused whole.  A reader that serves clients
        keeps the list that it has: a mistake readmits no client.
Rule 3: the file contains no times.  A certificate that has expired opens no
        connection, listed or not.

The file is the operator's own and carries no signature.  The members of a session use
`secagg.protocol.enrolment.revocation_list` about each other.
"""

import logging
import string
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography import x509

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.files import read_small
from secagg.runtime.log_events import (
    CRL_REJECTED,
    CRL_RELOADED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.tls import CertificateNumber

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# A hundred thousand lines: more certificates than an authority of `secagg pki` sees.
_MAX_BYTES: Final = 16 << 20
# A serial number has 20 bytes at most (RFC 5280).
_MAX_SERIAL_DIGITS: Final = 40
_COMMENT: Final = "#"


class CertificateRevocations:
    """The list that is in force; `look` reads its file again.

    Args:
        path: The file; None for a deployment without revocations.

    Raises:
        ServiceError: BAD_CERTIFICATE; the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path: Final = path
        self._numbers: frozenset[CertificateNumber] = frozenset()
        self._complaint = ""
        self._read = b""
        if path is not None:
            self._read = _contents(path)
            self._numbers = _parsed(path, self._read)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def look(self) -> bool:
        """Read the file again; return whether it revokes further certificates.

        A file that is invalid leaves the present list in force, and is an error in the
        log, once for each reason.
        """
        if self._path is None:
            return False
        try:
            data = _contents(self._path)
            if data == self._read:
                self._complaint = ""
                return False
            found = _parsed(self._path, data)
        except ServiceError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log_event(
                    _LOG,
                    logging.ERROR,
                    CRL_REJECTED,
                    reason=error,
                    next_step=error.next_step,
                )
            return False
        self._complaint, self._read = "", data
        new, given_back = found - self._numbers, self._numbers - found
        self._numbers = found
        if new or given_back:
            log_event(
                _LOG,
                logging.WARNING if given_back else logging.INFO,
                CRL_RELOADED,
                path=self._path,
                revoked=len(new),
                given_back=len(given_back),
            )
        return bool(new)


def read_revoked(path: Path) -> frozenset[CertificateNumber]:
    """Return the certificates that a file revokes.

    Raises:
        ServiceError: BAD_CERTIFICATE; it cannot be read, or a line is malformed.
    """
    return _parsed(path, _contents(path))


def _contents(path: Path) -> bytes:
    return read_small(
        path,
        most=_MAX_BYTES,
        code=ErrorCode.BAD_CERTIFICATE,
        if_unreadable="Check path and permissions; an empty file revokes nothing.",
        if_large=_COPY_AGAIN,
    )


def _parsed(path: Path, data: bytes) -> frozenset[CertificateNumber]:
    # The whole file or none of it: a file that is being copied may end anywhere.
    if data and not data.endswith(b"\n"):
        raise _refused(f"{path} ends in the middle of a line", _COPY_AGAIN)
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise _refused(f"{path} is not valid text", _COPY_AGAIN) from None
    found: set[CertificateNumber] = set()
    for place, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(_COMMENT):
            continue
        try:
            found.add(_number(line))
        except ValueError as error:
            raise _refused(f"{path}, line {place}: {error}", _COPY_AGAIN) from None
    return frozenset(found)


def revoked_line(number: CertificateNumber) -> str:
    """Return the line that revokes a certificate, without its end."""
    return f"{number.serial:x} {number.issuer.rfc4514_string()}"


def revoked_text(lines: Iterable[str]) -> bytes:
    """Return a file of such lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def _number(line: str) -> CertificateNumber:
    digits, _, issuer = line.strip().partition(" ")
    if not 0 < len(digits) <= _MAX_SERIAL_DIGITS or not set(digits) <= set(
        string.hexdigits
    ):
        raise ValueError("it does not begin with a serial number in hexadecimal digits")
    if not issuer.strip():
        raise ValueError("the name of the issuer is missing")
    return CertificateNumber(_issuer(issuer.strip()), int(digits, 16))


@lru_cache(maxsize=64)  # a file has thousands of lines of few issuers
def _issuer(text: str) -> x509.Name:
    try:
        return x509.Name.from_rfc4514_string(text)
    except (LookupError, TypeError, ValueError):
        raise ValueError("the name of the issuer is malformed") from None


_COPY_AGAIN: Final = (
    "Copy the file of `secagg pki revoke` again; the previous list stays in force."
)


def _refused(complaint: str, next_step: str) -> SecAggError:
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)
