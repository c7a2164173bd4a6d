"""The files of one demo, the processes that may read them, and the demo's numbers.

Rule 1: a client's process is given its own certificate, shard and state, and the
        authority's certificate; nothing of another client.
Rule 2: the audit files exist for the demo's arithmetic check only.  A client writes the
        integers that it is about to mask, noise included, where the parent process can
        read them; no program outside `secagg.testbed.demo` does so.

The aggregator's settings file is made of the numbers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config import ServerSettings, load_server_settings
from secagg.protocol.parameters import Graph
from secagg.protocol.profiles import Profile
from secagg.testbed.demo.model import DIMENSION, L2_CLIP
from secagg.testbed.run_folder import RunFolder, settings_head

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


_TEMPLATE: Final = """\
# Written by `secagg demo`; the same kind of file as deploy/config/server.full.toml.
{head}
[task]
id = "{task}"
steps = {steps}
profile = "{profile}"

[vector]
dimension = {dimension}

[cohort]
min_clients = {min_clients}
max_clients = {clients}
min_survivors = {min_survivors}
degree = {degree}

[noise]
mechanism = "{mechanism}"
rotation = "dft"
epsilon = {epsilon}
delta = {delta}
l2_clip = {l2_clip}
clip_quantile = {clip_quantile}
ladder = {ladder}

[rounds]
advertise_keys = {join_seconds}
choose_edges = {round_seconds}
share_keys = {round_seconds}
masked_input = {round_seconds}
consistency = {round_seconds}
unmasking = {round_seconds}

[enrolment]
enrolment_key = "{enrolment_key}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The parameters of the demo.

    Attributes:
        clients: Client processes; each is one user.
        steps: Training steps, one session each.
        epsilon: Budget of all steps together, against the server.
        delta: Of all steps together.
        mechanism: How noise is made.
        round_seconds: How long a round waits for clients that will not answer.
        join_seconds: How long a session waits for clients that are being restarted.
        adaptive_clip: Let the clip follow the median length of the clients' vectors.
        profile: Named threat model.
        xnoise: Survivors remove noise that no dropout has made necessary.
    """

    clients: int
    steps: int
    epsilon: float
    delta: float
    mechanism: str
    round_seconds: int
    join_seconds: int
    adaptive_clip: bool = False
    profile: Profile = Profile.HONEST_CURIOUS_SERVER
    xnoise: bool = True

    @property
    def graph(self) -> Graph:
        """The graph: complete, if the profile has it."""
        is_sparse = self.profile is Profile.MALICIOUS_SERVER_SPARSE
        return Graph.K_OUT if is_sparse else Graph.COMPLETE

    @property
    def min_survivors(self) -> int:
        """Inputs that every sum must have: one client in eight may drop out."""
        return self.clients - self.clients // 8

    @property
    def min_clients(self) -> int:
        """Clients that must join."""
        return min(self.clients, self.min_survivors + 1)


def write_server_settings(
    layout: DemoLayout, planned: DemoPlan, *, enrolment_key: str
) -> ServerSettings:
    """Write the aggregator's settings and load them as it will.

    Args:
        layout: Where.
        planned: What the demo is asked to do.
        enrolment_key: Of the demo's issuer, as text.
    """
    layout.server_settings.write_text(
        _TEMPLATE.format(
            head=settings_head(),
            task=TASK_ID,
            steps=planned.steps,
            profile=planned.profile.label,
            enrolment_key=enrolment_key,
            degree='"auto"' if planned.graph is Graph.K_OUT else 0,
            dimension=DIMENSION,
            clients=planned.clients,
            min_clients=planned.min_clients,
            min_survivors=planned.min_survivors,
            mechanism=planned.mechanism,
            epsilon=float(planned.epsilon),
            delta=float(planned.delta),
            l2_clip=L2_CLIP,
            clip_quantile=0.5 if planned.adaptive_clip else '""',
            # Empty: as many rungs as the mechanism allows and the losses make useful.
            ladder='""' if planned.xnoise else 0,
            round_seconds=planned.round_seconds,
            join_seconds=planned.join_seconds,
        ),
        encoding="utf-8",
    )
    return load_server_settings(layout.server_settings, environment={}).settings
