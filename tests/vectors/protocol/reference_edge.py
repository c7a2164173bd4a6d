"""§10.3: requests at the HTTP edge, how they are signed, and which are refused."""

import base64
import binascii
import hashlib
from dataclasses import dataclass, field, replace

from reference import BAD_ENCODING, BAD_VERSION, Decoder, Refused, Trust, text
from reference_enrolment import Credential, check_credential, read_name
from reference_signature import holds, identity_key, sign

UNAUTHENTICATED = 41
NOT_INVITED = 42
SERVICE = "/secagg.v1.SecAggService/"
UNARY = {
    "GetOffer",
    "AdvertiseKeys",
    "ChooseEdges",
    "ShareKeys",
    "ReportViolation",
    "GetUploadStatus",
    "UploadChunk",
    "SignConsistency",
    "RevealShares",
    "GetUpdate",
    "FetchChunk",
}
MOST_BODY = 4194304
WINDOW = 60
PARTS = '"@method" "@authority" "@path" "content-digest" "secagg-credential"'


class EdgeRefused(Refused):
    """A request is refused by a rule, with a status of HTTP and a code."""

    def __init__(self, rule: str, status: int, code: int) -> None:
        super().__init__(code)
        self.rule = rule
        self.status = status


def url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def strict64(words: str) -> bytes:
    try:
        data = base64.b64decode(words, validate=True)
    except (ValueError, binascii.Error):
        raise Refused(UNAUTHENTICATED) from None
    if base64.b64encode(data).decode() != words:
        raise Refused(UNAUTHENTICATED)
    return data


@dataclass(frozen=True)
class Edge:
    """What a server is told of itself."""

    authority: str
    trust: Trust
    revoked: frozenset[int]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class HTTPRequest:
    """A request, as it came."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    def set(self, name: str, *values: str) -> "HTTPRequest":
        rest = tuple(each for each in self.headers if each[0].lower() != name.lower())
        return replace(self, headers=(*rest, *((name, value) for value in values)))


@dataclass(frozen=True)
class Signer:
    """A client."""

    name: str
    seed: bytes
    credential: Credential
    trust_domain: str = field(default="example.org")

    def held(self) -> bytes:
        names = text(self.trust_domain) + text(self.name)
        return b"\1" + names + self.credential.encode()

    def request(  # noqa: PLR0913 - one argument per part that may be another
        self,
        call: str,
        body: bytes,
        created: int,
        authority: str,
        *,
        signed_by: bytes = b"",
        signed_path: str = "",
        parameters: str = "",
    ) -> HTTPRequest:
        held = url64(self.held())
        digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
        key = url64(hashlib.sha256(identity_key(self.seed)).digest())
        stated = parameters or (
            f'({PARTS});created={created};keyid="{key}";alg="ed25519";tag="secagg-edge"'
        )
        path = SERVICE + call
        base = signature_base(authority, signed_path or path, digest, held, stated)
        signature = sign(signed_by or self.seed, base)
        return HTTPRequest(
            "POST",
            path,
            (
                ("Secagg-Credential", held),
                ("Content-Type", "application/proto"),
                ("Content-Length", str(len(body))),
                ("Content-Digest", digest),
                ("Signature-Input", "sig=" + stated),
                ("Signature", f"sig=:{base64.b64encode(signature).decode()}:"),
            ),
            body,
        )


def signature_base(
    authority: str, path: str, digest: str, held: str, stated: str
) -> bytes:
    lines = (
        ("@method", "POST"),
        ("@authority", authority),
        ("@path", path),
        ("content-digest", digest),
        ("secagg-credential", held),
        ("@signature-params", stated),
    )
    return "\n".join(f'"{name}": {value}' for name, value in lines).encode()


def check(request: HTTPRequest, edge: Edge, now: int) -> str:
    """Return the caller's name; R10.3-5 to R10.3-15 but for what is counted."""
    origins = request.all("origin")
    if origins and (len(origins) > 1 or origins[0] not in edge.origins):
        raise EdgeRefused("R10.3-5", 403, NOT_INVITED)
    name = request.path.removeprefix(SERVICE)
    known = request.path.startswith(SERVICE) and name in UNARY
    if request.method != "POST" or not known:
        raise EdgeRefused("R10.3-6", 404, BAD_VERSION)
    _check_headers(request)
    held, credential_name, credential = _credential(request, edge)
    _check_form(request, credential, now)
    try:
        check_credential(credential, credential_name, edge.trust, now, edge.revoked)
    except Refused:
        rule = _broken(credential, edge, now)
        raise EdgeRefused(rule, 401, UNAUTHENTICATED) from None
    base = signature_base(
        edge.authority,
        request.path,
        request.all("content-digest")[0],
        held,
        request.all("signature-input")[0].removeprefix("sig="),
    )
    signature = strict64(request.all("signature")[0][len("sig=:") : -1])
    if not holds(credential.key, base, signature):
        raise EdgeRefused("R10.3-13", 401, UNAUTHENTICATED)
    stated = request.all("content-digest")[0]
    digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
    length = int(request.all("content-length")[0])
    if length != len(request.body) or stated != f"sha-256=:{digest}:":
        raise EdgeRefused("R10.3-15", 400, BAD_ENCODING)
    return credential_name


def _check_headers(request: HTTPRequest) -> None:
    for name in (
        "secagg-credential",
        "content-type",
        "content-digest",
        "signature-input",
        "signature",
    ):
        if len(request.all(name)) != 1:
            raise EdgeRefused("R10.3-7", 400, BAD_ENCODING)
    if request.all("content-type") != ["application/proto"] or request.all(
        "content-encoding"
    ):
        raise EdgeRefused("R10.3-7", 415, BAD_ENCODING)
    length = request.all("content-length")
    digits = set("0123456789")
    if (
        len(length) != 1
        or not set(length[0]) <= digits
        or len(length[0]) not in range(1, 11)
    ):
        raise EdgeRefused("R10.3-8", 411, BAD_ENCODING)
    if int(length[0]) > MOST_BODY:
        raise EdgeRefused("R10.3-8", 413, BAD_ENCODING)


def _credential(request: HTTPRequest, edge: Edge) -> tuple[str, str, Credential]:
    value = request.all("secagg-credential")[0]
    try:
        trust_domain, name, credential = _held(value)
    except Refused:
        raise EdgeRefused("R10.3-9", 401, UNAUTHENTICATED) from None
    if trust_domain != edge.trust.trust_domain:
        raise EdgeRefused("R10.3-9", 401, UNAUTHENTICATED)
    return value, name, credential


def _held(value: str) -> tuple[str, str, Credential]:
    if not 0 < len(value) <= 1024 or set(value) & set("+/="):
        raise Refused(UNAUTHENTICATED)
    plain = value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4)
    decoder = Decoder(strict64(plain))
    if decoder.number(1) != 1:
        raise Refused(UNAUTHENTICATED)
    held = read_name(decoder), read_name(decoder), Credential.read(decoder)
    decoder.end()
    return held


def _check_form(request: HTTPRequest, credential: Credential, now: int) -> None:
    refused = EdgeRefused("R10.3-10", 401, UNAUTHENTICATED)
    for header, start, size in (
        ("content-digest", "sha-256=:", 32),
        ("signature", "sig=:", 64),
    ):
        value = request.all(header)[0]
        if not (value.startswith(start) and value.endswith(":")):
            raise refused
        try:
            data = strict64(value[len(start) : -1])
        except Refused:
            raise refused from None
        if len(data) != size:
            raise refused
    stated = request.all("signature-input")[0]
    key = url64(hashlib.sha256(credential.key).digest())
    start = f"sig=({PARTS});created="
    end = f';keyid="{key}";alg="ed25519";tag="secagg-edge"'
    if not (stated.startswith(start) and stated.endswith(end)):
        raise refused
    created = stated[len(start) : -len(end)]
    plain = created.isascii() and created.isdigit() and len(created) <= 11
    if not plain or created != str(int(created)) or abs(int(created) - now) > WINDOW:
        raise refused


def _broken(credential: Credential, edge: Edge, now: int) -> str:
    """Return whether what was signed is at fault, or the signature over it."""
    valid = credential.not_before <= now <= credential.not_after
    if not valid or credential.serial in edge.revoked:
        return "R10.3-11"
    return "R10.3-12"
