"""The record of an issuer: every credential and every revocation, line by line.

Rule 1: the file only grows (`secagg.runtime.json_lines`).
Rule 2: opening verifies the whole file: the order of serials and lists, and the
        enrolment key's signature under every credential.

A line is a JSON object: first the issuer, then credentials and revocations in the order
in which they were made.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from secagg.crypto.signature import verify
from secagg.pki.key_files import key_text
from secagg.protocol.enrolment.credential import Credential, is_name
from secagg.runtime.json_lines import DurableLines

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

    def __init__(self, enrolment_key: bytes) -> None:
        self._enrolment_key: Final = enrolment_key
        self._lines: DurableLines | None = None
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
        record = cls(enrolment_key)
        damaged = "Find out what changed this file; a guess could repeat a serial."
        with DurableLines.open(path, record._read, next_step=damaged) as lines:
            record._lines = lines
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
        self._append(_row(credential))
        self._add(credential)

    def add_revocation(self, serials: Sequence[int], *, made_at: int) -> None:
        """Record the next revocation list before it leaves.

        Args:
            serials: The serials that it revokes, ascending.
            made_at: When, in Unix seconds.

        Raises:
            ServiceError: STORAGE_FAILED; it must not leave.
        """
        number = self.list_number + 1
        self._append({"made_at": made_at, "revocation": number, "serials": serials})
        self._take_back(serials, made_at)

    # --- writing ----------------------------------------------------------------------

    def _append(self, row: Mapping[str, object]) -> None:
        if self._lines is None:
            raise AssertionError("a record is written while it is open")
        self._lines.append(row)

    def _add(self, credential: Credential) -> None:
        self.credentials.append(credential)
        self._of_name[credential.name].append(credential)
        self._of_key[credential.identity_key].append(credential)

    def _take_back(self, serials: Iterable[int], made_at: int) -> None:
        self.revoked.update(serials)
        self.list_number += 1
        self.list_made_at = made_at

    # --- reading ----------------------------------------------------------------------

    def _read(self, number: int, row: dict[str, Any]) -> None:
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
        if credential.serial != len(self.credentials) + 1:
            raise ValueError(
                f"serial {credential.serial} follows {len(self.credentials)}"
            )
        signed = credential.signed_bytes(self.trust_domain)
        verify(self._enrolment_key, signed, credential.signature)
        self._add(credential)

    def _read_revocation(self, number: int, made_at: int, serials: list[int]) -> None:
        if number != self.list_number + 1:
            raise ValueError(f"list {number} follows {self.list_number}")
        if (
            not 0 <= made_at <= _MAX_TIME
            or not self.revoked.isdisjoint(serials)
            or not all(1 <= serial <= len(self.credentials) for serial in serials)
        ):
            raise ValueError("the revocation does not follow from the lines above it")
        self._take_back(serials, made_at)


def _row(credential: Credential) -> dict[str, object]:
    return {
        "identity_key": key_text(credential.identity_key),
        "name": credential.name,
        "not_after": credential.not_after,
        "not_before": credential.not_before,
        "serial": credential.serial,
        "signature": credential.signature.hex(),
    }


def _credential(row: object) -> Credential:
    """Read what `_row` wrote.

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
