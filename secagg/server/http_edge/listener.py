"""The listener of the HTTP edge: TLS, connections, certificates, start and stop.

Rule 1: the edge always speaks TLS 1.3, with a certificate of its own.  A renewed one is
        checked completely before it replaces the old one.
Rule 2: headers have a limit and a time, and so have connections without a proven call.
        The relay enforces the latter as it does before gRPC; behind a proxy, which has
        limits of its own, no relay runs.
Rule 3: the process handles signals.  A stop ends held answers first and takes no longer
        than its grace.
"""

import asyncio
import dataclasses
import importlib
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509

from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.pki.expiry import Expiry, ExpiryWarnings
from secagg.pki.key_files import PublishedEnrolment
from secagg.protocol.arguments import validates_arguments
from secagg.protocol.enrolment import RevocationList
from secagg.protocol.profiles import Profile, Trust
from secagg.runtime.clock import Clock
from secagg.runtime.log_events import (
    EDGE_CLIENT_SEEN,
    MONITORING_FAILED,
    REVOCATION_LIST_REJECTED,
    REVOCATION_LIST_UPDATED,
    TRANSPORT_DRAINING,
    TRANSPORT_LOGGER,
    TRANSPORT_STARTED,
    TRANSPORT_STOPPED,
    log_defect,
    log_event,
)
from secagg.server.call_guards import Caller, CallGuards
from secagg.server.http_edge.app import EdgeApplication
from secagg.server.http_edge.proof import RequestProof, UnknownCredentialBudget
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.storage.changes import RecordRevocations
from secagg.storage.store import Store
from secagg.transport.address import Address
from secagg.transport.connection import AggregatorService
from secagg.transport.handshake_limits import AdmissionLimits, raise_file_limit
from secagg.transport.relay import Relay, begins_tls
from secagg.transport.tls import FollowedFiles, log_renewal, read_certificate_pair

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# A web page opens up to six connections to one host.
_CONNECTIONS_OF_ONE_CLIENT: Final = 6
_INSIDE: Final = Address("127.0.0.1", 0)


@validates_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """Holds an operator's settings of the HTTP edge.

    Attributes:
        listen: Where to listen, such as "0.0.0.0:7443".
        authority: Host name by which clients call it, and its port unless that is 443.
        certificate: PEM of the chain for that host name, the leaf first.
        private_key: PEM of its key.
        trust_domain: The trust domain of valid credentials.
        enrolment_key: Public key of their issuer, 32 bytes.
        revocations: File of the issuer's newest list, read once a minute; None before
            the first revocation.
        origins: Origins of web pages that may call, such as "https://app.example.org".
        behind_proxy: Whether all connections come from a proxy that ends TLS or hides
            addresses.  No task of profile 1 is served then (R10.3-4).
    """

    listen: str
    authority: str
    certificate: Path
    private_key: Path
    trust_domain: str
    enrolment_key: bytes
    revocations: Path | None = None
    origins: tuple[str, ...] = ()
    behind_proxy: bool = False

    def check_profile(self, profile: Profile) -> None:
        """Refuse a task or a session whose inputs a proxy could read (R10.3-4).

        Raises:
            ServiceError: BAD_SETTINGS.
        """
        if self.behind_proxy and not profile.has_identities:
            raise ErrorCode.BAD_SETTINGS.error(
                "TLS of the HTTP edge may end in a proxy, which could read and change "
                f"what clients of the profile {profile.label} send",
                fix="End TLS in the aggregator and set edge.behind_proxy = "
                "false. For a profile with signatures, first let open sessions of this "
                "one end without the proxy.",
            )

    def check_trust_domain(self, trust_domain: str) -> None:
        """Refuse names of another trust domain than the aggregator's certificate.

        One name means one client at both entries.

        Raises:
            ServiceError: BAD_SETTINGS.
        """
        if self.trust_domain != trust_domain:
            raise ErrorCode.BAD_SETTINGS.error(
                f"the HTTP edge admits clients of {self.trust_domain!r}, and gRPC "
                f"those of {trust_domain!r}: one name would mean two clients",
                fix="Set enrolment.trust_domain to what the certificate names.",
            )

    def published(self) -> PublishedEnrolment:
        """Read the issuer's newest list.

        Raises:
            SecAggError: BAD_CREDENTIAL or BAD_ENCODING.
        """
        return PublishedEnrolment.load(
            trust_domain=self.trust_domain,
            enrolment_key=self.enrolment_key,
            revocations=self.revocations,
        )


def edge_packages() -> Any:  # noqa: ANN401 - a module of the extra
    """Return the module of the HTTP server, which only an edge needs.

    Raises:
        ServiceError: MISSING_EXTRA; uvicorn or httptools is not installed.
    """
    try:
        return importlib.import_module("secagg.server.http_edge.protocol")
    except ImportError:
        raise ErrorCode.MISSING_EXTRA.error(
            "the HTTP edge needs uvicorn and httptools",
            fix="pip install 'secagg[edge]'",
        ) from None


# --- the certificate ------------------------------------------------------------------


class WebCertificate:
    """Holds a certificate for a host name, which follows its files.

    A renewed pair is checked, and loaded into a TLS context of its own.  So a
    half-renewed or damaged pair changes nothing.

    Args:
        certificate: PEM of the chain, the leaf first.
        private_key: PEM of its key.
        authority: Host name of the leaf, with an optional port.
        date: The present in Unix seconds.

    Attributes:
        listening: The context to listen with; a handshake gets the newest certificate.

    Raises:
        ServiceError: BAD_CERTIFICATE; names the file and what is wrong.
    """

    def __init__(
        self,
        certificate: Path,
        private_key: Path,
        authority: str,
        date: Callable[[], float],
    ) -> None:
        self._certificate = certificate
        self._private_key = private_key
        self._authority = authority
        self._date = date
        self._files = FollowedFiles((certificate, private_key), self._load)
        self._context, self.ends = self._files.load_first()
        self.listening: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.listening.minimum_version = ssl.TLSVersion.TLSv1_3
        self.listening.set_alpn_protocols(["http/1.1"])
        # Called for clients without a server name as well.
        self.listening.sni_callback = self._choose

    @property
    def expiry(self) -> Expiry:
        """When the certificate in use ends."""
        return Expiry("own", self._certificate, self.ends)

    def refresh(self) -> None:
        """Load a changed pair of files; log the error of an invalid one."""
        renewed = self._files.load_changed()
        if renewed is not None:
            self._context, self.ends = renewed
            log_renewal(self._certificate, self.ends)

    def _choose(self, tls: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        tls.context = self._context

    def _load(self) -> tuple[ssl.SSLContext, datetime]:
        """Load the certificate, and refuse one for another host name."""
        chain, key, leaf = read_certificate_pair(
            self._certificate,
            self._private_key,
            now=datetime.fromtimestamp(self._date(), UTC),
        )
        _check_host_name(leaf, self._authority, self._certificate)
        return _context_of(chain + key), leaf.not_valid_after_utc


def _check_host_name(leaf: x509.Certificate, authority: str, path: Path) -> None:
    """Check that a certificate is for the host of an authority.

    Raises:
        ServiceError: BAD_CERTIFICATE; no client would accept it.
    """
    host = host_of(authority)
    names: list[str] = []
    with suppress(x509.ExtensionNotFound):
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [each.lower() for each in found.value.get_values_for_type(x509.DNSName)]
        names += map(str, found.value.get_values_for_type(x509.IPAddress))
    if host not in names and "*." + host.partition(".")[2] not in names:
        raise ErrorCode.BAD_CERTIFICATE.error(
            f"{path} is for {', '.join(names) or 'no host name'}, not for {host}",
            fix="Name the certificate of edge.authority's host.",
        )


def _context_of(pair: bytes) -> ssl.SSLContext:
    """Return a context with a checked certificate and key, from memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    # The library reads files only.  These bytes were checked; the files may have
    # changed since.
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("edge", os.MFD_CLOEXEC), "wb") as stream:  # noqa: PTH123 - a number
            stream.write(pair)
            stream.flush()
            context.load_cert_chain(f"/proc/self/fd/{stream.fileno()}")
    else:
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(pair)
            file.flush()
            context.load_cert_chain(file.name)
    return context


# --- the edge -------------------------------------------------------------------------


class HttpEdge:
    """Runs an HTTP edge in front of an aggregator, beside its gRPC server.

    Attributes:
        address: Where it listens, with the real port.
        relay: Accepts connections before it does, if one runs.
        certificate: The certificate that it shows.
    """

    def __init__(
        self,
        server: Any,  # noqa: ANN401 - an `HTTPServer`, of the extra
        relay: Relay | None,
        app: EdgeApplication,
        certificate: WebCertificate,
        watching: asyncio.Task[None],
    ) -> None:
        self._server = server
        self._app = app
        self._watching = watching
        self._is_stopping = False
        self.relay: Final = relay
        self.certificate: Final = certificate
        self.address: Final = server.address if relay is None else relay.address

    @classmethod
    async def start(  # noqa: PLR0913 - the parts of a server that it shares
        cls,
        service: AggregatorService,
        options: EdgeOptions,
        *,
        guards: CallGuards,
        admission: AdmissionLimits,
        store: Store,
        clock: Clock,
    ) -> Self:
        """Listen, and serve clients from then on.

        Args:
            service: Answers the calls.
            options: The operator's settings.
            guards: Counts calls, shared with the gRPC server.
            admission: Limits of connections from unauthenticated peers.
            store: Of the aggregator and its replicas; keeps the newest list's number.
            clock: Time.

        Raises:
            ServiceError: MISSING_EXTRA, BAD_CERTIFICATE, PORT_IN_USE or BAD_SETTINGS.
                STORAGE_FAILED.
            SecAggError: BAD_CREDENTIAL or BAD_ENCODING for the revocation list, also
                for one older than was in force before (R10.3-18).
        """
        http = edge_packages()
        address = Address.parse(options.listen, name="edge.listen")
        certificate = WebCertificate(
            options.certificate, options.private_key, options.authority, clock.date
        )
        state = _EdgeState(options, guards, store, clock)
        await state.record()
        app = EdgeApplication(
            service,
            state.proof,
            guards,
            origins=options.origins,
            address_of=state.address_of,
            on_known=state.record_caller,
        )
        limits = dataclasses.replace(admission, per_identity=_CONNECTIONS_OF_ONE_CLIENT)
        has_relay = not options.behind_proxy and limits.has_relay_at(address)
        most = limits.connections_within(raise_file_limit(), through_relay=has_relay)
        server = await http.HTTPServer.start(
            app,
            _INSIDE if has_relay else address,
            certificate.listening,
            most=most,
        )
        if has_relay:
            async with AsyncExitStack() as unless_started:  # the server holds a port
                unless_started.push_async_callback(server.close, 0.0)
                state.relay = await Relay.listen(
                    address, limits, inside=server.address, most=most, begins=begins_tls
                )
                unless_started.pop_all()
        watching = asyncio.create_task(state.watch(certificate))
        started = cls(server, state.relay, app, certificate, watching)
        log_event(
            _LOG, logging.INFO, TRANSPORT_STARTED, address=started.address, edge=True
        )
        return started

    def end_connections(self, is_unwelcome: Callable[[str], bool]) -> None:
        """End connections of unwelcome clients; `OpenCalls` ends their calls.

        Behind a proxy connections carry many callers, and none is ended.

        Args:
            is_unwelcome: Returns whether a client's name is not welcome.
        """
        if self.relay is not None:
            self.relay.end_known(lambda name, _: is_unwelcome(name))

    async def stop(self, grace_seconds: float) -> None:
        """End held answers, let other calls finish, then close.

        Args:
            grace_seconds: How long calls may take; 0 cuts them off.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        log_event(_LOG, logging.INFO, TRANSPORT_DRAINING, address=self.address)
        if self.relay is not None:
            self.relay.stop_listening()
        self._app.end_held()
        self._watching.cancel()
        await asyncio.wait({self._watching})
        try:
            await self._server.close(grace_seconds)
        finally:
            if self.relay is not None:
                await self.relay.close()
        log_event(_LOG, logging.INFO, TRANSPORT_STOPPED, address=self.address)


class _EdgeState:
    """Holds what a running edge checks regularly, and its known callers.

    Args:
        options: The operator's settings.
        guards: Counts calls.
        store: Keeps the newest list's number.
        clock: Time.

    Attributes:
        relay: Accepts connections first, once it runs.
        proof: Establishes callers.
    """

    def __init__(
        self, options: EdgeOptions, guards: CallGuards, store: Store, clock: Clock
    ) -> None:
        self.relay: Relay | None = None
        self._options = options
        self._guards = guards
        self._store = store
        self._clock = clock
        self._trust = Trust(options.trust_domain, options.enrolment_key)
        self._recorded: Trust | None = None
        self._complaint = ""
        self._file_stamp = _stat_of(options.revocations)
        self._warnings = ExpiryWarnings()
        self.proof: Final = RequestProof(
            options.authority,
            options.trust_domain,
            options.enrolment_key,
            budget=UnknownCredentialBudget(
                clock.now, by_address=not options.behind_proxy
            ),
            date=clock.date,
            on_first=_log_first,
        )
        self._install_list(options.published())

    def address_of(self, host: str) -> str:
        """Return the sender's address of a connection."""
        if self.relay is None:
            return host
        return self.relay.address_of(host) or host

    def record_caller(self, peer: str, who: Caller) -> None:
        """Record that a caller was proven on a connection."""
        if self.relay is not None:
            self.relay.record_caller(f"ipv4:{peer}", who.name)

    async def watch(self, certificate: WebCertificate) -> None:
        """Check certificate and revocation list once a minute, until cancelled."""
        while True:
            try:
                certificate.refresh()
                self._warnings.log(
                    certificate.expiry, datetime.fromtimestamp(self._clock.date(), UTC)
                )
                await self._refresh_list()
            except Exception:  # noqa: BLE001 - a defect must not end the watch unseen
                log_defect(_LOG, MONITORING_FAILED)
            await self._clock.sleep_until(self._clock.now() + LOOK_EVERY_SECONDS)

    async def _refresh_list(self) -> None:
        """Use a changed list, or log why not; end the calls of revoked credentials."""
        seen, refused = _stat_of(self._options.revocations), None
        if seen != self._file_stamp or self._complaint:
            self._file_stamp = seen  # before it is read, so a later change is seen
            try:
                self._install_list(self._options.published())
            except SecAggError as error:
                refused = error
        # This runs with every check: a call may have been admitted while the list was
        # read.
        self._guards.open_calls.end(self._is_revoked)
        try:
            await self.record()  # last: a full disk must keep no client in
        except SecAggError as error:
            refused = refused or error
        if refused is not None and str(refused) != self._complaint:
            log_event(_LOG, logging.WARNING, REVOCATION_LIST_REJECTED, reason=refused)
        self._complaint = "" if refused is None else str(refused)

    async def record(self) -> None:
        """Record the list in force, so that no older one is after a restart (R10.3-18).

        Raises:
            SecAggError: BAD_CREDENTIAL; a newer one was in force before, here or at a
                replica.
            ServiceError: STORAGE_FAILED.
        """
        trust = self._trust
        if trust == self._recorded:
            return
        try:
            await self._store.commit(RecordRevocations(trust))
        except RemoteProtocolError:
            raise ErrorCode.BAD_CREDENTIAL.error(
                f"revocation list {trust.revocation_number} is older than one that was "
                "used before, or another one of its number: clients revoked since "
                "would be let in",
                fix="Copy the issuer's newest list to enrolment.revocations.",
            ) from None
        self._recorded = trust

    def _install_list(self, found: PublishedEnrolment) -> None:
        """Put a list in force, unless the present one is newer (R10.3-18)."""
        number = found.trust.revocation_number
        if number <= self._trust.revocation_number:
            return
        self._trust = found.trust
        self.proof.revoked = frozenset(RevocationList.decode(found.revocations).serials)
        log_event(_LOG, logging.INFO, REVOCATION_LIST_UPDATED, number=number)

    def _is_revoked(self, who: Caller) -> bool:
        return who.serial is not None and who.serial in self.proof.revoked


def _stat_of(path: Path | None) -> tuple[int, int, int]:
    """Return a value that changes when a file is replaced or written."""
    try:
        found = None if path is None else path.stat()
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_ino, found.st_size) if found else (0, 0, 0)


def _log_first(who: Caller, address: str) -> None:
    """Log the first call of a caller."""
    log_event(
        _LOG,
        logging.INFO,
        EDGE_CLIENT_SEEN,
        identity=who.name,
        serial=who.serial,
        address=address,
    )


# A host name or an address, in lower case, and a port that is not 443.
_AUTHORITY: Final = re.compile(
    r"(?P<host>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])"
    r"(?::(?!443\Z)[1-9][0-9]{0,4})?"
)


def host_of(authority: str) -> str:
    """Return the host of an authority, without brackets.

    Raises:
        ServiceError: BAD_SETTINGS; the authority is not in the form that requests sign.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"edge.authority: {authority[:80]!r} is not a host name",
            fix="Write the host in lower case, and its port unless that is 443.",
        )
    return found["host"].strip("[]")


def check_origins(origins: Iterable[str]) -> None:
    """Check that each origin is in the form that browsers send.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    for origin in origins:
        scheme, separator, host = origin.partition("://")
        if (
            scheme not in ("https", "http")
            or not separator
            or not host
            or set(host) & set("/*?#@ ")
            or host != host.lower()
        ):
            raise ErrorCode.BAD_SETTINGS.error(
                f"edge.origins: {origin[:80]!r} is not an origin",
                fix="Write https:// and a host in lower case, without a path.",
            )
