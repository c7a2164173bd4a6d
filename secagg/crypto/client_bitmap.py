"""A set of clients, kept as the bitmap that was received.

A client receives U2 and U3 of the whole roster. It needs to know which of its
neighbours are members, the size of each set, and whether one set contains the other.
The bitmap answers at a few machine operations per 64 clients, and is hashed anyway.  A
`frozenset` would take a thousand times the memory and the time.

Source: PROTOCOL §3.3.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.transcript import check_bitmap


class ClientBitmap(AbstractSet[int]):
    """Roster indices; immutable, equal to every other set of the same indices.

    Args:
        bitmap: As `encode_set` writes it.
        clients: n, in [0, 65536].

    Raises:
        CanonicalEncodingError: Wrong length or padding bits set; refuse the message.
        ValueError: n lies outside its range: a fault of the calling code.
    """

    __slots__ = ("_bitmap", "_clients", "_number")

    def __init__(self, bitmap: bytes, clients: int) -> None:
        check_bitmap(bitmap, clients)
        self._bitmap = bitmap
        self._clients = clients
        self._number = int.from_bytes(bitmap, "little")

    def __contains__(self, index: object) -> bool:
        return (
            isinstance(index, int)
            and 0 <= index < self._clients
            and bool(self._bitmap[index >> 3] >> (index & 7) & 1)
        )

    def __iter__(self) -> Iterator[int]:
        indices: list[int] = np.flatnonzero(self.places()).tolist()
        return iter(indices)

    def __len__(self) -> int:
        return self._number.bit_count()

    def __le__(self, other: AbstractSet[Any]) -> bool:
        if isinstance(other, ClientBitmap):
            return self._number & ~other._number == 0
        return super().__le__(other)

    def __repr__(self) -> str:
        return f"ClientBitmap({len(self)} of {self._clients})"

    def places(self) -> npt.NDArray[np.bool_]:
        """Return membership by roster index, shape (n,)."""
        packed = np.frombuffer(self._bitmap, np.uint8)
        bits = np.unpackbits(packed, count=self._clients, bitorder="little")
        return bits.view(np.bool_)
