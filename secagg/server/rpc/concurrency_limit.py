"""How many calls of one client, and of all, may stay open for a while."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class ConcurrencyLimit:
    """Places that clients take.

    Args:
        of_one: For one client.
        of_all: For all of them.
    """

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one: Final = of_one
        self._of_all: Final = of_all
        self._taken: Counter[str] = Counter()
        self._all_taken = 0

    def is_free_for(self, identity: str) -> bool:
        """Whether one more of this client may stay."""
        return self._all_taken < self._of_all and self._taken[identity] < self._of_one

    @contextmanager
    def taken_by(self, identity: str) -> Iterator[None]:
        """Take a place, until the block is left."""
        self._taken[identity] += 1
        self._all_taken += 1
        try:
            yield
        finally:
            self._all_taken -= 1
            self._taken[identity] -= 1
            if not self._taken[identity]:
                del self._taken[identity]
