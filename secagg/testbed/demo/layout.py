"""The files of one demo, and the processes that may read them.

Rule 1: a client's process is given its own certificate, shard and state, and the
        authority's certificate; nothing of another client.
Rule 2: the audit files exist for the demo's arithmetic check only.  A client writes the
        integers that it is about to mask, noise included, where the parent process can
        read them; no program outside `secagg.testbed.demo` does so.
"""

from dataclasses import dataclass
from pathlib import Path

from secagg.testbed.run_folder import RunFolder

TASK_ID = "digits"


@dataclass(frozen=True, slots=True)
class DemoLayout(RunFolder):
    """The directory of one run."""

    @property
    def server_state(self) -> Path:
        """The aggregator's journal and spool."""
        return self.root / "server-state"

    @property
    def released(self) -> Path:
        """What the aggregator released."""
        return self.root / "released"

    def residues(self, session_number: int) -> Path:
        """The released sum as integers modulo m."""
        return self.released / f"residues-{session_number}.npy"

    def model(self, session_number: int) -> Path:
        """The model after a session."""
        return self.released / f"model-{session_number}.npy"

    def shard(self, name: str) -> Path:
        """A client's pictures."""
        return self.root / "clients" / name / "shard.npz"

    def client_state(self, name: str) -> Path:
        """A client's records."""
        return self.root / "clients" / name / "state"

    def layers(self, name: str, session_number: int) -> Path:
        """Seeds of the noise that a client may have revealed, for the same check."""
        return self.root / "audit" / name / f"layers-{session_number}.npy"

    def audit(self, name: str, session_number: int) -> Path:
        """The noisy integers that a client masked, for the check of exactness."""
        return self.root / "audit" / name / f"session-{session_number}.npy"
