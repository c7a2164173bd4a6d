"""Who has called of late, and who is still expected before an aggregator goes away."""

from typing import Final

from secagg.protocol.messages import Envelope, Released
from secagg.runtime.clock import Clock
from secagg.server.rpc.limits import AggregatorLimits


class RecentClients:
    """Remembers when clients called, and what they were told to come back for.

    Args:
        clock: Time.
        limits: How long clients take to come back.

    Attributes:
        last_call: When somebody called last, or was known to listen.
    """

    def __init__(self, clock: Clock, limits: AggregatorLimits) -> None:
        self._clock: Final = clock
        self._limits: Final = limits
        self.last_call = clock.now()
        # When those who wait for a session last asked for one.
        self._waiting: dict[str, float] = {}
        # When those were told of a sum who have not called since: they come for it.
        self._fetching: dict[str, float] = {}

    @property
    def quiet_at(self) -> float:
        """When nobody has called for a moment, unless somebody does."""
        return self.last_call + self._limits.idle_timeout

    def note_call(self, identity: str | None = None) -> None:
        """Note a call of a client, or that one still listens to a stream."""
        self.last_call = self._clock.now()
        if identity is not None:
            self._fetching.pop(identity, None)

    def note_waiting(self, identity: str) -> None:
        """Note that a client was told to ask for a session again."""
        self._waiting[identity] = self._clock.now()

    def note_back(self, identity: str) -> None:
        """Note that a client asks for a session."""
        self._waiting.pop(identity, None)

    def note_told(self, identity: str, update: Envelope) -> None:
        """Note what a client was told: whoever hears of a sum comes for it."""
        if update.kind is Released:
            self._fetching[identity] = self._clock.now()

    def has_expected(self) -> bool:
        """Whether a client may still come, for a session or for a sum."""
        now = self._clock.now()
        # Clients spread their polls by a quarter; the rest is for the way.
        asked_after = now - 2 * self._limits.join_poll_seconds
        told_after = now - self._limits.fetch_seconds
        return any(asked > asked_after for asked in self._waiting.values()) or any(
            told > told_after for told in self._fetching.values()
        )
