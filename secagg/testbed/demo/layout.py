"""The files of one demo, the processes that may read them, and what it is asked for.

Rule 1: a client's process is given its own certificate, shard and state, and the
        authority's certificate; nothing of another client.
Rule 2: the audit files exist for the demo's arithmetic check only.  A client writes the
        integers that it is about to mask, noise included, where the parent process can
        read them; no program outside `secagg.testbed.demo` does so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secagg.protocol.parameters import Graph
from secagg.testbed.demo.model import DIMENSION, L2_CLIP
from secagg.testbed.run_folder import (
    ROUNDS_OF_ANSWERS,
    RunFolder,
    RunPlan,
    SettingsTables,
)

TASK_ID = "digits"


@dataclass(frozen=True, slots=True)
class DemoLayout(RunFolder):
    """The directory of one run."""

    def residues(self, session_number: int) -> Path:
        """The released sum as integers modulo m."""
        return self.root / "released" / f"residues-{session_number}.npy"

    def model(self, session_number: int) -> Path:
        """The model after a session."""
        return self.root / "released" / f"model-{session_number}.npy"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan(RunPlan):
    """The parameters of the demo; each client is one user.

    Attributes:
        steps: Training steps, one session each.
        epsilon: Budget of all steps together, against the server.
        delta: Of all steps together.
        mechanism: How noise is made.
        join_seconds: How long a session waits for clients that are being restarted.
        adaptive_clip: Let the clip follow the median length of the clients' vectors.
        xnoise: Survivors remove noise that no dropout has made necessary.
        losses: Clients to be killed, by name: in which session, and before which
            message, one of `secagg.testbed.connections.PAUSES`.
        graph_delta: Failure chance of drawn neighbours, which clients accept beside
            `delta`; known once the task is planned.
    """

    steps: int
    epsilon: float
    delta: float
    mechanism: str
    join_seconds: int
    adaptive_clip: bool = False
    xnoise: bool = True
    losses: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    graph_delta: float = 0.0

    @property
    def min_survivors(self) -> int:
        """Inputs that every sum must have: one client in eight may drop out."""
        return self.clients - self.clients // 8

    @property
    def min_clients(self) -> int:
        """Clients that must join."""
        return min(self.clients, self.min_survivors + 1)

    def settings(self) -> SettingsTables:
        """Return what the aggregator is asked for."""
        return {
            "task": {"id": TASK_ID, "steps": self.steps, "profile": self.profile.label},
            "vector": {"dimension": DIMENSION},
            "cohort": {
                "min_clients": self.min_clients,
                "max_clients": self.clients,
                "min_survivors": self.min_survivors,
                "degree": "auto" if self.graph is Graph.K_OUT else 0,
            },
            "noise": {
                "mechanism": self.mechanism,
                "rotation": "dft",
                "epsilon": float(self.epsilon),
                "delta": float(self.delta),
                "l2_clip": L2_CLIP,
                "clip_quantile": 0.5 if self.adaptive_clip else "",
                # Empty: as many rungs as the mechanism allows and the losses make
                # useful.
                "ladder": "" if self.xnoise else 0,
            },
            "rounds": {
                "advertise_keys": self.join_seconds,
                **dict.fromkeys(ROUNDS_OF_ANSWERS, self.round_seconds),
            },
            "enrolment": {"enrolment_key": self.enrolment_key},
        }
