"""Leases of a book that one process has to itself: they end with it."""

from collections.abc import Callable

from secagg.storage.change import Lease, LeaseLostError


class Leases:
    """Who does which work, and until when.

    Args:
        now: The book's clock, in seconds.
        has_ended: Whether a holder is seen to have ended.
    """

    def __init__(
        self,
        now: Callable[[], float],
        has_ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._now = now
        self._has_ended = has_ended
        self._held: dict[str, tuple[Lease, float]] = {}

    def take(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """See `Book.take`."""
        lease, expires = self._held.get(name, (Lease(name, holder, 0), 0.0))
        is_anothers = lease.holder != holder and not self._has_ended(lease.holder)
        if is_anothers and expires > self._now():
            return None
        lease = Lease(name, holder, lease.token + 1)
        self._held[name] = (lease, self._now() + seconds)
        return lease

    def renew(self, lease: Lease, *, seconds: float) -> bool:
        """See `Book.renew`."""
        if not self._holds(lease):
            return False
        self._held[lease.name] = (lease, self._now() + seconds)
        return True

    def give_back(self, lease: Lease) -> None:
        """See `Book.give_back`."""
        if self._holds(lease):
            self._held[lease.name] = (lease, 0.0)

    def check(self, lease: Lease | None) -> None:
        """Refuse a change whose lease is no longer held.

        Raises:
            LeaseLostError: It has expired, or has passed on.
        """
        if lease is not None and not self._holds(lease):
            raise LeaseLostError(lease)

    def _holds(self, lease: Lease) -> bool:
        held, expires = self._held.get(lease.name, (None, 0.0))
        return held == lease and expires > self._now()
