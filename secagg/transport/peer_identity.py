"""The identity of a peer: the name inside a certificate, and its two spellings.

Rule 1: an identity is a URI among the subject alternative names,
        ``secagg://<trust-domain>/<role>/<name>`` or the same with ``spiffe://``.
        Nothing else in a certificate names a client.
Rule 2: a certificate with any other URI, or with two, has no identity: an unknown form
        is refused, not skipped.
Rule 3: names are plain enough to be file names, log fields and table cells.
Rule 4: an aggregator's identity has a second spelling, a DNS name that exists in
        certificates only.  TLS libraries compare it by themselves, for every connection
        (docs/decisions/0014).

TLS has verified the certificate before this module reads it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.messages import MAX_IDENTITY_BYTES

DEFAULT_TRUST_DOMAIN: Final = "secagg.local"

# Aggregators have DNS names below it.  `.internal` is reserved for private use, so that
# no public authority issues for it.
RESERVED_SUFFIX: Final = ".secagg.internal"
_SERVER_SUFFIX: Final = f".server{RESERVED_SUFFIX}"
_MAX_DNS_NAME: Final = 253  # RFC 1035

# The characters that SPIFFE allows in trust domains and path segments.
_TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# One DNS label.  Without dots, name and trust domain cannot be split in two ways.
# Without upper case, which DNS names ignore, spellings are unique.
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_URI: Final = re.compile(
    r"(?:secagg|spiffe)://([^/]+)/(client|server)/([^/]+)", re.ASCII
)


@unique
class Role(StrEnum):
    """The role of a certificate's holder."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """One named party of a deployment.

    Attributes:
        trust_domain: The domain of the names; one per deployment and CA.
        role: Client or server.
        name: The identity in the protocol; 1 to 255 characters, a server's 1 to 63 of
            a-z 0-9 -.
    """

    trust_domain: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        """Refuse names that a certificate must not carry.

        Raises:
            ServiceError: BAD_CERTIFICATE; states which part is wrong.
        """
        if not _TRUST_DOMAIN.fullmatch(self.trust_domain):
            raise _certificate_error(
                f"trust domain {self.trust_domain[:60]!r} is not 1 to 255 of the "
                "characters a-z 0-9 . _ -",
                _RENAME,
            )
        if (
            len(self.name) > MAX_IDENTITY_BYTES
            or self.name in {".", ".."}
            or not _NAME.fullmatch(self.name)
        ):
            raise _certificate_error(
                f"name {self.name[:60]!r} is not 1 to {MAX_IDENTITY_BYTES} of the "
                "characters A-Z a-z 0-9 . _ - (and neither '.' nor '..')",
                _RENAME,
            )
        # The common name repeats the name, cut to length, and gRPC's TLS takes it for
        # a DNS name where a certificate has none: a client must not spell a server's.
        if RESERVED_SUFFIX in self.name.lower():
            raise _certificate_error(
                f"names with {RESERVED_SUFFIX} in them are reserved", _RENAME
            )
        if self.role is Role.SERVER:
            self._check_dns_name()

    def _check_dns_name(self) -> None:
        """Refuse a server's name that no DNS name can carry."""
        if not _LABEL.fullmatch(self.name):
            raise _certificate_error(
                f"a server's name is 1 to 63 of the characters a-z 0-9 - "
                f"(- only inside), not {self.name[:60]!r}",
                _RENAME,
            )
        if len(self.dns_name) > _MAX_DNS_NAME or not all(
            _LABEL.fullmatch(label.replace("_", "-"))
            for label in self.trust_domain.split(".")
        ):
            raise _certificate_error(
                f"trust domain {self.trust_domain[:60]!r} does not consist of dotted "
                "DNS labels, or is too long",
                _RENAME,
            )

    @property
    def uri(self) -> str:
        """The spelling that this package issues."""
        return f"secagg://{self.trust_domain}/{self.role}/{self.name}"

    @property
    def dns_name(self) -> str:
        """An aggregator's second spelling; clients require it of every connection."""
        return f"{self.name}.{self.trust_domain}{_SERVER_SUFFIX}"

    @classmethod
    def from_uris(cls, uris: Iterable[str]) -> Self:
        """Return the identity that a certificate's URIs name.

        Args:
            uris: All URIs among the subject alternative names.

        Raises:
            ServiceError: BAD_CERTIFICATE for any but exactly one URI of the form of
                rule 1.
        """
        found = list(uris)
        match = _URI.fullmatch(found[0]) if len(found) == 1 else None
        if match is None:
            raise _certificate_error(
                f"the certificate's URIs are {[uri[:80] for uri in found[:3]]!r}"
                f"{' ...' if len(found) > 3 else ''}, where exactly one of the form "  # noqa: PLR2004 - as many as are shown
                "secagg://<trust-domain>/client/<name> is needed"
            )
        trust_domain, role, name = match.groups()
        return cls(trust_domain, Role(role), name)


_RENAME: Final = "Choose another name, and replace a certificate that has this one."


def _certificate_error(
    complaint: str,
    next_step: str = "Issue the certificate again, for example with `secagg pki`.",
) -> SecAggError:
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)
