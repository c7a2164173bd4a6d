"""Enrolment keys: seeds in files, public keys as text, and what is published of them.

Rule 1: a seed is 32 bytes in a file of mode 0600 that is never overwritten.
Rule 2: no error, log or repr holds a seed.

`PublishedEnrolment` is the part that an aggregator publishes: trust domain, key,
revocations.  The enrolment key in it is the public one, and the list is signed by it.
An aggregator can neither add nor revoke a client.
"""

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import (
    SEED_SIZE,
    IdentityKey,
    SignatureError,
    check_identity,
)
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.enrolment import MAX_REVOCATION_BYTES, RevocationList
from secagg.protocol.profiles import Trust
from secagg.runtime.files import create_file, disk, read_small

_ALGORITHM: Final = "ed25519:"
_MADE_BY: Final = "Name the file that `secagg pki identity new` made."
_TEXT: Final = re.compile(rf"{_ALGORITHM}([0-9a-f]{{64}})", re.ASCII)


def key_text(public_key: bytes) -> str:
    """Return an enrolment key as text: ``ed25519:`` and 64 digits."""
    return _ALGORITHM + public_key.hex()


def parse_key(text: str) -> bytes:
    """Read what `key_text` wrote.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise _no_key(text, "expected ed25519: and 64 digits of 0-9 a-f")
    key = bytes.fromhex(match.group(1))
    try:
        check_identity(key)
    except SignatureError as error:
        raise _no_key(text, str(error)) from None
    return key


def _no_key(text: str, complaint: str) -> SecAggError:
    """Return the error of a text that is not a public key."""
    return ErrorCode.BAD_SETTINGS.error(
        f"{text[:80]!r} is not a public key: {complaint}",
        fix="Copy it from the output of its owner's command, over a channel "
        "that no other party controls.",
    )


def write_key(path: Path, key: IdentityKey) -> None:
    """Store a private key.

    Raises:
        ServiceError: STORAGE_FAILED; it exists already, or cannot be written.
    """
    never = "Choose another directory; a private key is never overwritten."
    with disk(path, if_exists=never):
        create_file(path, key.seed().reveal(), mode=0o600)


def read_key(path: Path, *, remedy: str = _MADE_BY) -> IdentityKey:
    """Read what `write_key` wrote.

    Args:
        path: Of the file.
        remedy: The next step for an invalid file.

    Raises:
        ServiceError: BAD_CREDENTIAL; it is missing, cannot be read or is not a seed.
    """
    try:
        with path.open("rb") as stream:
            seed = SecretBytes(stream.read(SEED_SIZE + 1))
    except OSError as error:
        raise ErrorCode.BAD_CREDENTIAL.error(
            f"cannot read the private key {path}: {error.strerror}",
            fix="Check the path and its permissions.",
        ) from None
    if len(seed) != SEED_SIZE:
        raise ErrorCode.BAD_CREDENTIAL.error(
            f"{path} is not a private key: it does not have {SEED_SIZE} bytes",
            fix=remedy,
        )
    return IdentityKey.from_bytes(seed)


def is_readable_by_others(path: Path) -> bool:
    """Return whether the mode of a file lets users other than its owner read it."""
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def refuse_readable_by_others(path: Path, code: ErrorCode, whose: str) -> None:
    """Refuse a key that certifies clients where others than its owner may read it.

    Args:
        path: The key.
        code: Code of the error.
        whose: What would have to be made again.

    Raises:
        SecAggError: `code`.
    """
    if is_readable_by_others(path):
        raise code.error(
            f"{path} is readable by others than its owner",
            fix="`chmod 600` it if no other user has read it. Otherwise begin a new "
            f"{whose}: a reader of this key can pass for any client.",
        )


@dataclass(frozen=True, slots=True)
class PublishedEnrolment:
    """What the offers of a task state about enrolment.

    Attributes:
        trust_domain: The domain of the names.
        enrolment_key: Signs credentials and lists, 32 bytes.
        revocations: The newest list, as clients read it; b"" without revocations.
    """

    trust_domain: str
    enrolment_key: bytes
    revocations: bytes = field(default=b"", repr=False)

    @property
    def trust(self) -> Trust:
        """The same as stated in the parameters of a session."""
        if not self.revocations:
            return Trust(self.trust_domain, self.enrolment_key)
        found = RevocationList.decode(self.revocations)
        return Trust(self.trust_domain, self.enrolment_key, found.number, found.digest)

    @classmethod
    def load(
        cls, *, trust_domain: str, enrolment_key: bytes, revocations: Path | None
    ) -> Self:
        """Read the issuer's newest list and check that it is this issuer's.

        Args:
            trust_domain: Of the deployment.
            enrolment_key: 32 bytes.
            revocations: File of the list; None without revocations.

        Raises:
            SecAggError: BAD_CREDENTIAL or BAD_ENCODING, naming the fault.
        """
        if revocations is None:
            return cls(trust_domain, enrolment_key)
        data = read_small(
            revocations,
            most=MAX_REVOCATION_BYTES,
            code=ErrorCode.BAD_CREDENTIAL,
            what="the revocation list",
            if_unreadable="Check enrolment.revocations and the file's permissions.",
            if_large="Begin a new issuer: clients would refuse a list of this length.",
        )
        found = RevocationList.decode(data)
        found.check(trust_domain=trust_domain, enrolment_key=enrolment_key)
        return cls(trust_domain, enrolment_key, data)
