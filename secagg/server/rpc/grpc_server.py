"""The aggregator's gRPC service: it decodes requests, calls the service and encodes.

Rule 1: every handler works on raw bytes and the total decoders of `secagg.wire`;
        protobuf's own failures never reach gRPC.
Rule 2: the caller comes from `secagg.server.call_guards`, never from a message.
Rule 3: a stop is graceful: health says NOT_SERVING, streams are told to come back,
        running calls finish within the grace.
Rule 4: plaintext exists for tests only, on loopback only, as an argument only.
"""

import asyncio
import dataclasses
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from secagg.errors import ErrorCode, SecAggError
from secagg.pki.certificate_revocations import CertificateRevocations, RevocationFile
from secagg.runtime.clock import Clock, SystemClock, ends_before
from secagg.runtime.log_events import (
    TRANSPORT_DRAINING,
    TRANSPORT_LOGGER,
    TRANSPORT_STARTED,
    TRANSPORT_STOPPED,
    log_event,
)
from secagg.server.call_guards import (
    BodyReader,
    Caller,
    CallGuards,
    CallLimits,
    OpenCalls,
    caller,
)
from secagg.server.rpc.certificates import CertificateWatch, server_credentials
from secagg.server.rpc.guards import (
    AdmissionGuard,
    Answer,
    AuthenticationGuard,
    Authenticator,
    CallContext,
    ErrorGuard,
    Guard,
    MetadataAuthenticator,
    TLSAuthenticator,
    guarded_service,
    refuse_expired,
)
from secagg.transport.address import Address
from secagg.transport.channel_options import (
    HEALTH_SERVER_OPTIONS,
    HEALTH_SERVICE,
    SERVER_OPTIONS,
    SERVICE,
)
from secagg.transport.connection import AggregatorService
from secagg.transport.handshake_limits import PROBES, AdmissionLimits, raise_file_limit
from secagg.transport.relay import Relay, begins_http2, begins_tls
from secagg.transport.tls import ReloadingIdentity, TLSIdentity
from secagg.wire.calls import CALLS, Call, UploadChunk, WatchSession, parse

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# Clients whose streams are ended come back after this long, to any server that then
# serves.
_COME_BACK_SECONDS: Final = 1.0

# The address where gRPC listens behind a relay.
_INSIDE: Final = Address("127.0.0.1", 0)


class _Servicer:
    """Answers every call of the table; each takes and returns bytes.

    All handlers read their request themselves, as a stream of one. A body is requested
    when the guards have admitted the call; until then the caller holds it.
    """

    def __init__(
        self, service: AggregatorService, reader: BodyReader, uploads: BodyReader
    ) -> None:
        self._service = service
        self._reader = reader
        self._uploads = uploads
        self._watchers: set[asyncio.Task[object]] = set()
        self._stopping = asyncio.Event()

    def guarded(self, *guards: Guard) -> grpc.GenericRpcHandler:
        """Return what gRPC dispatches to."""
        calls = CALLS.values()
        return guarded_service(
            SERVICE,
            *guards,
            answers={c.name: self._answers(c) for c in calls if not c.is_stream},
            streams={c.name: self._watch for c in calls if c.is_stream},
        )

    def end_watches(self) -> None:
        """Tell all watching clients to come back later."""
        self._stopping.set()
        for task in self._watchers:
            task.cancel()

    def _answers(self, call: Call) -> Answer:
        """Return the handler of one call; uploads are read under their own limit."""

        async def answer(bodies: AsyncIterator[bytes], context: CallContext) -> bytes:
            body = await self._reader.read(bodies, caller=caller())
            refuse_expired(context)
            request = call.request.decode(body)
            return call.encode(await self._service.answer(caller(), request))

        async def receive(bodies: AsyncIterator[bytes], context: CallContext) -> bytes:
            async with self._uploads.held(caller(), bodies) as body:
                refuse_expired(context)
                request = call.request.decode(body)
                return call.encode(await self._service.answer(caller(), request))

        return receive if call.request is UploadChunk else answer

    async def _watch(
        self, bodies: AsyncIterator[bytes], _: CallContext
    ) -> AsyncIterator[bytes]:
        """Send updates until the session or the server ends."""
        body = await self._reader.read(bodies, caller=caller())
        request = WatchSession.decode(body)
        encode = CALLS[WatchSession].encode
        task = asyncio.current_task()
        if self._stopping.is_set() or task is None:
            raise _stopping()
        self._watchers.add(task)
        try:
            async for update in self._service.watch(caller(), request):
                # If it were cancelled while it sends, gRPC would state the reason, not
                # this handler.
                self._watchers.discard(task)
                yield encode(update)
                if self._stopping.is_set():
                    raise _stopping()
                self._watchers.add(task)
        except asyncio.CancelledError:
            # Either the peer is gone, or `end_watches` asks it to come back.
            if not self._stopping.is_set():
                raise
            task.uncancel()
            raise _stopping() from None
        finally:
            self._watchers.discard(task)


def _health_handler(
    health: HealthServicer, reader: BodyReader, *guards: Guard
) -> grpc.GenericRpcHandler:
    """Return health's `Check` as a handler that reads its request like all others.

    gRPC's own handler would hold every caller's request in memory, up to the largest
    message, before a guard could refuse the call.
    """

    async def check(bodies: AsyncIterator[bytes], context: CallContext) -> bytes:
        request = parse(health_pb2.HealthCheckRequest(), await reader.read(bodies))
        answer: Message = await health.Check(request, context)
        return answer.SerializeToString()

    return guarded_service(HEALTH_SERVICE, *guards, answers={"Check": check})


def _stopping() -> SecAggError:
    """Return the error of a call to a server that stops."""
    return ErrorCode.SHUTTING_DOWN.error(
        "the aggregator is stopping",
        fix="Come back in a moment; nothing is lost.",
        retry_after_seconds=_COME_BACK_SECONDS,
    )


class GrpcServer:
    """Runs a gRPC server in front of an aggregator.

    As an asynchronous context manager it stops without grace at the end.

    Attributes:
        address: Where it listens, with the real port.
        health_address: Where it answers health checks without TLS, if anywhere.
        relay: Accepts clients' connections before gRPC does, if one runs; it counts
            those that it refused.
    """

    def __init__(
        self,
        ports: tuple["_Port", ...],
        servicer: _Servicer,
        health: HealthServicer,
        door: "_Door",
        followed: ReloadingIdentity | None,
    ) -> None:
        self._ports = ports
        self._servicer = servicer
        self._health = health
        self._door = door
        self._followed = followed
        self._watching: asyncio.Task[None] | None = None
        self._beside: list[Callable[[float], Coroutine[Any, Any, None]]] = []
        self._is_stopping = False
        self._is_announced = False
        self.address: Final = ports[0].address
        self.health_address: Final = ports[1].address if ports[1:] else None
        self.relay: Final = ports[0].relay

    @classmethod
    async def start(  # noqa: PLR0913 - one argument per decision of the deployer
        cls,
        service: AggregatorService,
        address: Address,
        *,
        identity: TLSIdentity | None = None,
        insecure_for_tests: bool = False,
        health_address: Address | None = None,
        admission: AdmissionLimits | None = None,
        limits: CallLimits | None = None,
        guards: CallGuards | None = None,
        revoked: RevocationFile | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Listen, and serve clients from then on.

        Args:
            service: Answers the calls.
            address: Where to listen; the system chooses port 0.
            identity: The aggregator's certificate; its trust domain is that of the
                served clients.
            insecure_for_tests: Serve plaintext and trust the name that a client states.
                Only without `identity`, only on loopback.
            health_address: Another address for health checks alone, in plaintext:
                orchestrators' probes have no certificates.
            admission: Limits of connections from unauthenticated peers. This process
                may then open as many files as the system allows.
            limits: What one client may use; sensible values by default.
            guards: Counts calls here and at another entry; by default one of `limits`,
                for this one alone.
            revoked: Revocation lists of the authorities, read once a minute; with
                `identity` only.
            clock: Time; the machine's by default.

        Raises:
            ServiceError: PORT_IN_USE or BAD_SETTINGS, also for more connections than
                the process has files for. BAD_CERTIFICATE for a revocation list that is
                refused; says what to change.
            LocalProtocolError: Neither, or both, of TLS and plaintext are requested.
        """
        if (identity is None) != insecure_for_tests:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a server needs a TLS identity, or plaintext for tests, and not both"
            )
        if insecure_for_tests and not address.is_loopback:
            raise ErrorCode.LOCAL_MISUSE.error(
                "plaintext for tests is served on loopback only"
            )
        clock = clock or SystemClock()
        followed = None if identity is None else ReloadingIdentity(identity, clock.date)
        taken_back = (
            CertificateRevocations(None)
            if followed is None
            else CertificateRevocations(
                revoked,
                lambda: followed.identity.authorities,
                clock.date,
            )
        )
        limits, admission = limits or CallLimits(), admission or AdmissionLimits()
        shared = guards or CallGuards(limits, clock.now)
        door = _Door(
            MetadataAuthenticator()
            if identity is None
            else TLSAuthenticator(
                identity.identity.trust_domain, taken_back, clock.date
            ),
            shared.open_calls,
        )
        servicer = _Servicer(service, shared.messages, shared.uploads)
        health = HealthServicer()
        server = grpc.aio.server(
            options=[*SERVER_OPTIONS, *_most_connections(admission, address)]
        )
        errors = ErrorGuard(service.record_refusal, shared.refusals)
        around = (errors, door.calls, AdmissionGuard(shared.admission))
        server.add_generic_rpc_handlers(
            (
                servicer.guarded(*around),
                _health_handler(health, shared.messages, *around),
            )
        )
        ports = [await _Port.open(server, address, followed, admission)]
        door.relay = ports[0].relay
        if health_address is not None:
            probing = dataclasses.replace(PROBES, relay=admission.relay)
            probed = grpc.aio.server(
                options=[
                    *HEALTH_SERVER_OPTIONS,
                    *_most_connections(probing, health_address),
                ]
            )
            # Unauthenticated peers wait for each other here, and no client for them.
            unauthenticated = BodyReader(limits.bodies_at_once, limits.body_seconds)
            probed.add_generic_rpc_handlers(
                (_health_handler(health, unauthenticated, ErrorGuard()),)
            )
            ports.append(await _Port.open(probed, health_address, None, probing))
        for name in ("", SERVICE):
            await health.set(name, health_pb2.HealthCheckResponse.SERVING)
        for port in ports:
            await port.server.start()
        log_event(_LOG, logging.INFO, TRANSPORT_STARTED, address=ports[0].address)
        started = cls(tuple(ports), servicer, health, door, followed)
        if followed is not None:
            watch = CertificateWatch(
                followed,
                taken_back,
                clock,
                lambda: door.end(
                    lambda who: (
                        who.certificate is not None
                        and (
                            who.certificate in taken_back
                            or who.has_ended(clock.date())
                            or not taken_back.is_current()
                        )
                    )
                ),
            )
            started._watching = asyncio.create_task(watch.run())
        return started

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.0)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let running ones finish, then close.

        Args:
            grace_seconds: How long running calls may take; 0 cuts them off.
        """
        is_first, self._is_stopping = not self._is_stopping, True
        await self.announce_stop()
        self._servicer.end_watches()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        beside = [asyncio.ensure_future(stop(grace_seconds)) for stop in self._beside]
        try:
            for port in self._ports:
                await port.close(grace_seconds)
        finally:
            for each in beside:
                await each
        if is_first:
            log_event(_LOG, logging.INFO, TRANSPORT_STOPPED, address=self.address)

    def stop_with(self, stop: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        """Stop another entry at the same time, with the same grace."""
        self._beside.append(stop)

    @property
    def identity(self) -> TLSIdentity | None:
        """The certificate that new connections are shown; None in plaintext."""
        return None if self._followed is None else self._followed.identity

    def end_clients(self, is_unwelcome: Callable[[str], bool]) -> None:
        """End open calls and connections of clients that are not welcome any more.

        They may come back, and are then told the reason.

        Args:
            is_unwelcome: Returns whether a client's name is not welcome.
        """
        self._door.end(lambda who: is_unwelcome(who.name))

    async def announce(self, *, is_ready: bool) -> None:
        """Tell load balancers whether to send clients here; do nothing after a stop."""
        if not self._is_stopping:
            states = health_pb2.HealthCheckResponse
            state = states.SERVING if is_ready else states.NOT_SERVING
            for name in ("", SERVICE):
                await self._health.set(name, state)

    async def announce_stop(self) -> None:
        """Report NOT_SERVING from now on, so load balancers send no new client."""
        if not self._is_announced:  # the stop may have been requested before
            self._is_announced = True
            log_event(_LOG, logging.INFO, TRANSPORT_DRAINING, address=self.address)
        await self._health.enter_graceful_shutdown()


class _Door:
    """Tracks callers and their connections, and ends them.

    Attributes:
        calls: Knows the caller of each call.
        relay: Accepts their connections before gRPC does, if one runs.
    """

    def __init__(self, authenticator: Authenticator, open_calls: OpenCalls) -> None:
        self.calls: Final = AuthenticationGuard(authenticator, open_calls, self._record)
        self._open_calls = open_calls
        self.relay: Relay | None = None

    def _record(self, peer: str, who: Caller) -> None:
        if self.relay is not None:
            self.relay.record_caller(peer, who.name, who.certificate)

    def end(self, is_unwelcome: Callable[[Caller], bool]) -> None:
        """End calls and connections."""
        self._open_calls.end(is_unwelcome)
        if self.relay is not None:
            self.relay.end_known(
                lambda name, certificate: is_unwelcome(Caller(name, certificate))
            )


@dataclass(frozen=True, slots=True)
class _Port:
    """Holds a port and its server."""

    server: grpc.aio.Server
    address: Address
    relay: Relay | None

    @classmethod
    async def open(
        cls,
        server: grpc.aio.Server,
        address: Address,
        followed: ReloadingIdentity | None,
        admission: AdmissionLimits,
    ) -> Self:
        """Bind a port; raise ServiceError when it is not available."""
        if not admission.has_relay_at(address):
            return cls(server, _listen(server, address, followed), None)
        most = admission.connections_within(raise_file_limit())
        relay = await Relay.listen(
            address,
            admission,
            inside=_listen(server, _INSIDE, followed),
            most=most,
            begins=begins_http2 if followed is None else begins_tls,
        )
        return cls(server, relay.address, relay)

    async def close(self, grace_seconds: float) -> None:
        """Accept no new connection, let running calls finish, then close."""
        if self.relay is not None:
            self.relay.stop_listening()
        try:
            await self.server.stop(grace_seconds)
        finally:
            if self.relay is not None:
                await self.relay.close()


def _most_connections(
    admission: AdmissionLimits, address: Address
) -> list[tuple[str, int]]:
    """Return gRPC's limit where no relay counts: storage needs files, too."""
    if admission.has_relay_at(address):
        return []
    most = admission.connections_within(raise_file_limit(), through_relay=False)
    return [("grpc.max_allowed_incoming_connections", most)]


def _listen(
    server: grpc.aio.Server, address: Address, followed: ReloadingIdentity | None
) -> Address:
    """Bind a port by gRPC and return its number; raise ServiceError on failure."""
    try:
        port = (
            server.add_insecure_port(str(address))
            if followed is None
            else server.add_secure_port(str(address), server_credentials(followed))
        )
    except RuntimeError:
        raise address.bind_error() from None
    return Address(address.host, port)


async def run_until_signalled(
    server: GrpcServer,
    work: Coroutine[Any, Any, None],
    *,
    drain: Callable[[], Coroutine[Any, Any, None]],
    grace_seconds: float = 30.0,
) -> bool:
    """Serve until `work` is done or SIGTERM or SIGINT asks to stop.

    After the first signal `drain` runs (it should finish or park the sessions and offer
    no new ones) and calls get the grace. After the second signal nothing is waited for.

    Args:
        server: A started server; it is stopped in any case.
        work: The work of the aggregator; cancelled after draining.
        drain: Called once after the first signal.
        grace_seconds: For calls that are running at the end.

    Returns:
        Whether `work` ended by itself.

    Raises:
        Exception: The exception that `work` or `drain` raised.
    """
    loop = asyncio.get_running_loop()
    asked, insisted = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # A command in the background of a shell blocks SIGINT; an aggregator hears it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    worker = loop.create_task(work)
    try:
        if await ends_before(worker, asked):
            await worker
            return True
        await server.announce_stop()
        draining = loop.create_task(drain())
        if await ends_before(draining, insisted):
            await draining
        await _cancel(draining)
        if not worker.done():
            return False
        await worker  # it ended while the server drained
        return True
    finally:
        await _cancel(worker)
        await server.stop(0.0 if insisted.is_set() else grace_seconds)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _cancel(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end; its outcome was read before, if ever."""
    task.cancel()
    await asyncio.wait({task})
