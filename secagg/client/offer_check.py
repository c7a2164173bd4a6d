"""A connection that judges every offer before the client sees it.

Rule 1: what a policy of plain numbers cannot judge (the epsilon of a mechanism, the
        length of an input) is judged here, before a key is made.
Rule 2: every other call passes through unchanged.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from secagg.errors import ServiceError
from secagg.messages import Envelope
from secagg.parameters import SessionDescriptor
from secagg.runtime.connection import AggregatorConnection
from secagg.wire.calls import GetOffer, Reference, Request, WatchSession

__all__ = ["OfferCheckingConnection"]

_Answer = TypeVar("_Answer")


class OfferCheckingConnection:
    """Judges offers.

    Args:
        connection: Where calls go.
        check: Raises an error of `secagg.errors` for an offer that is not acceptable.

    Attributes:
        has_answered: Whether the aggregator has answered any question for an offer.
        failure: Why the last question for an offer was not answered; None when it was.
    """

    def __init__(
        self,
        connection: AggregatorConnection,
        check: Callable[[SessionDescriptor], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._check = check
        self.identity: Final = connection.identity
        self.has_answered = False
        self.failure: ServiceError | None = None

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Return an offer only if it is acceptable."""
        try:
            answer = await self._connection.call(request)
        except ServiceError as error:
            self.failure = None if self.has_answered else error
            raise
        if isinstance(request, GetOffer):
            self.has_answered, self.failure = True, None
        if isinstance(answer, SessionDescriptor):
            answer.parameters.validate()
            await self._check(answer)
        return answer

    def watch(self, request: WatchSession) -> AsyncIterator[Envelope | Reference]:
        """See `AggregatorConnection.watch`."""
        return self._connection.watch(request)
