"""The receipt key of an aggregator: generated once, stored in its state directory."""

from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.pki.key_files import read_key, write_key

_FILE: Final = "receipt.key"


def receipt_key_in(directory: Path, *, entropy: Entropy | None = None) -> IdentityKey:
    """Return the receipt key of an aggregator; the first call generates it.

    Args:
        directory: Directory of ``receipt.key``, for this aggregator alone.
        entropy: Source of a new key; the system's by default.

    Raises:
        ServiceError: STORAGE_FAILED or BAD_CREDENTIAL; the file cannot be written or
            read.
    """
    path = directory / _FILE
    if not path.exists():
        write_key(path, IdentityKey.generate(entropy or SystemEntropy()))
    return read_key(
        path,
        remedy="Restore the file from a copy. Or move it away: the next start "
        "generates another key, which every client, auditor and peer needs.",
    )
