"""The files of one load test."""

from dataclasses import dataclass
from pathlib import Path

from secagg.testbed.run_folder import RunFolder

TASK_ID = "load"


@dataclass(frozen=True, slots=True)
class LoadLayout(RunFolder):
    """The directory of one run."""

    def settings_of(self, server: int) -> Path:
        """Settings file of one aggregator, counted from 1."""
        return self.root / f"server-{server}.toml"

    @property
    def blobs(self) -> Path:
        """The blobs that aggregators of one store share."""
        return self.root / "blobs"

    @property
    def released(self) -> Path:
        """The sum as the aggregator released it, modulo m."""
        return self.root / "released.npy"
