"""Who is at the other end: the name inside a certificate, and its two spellings.

Rule 1: an identity is a URI among the subject alternative names,
        ``secagg://<trust-domain>/<role>/<name>`` or the same with ``spiffe://``.
        Nothing else in a certificate names anybody.
Rule 2: a certificate that names two identities names none.
Rule 3: names are plain enough to be file names, log fields and table cells.

It trusts nobody: whether the certificate is genuine is settled before, by TLS.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, Self

from secagg.errors import ErrorCode, ServiceError
from secagg.messages import MAX_IDENTITY_BYTES

__all__ = ["DEFAULT_TRUST_DOMAIN", "PeerIdentity", "Role"]

DEFAULT_TRUST_DOMAIN: Final = "secagg.local"

# The characters that SPIFFE allows in trust domains and path segments.
_TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_URI: Final = re.compile(
    r"(?:secagg|spiffe)://([^/]+)/(client|server)/([^/]+)", re.ASCII
)


@unique
class Role(StrEnum):
    """What the holder of a certificate may be."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """One named party of a deployment.

    Attributes:
        trust_domain: Whose names these are; one per deployment and CA.
        role: Client or server.
        name: What the protocol calls the identity; 1 to 255 characters.
    """

    trust_domain: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        """Refuse names that a certificate must not carry.

        Raises:
            ServiceError: BAD_CERTIFICATE; says which part is wrong.
        """
        if not _TRUST_DOMAIN.fullmatch(self.trust_domain):
            raise _bad(
                f"trust domain {self.trust_domain[:60]!r} is not 1 to 255 of the "
                "characters a-z 0-9 . _ -"
            )
        if (
            len(self.name) > MAX_IDENTITY_BYTES
            or self.name in {".", ".."}
            or not _NAME.fullmatch(self.name)
        ):
            raise _bad(
                f"name {self.name[:60]!r} is not 1 to {MAX_IDENTITY_BYTES} of the "
                "characters A-Z a-z 0-9 . _ - (and neither '.' nor '..')"
            )

    @property
    def uri(self) -> str:
        """The spelling that this package issues."""
        return f"secagg://{self.trust_domain}/{self.role}/{self.name}"

    @classmethod
    def from_uris(cls, uris: Iterable[str]) -> Self:
        """Return the identity that a certificate's URIs name.

        Args:
            uris: All URIs among the subject alternative names.

        Raises:
            ServiceError: BAD_CERTIFICATE when they name nobody, or more than one.
        """
        found = [match for uri in uris if (match := _URI.fullmatch(uri))]
        if len(found) != 1:
            raise _bad(
                f"the certificate names {len(found)} identities where one is needed, "
                "of the form secagg://<trust-domain>/client/<name>"
            )
        trust_domain, role, name = found[0].groups()
        return cls(trust_domain, Role(role), name)


def _bad(complaint: str) -> ServiceError:
    return ServiceError(
        complaint,
        code=ErrorCode.BAD_CERTIFICATE,
        next_step="Issue the certificate again, for example with `secagg pki`.",
    )
