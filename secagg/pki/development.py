"""An issuer and its clients in one directory tree, for development and demonstrations.

In production the issuer is a host of its own, and each identity is made where it is
used (docs/enrolment.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from secagg.crypto.entropy import Entropy
from secagg.pki.client_identity import (
    CREDENTIAL,
    IDENTITY_SEED,
    new_identity,
    write_credential,
)
from secagg.pki.credential_issuer import CREDENTIAL_DAYS, Issuer


@dataclass(frozen=True, slots=True)
class DevelopmentEnrolment:
    """The directory of an issuer and of all identities.

    Attributes:
        directory: Root of the tree.
    """

    directory: Path

    @property
    def issuer(self) -> Path:
        """The issuer's directory."""
        return self.directory / "issuer"

    @property
    def identities(self) -> Path:
        """The parent of each client's directory."""
        return self.directory / "identities"

    def seed(self, name: str) -> Path:
        """A client's private key."""
        return self.identities / name / IDENTITY_SEED

    def credential(self, name: str) -> Path:
        """The issuer's credential for that key."""
        return self.identities / name / CREDENTIAL

    @classmethod
    def create(  # noqa: PLR0913 - what an issuer and its credentials need
        cls,
        directory: Path,
        *,
        trust_domain: str,
        names: Iterable[str],
        now: int,
        entropy: Entropy,
        days: int = CREDENTIAL_DAYS,
    ) -> tuple[Self, bytes]:
        """Make an issuer and enrol clients.

        Args:
            directory: Made when it does not exist.
            trust_domain: Of the deployment.
            names: Of the clients, as in their certificates.
            now: Unix seconds.
            entropy: Source of the keys.
            days: How long the credentials are valid.

        Returns:
            The tree, and the enrolment key that clients pin, 32 bytes.

        Raises:
            SecAggError: BAD_CREDENTIAL for an invalid name; STORAGE_FAILED, also when
                there is an issuer already.
        """
        made = cls(directory)
        key = Issuer.create(made.issuer, trust_domain=trust_domain, entropy=entropy)
        with Issuer.open(made.issuer) as issuer:
            for name in names:
                request = new_identity(
                    made.identities / name,
                    trust_domain=trust_domain,
                    name=name,
                    now=now,
                    entropy=entropy,
                )
                signed = issuer.sign(request, now=now, days=days)
                write_credential(made.credential(name), signed)
        return made, key
