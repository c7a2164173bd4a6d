"""The folder of a command that runs an aggregator and its clients on this host.

It holds what every such run needs: certificates and identities of all parties, the
aggregator's settings, a log of each process.  Other files in it are the command's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import SystemEntropy
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.development import DevelopmentEnrolment
from secagg.pki.key_files import key_text

_SETTINGS_HEAD: Final = """\
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"

[server]
listen = "127.0.0.1:0"
state_dir = "{name}-state"
rollback_mark = "{name}-mark"
output_dir = "released"
"""


def settings_head(name: str = "server") -> str:
    """Return how an aggregator's settings begin; more of its section may follow.

    Args:
        name: What its own folders begin with.
    """
    return _SETTINGS_HEAD.format(name=name)


def client_name(number: int) -> str:
    """Return the identity of a client, counted from 1."""
    return f"client-{number}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The directory of one run."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates of all parties."""
        return self.root / "pki"

    @property
    def enrolment(self) -> DevelopmentEnrolment:
        """The issuer and the identities of all clients."""
        return DevelopmentEnrolment(self.pki)

    @property
    def server_settings(self) -> Path:
        """The aggregator's settings file."""
        return self.root / "server.toml"

    def log(self, name: str) -> Path:
        """Standard error of a process."""
        return self.root / "logs" / f"{name}.log"

    def issue_certificates(self, names: Sequence[str]) -> CertificateAuthority:
        """Issue certificates to the aggregator and to these clients.

        Args:
            names: Identities of the clients.

        Returns:
            Who issued them, to be forgotten with the run.
        """
        authority = CertificateAuthority.create()
        authority.issued().write(self.pki, "ca")
        authority.issue_server("aggregator", ["127.0.0.1"]).write(self.pki, "server")
        for name in names:
            authority.issue_client(name).write(self.pki, name)
        return authority

    def enrol(self, names: Sequence[str], authority: CertificateAuthority) -> str:
        """Make an issuer of this run's own, and an identity of each client.

        Args:
            names: Identities of the clients.
            authority: Who issued their certificates.

        Returns:
            The enrolment key, as people write it.
        """
        _, key = DevelopmentEnrolment.create(
            self.enrolment.directory,
            trust_domain=authority.trust_domain,
            names=names,
            now=int(time.time()),
            entropy=SystemEntropy(),
        )
        return key_text(key)
