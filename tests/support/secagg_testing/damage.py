"""Files as a failing disk leaves them."""

from collections.abc import Iterator
from typing import Final

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes

# A bit of a cell, a field, more than a page's header.
_SIZES: Final = (1, 8, 600)


def damaged_copies(data: bytes, count: int) -> Iterator[bytes]:
    """Yield copies of a file with garbage somewhere, then copies that end early.

    The same ones each time; what is hit in a file of SQLite is page headers, cells and
    blobs.

    Args:
        data: The file, of more than 4096 bytes.
        count: How many with garbage.
    """
    chooser = SeededEntropy(SecretBytes(bytes(32)), b"damage")
    for number in range(count):
        changed = bytearray(data)
        start = int.from_bytes(chooser.token(4), "big") % len(changed)
        size = min(_SIZES[number % len(_SIZES)], len(changed) - start)
        changed[start : start + size] = chooser.token(size)
        yield bytes(changed)
    for cut in (1, 4096, len(data) // 2, len(data) - 100):
        yield data[:-cut]
