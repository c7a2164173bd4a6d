"""A connection for clients that must reject the offer."""

from typing import TypeVar

from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import GetOffer, Request

_Answer = TypeVar("_Answer")


class OffersOnly(InMemoryConnection):
    """Raises if a client does more than read an offer.

    It would wait for other clients forever, and the test with it.

    Attributes:
        may_join: Whether the client may take part nevertheless, for now.
        looks: How often it has asked for an offer.
    """

    may_join: bool = False
    looks: int = 0

    async def call(self, request: Request[_Answer]) -> _Answer:
        """See `AggregatorConnection.call`.

        Raises:
            AssertionError: The client takes part, or tries to.
        """
        if isinstance(request, GetOffer):
            self.looks += 1
        elif not self.may_join:
            raise AssertionError(
                f"a client that should refuse its offer calls {type(request).__name__}"
            )
        return await super().call(request)
