"""The key with which an aggregator signs receipts: made once, kept beside its book."""

from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.pki.key_files import read_key, write_key

_FILE: Final = "receipt.key"


def receipt_key_in(directory: Path, *, entropy: Entropy | None = None) -> IdentityKey:
    """Return the receipt key of an aggregator; the first call makes it.

    Args:
        directory: Where ``receipt.key`` lies, for this aggregator alone.
        entropy: Source of a new key; the system's by default.

    Raises:
        ServiceError: STORAGE_FAILED or BAD_CREDENTIAL; it cannot be kept, or read.
    """
    path = directory / _FILE
    if not path.exists():
        write_key(path, IdentityKey.generate(entropy or SystemEntropy()))
    return read_key(
        path,
        remedy="Put it back from a copy. Without one, move the file away: the next "
        "start makes another key, of which whoever knows the old one has to be told.",
    )
