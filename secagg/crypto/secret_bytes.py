"""Byte strings with a redacted representation.

Rule 1: `reveal()` is the only access to the content.  A search for that word finds
        every place where a secret becomes ordinary bytes.
Rule 2: no representation, format, copy or pickle carries the content.  Objects with
        secrets can be logged.
Rule 3: comparison takes the same time wherever the contents differ.

Wiping is a best effort.  Python copies bytes freely and may leave copies in freed
memory.  A reader of the process's memory reads the secrets.
"""

import hmac
from typing import Never, NoReturn


class SecretBytes:
    """An immutable byte string with a redacted representation.

    Args:
        data: The secret; it is copied.
    """

    __slots__ = ("_data", "_wiped")

    _data: bytearray
    _wiped: bool

    __hash__ = None  # type: ignore[assignment]  # a hash would be a short fingerprint

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        # The only assignments, with those of `wipe`: see `__setattr__`.
        object.__setattr__(self, "_data", bytearray(data))
        object.__setattr__(self, "_wiped", False)

    def reveal(self) -> bytes:
        """Return a copy of the content.

        Raises:
            ValueError: The secret was wiped; its user outlived its purpose.
        """
        if self._wiped:
            raise ValueError("this secret was wiped and can no longer be used")
        return bytes(self._data)

    def wipe(self) -> None:
        """Overwrite this copy with zeros; `reveal` fails from now on."""
        self._data[:] = bytes(len(self._data))
        object.__setattr__(self, "_wiped", True)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretBytes):
            return NotImplemented
        return hmac.compare_digest(self.reveal(), other.reveal())

    def __repr__(self) -> str:
        return f"SecretBytes({len(self._data)} bytes, redacted)"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        # A specification such as ">40" applies to the redacted text.
        return format(repr(self), format_spec)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "a secret must not be copied or pickled; call reveal() if that is intended"
        )

    def __setattr__(self, name: str, value: object) -> Never:
        # A secret with several holders must not change its value.
        raise AttributeError("SecretBytes is immutable")
