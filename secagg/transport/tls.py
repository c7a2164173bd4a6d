"""Certificates of a running process: read, checked, turned into credentials, reloaded.

Rule 1: a fault that the files show is reported at start, by file name and with the next
        step, and not by a failed handshake later.
Rule 2: both sides always present a certificate and always verify the other's.
Rule 3: private keys stay in the file, in memory and in the TLS library; they appear in
        no error, log or repr.

This module neither issues (`secagg.pki.certificate_authority`) nor revokes.

A certificate, its key and its authorities are reloaded when they are renewed on disk:

Rule 4: files are compared by their content, and read when their dates have changed. The
        operator may replace them in any order and without a command.
Rule 5: an invalid file is refused with a log line, once, and the present identity stays
        in use.  Each check tries it again: half-copied files become whole, and one that
        is not valid yet becomes valid.
Rule 6: a renewed certificate names the same holder.  A new name needs a restart.
"""

import hashlib
import logging
import math
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.arguments import as_path, check_member
from secagg.runtime.files import read_small
from secagg.runtime.log_events import (
    CERTIFICATE_REFUSED,
    CERTIFICATE_RENEWED,
    KEY_FILE_PERMISSIONS,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.peer_identity import RESERVED_SUFFIX, PeerIdentity, Role

if TYPE_CHECKING:
    import grpc

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

_Loaded = TypeVar("_Loaded")

# A chain of this many certificates of 4096-bit keys stays below it.
MAX_PEM_BYTES: Final = 64 * 1024
_MAX_CHAIN: Final = 8
_MIN_RSA_BITS: Final = 2048
# Peers whose certificate is remembered as read, at 2 KiB each.  Beyond them every call
# reads its peer's certificate again, which takes about 20 microseconds.
_MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class CertificateNumber:
    """The number that identifies a certificate (RFC 5280, 4.1.2.2).

    Attributes:
        issuer: Name of the authority.
        serial: The number that it assigned.
        ends: When the certificate ends, in Unix seconds, if known; not part of a
            comparison.
    """

    issuer: x509.Name
    serial: int
    ends: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The files of a process's certificate, its key and the authorities it trusts."""

    certificate: Path
    private_key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class TLSIdentity:
    """The data of one process for mutual TLS.

    Attributes:
        identity: The process's identity in the certificate.
        certificate_chain: PEM, leaf first.
        authorities: PEM of the authorities whose certificates are accepted.
        not_valid_after: When the leaf expires.
        files: Where it was loaded from; a server looks there for a renewed one.
        private_key: PEM.
    """

    identity: PeerIdentity
    certificate_chain: bytes
    authorities: bytes
    not_valid_after: datetime
    files: TLSFiles
    private_key: bytes = field(repr=False)

    @classmethod
    def load(  # noqa: PLR0913 - three files and how to check them
        cls,
        *,
        certificate: Path,
        private_key: Path,
        authority: Path,
        role: Role,
        now: datetime | None = None,
        quiet: bool = False,
    ) -> Self:
        """Read the three files and check that they work together.

        Args:
            certificate: PEM of the leaf, followed by intermediates if any.
            private_key: PEM of its key, not encrypted.
            authority: PEM of one or more authorities.
            role: Which role the leaf must name.
            now: For the validity check; the present by default.
            quiet: Log nothing about a key that others may read: the caller tells.

        Raises:
            ServiceError: BAD_CERTIFICATE; names the file, what is wrong and what to
                do.
        """
        chain = read_certificates(certificate)
        trusted = read_certificates(authority)
        key = read_private_key(private_key)
        leaf = chain[0]
        _check_key(key, leaf, private_key, certificate)
        _check_validity(leaf, certificate, now or datetime.now(UTC))
        _check_issuer(chain, trusted, certificate, authority)
        identity = identity_of(leaf)
        if identity.role is not role:
            raise _certificate_error(
                f"{certificate} is a {identity.role}'s certificate, "
                f"a {role}'s is needed",
                f"Name the file that was issued for the {role}.",
            )
        if not quiet:
            _warn_if_readable(private_key)
        return cls(
            identity=identity,
            certificate_chain=_all_pem(chain),
            authorities=_all_pem(trusted),
            not_valid_after=leaf.not_valid_after_utc,
            files=TLSFiles(certificate, private_key, authority),
            private_key=_key_pem(key),
        )

    @classmethod
    def in_directory(cls, directory: Path | str, name: str, *, role: Role) -> Self:
        """Load ``NAME.pem``, ``NAME.key`` and ``ca.pem``, as `secagg pki` names them.

        Args:
            directory: Where they lie.
            name: Stem of the first two.
            role: Which role the certificate must name.

        Raises:
            LocalProtocolError: `directory` is no path, or `role` is no role.
            ServiceError: BAD_CERTIFICATE, as `load`.
        """
        directory = as_path("directory", directory) or Path()
        check_member("role", role, Role)
        return cls.load(
            certificate=directory / f"{name}.pem",
            private_key=directory / f"{name}.key",
            authority=directory / "ca.pem",
            role=role,
        )

    def check_validity(self, now: datetime | None = None) -> None:
        """Refuse to continue with a certificate that has expired since it was loaded.

        Args:
            now: The present by default.

        Raises:
            ServiceError: BAD_CERTIFICATE.
        """
        if (now or datetime.now(UTC)) >= self.not_valid_after:
            raise _expired_error(self.files.certificate, self.not_valid_after)

    def server_configuration(self) -> "grpc.ServerCertificateConfiguration":
        """Return a server's certificate and trusted authorities for one handshake."""
        import grpc  # noqa: PLC0415 - neither one process nor the HTTP edge needs it

        return grpc.ssl_server_certificate_configuration(
            [(self.private_key, self.certificate_chain)],
            root_certificates=self.authorities,
        )

    def channel_credentials(self) -> "grpc.ChannelCredentials":
        """Return credentials that verify the aggregator and present this client."""
        import grpc  # noqa: PLC0415 - neither one process nor the HTTP edge needs it

        return grpc.ssl_channel_credentials(
            root_certificates=self.authorities,
            private_key=self.private_key,
            certificate_chain=self.certificate_chain,
        )


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file; at least one, at most eight.

    Raises:
        ServiceError: BAD_CERTIFICATE; the file cannot be read or holds none.
    """
    data = _read_pem(path)
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        found = []
    if not 1 <= len(found) <= _MAX_CHAIN:
        raise _certificate_error(
            f"{path} holds {len(found)} readable PEM certificates, "
            f"1 to {_MAX_CHAIN} are needed",
            "Check that the setting names a certificate and not a key.",
        )
    return found


def read_certificate_pair(
    certificate: Path, private_key: Path, *, now: datetime
) -> tuple[bytes, bytes, x509.Certificate]:
    """Return a chain and its key in PEM, and the leaf; they match and are valid.

    Args:
        certificate: PEM of the chain, the leaf first.
        private_key: PEM of the leaf's key.
        now: For the validity check.

    Raises:
        ServiceError: BAD_CERTIFICATE; names the file and the fault.
    """
    chain, key = read_certificates(certificate), read_private_key(private_key)
    _check_key(key, chain[0], private_key, certificate)
    _check_validity(chain[0], certificate, now)
    return _all_pem(chain), _key_pem(key), chain[0]


def read_private_key(path: Path) -> PrivateKeyTypes:
    """Return the private key of a PEM file.

    Raises:
        ServiceError: BAD_CERTIFICATE; the file cannot be read, holds no key, or
            holds one that needs a password.
    """
    data = _read_pem(path)
    try:
        return serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise _certificate_error(
            f"the private key in {path} is encrypted",
            "Decrypt it into a file that only this user can read.",
        ) from None
    except ValueError:
        raise _certificate_error(
            f"{path} holds no readable PEM private key",
            "Check that the setting names a key and not a certificate.",
        ) from None


def identity_of(leaf: x509.Certificate) -> PeerIdentity:
    """Return the party that a certificate names (R10.1-2); TLS checks its validity.

    A server's certificate carries its reserved DNS name, and no certificate carries
    that of another party: a client's TLS library checks nothing else.

    Raises:
        ServiceError: BAD_CERTIFICATE when it names no party, more than one, or another
            party in the reserved DNS names.
    """
    uris: list[str] = []
    names: list[str] = []
    try:
        alternatives = leaf.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
        uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
        names = alternatives.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        pass
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise _certificate_error(
            "the certificate's extensions are malformed", _ISSUE_AGAIN
        ) from None
    identity = PeerIdentity.from_uris(uris)
    is_server = identity.role is Role.SERVER
    # Not `endswith`: some TLS libraries stop reading a name at a NUL byte.
    reserved = {name.lower() for name in names if RESERVED_SUFFIX in name.lower()}
    if foreign := reserved - ({identity.dns_name} if is_server else set()):
        raise _certificate_error(
            f"the certificate of {identity.uri} also carries the reserved DNS name "
            f"{min(foreign)[:80]!r}",
            _ISSUE_AGAIN,
        )
    if is_server and not reserved:
        raise _certificate_error(
            f"the certificate of {identity.uri} lacks the DNS name "
            f"{identity.dns_name}, by which clients recognise it",
            _ISSUE_AGAIN,
        )
    return identity


@lru_cache(maxsize=_MAX_REMEMBERED)
def identity_in_pem(certificate: bytes) -> PeerIdentity:
    """Return the party that a connected peer's certificate names, as `identity_of`.

    It reads the certificate itself and not an extract of a TLS library: gRPC's text of
    a URI ends at its first NUL byte.

    Args:
        certificate: The verified leaf in PEM.

    Raises:
        ServiceError: BAD_CERTIFICATE.
    """
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise _certificate_error("the certificate is malformed", _ISSUE_AGAIN) from None
    return identity_of(leaf)


@lru_cache(maxsize=_MAX_REMEMBERED)
def number_in_pem(certificate: bytes) -> CertificateNumber:
    """Return the number of a connected peer's certificate, for any holder.

    Args:
        certificate: The verified leaf in PEM.

    Raises:
        ServiceError: BAD_CERTIFICATE.
    """
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        return CertificateNumber(
            leaf.issuer, leaf.serial_number, leaf.not_valid_after_utc.timestamp()
        )
    except ValueError:
        raise _certificate_error("the certificate is malformed", _ISSUE_AGAIN) from None


_ISSUE_AGAIN: Final = (
    "Issue the certificate again, as `secagg pki` does or docs/transport.md describes."
)


def _check_key(
    key: PrivateKeyTypes, leaf: x509.Certificate, key_path: Path, path: Path
) -> None:
    """Refuse a private key of an unsuitable kind, or of another certificate."""
    if not (
        isinstance(key, ec.EllipticCurvePrivateKey)
        or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _MIN_RSA_BITS)
    ):
        raise _certificate_error(
            f"gRPC's TLS cannot use the kind of key in {key_path}",
            "Use ECDSA P-256 (as `secagg pki` does) or RSA with 2048 bits or more.",
        )
    if key.public_key() != leaf.public_key():
        raise _certificate_error(
            f"the private key in {key_path} does not belong to {path}",
            "Name the key that was made together with the certificate.",
        )


def _check_validity(leaf: x509.Certificate, path: Path, now: datetime) -> None:
    """Refuse a certificate outside of its time of validity."""
    if now >= leaf.not_valid_after_utc:
        raise _expired_error(path, leaf.not_valid_after_utc)
    if now < leaf.not_valid_before_utc:
        raise ErrorCode.BAD_CLOCK.error(
            f"{path} is valid only from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} "
            f"UTC, and the clock of this host reads {now:%Y-%m-%d %H:%M} UTC",
            fix="Check the clock of this host.",
        )


def _check_issuer(
    chain: list[x509.Certificate],
    trusted: list[x509.Certificate],
    path: Path,
    authority: Path,
) -> None:
    """Walk from the leaf to an authority; each step verifies one signature."""
    current = chain[0]
    for _ in range(_MAX_CHAIN):
        if any(_has_issued(candidate, current) for candidate in trusted):
            return
        above = [link for link in chain[1:] if _has_issued(link, current)]
        if not above:
            break
        current = above[0]
    raise _certificate_error(
        f"{path} was not issued by the authority in {authority}",
        "Name the authority that issued it; both sides must use the same one.",
    )


def _has_issued(issuer: x509.Certificate, subject: x509.Certificate) -> bool:
    """Return whether one certificate has signed another."""
    try:
        subject.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _warn_if_readable(path: Path) -> None:
    """Log a key file that other users may read."""
    # Not an error: orchestrators mount secrets with modes of their own.
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log_event(
            _LOG,
            logging.WARNING,
            KEY_FILE_PERMISSIONS,
            path=path,
            next_step="chmod 600, unless the directory keeps others out",
        )


def _read_pem(path: Path) -> bytes:
    """Read a small PEM file."""
    return read_small(
        path,
        most=MAX_PEM_BYTES,
        code=ErrorCode.BAD_CERTIFICATE,
        if_large="Name a PEM file with a certificate or a key.",
    )


def _key_pem(key: PrivateKeyTypes) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _all_pem(certificates: list[x509.Certificate]) -> bytes:
    """Return certificates as PEM, one after another."""
    return b"".join(
        certificate.public_bytes(serialization.Encoding.PEM)
        for certificate in certificates
    )


def _expired_error(path: Path, when: datetime) -> SecAggError:
    """Return the error of a certificate that has expired."""
    return _certificate_error(
        f"{path} expired on {when:%Y-%m-%d %H:%M} UTC",
        "Issue a new certificate, for example with `secagg pki`, and start again.",
    )


def _certificate_error(complaint: str, next_step: str) -> SecAggError:
    """Return the error of a certificate that cannot be used."""
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)


def log_renewal(path: Path, end: datetime) -> None:
    """Log that another certificate is in use."""
    log_event(
        _LOG,
        logging.INFO,
        CERTIFICATE_RENEWED,
        path=path,
        not_valid_after=end.isoformat(),
    )


class FollowedFiles(Generic[_Loaded]):
    """Loads files again when their content has changed.

    Args:
        paths: The files.
        load: Loads and checks them. What is wrong with them is logged once.
    """

    def __init__(self, paths: tuple[Path, ...], load: Callable[[], _Loaded]) -> None:
        self._paths = paths
        self._load = load
        # The first check reads: files may have changed since they were loaded.
        self._read = b""
        self._complaint = ""

    @property
    def is_invalid(self) -> bool:
        """Whether the files were refused when they were last loaded."""
        return bool(self._complaint)

    def load_first(self) -> _Loaded:
        """Load the files.

        Raises:
            ServiceError: BAD_CERTIFICATE; names the file and what is wrong.
        """
        self._read = self._digest()
        return self._load()

    def load_changed(self) -> _Loaded | None:
        """Load changed files; None for unchanged ones, and for invalid ones."""
        found = self._digest()
        if found == self._read and not self._complaint:
            return None
        self._read = found
        try:
            loaded = self._load()
        # A file that is not a certificate, or vanishes while it is read, is refused
        # too.
        except (ServiceError, OSError, ValueError, UnsupportedAlgorithm) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log_event(_LOG, logging.WARNING, CERTIFICATE_REFUSED, reason=error)
            return None
        self._complaint = ""
        return loaded

    def _digest(self) -> bytes:
        """Return a digest of the files; one that cannot be read counts as empty."""
        digest = hashlib.sha256()
        for path in self._paths:
            data = b""
            with suppress(OSError), path.open("rb") as stream:
                data = stream.read(MAX_PEM_BYTES)
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()


class ReloadingIdentity:
    """Watches the files of one identity; any thread may check them.

    Args:
        identity: The identity that was loaded at start.
        date: The present in Unix seconds; the host's by default.
    """

    def __init__(
        self, identity: TLSIdentity, date: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self._date = date
        self._lock = threading.Lock()
        self._dates: list[tuple[int, int, int]] = []
        self._files = FollowedFiles(self._paths, self._load_renewed)

    @property
    def identity(self) -> TLSIdentity:
        """The identity in use."""
        return self._identity

    def refresh(self) -> TLSIdentity:
        """Read the files if their content has changed; return the identity in use."""
        with self._lock:
            dates = self._file_stamps()
            if dates != self._dates or self._files.is_invalid:
                # before they are read, so that a later change is detected
                self._dates = dates
                renewed = self._files.load_changed()
                if renewed is not None and renewed != self._identity:
                    self._identity = renewed
                    log_renewal(renewed.files.certificate, renewed.not_valid_after)
            return self._identity

    def _load_renewed(self) -> TLSIdentity:
        """Load the files again, and refuse another name."""
        present, files = self._identity, self._identity.files
        renewed = TLSIdentity.load(
            certificate=files.certificate,
            private_key=files.private_key,
            authority=files.authority,
            role=present.identity.role,
            now=datetime.fromtimestamp(self._date(), UTC),
        )
        if renewed.identity != present.identity:
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"{files.certificate} now names {renewed.identity.uri} "
                f"and not {present.identity.uri}",
                fix="Restart the process if the new name is intended.",
            )
        return renewed

    @property
    def _paths(self) -> tuple[Path, ...]:
        files = self._identity.files
        return files.certificate, files.private_key, files.authority

    def _file_stamps(self) -> list[tuple[int, int, int]]:
        """Return what changes when a file is replaced or written."""
        dates = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                dates.append((0, 0, 0))
            else:
                dates.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return dates
