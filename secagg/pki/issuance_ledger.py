"""An authority with a record of what it issued and revoked.

``ca.pem`` and ``ca.key`` are the authority, ``index.jsonl`` the record of all that was
ever issued and revoked, ``ca.crl`` the newest revocation list (CRL) for aggregators.

Rule 1: record, then hand out.
Rule 2: one live key for a name and one name for a live key.  A revoked key stays
        revoked, or an old request could be signed again.
Rule 3: revoking a certificate revokes all of its key: an older one would be valid as
        well.
Rule 4: a renewed certificate has the name and the role of the one before, and is the
        same client with the same budget.  A name that was never issued cannot be
        renewed.
Rule 5: a record that is older than its own list was restored from a backup and is
        refused: its next list would have a number that aggregators have seen.
Rule 6: the authority's key is in a file that its owner alone may read.

The operator must find out whose key it is.
"""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, SecAggError
from secagg.pki.certificate_authority import (
    FINGERPRINT,
    LEAF_DAYS,
    CertificateAuthority,
    IssuedCertificate,
    PublicKey,
    fingerprint_of,
    key_pem,
    new_key,
    spki_of,
)
from secagg.pki.key_files import refuse_readable_by_others
from secagg.runtime.files import DurableLines, disk, replace_file
from secagg.transport.peer_identity import PeerIdentity, Role

_AUTHORITY_STEM: Final = "ca"
_INDEX: Final = "index.jsonl"
REVOKED: Final = "ca.crl"

CRL_DAYS: Final = 90
"""After how many days the next revocation list is due: as long as a certificate."""

# Of RFC 5280; the others are of lists in parts, or of attribute certificates.
REASONS: Final = {
    reason.value: reason
    for reason in (
        x509.ReasonFlags.unspecified,
        x509.ReasonFlags.key_compromise,
        x509.ReasonFlags.affiliation_changed,
        x509.ReasonFlags.superseded,
        x509.ReasonFlags.cessation_of_operation,
        x509.ReasonFlags.privilege_withdrawn,
    )
}


@dataclass(frozen=True, slots=True)
class IssuedRow:
    """One certificate of the index.

    Attributes:
        serial: Its number.
        role: Of its holder.
        name: Its holder's.
        hosts: Of a server, where clients reach it.
        key: The public key, as SubjectPublicKeyInfo in DER.
        not_after: When it ends, in Unix seconds.
    """

    serial: int
    role: Role
    name: str
    hosts: tuple[str, ...]
    key: bytes
    not_after: int

    @property
    def holder(self) -> str:
        """Role and name, as the commands spell them: ``client/hospital-a``."""
        return f"{self.role}/{self.name}"

    @property
    def fingerprint(self) -> str:
        """Of the key."""
        return FINGERPRINT + hashlib.sha256(self.key).hexdigest()


class IssuanceLedger:
    """An open directory of an authority; make it with `create` and `open`."""

    def __init__(
        self, directory: Path, authority: CertificateAuthority, lines: DurableLines
    ) -> None:
        self._directory: Final = directory
        self._authority: Final = authority
        self._lines: Final = lines
        self._rows: dict[int, IssuedRow] = {}
        self._of_key: defaultdict[bytes, list[IssuedRow]] = defaultdict(list)
        self._revoked: dict[int, tuple[int, x509.ReasonFlags]] = {}
        self._list_number = 0

    @staticmethod
    def create(directory: Path, trust_domain: str) -> tuple[Path, ...]:
        """Make an authority and its empty index; return the authority's two files.

        Raises:
            ServiceError: BAD_CERTIFICATE for a bad trust domain; STORAGE_FAILED, also
                when there is an authority already.
        """
        authority = CertificateAuthority.create(trust_domain)
        written = authority.issued().write(directory, _AUTHORITY_STEM)
        DurableLines.create(directory / _INDEX, {"authority": _name_of(authority)})
        return written

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Self]:
        """Open the directory for this process alone, and read its index.

        Raises:
            ServiceError: BAD_CERTIFICATE when there is no authority, or others may read
                its key; STORAGE_FAILED when its index is in use or cannot be read;
                STATE_DAMAGED; RESTORED_STATE when the index is older than its
                revocation list.
        """
        key = directory / f"{_AUTHORITY_STEM}.key"
        authority = CertificateAuthority.load(key.with_suffix(".pem"), key)
        refuse_readable_by_others(key, ErrorCode.BAD_CERTIFICATE, "authority")
        damaged = "Restore a whole copy, or begin a new authority."
        with DurableLines.open(directory / _INDEX, next_step=damaged) as lines:
            office = cls(directory, authority, lines)
            lines.read(office._apply_line)
            office._check_list()
            yield office

    @property
    def trust_domain(self) -> str:
        """The domain of the names."""
        return self._authority.trust_domain

    def issued(self) -> list[IssuedRow]:
        """Return all issued certificates, in their order."""
        return list(self._rows.values())

    def state_of(self, row: IssuedRow, now: int) -> str:
        """Return ``live``, ``expired`` or ``revoked``."""
        if row.serial in self._revoked:
            return "revoked"
        return "live" if row.not_after > now else "expired"

    # --- issuing ----------------------------------------------------------------------

    def issue(
        self,
        holder: PeerIdentity,
        *,
        now: int,
        hosts: Sequence[str] = (),
        days: int = LEAF_DAYS,
        entropy: Entropy | None = None,
    ) -> IssuedCertificate:
        """Make a key and issue its certificate, for holders that cannot make their own.

        Raises:
            ServiceError: BAD_CERTIFICATE; states which rule is violated.
        """
        key = new_key(entropy or SystemEntropy())
        certificate = self.sign(
            holder, key.public_key(), now=now, hosts=hosts, days=days
        )
        return IssuedCertificate(certificate, key_pem(key))

    def sign(  # noqa: PLR0913 - whom, with which hosts, for how long
        self,
        holder: PeerIdentity,
        public: PublicKey,
        *,
        now: int,
        hosts: Sequence[str] = (),
        days: int = LEAF_DAYS,
        fingerprint: str | None = None,
    ) -> bytes:
        """Issue the first certificate of a name, or one after all others have ended.

        Args:
            holder: The name and role.
            public: The key.
            now: Unix seconds.
            hosts: Of a server.
            days: How long it is valid.
            fingerprint: The key as its owner states it; None if the key was made here.

        Returns:
            The certificate in PEM.

        Raises:
            ServiceError: BAD_CERTIFICATE; states which rule is violated.
        """
        for row in self._rows_of(holder):
            if row.key != spki_of(public) and self.state_of(row, now) == "live":
                raise _certificate_error(
                    f"{row.holder} has a live certificate of another key (serial "
                    f"{row.serial:x})",
                    "Use `secagg pki renew` for the same holder. If the key was "
                    "lost, revoke it first. If not, another party requests this name.",
                )
        self._check_key(holder, public, fingerprint)
        return self._certify(holder, public, hosts=hosts, days=days, now=now)

    def renew(
        self,
        holder: PeerIdentity,
        public: PublicKey | None,
        *,
        now: int,
        days: int = LEAF_DAYS,
        fingerprint: str | None = None,
    ) -> bytes:
        """Issue the next certificate of a name.

        Args:
            holder: The name and role.
            public: Its new key; None for the one that it had last.
            now: Unix seconds.
            days: How long it is valid.
            fingerprint: As for `sign`.

        Returns:
            The certificate in PEM.

        Raises:
            ServiceError: BAD_CERTIFICATE; states which rule is violated.
        """
        before = self._rows_of(holder)
        if not before:
            raise _certificate_error(
                f"{_spelt(holder)} was never issued a certificate",
                "Check the name with `secagg pki list`; sign a new one.",
            )
        last = before[-1]
        if last.serial in self._revoked:
            raise _certificate_error(
                f"the last certificate of {last.holder} was revoked",
                "To admit it again, sign a request with a new key: `secagg pki sign`.",
            )
        key = public or _loaded(last.key)
        self._check_key(holder, key, fingerprint)
        return self._certify(holder, key, hosts=last.hosts, days=days, now=now)

    def expiring(self, before: int, *, now: int) -> list[IssuedRow]:
        """Return the newest certificates of all names that end before a moment."""
        newest = {row.holder: row for row in self._rows.values()}
        return [
            row
            for row in newest.values()
            if row.serial not in self._revoked and row.not_after < max(before, now)
        ]

    def _check_key(
        self, holder: PeerIdentity, public: PublicKey, fingerprint: str | None
    ) -> None:
        """Refuse a key that was not confirmed, was revoked, or has another holder."""
        if fingerprint is not None and fingerprint.lower() != fingerprint_of(public):
            raise _certificate_error(
                f"the request's key is {fingerprint_of(public)}, and not "
                f"{fingerprint[:80]}",
                "Ask the owner again for the output of `secagg enrol request`. If it "
                "shows this key, another party has replaced the request.",
            )
        for row in self._of_key[spki_of(public)]:
            if row.serial in self._revoked:
                raise _certificate_error(
                    f"this key was revoked with serial {row.serial:x}",
                    "Make a new request: a revoked key stays revoked.",
                )
            if row.holder != _spelt(holder):
                raise _certificate_error(
                    f"this key belongs to {row.holder} (serial {row.serial:x})",
                    "Make a new request: a key belongs to one holder.",
                )

    def _certify(
        self,
        holder: PeerIdentity,
        public: PublicKey,
        *,
        hosts: Sequence[str],
        days: int,
        now: int,
    ) -> bytes:
        """Issue a certificate, and record it before it is returned."""
        certificate = self._authority.certify(
            holder,
            public,
            hosts=hosts,
            days=days,
            now=datetime.fromtimestamp(now, UTC),
        )
        leaf = x509.load_pem_x509_certificate(certificate)
        row = IssuedRow(
            serial=leaf.serial_number,
            role=holder.role,
            name=holder.name,
            hosts=tuple(hosts),
            key=spki_of(public),
            not_after=int(leaf.not_valid_after_utc.timestamp()),
        )
        self._lines.append(_encoded(row))
        self._index_row(row)
        return certificate

    # --- revocation -------------------------------------------------------------------

    def find(self, words: Iterable[str]) -> list[IssuedRow]:
        """Return the certificates that names or serial numbers denote.

        Raises:
            ServiceError: BAD_CERTIFICATE; a word denotes no holder, or two.
        """
        found: dict[int, IssuedRow] = {}
        for word in words:
            rows = [
                row
                for row in self._rows.values()
                if word in {row.holder, row.name} or _is_serial(word, row.serial)
            ]
            if not rows:
                raise _certificate_error(
                    f"{word[:80]!r} is neither a name nor a serial number of this "
                    "authority",
                    "Find it with `secagg pki list`.",
                )
            if len({row.holder for row in rows}) > 1:
                raise _certificate_error(
                    f"{word[:80]!r} is the name of a client and of a server",
                    "Write client/NAME or server/NAME.",
                )
            found.update((row.serial, row) for row in rows)
        return list(found.values())

    def revoke(
        self,
        rows: Iterable[IssuedRow],
        *,
        now: int,
        reason: str = "unspecified",
        days: int = CRL_DAYS,
    ) -> list[int]:
        """Revoke certificates, with all others of their keys.

        Writes the next revocation list in any case.

        Args:
            rows: The certificates.
            now: Unix seconds.
            reason: One of `REASONS`.
            days: After how many days the next list is due, 1 to 398.

        Returns:
            The numbers that were not revoked before, ascending.

        Raises:
            ServiceError: BAD_CERTIFICATE for another reason or a bad duration;
                STORAGE_FAILED.
        """
        if reason not in REASONS:
            raise _certificate_error(
                f"{reason[:80]!r} is not a reason of a revocation",
                f"Choose one of {', '.join(REASONS)}.",
            )
        keys = {row.key for row in rows}
        new = sorted(
            row.serial
            for row in self._rows.values()
            if row.key in keys and row.serial not in self._revoked
        )
        revoked = self._revoked | dict.fromkeys(new, (now, REASONS[reason]))
        number = self._list_number + 1
        signed = self._authority.sign_revocations(
            revoked, number=number, now=now, days=days
        )
        self._lines.append(
            {
                "at": now,
                "list": number,
                "reason": reason,
                "revoked": [_hex(serial) for serial in new],
            }
        )
        self._revoked, self._list_number = revoked, number
        path = self._directory / REVOKED
        with disk(path):
            replace_file(path, signed)
        return new

    def _check_list(self) -> None:
        """Refuse a record that is older than the list that was made from it."""
        path = self._directory / REVOKED
        with disk(path):
            if not path.exists():
                return
            data = path.read_bytes()
        try:
            found = x509.load_pem_x509_crl(data).extensions.get_extension_for_class(
                x509.CRLNumber
            )
        except (ValueError, x509.ExtensionNotFound):
            raise _certificate_error(
                f"{path} is not a revocation list of this authority",
                "Remove it; `secagg pki revoke` writes the next one.",
            ) from None
        if found.value.crl_number > self._list_number:
            raise ErrorCode.RESTORED_STATE.error(
                f"{self._directory / _INDEX} ends with revocation list "
                f"{self._list_number}, but {path} is list {found.value.crl_number}: an "
                "older record was restored",
                fix="Restore the newest record, or begin a new authority.",
            )

    # --- the index --------------------------------------------------------------------

    def _rows_of(self, holder: PeerIdentity) -> list[IssuedRow]:
        """Return the rows of one holder."""
        return [row for row in self._rows.values() if row.holder == _spelt(holder)]

    def _index_row(self, row: IssuedRow) -> None:
        """Add a row to all views of the ledger."""
        self._rows[row.serial] = row
        self._of_key[row.key].append(row)

    def _apply_line(self, number: int, line: dict[str, Any]) -> None:
        """Apply one line of the ledger."""
        match line:
            case {"authority": str() as authority} if number == 1:
                if authority != _name_of(self._authority):
                    raise ValueError("it belongs to another authority")
            case _ if number == 1:
                raise ValueError("the name of the authority is missing")
            case {
                "at": int() as at,
                "list": int() as published,
                "reason": str() as reason,
                "revoked": list() as serials,
            }:
                numbers = [int(serial, 16) for serial in serials]
                if not all(each in self._rows for each in numbers):
                    raise ValueError("a certificate is revoked that was never issued")
                if published != self._list_number + 1:
                    raise ValueError("a revocation list is missing before it")
                self._list_number = published
                self._revoked.update(dict.fromkeys(numbers, (at, REASONS[reason])))
            case {
                "holder": str() as holder,
                "hosts": list() as hosts,
                "key": str() as key,
                "not_after": int() as not_after,
                "serial": str() as serial,
            }:
                role, _, name = holder.partition("/")
                spki = base64.b64decode(key, validate=True)
                row = IssuedRow(
                    int(serial, 16), Role(role), name, tuple(hosts), spki, not_after
                )
                if row.serial in self._rows:
                    raise ValueError(f"serial {serial} was issued before")
                self._index_row(row)
            case _:
                raise ValueError("it is neither a certificate nor a revocation")


def parse_holder(text: str, trust_domain: str) -> PeerIdentity:
    """Return the role and name of ``client/NAME`` or ``server/NAME``.

    Raises:
        ServiceError: BAD_CERTIFICATE.
    """
    role, slash, name = text.partition("/")
    if not slash or role not in set(Role):
        raise _certificate_error(
            f"{text[:80]!r} is not of the form client/NAME or server/NAME",
            "Write for example client/hospital-a.",
        )
    return PeerIdentity(trust_domain, Role(role), name)


def _encoded(row: IssuedRow) -> dict[str, object]:
    """Return an issued certificate as a line of the ledger."""
    return {
        "holder": row.holder,
        "hosts": list(row.hosts),
        "key": base64.b64encode(row.key).decode(),
        "not_after": row.not_after,
        "serial": _hex(row.serial),
    }


def _loaded(spki: bytes) -> PublicKey:
    key = serialization.load_der_public_key(spki)
    assert isinstance(key, PublicKey)  # noqa: S101 - a certificate was issued for it
    return key


def _spelt(holder: PeerIdentity) -> str:
    return f"{holder.role}/{holder.name}"


def _hex(serial: int) -> str:
    return f"{serial:032x}"


def _is_serial(word: str, serial: int) -> bool:
    # As `list` shows it, or as openssl does; short words are names.
    return word.lower().lstrip("0") == f"{serial:x}"


def _name_of(authority: CertificateAuthority) -> str:
    return authority.certificate.subject.rfc4514_string()


def _certificate_error(complaint: str, next_step: str) -> SecAggError:
    """Return the error of a certificate that is not issued."""
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)
