"""Certificates of a world, and the check of them at aggregators.

Rule 1: who calls, whose certificate was taken back and how long that takes to be
        noticed is decided by the product's own parts.  Only the connection from which
        gRPC would take the certificate is missing.
Rule 2: names and numbers of certificates differ from process to process, and enter no
        trace.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar, cast

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.certificate_revocations import CertificateRevocations, RevocationFile
from secagg.protocol.messages import Envelope
from secagg.runtime.clock import SystemClock
from secagg.server.call_guards import OpenCalls
from secagg.server.rpc.certificates import CertificateWatch
from secagg.server.rpc.guards import AuthenticationGuard, TLSAuthenticator
from secagg.transport.channel_options import SERVICE
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR, AggregatorConnection
from secagg.transport.peer_identity import Role
from secagg.transport.tls import ReloadingIdentity, TLSIdentity
from secagg.wire.calls import CALLS, Reference, Request, WatchSession
from secagg_testing.tls_deployment import crl_of
from secagg_testing.world.dice import entropy_of
from secagg_testing.world.loop import Process

_Answer = TypeVar("_Answer")
_DOMAIN: Final = "world.example"


class TakenBack:
    """The revocation file of one world."""

    def __init__(self) -> None:
        self._directory: Final = TemporaryDirectory(prefix="secagg-world-")
        self.path: Final = Path(self._directory.name) / "revoked"
        self._names: list[str] = []
        self._write()

    def revoke(self, name: str) -> None:
        """Put a client's certificate into the file."""
        self._names.append(name)
        self._write()

    def close(self) -> None:
        """Remove the file."""
        self._directory.cleanup()

    def _write(self) -> None:
        revoked = [_certificate(name) for name in self._names]
        # Numbers grow with the names; a world lives for less than the list's 90 days.
        crl = crl_of(_authority(), *revoked, number=len(revoked) + 1, now=_made_at())
        self.path.write_bytes(crl)


class Door:
    """The check of callers by one process of an aggregator.

    Args:
        process: The aggregator's.
        taken_back: Read at its start, and then once a minute.
    """

    def __init__(self, process: Process, taken_back: TakenBack) -> None:
        clock = SystemClock()
        revoked = CertificateRevocations(
            RevocationFile(path=taken_back.path), lambda: _aggregator().authorities
        )
        open_calls = OpenCalls()
        self._calls: Final = AuthenticationGuard(
            TLSAuthenticator(_DOMAIN, revoked), open_calls
        )
        watch = CertificateWatch(
            ReloadingIdentity(_aggregator(), clock.date),
            revoked,
            clock,
            lambda: open_calls.end(lambda who: who.certificate in revoked),
        )
        process.start(watch.run())

    def guarded(self, inner: AggregatorConnection) -> AggregatorConnection:
        """Return a client's connection with the certificate check."""
        return _Guarded(inner, self._calls)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A connection whose every call shows a certificate."""

    inner: AggregatorConnection
    calls: AuthenticationGuard
    aggregator: str = UNCERTIFIED_AGGREGATOR

    @property
    def identity(self) -> str:
        """See `AggregatorConnection.identity`."""
        return self.inner.identity

    async def probe(self) -> str:
        """See `AggregatorConnection.probe`."""
        return await self.inner.probe()

    @property
    def trust_domain(self) -> str | None:
        """See `AggregatorConnection.trust_domain`."""
        return self.inner.trust_domain

    @property
    def is_direct(self) -> bool:
        """See `AggregatorConnection.is_direct`."""
        return self.inner.is_direct

    async def call(self, request: Request[_Answer]) -> _Answer:
        """See `AggregatorConnection.call`."""

        async def answer(_: object, __: object) -> Any:
            return await self.inner.call(request)

        guarded = self.calls.guarded(_method(request), answer)
        answered: Any = await guarded(_NO_BODY, _shown_by(self.identity))
        return cast("_Answer", answered)

    async def watch(self, request: WatchSession) -> AsyncIterator[Envelope | Reference]:
        """See `AggregatorConnection.watch`."""

        async def answer(_: object, __: object) -> AsyncIterator[Any]:
            async for update in self.inner.watch(request):
                yield update

        guarded = self.calls.guarded_stream(_method(request), answer)
        async for update in guarded(_NO_BODY, _shown_by(self.identity)):
            yield update


def _method(request: Request[Any]) -> str:
    return f"/{SERVICE}/{CALLS[type(request)].name}"


def _shown_by(name: str) -> Any:
    return _Context(name)


_NO_BODY: Final[Any] = None


@dataclass(frozen=True, slots=True)
class _Context:
    """The connection of one call, as gRPC shows it."""

    name: str

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the TLS properties of the connection."""
        return {
            "transport_security_type": [b"ssl"],
            "x509_pem_cert": [_certificate(self.name)],
        }


# --- made once for all worlds of this process -----------------------------------------


@cache
def _authority() -> CertificateAuthority:
    return CertificateAuthority.create(_DOMAIN, entropy=entropy_of(0, "authority"))


@cache
def _made_at() -> float:
    return _authority().certificate.not_valid_before_utc.timestamp()


@cache
def _certificate(name: str) -> bytes:
    entropy = entropy_of(0, f"certificate of {name}")
    return _authority().issue_client(name, entropy=entropy).certificate


@cache
def _aggregator() -> TLSIdentity:
    entropy = entropy_of(0, "certificate of the aggregator")
    issued = _authority().issue_server("aggregator", ["127.0.0.1"], entropy=entropy)
    with TemporaryDirectory() as directory:
        _authority().issued().write(Path(directory), "ca")
        issued.write(Path(directory), "server")
        return TLSIdentity.load(
            certificate=Path(directory) / "server.pem",
            private_key=Path(directory) / "server.key",
            authority=Path(directory) / "ca.pem",
            role=Role.SERVER,
        )
