"""The signed headers by which a request at the HTTP edge proves its caller.

Rule 1: there is one form; a difference of a byte is refused, so that no parser of RFC
        9421 runs before the signature is verified.
Rule 2: the signed bytes cover method, authority, path, body and credential.  Both sides
        take the authority from their settings, never from a header.

`secagg.server.http_edge.proof` checks a request.

Source: PROTOCOL §10.3; RFC 9421, RFC 9530.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from secagg.crypto.signature import SIGNATURE_SIZE, IdentityKey
from secagg.protocol.enrolment import IssuedCredential
from secagg.transport.channel_options import SERVICE

CONTENT_TYPE: Final = "application/proto"
_TAG: Final = "secagg-edge"

WINDOW_SECONDS: Final = 60
"""How far a proof's time may be from the server's, either way."""
MAX_CLOCK_CORRECTION_SECONDS: Final = 3600
"""Most that a client corrects its clock by (R10.3-3)."""
MAX_CREDENTIAL_TEXT: Final = 1024
"""Characters of `Secagg-Credential`; two names of 255 bytes take 847."""

# A header of its own: platforms reserve `Authorization` for themselves (URLSession).
_COVERED: Final = (
    '("@method" "@authority" "@path" "content-digest" "secagg-credential")'
)
_PARAMETERS: Final = re.compile(
    re.escape(_COVERED)
    + r";created=(0|[1-9][0-9]{0,10})"
    + r';keyid="([A-Za-z0-9_-]{43})"'
    + re.escape(f';alg="ed25519";tag="{_TAG}"')
    + r"\Z"
)


def path_of(method: str) -> str:
    """Return the path of a call, by the name of its request."""
    return f"/{SERVICE}/{method}"


def content_digest(body: bytes) -> str:
    """Return the value of `Content-Digest` for a body."""
    return f"sha-256=:{base64.b64encode(sha256(body).digest()).decode()}:"


def key_id(identity_key: bytes) -> str:
    """Return a proof's name of its key: 43 characters."""
    return _url_text(sha256(identity_key).digest())


def signature_base(
    *, authority: str, path: str, digest: str, credential: str, parameters: str
) -> bytes:
    """Return the bytes that the identity key signs (PROTOCOL §10.3).

    Args:
        authority: Of the edge, from the settings.
        path: Of the request.
        digest: Value of `Content-Digest`.
        credential: Value of `Secagg-Credential`.
        parameters: The text behind ``sig=`` in `Signature-Input`.
    """
    return (
        f'"@method": POST\n"@authority": {authority}\n"@path": {path}\n'
        f'"content-digest": {digest}\n"secagg-credential": {credential}\n'
        f'"@signature-params": {parameters}'
    ).encode()


@dataclass(frozen=True, slots=True)
class ProofParameters:
    """The parameters in `Signature-Input`.

    Attributes:
        created: When the request was signed, in Unix seconds.
        key: Its name of the key, as `key_id`.
        text: All of it, as received: the signed text.
    """

    created: int
    key: str
    text: str

    @classmethod
    def read(cls, value: str) -> "ProofParameters | None":
        """Read the header's value; None for another form than the one permitted."""
        if not value.startswith("sig="):
            return None
        text = value[len("sig=") :]
        found = _PARAMETERS.match(text)
        return None if found is None else cls(int(found[1]), found[2], text)


def read_held_credential(text: str) -> bytes | None:
    """Return the bytes in `Secagg-Credential`; None for another form."""
    if not 0 < len(text) <= MAX_CREDENTIAL_TEXT or "=" in text:
        return None
    return _decode_base64(text + "=" * (-len(text) % 4), b"-_")


def read_signature(value: str) -> bytes | None:
    """Return the 64 bytes in `Signature`; None for another form."""
    data = _decode_between(value, "sig=:")
    return data if data is not None and len(data) == SIGNATURE_SIZE else None


def read_digest(value: str) -> bytes | None:
    """Return the 32 bytes in `Content-Digest`; None for another form."""
    data = _decode_between(value, "sha-256=:")
    return data if data is not None and len(data) == sha256().digest_size else None


def _decode_between(value: str, start: str) -> bytes | None:
    """Return the bytes of strict base64 between a start and a colon."""
    if not value.startswith(start) or not value.endswith(":"):
        return None
    return _decode_base64(value[len(start) : -1], b"+/")


def _decode_base64(text: str, last: bytes) -> bytes | None:
    """Return the bytes of strict base64; `last` are its last two characters."""
    try:
        data = base64.b64decode(text.encode("ascii"), last, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    # Bits beyond the last byte would give one value many texts.
    return data if base64.b64encode(data, last).decode() == text else None


def _url_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class RequestSigner:
    """Signs a client's requests to one edge.

    Attributes:
        authority: Of the edge: its host in lower case, and its port unless that is 443.
        issued: The client's credential.
        key: Its identity key.
    """

    authority: str
    issued: IssuedCredential
    key: IdentityKey = field(repr=False)

    def headers(self, path: str, body: bytes, *, created: int) -> dict[str, str]:
        """Return the five headers of a request (R10.3-2).

        Args:
            path: Of the request, from `path_of`.
            body: Its whole body.
            created: The time to state, in Unix seconds.
        """
        digest = content_digest(body)
        credential = _url_text(self.issued.encode())
        key = key_id(self.key.public_bytes)
        parameters = (
            f'{_COVERED};created={created};keyid="{key}";alg="ed25519";tag="{_TAG}"'
        )
        signature = self.key.sign(
            signature_base(
                authority=self.authority,
                path=path,
                digest=digest,
                credential=credential,
                parameters=parameters,
            )
        )
        return {
            "Secagg-Credential": credential,
            "Content-Type": CONTENT_TYPE,
            "Content-Digest": digest,
            "Signature-Input": f"sig={parameters}",
            "Signature": f"sig=:{base64.b64encode(signature).decode()}:",
        }
