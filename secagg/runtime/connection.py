"""Both ends of the way between a client and an aggregator, whatever carries it.

Rule 1: every call is unary, idempotent and safe to repeat.  A lost answer is asked
        for again; nothing happens twice.
Rule 2: the transport knows who calls.  No request names its sender, so that nobody
        can speak for somebody else.
Rule 3: whatever fails arrives as one of the classes of `secagg.errors`, with its code:
        `RemoteProtocolError` for a refused message, `SessionAbortedError` when the
        session is over, `ServiceError` for everything around the protocol.

What may be asked, and what it is answered with, is the table of `secagg.wire.calls`.
"""

from collections.abc import AsyncIterator
from typing import Final, Protocol, TypeVar

from secagg.errors import ErrorCode
from secagg.protocol.messages import Envelope
from secagg.wire.calls import Reference, Request, Wait, WatchSession

# The name of an aggregator without a certificate: in memory, or plaintext for tests.
UNCERTIFIED_AGGREGATOR: Final = "aggregator"

_Answer = TypeVar("_Answer")


class AggregatorConnection(Protocol):
    """One authenticated client's way to one aggregator."""

    @property
    def identity(self) -> str:
        """As whom the calls are made."""

    @property
    def aggregator(self) -> str:
        """Who answers them, as the transport has proven it.

        Known once `meet` has returned or a call was answered.
        """

    async def meet(self) -> str:
        """Return who answers there now, before anything of a session is said.

        Only the transport's own handshake leaves.  From the first call on it is settled
        who is called; before that, each `meet` asks anew unless the settings name one.

        Raises:
            ServiceError: UNREACHABLE, or BAD_CERTIFICATE for a peer that proves to be
                no aggregator of the client.
        """

    @property
    def trust_domain(self) -> str | None:
        """Of both ends, as the transport has proven it; None where it proves none."""

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Ask, and return the answer."""

    def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Receive all further updates as they come; ends with the session.

        A `Wait` in between says that the other end is there, and until when it will be
        heard of again.
        """


class AggregatorService(Protocol):
    """What a transport hands authenticated calls to; `Aggregator` is one.

    It may raise anything of `secagg.errors`; whatever else escapes is a fault of ours
    and reaches the client as INTERNAL, without its text.
    """

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of `identity`, as the transport has authenticated it."""

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield updates as they come, and now and then that there is none."""

    def note_refusal(self, code: ErrorCode) -> None:
        """Count a call that was refused, by the service or before it was reached.

        The transport tells each call once, whatever was wrong with it.
        """
