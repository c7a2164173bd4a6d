"""Where the processes of one load test find each other's files."""

from dataclasses import dataclass
from pathlib import Path

from secagg.enrolment.development import DevelopmentEnrolment

__all__ = ["TASK_ID", "LoadLayout", "client_name"]

TASK_ID = "load"


def client_name(number: int) -> str:
    """Return the identity of a client, counted from 1."""
    return f"client-{number}"


@dataclass(frozen=True, slots=True)
class LoadLayout:
    """The directory of one run."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates of everybody."""
        return self.root / "pki"

    @property
    def enrolment(self) -> DevelopmentEnrolment:
        """The issuer and everybody's identity."""
        return DevelopmentEnrolment(self.pki)

    @property
    def server_settings(self) -> Path:
        """The aggregator's settings file."""
        return self.root / "server.toml"

    @property
    def released(self) -> Path:
        """The sum as the aggregator released it, modulo m."""
        return self.root / "released.npy"

    def log(self, name: str) -> Path:
        """Standard error of a process."""
        return self.root / "logs" / f"{name}.log"
