"""Requests at the HTTP edge without a network: an issuer, its clients, and ASGI.

Test support.
"""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.enrolment import ClientIdentity, Credential, IssuedCredential
from secagg.transport.request_proof import RequestSigner, path_of
from secagg.wire.calls import Request
from secagg.wire.errors import decode_error

TRUST_DOMAIN = "ours.example"
PEER = "192.0.2.7"

Headers = Sequence[tuple[str, str]]


def key_of(number: int) -> IdentityKey:
    """Return one of many keys."""
    return IdentityKey.from_bytes(SecretBytes(number.to_bytes(32, "big")))


@dataclass(frozen=True, slots=True)
class EdgeIssuer:
    """An issuer of credentials in memory.

    Attributes:
        key: Its enrolment key.
        now: When its credentials begin, in Unix seconds.
    """

    key: IdentityKey = field(default_factory=lambda: key_of(1 << 200))
    now: int = 1_800_000_000

    def identity(self, name: str, serial: int = 7, **changes: Any) -> ClientIdentity:
        """Return a client with a key of its own and a credential for it."""
        key = key_of(serial)
        credential = Credential(
            name=name,
            identity_key=key.public_bytes,
            not_before=changes.pop("not_before", self.now - 1000),
            not_after=changes.pop("not_after", self.now + 10_000_000),
            serial=serial,
        ).signed_by(changes.pop("signed_by", self.key), TRUST_DOMAIN)
        domain = changes.pop("trust_domain", TRUST_DOMAIN)
        return ClientIdentity(
            key, IssuedCredential(domain, credential), self.key.public_bytes
        )


@dataclass(slots=True)
class EdgeRequest:
    """One request, which a test may change before it is sent.

    Attributes:
        path: With a query, if it has one.
        headers: By name in lower case.
        body: Whole.
        method: Of HTTP.
        more: Additional or repeated headers.
    """

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"
    more: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def signed(
        cls,
        identity: ClientIdentity,
        request: Request[Any],
        *,
        authority: str,
        created: int,
    ) -> "EdgeRequest":
        """Return the request of an honest client."""
        body, path = request.encode(), path_of(type(request).__name__)
        signer = RequestSigner(authority, identity.issued, identity.key)
        made = signer.headers(path, body, created=created)
        headers = {name.lower(): value for name, value in made.items()}
        return cls(path, headers | {"content-length": str(len(body))}, body)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return them as ASGI has them."""
        listed = [*self.headers.items(), *self.more]
        return [(name.lower().encode(), value.encode()) for name, value in listed]

    def head(self, host: str) -> bytes:
        """Return the head of the request as HTTP/1.1 has it."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {host}"]
        lines += [f"{n}: {v}" for n, v in [*self.headers.items(), *self.more]]
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class EdgeAnswer:
    """The answer to a request.

    Attributes:
        status: Of HTTP.
        headers: By name; the last one of each.
        body: Whole.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> SecAggError | None:
        """The error in its detail, if it has one."""
        if self.headers.get("content-type") != "application/json":
            return None
        value = json.loads(self.body)["details"][0]["value"]
        return decode_error(base64.b64decode(value + "=" * (-len(value) % 4)))

    @property
    def code(self) -> ErrorCode | None:
        """The code of its error."""
        return None if self.error is None else self.error.code


async def call_app(app: Any, request: EdgeRequest, *, peer: str = PEER) -> EdgeAnswer:
    """Hand a request to an application, and return its answer."""
    pieces = [request.body[:3], request.body[3:]]
    sent: list[dict[str, Any]] = []
    query = request.path.partition("?")[2]

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": request.method,
        "raw_path": request.path.encode(),  # whole, as the edge's protocol hands it on
        "query_string": query.encode(),
        "headers": request.raw_headers(),
        "client": (peer, 4321),
    }
    await app(scope, receive, send)
    start, body = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return EdgeAnswer(start["status"], headers, body["body"])
