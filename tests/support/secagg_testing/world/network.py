"""The network of clients and aggregators: slow, broken, cut, with duplicates.

Rule 1: a request that left may arrive, arrive twice, late or never; so may its answer.
        The caller gets an error at once, or no answer for a while.
Rule 2: a call is answered by the process that listens when it arrives; it breaks when
        that process dies.
Rule 3: what leaves a machine is shown to the witness before anything can happen to it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.messages import Envelope
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR, AggregatorConnection
from secagg.wire.calls import Reference, Request, Wait, WatchSession
from secagg_testing.world.certificates import Door
from secagg_testing.world.dice import Dice
from secagg_testing.world.loop import Process
from secagg_testing.world.witness import Witness

_Answer = TypeVar("_Answer")
# As long as keepalives take to notice that no peer answers.
_SILENT_SECONDS: Final = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What may happen to what is sent.

    Attributes:
        delay_seconds: Longest time that one way takes, mostly.
        loss: How often one way fails.
        hush: How often a failure is reported late.
        echo: How often a request arrives twice.
        straggle: How often one way takes a hundred times as long.
    """

    delay_seconds: float = 0.01
    loss: float = 0.0
    hush: float = 0.2
    echo: float = 0.0
    straggle: float = 0.0


class _Lost(Exception):  # noqa: N818 - not an error of a party
    """It did not arrive."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An aggregator's process that takes calls.

    Attributes:
        process: Where calls are answered.
        service: What answers them.
        door: Checks callers; None for no check.
    """

    process: Process
    service: Any
    door: Door | None = None

    def connect(self, identity: str) -> AggregatorConnection:
        """Return the connection of a client to it."""
        connection: AggregatorConnection = self.service.connection(identity)
        return connection if self.door is None else self.door.guarded(connection)


class Network:
    """Everything between the machines.

    Args:
        loop: Of the world.
        dice: Decide what happens.
        weather: What may happen.
        witness: Observes all messages.

    Attributes:
        listeners: Aggregators that take calls; a client reaches any of them.
        cut_off: Until when clients are cut off, by name.
        on_answer: Receives the answers to each client.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dice: Dice,
        weather: Weather,
        witness: Witness,
    ) -> None:
        self.loop: Final = loop
        self.context: Final = Context()
        self.witness: Final = witness
        self.listeners: list[Listener] = []
        self.cut_off: dict[str, float] = {}
        self.on_answer: Callable[[str, object], None] = lambda *_: None
        self._dice = dice
        self._weather = weather

    def calm(self) -> None:
        """Stop losing messages."""
        self._weather = Weather(delay_seconds=self._weather.delay_seconds)
        self.cut_off.clear()

    async def cross(self, client: str) -> None:
        """Transport a message in one direction.

        Raises:
            _Lost: It does not arrive.
        """
        weather, dice = self._weather, self._dice
        seconds = weather.delay_seconds * dice.uniform()
        if dice.chance(weather.straggle):
            seconds *= 100.0
        await asyncio.sleep(seconds)
        self.witness.step()
        if self.is_cut_off(client) or dice.chance(weather.loss):
            if self.is_cut_off(client) or dice.chance(weather.hush):
                await asyncio.sleep(_SILENT_SECONDS * dice.uniform())
            raise _Lost

    def is_cut_off(self, client: str) -> bool:
        """Whether a client reaches no server now."""
        return self.loop.time() < self.cut_off.get(client, 0.0)

    def found(self) -> Listener:
        """Return an aggregator that takes calls."""
        if not self.listeners:
            raise _Lost
        return self._dice.choice(self.listeners)

    def close(self, listener: Listener) -> None:
        """Stop delivery to an aggregator's process that ends."""
        self.listeners = [each for each in self.listeners if each is not listener]

    def is_heard_twice(self) -> bool:
        """Whether a request arrives a second time."""
        return self._dice.chance(self._weather.echo)


class Link:
    """A client's `AggregatorConnection` across the network.

    Args:
        network: What it crosses.
        identity: As whom the calls are made.
        process: Of the client.
    """

    aggregator: Final = UNCERTIFIED_AGGREGATOR
    trust_domain: Final = None
    is_direct: Final = True

    def __init__(self, network: Network, identity: str, process: Process) -> None:
        self.identity: Final = identity
        self._network = network
        self._process = process

    async def probe(self) -> str:
        """See `AggregatorConnection.probe`: all of this network have one name."""
        return self.aggregator

    async def call(self, request: Request[_Answer]) -> _Answer:
        """See `AggregatorConnection.call`."""
        self._leave(request)
        loop = self._network.loop
        answer: asyncio.Future[_Answer] = loop.create_future()
        carried = loop.create_task(
            self._carry(request, answer), context=self._network.context.copy()
        )
        try:
            got = await answer
        finally:
            carried.cancel()
        self._network.witness.clients.on_received(self.identity, request, got)
        return got

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """See `AggregatorConnection.watch`."""
        self._leave(request)
        loop = self._network.loop
        updates: asyncio.Queue[Envelope | Reference | Wait | SecAggError | None]
        updates = asyncio.Queue()
        carried = loop.create_task(
            self._stream(request, updates), context=self._network.context.copy()
        )
        try:
            while (update := await updates.get()) is not None:
                if isinstance(update, SecAggError):
                    raise update
                self._network.witness.clients.on_received(
                    self.identity, request, update
                )
                yield update
        finally:
            carried.cancel()

    def _leave(self, request: Request[Any]) -> None:
        if self._process.is_gone:
            raise asyncio.CancelledError
        self._network.witness.clients.on_sent(self.identity, request)

    async def _carry(
        self, request: Request[_Answer], answer: "asyncio.Future[_Answer]"
    ) -> None:
        """Deliver a request to an aggregator, and return its answer."""
        try:
            await self._network.cross(self.identity)
            listener = self._network.found()
            if self._network.is_heard_twice():
                listener.process.start(self._answered_again(listener, request))
            handling = listener.process.start(self._answered(listener, request))
            try:
                got = await self._while_alive(listener.process, handling)
            finally:
                handling.cancel()
            await self._network.cross(self.identity)
        except _Lost:
            self._refuse(answer, _unreachable())
        except SecAggError as error:
            self._refuse(answer, error)
        else:
            if not answer.done():
                answer.set_result(got)
                self._network.on_answer(self.identity, got)

    @staticmethod
    def _refuse(answer: "asyncio.Future[Any]", error: SecAggError) -> None:
        if not answer.done():
            answer.set_exception(error)

    async def _answered(
        self, listener: Listener, request: Request[_Answer]
    ) -> _Answer | SecAggError:
        """Have a request answered, in the aggregator's process."""
        witness = self._network.witness
        if listener not in self._network.listeners:
            return _unreachable()
        uploaded = witness.servers.uploaded(self.identity, request)
        try:
            got = await listener.connect(self.identity).call(request)
        except SecAggError as error:
            witness.servers.refused(listener.process, self.identity, request, error)
            return error
        except Exception as error:  # noqa: BLE001 - the service has a defect
            witness.fault(f"{type(request).__name__} was answered by {error!r}")
            return _unreachable()
        witness.servers.answered(
            listener.process, self.identity, request, got, uploaded=uploaded
        )
        return got

    async def _answered_again(self, listener: Listener, request: Request[Any]) -> None:
        await asyncio.sleep(self._network._dice.uniform())
        await self._answered(listener, request)

    async def _while_alive(
        self, process: Process, handling: "asyncio.Task[_Answer | SecAggError]"
    ) -> _Answer:
        ends: set[asyncio.Future[Any]] = {handling, process.death}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if process.is_gone or handling.cancelled():
            raise _Lost
        got = handling.result()
        if isinstance(got, SecAggError):
            raise got
        return got

    async def _stream(
        self,
        request: WatchSession,
        updates: "asyncio.Queue[Envelope | Reference | Wait | SecAggError | None]",
    ) -> None:
        """Deliver the updates of a stream to its client as they arrive."""
        handling: asyncio.Task[None] | None = None
        try:
            await self._network.cross(self.identity)
            listener = self._network.found()
            said: asyncio.Queue[Envelope | Reference | Wait | SecAggError | None]
            said = asyncio.Queue()
            handling = listener.process.start(self._watched(listener, request, said))
            dying = listener.process.death
            while True:
                action = asyncio.ensure_future(said.get())
                try:
                    ends: set[asyncio.Future[Any]] = {action, dying}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if not action.done():
                        raise _Lost
                    update = action.result()
                finally:
                    action.cancel()
                await self._network.cross(self.identity)
                updates.put_nowait(update)
                if not isinstance(update, Envelope | Reference | Wait):
                    return
        except _Lost:
            updates.put_nowait(_unreachable())
        finally:
            if handling is not None:
                handling.cancel()

    async def _watched(
        self,
        listener: Listener,
        request: WatchSession,
        said: "asyncio.Queue[Envelope | Reference | Wait | SecAggError | None]",
    ) -> None:
        """Watch a session, in the aggregator's process."""
        witness = self._network.witness
        if listener not in self._network.listeners:
            said.put_nowait(_unreachable())
            return
        try:
            async for update in listener.connect(self.identity).watch(request):
                witness.servers.answered(
                    listener.process, self.identity, request, update
                )
                said.put_nowait(update)
        except SecAggError as error:
            said.put_nowait(error)
        except Exception as error:  # noqa: BLE001 - the service has a defect
            witness.fault(f"a stream ended by {error!r}")
        else:
            said.put_nowait(None)


def _unreachable() -> ServiceError:
    return ServiceError(
        "the aggregator cannot be reached",
        code=ErrorCode.UNREACHABLE,
        next_step="Check address and network.",
    )
