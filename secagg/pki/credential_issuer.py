"""The issuer: a directory on an offline host that decides which clients are enrolled.

``issuer.seed`` is the enrolment key, ``issued.jsonl`` the record of all that was ever
issued and revoked, ``revocations.bin`` the newest list, for the aggregator to publish.

Rule 1: record, then hand out.
Rule 2: one live key for a name and one name for a live key.  A revoked key stays
        revoked, or an old request could be sent again (R2.1-7).
Rule 3: revoking a credential revokes all of its key: an older one would be valid as
        well.
Rule 4: a record that is older than its own list was restored from a backup and is
        refused: its next serials would be assigned a second time.
Rule 5: the enrolment key is in a file that its owner alone may read.

The operator must find out from whom a request comes.  A directory that is restored
whole is not detected here, but by clients that have seen a newer list.

The record holds every credential and every revocation.

Rule 6: the file only grows (`secagg.runtime.files`).
Rule 7: opening verifies the whole file: the order of serials and lists, and the
        enrolment key's signature under every credential.

A line is a JSON object: first the issuer, then credentials and revocations in the order
in which they were made.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from secagg.crypto.entropy import Entropy
from secagg.crypto.signature import IdentityKey, verify
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.pki.key_files import (
    key_text,
    read_key,
    refuse_readable_by_others,
    write_key,
)
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS
from secagg.protocol.enrolment import (
    Credential,
    CredentialRequest,
    IssuedCredential,
    RevocationList,
    is_name,
    not_a_name,
)
from secagg.runtime.files import DurableLines, disk, replace_file

_ALGORITHM: Final = "ed25519:"
_MAX_TIME: Final = (1 << 64) - 1


class IssuerRecord:
    """The open record of one issuer; make it with `create` and `open`.

    Attributes:
        trust_domain: The domain of the names.
        credentials: All that were issued; that with serial s has index s - 1.
        revoked: Serials that were revoked.
        list_number: Number of the newest revocation list; 0 before the first.
        list_made_at: When it was made, in Unix seconds.
    """

    def __init__(self, enrolment_key: bytes, lines: DurableLines) -> None:
        self._enrolment_key: Final = enrolment_key
        self._lines: Final = lines
        self._of_name: defaultdict[str, list[Credential]] = defaultdict(list)
        self._of_key: defaultdict[bytes, list[Credential]] = defaultdict(list)
        self.trust_domain = ""
        self.credentials: list[Credential] = []
        self.revoked: set[int] = set()
        self.list_number = 0
        self.list_made_at = 0

    @staticmethod
    def create(path: Path, *, trust_domain: str, enrolment_key: bytes) -> None:
        """Begin a record.

        Raises:
            ServiceError: STORAGE_FAILED; there is one, or it cannot be written.
        """
        row = {"enrolment_key": key_text(enrolment_key), "issuer": trust_domain}
        DurableLines.create(path, row)

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, enrolment_key: bytes) -> Iterator[Self]:
        """Open a record for this process alone, and verify it.

        Raises:
            ServiceError: STORAGE_FAILED when it is in use or cannot be read;
                STATE_DAMAGED, naming the line.
        """
        damaged = "Find out what changed this file; a guess could repeat a serial."
        with DurableLines.open(path, next_step=damaged) as lines:
            record = cls(enrolment_key, lines)
            lines.read(record._apply_line)
            yield record

    def of_name(self, name: str) -> Sequence[Credential]:
        """Return the credentials of a name, in the order of their serials."""
        return self._of_name.get(name, ())

    def of_key(self, identity_key: bytes) -> Sequence[Credential]:
        """Return the credentials of an identity key, in the order of their serials."""
        return self._of_key.get(identity_key, ())

    def add_credential(self, credential: Credential) -> None:
        """Record a credential before it leaves; its serial is the next one.

        Raises:
            ServiceError: STORAGE_FAILED; it must not leave.
        """
        self._lines.append(_row_of(credential))
        self._index_credential(credential)

    def add_revocation(self, serials: Sequence[int], *, made_at: int) -> None:
        """Record the next revocation list before it leaves.

        Args:
            serials: The serials that it revokes, ascending.
            made_at: When, in Unix seconds.

        Raises:
            ServiceError: STORAGE_FAILED; it must not leave.
        """
        number = self.list_number + 1
        row = {"made_at": made_at, "revocation": number, "serials": serials}
        self._lines.append(row)
        self._revoke_serials(serials, made_at)

    # --- writing ----------------------------------------------------------------------

    def _index_credential(self, credential: Credential) -> None:
        """Add a credential to all views of the record."""
        self.credentials.append(credential)
        self._of_name[credential.name].append(credential)
        self._of_key[credential.identity_key].append(credential)

    def _revoke_serials(self, serials: Iterable[int], made_at: int) -> None:
        self.revoked.update(serials)
        self.list_number += 1
        self.list_made_at = made_at

    # --- reading ----------------------------------------------------------------------

    def _apply_line(self, number: int, row: dict[str, Any]) -> None:
        """Apply one line of the record."""
        match row:
            case {"enrolment_key": key, "issuer": str() as trust_domain}:
                if number > 1 or key != key_text(self._enrolment_key):
                    raise ValueError("it belongs to another key than the one beside it")
                if not is_name(trust_domain):
                    raise ValueError("the trust domain is invalid")
                self.trust_domain = trust_domain
            case {
                "made_at": int() as made_at,
                "revocation": int() as count,
                "serials": list() as serials,
            }:
                self._read_revocation(count, made_at, serials)
            case _:
                self._read_credential(_credential(row))

    def _read_credential(self, credential: Credential) -> None:
        """Add a credential of the record, if serial and signature are right."""
        if credential.serial != len(self.credentials) + 1:
            raise ValueError(
                f"serial {credential.serial} follows {len(self.credentials)}"
            )
        signed = credential.signed_bytes(self.trust_domain)
        verify(self._enrolment_key, signed, credential.signature)
        self._index_credential(credential)

    def _read_revocation(self, number: int, made_at: int, serials: list[int]) -> None:
        """Apply a revocation of the record, if it follows from the lines above."""
        if number != self.list_number + 1:
            raise ValueError(f"list {number} follows {self.list_number}")
        if (
            not 0 <= made_at <= _MAX_TIME
            or not self.revoked.isdisjoint(serials)
            or not all(1 <= serial <= len(self.credentials) for serial in serials)
        ):
            raise ValueError("the revocation does not follow from the lines above it")
        self._revoke_serials(serials, made_at)


def _row_of(credential: Credential) -> dict[str, object]:
    """Return a credential as a line of the record."""
    return {
        "identity_key": key_text(credential.identity_key),
        "name": credential.name,
        "not_after": credential.not_after,
        "not_before": credential.not_before,
        "serial": credential.serial,
        "signature": credential.signature.hex(),
    }


def _credential(row: object) -> Credential:
    """Read what `_row_of` wrote.

    Raises:
        ValueError: A value is missing or of another type.
    """
    match row:
        case {
            "identity_key": str() as identity_key,
            "name": str() as name,
            "not_after": int() as not_after,
            "not_before": int() as not_before,
            "serial": int() as serial,
            "signature": str() as signature,
        } if is_name(name):
            return Credential(
                name=name,
                identity_key=bytes.fromhex(identity_key.removeprefix(_ALGORITHM)),
                not_before=not_before,
                not_after=not_after,
                serial=serial,
                signature=bytes.fromhex(signature),
            )
    raise ValueError("it is neither a credential nor a revocation")


ISSUER_SEED: Final = "issuer.seed"
RECORD: Final = "issued.jsonl"
REVOCATIONS: Final = "revocations.bin"

CREDENTIAL_DAYS: Final = 90
# As long as a certificate at most: a longer validity indicates a forgotten key.
_MAX_CREDENTIAL_DAYS: Final = 398
_SECONDS_A_DAY: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class Issued:
    """One credential of the record.

    Attributes:
        credential: The credential.
        is_revoked: Whether it was revoked.
    """

    credential: Credential
    is_revoked: bool

    def is_live(self, now: int) -> bool:
        """Return whether it is valid at a time in Unix seconds."""
        return not self.is_revoked and self.credential.not_after >= now


class Issuer:
    """An open issuer; make it with `create` and `open`."""

    def __init__(self, directory: Path, key: IdentityKey, record: IssuerRecord) -> None:
        self._directory: Final = directory
        self._key: Final = key
        self._record: Final = record

    @staticmethod
    def create(directory: Path, *, trust_domain: str, entropy: Entropy) -> bytes:
        """Make the directory of a new issuer.

        Returns:
            The enrolment key, 32 bytes, for clients to pin.

        Raises:
            ServiceError: BAD_CREDENTIAL for a bad trust domain; STORAGE_FAILED when
                there is an issuer already, or nothing can be written.
        """
        if not is_name(trust_domain):
            raise _credential_error(
                f"the trust domain {not_a_name(trust_domain)}",
                "Choose the one that the deployment's certificates name.",
            )
        key = IdentityKey.generate(entropy)
        with disk(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(directory / ISSUER_SEED, key)
        IssuerRecord.create(
            directory / RECORD,
            trust_domain=trust_domain,
            enrolment_key=key.public_bytes,
        )
        return key.public_bytes

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Self]:
        """Open an issuer for this process alone, and verify its record.

        Raises:
            ServiceError: BAD_CREDENTIAL when there is no issuer or others may read its
                key; STORAGE_FAILED when it is in use; STATE_DAMAGED; RESTORED_STATE
                when its record is older than its own revocation list.
        """
        seed = directory / ISSUER_SEED
        key = read_key(seed)
        refuse_readable_by_others(seed, ErrorCode.BAD_CREDENTIAL, "issuer")
        opened = IssuerRecord.open(directory / RECORD, enrolment_key=key.public_bytes)
        with opened as record:
            issuer = cls(directory, key, record)
            issuer._check_list()
            yield issuer

    @property
    def enrolment_key(self) -> bytes:
        """The key that clients pin: 32 bytes."""
        return self._key.public_bytes

    @property
    def trust_domain(self) -> str:
        """The domain of the names that it issues."""
        return self._record.trust_domain

    @property
    def revocations(self) -> RevocationList | None:
        """The newest list, stored in ``revocations.bin``; None before the first."""
        if self._record.list_number == 0:
            return None
        return RevocationList(
            trust_domain=self.trust_domain,
            number=self._record.list_number,
            made_at=self._record.list_made_at,
            serials=tuple(sorted(self._record.revoked)),
        ).signed_by(self._key)

    def issued(self) -> tuple[Issued, ...]:
        """Return all issued credentials, in the order of the serials."""
        return tuple(self._issued(each) for each in self._record.credentials)

    def sign(
        self,
        request: CredentialRequest,
        *,
        now: int,
        days: int = CREDENTIAL_DAYS,
        name: str | None = None,
        confirmed: bytes | None = None,
    ) -> IssuedCredential:
        """Issue the credential that a client requests.

        Args:
            request: The client's request.
            now: Unix seconds.
            days: How long the credential is valid from now, 1 to 398.
            name: The client that the request must be of; None for the one it names.
            confirmed: The key as the client's owner has confirmed it over another
                channel than the request's; None if the request's own channel identifies
                its owner.

        Raises:
            SecAggError: BAD_SIGNATURE for a request that its key did not sign;
                BAD_CREDENTIAL for one that rule 2 forbids, or of another
                name, key or trust domain; STORAGE_FAILED.
        """
        request.check()
        if request.trust_domain != self.trust_domain:
            raise _credential_error(
                f"the request is for the trust domain {request.trust_domain!r}, this "
                f"issuer's is {self.trust_domain!r}",
                "Make it again with `--trust-domain`, or use the other issuer.",
            )
        if name is not None and name != request.name:
            raise _credential_error(
                f"the request asks for the name {request.name!r}, not {name[:60]!r}",
                "Find out who made this request: what is signed stays valid.",
            )
        if confirmed is not None and confirmed != request.identity_key:
            raise _credential_error(
                f"the request asks for another key than the one that was confirmed, "
                f"{key_text(request.identity_key)}",
                "Find out who made this request: it was not the owner of the "
                "confirmed key.",
            )
        return self._issue_credential(
            request.name, request.identity_key, now=now, days=days
        )

    def renew(
        self, name: str, *, now: int, days: int = CREDENTIAL_DAYS
    ) -> IssuedCredential:
        """Issue a further credential for the key that a name had last.

        Args:
            name: The client.
            now: Unix seconds.
            days: How long the credential is valid from now, 1 to 398.

        Raises:
            ServiceError: BAD_CREDENTIAL for a name without a credential, or whose key
                was revoked; STORAGE_FAILED.
        """
        known = self._record.of_name(name)
        if not known:
            raise _credential_error(
                f"{name[:60]!r} has never had a credential",
                "Sign a request instead; `secagg pki enrol list` shows the enrolled "
                "clients.",
            )
        return self._issue_credential(name, known[-1].identity_key, now=now, days=days)

    def revoke(self, serials: Iterable[int], *, now: int) -> RevocationList:
        """Revoke credentials, with all others of the same keys.

        Args:
            serials: Of the credentials; none for a list that is merely newer.
            now: Unix seconds.

        Returns:
            The next list, for the aggregator to publish.

        Raises:
            ServiceError: BAD_CREDENTIAL for a serial that was never issued or is
                revoked; STORAGE_FAILED.
        """
        taken_back: set[int] = set()
        for serial in set(serials):
            if not 1 <= serial <= len(self._record.credentials):
                raise _credential_error(
                    f"serial {serial} was never issued",
                    "`secagg pki enrol list` shows the serials.",
                )
            if serial in self._record.revoked:
                raise _credential_error(
                    f"serial {serial} is revoked already",
                    "Omit it: the newest list names it.",
                )
            key = self._record.credentials[serial - 1].identity_key
            taken_back.update(each.serial for each in self._record.of_key(key))
        self._record.add_revocation(sorted(taken_back), made_at=now)
        return self._publish()

    # --- issuing ----------------------------------------------------------------------

    def _issue_credential(
        self, name: str, identity_key: bytes, *, now: int, days: int
    ) -> IssuedCredential:
        """Issue a credential and record it before it is returned."""
        if not is_name(name):  # decoded requests have one; others may be made by hand
            raise _credential_error(not_a_name(name), "Make the request again.")
        if not 1 <= days <= _MAX_CREDENTIAL_DAYS:
            raise _credential_error(
                f"a credential is valid for 1 to {_MAX_CREDENTIAL_DAYS} days, not "
                f"{days}",
                "Correct `--days`.",
            )
        # A machine whose clock is behind accepts it at once, too (R2.1-7).
        begins = max(0, now - CLOCK_TOLERANCE_SECONDS)
        # For a session between, one that was live then would be valid as well.
        self._refuse_key(name, identity_key, begins)
        self._refuse_name(name, identity_key, begins)
        credential = Credential(
            name=name,
            identity_key=identity_key,
            not_before=begins,
            not_after=now + days * _SECONDS_A_DAY,
            serial=len(self._record.credentials) + 1,
        ).signed_by(self._key, self.trust_domain)
        self._record.add_credential(credential)
        return IssuedCredential(self.trust_domain, credential)

    def _refuse_key(self, name: str, identity_key: bytes, begins: int) -> None:
        """Refuse a key that was revoked, or that another client has."""
        for other in self._record.of_key(identity_key):
            if other.serial in self._record.revoked:
                raise _credential_error(
                    f"the key of {name!r} was revoked with serial {other.serial}",
                    "Make a new identity: a revoked key stays revoked.",
                )
            if other.name != name and self._issued(other).is_live(begins):
                raise _credential_error(
                    f"this key is enrolled as {other.name!r} (serial {other.serial}), "
                    f"it cannot be enrolled as {name!r} too",
                    "Make a new identity: a key belongs to one client.",
                )

    def _refuse_name(self, name: str, identity_key: bytes, begins: int) -> None:
        """Refuse a name that is enrolled with another key."""
        for other in self._record.of_name(name):
            is_same = other.identity_key == identity_key
            if not is_same and self._issued(other).is_live(begins):
                raise _credential_error(
                    f"{name!r} is enrolled with another key (serial {other.serial})",
                    "If the client has lost its key, revoke that serial first. If "
                    "not, another party is requesting its name.",
                )

    def _issued(self, credential: Credential) -> Issued:
        return Issued(credential, credential.serial in self._record.revoked)

    # --- the list ---------------------------------------------------------------------

    def _publish(self) -> RevocationList:
        """Write the newest list for the operator to publish."""
        newest = self.revocations
        if newest is None:
            raise AssertionError("there is no list before the first revocation")
        with disk(self._directory / REVOCATIONS):
            replace_file(self._directory / REVOCATIONS, newest.encode())
        return newest

    def _check_list(self) -> None:
        """Compare the record with the list that was made from it (rule 4)."""
        record, ours, found = self._record, self.revocations, self._list_on_disk()
        if found is not None:
            newest = max(found.serials, default=0)
            if found.number > record.list_number or newest > len(record.credentials):
                raise ErrorCode.RESTORED_STATE.error(
                    f"{self._directory / RECORD} ends with serial "
                    f"{len(record.credentials)} and list {record.list_number}, but "
                    f"there is a list {found.number} with serial {newest}: an older "
                    "record was restored",
                    fix="Restore the newest record. If it is lost, begin a new "
                    "issuer, whose key all clients pin again: this one "
                    "would assign serials a second time.",
                )
            if found.number == record.list_number and found != ours:
                raise self._foreign_list("it does not match the record")
        # the process that wrote the line ended before it wrote the list
        if found != ours:
            self._publish()

    def _list_on_disk(self) -> RevocationList | None:
        """Return the published list, if it is one of this issuer."""
        path = self._directory / REVOCATIONS
        with disk(path):
            if not path.exists():
                return None
            data = path.read_bytes()
        try:
            found = RevocationList.decode(data)
            found.check(
                trust_domain=self.trust_domain, enrolment_key=self.enrolment_key
            )
        except RemoteProtocolError as error:
            raise self._foreign_list(str(error)) from None
        return found

    def _foreign_list(self, complaint: str) -> SecAggError:
        """Return the error of a list that another issuer made."""
        return ErrorCode.STATE_DAMAGED.error(
            f"{self._directory / REVOCATIONS} is not this issuer's list: {complaint}",
            fix="Find out what changed it, then move it to another place: this "
            "issuer's own list is written again.",
        )


def _credential_error(complaint: str, next_step: str) -> SecAggError:
    """Return the error of a credential that is not issued."""
    return ErrorCode.BAD_CREDENTIAL.error(complaint, fix=next_step)
