"""The numbers of one load test, its files, and the inputs of its clients.

A client's number determines its vector, and no two clients have the same one.  So a sum
with an input twice, or without one of its inputs, is detected.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.config import ServerSettings, load_server_settings
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.testbed.run_folder import RunFolder, settings_head

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


# One client in so many may fail beside those that vanish: a fault is then a figure of
# the result, and not the end of the session.
_FAULTS_PER_CLIENTS: Final = 100
# A waiting cohort reopens its round, so that no machine is too slow to gather it.
_JOIN_SECONDS: Final = 600

_TEMPLATE: Final = """\
# Written by `secagg load`; the same kind of file as deploy/config/server.full.toml.
{head}{sharing}

[task]
id = "{task}"
steps = 1
attempts = 1
profile = "{profile}"

[vector]
dimension = {dimension}

[cohort]
min_clients = {clients}
max_clients = {clients}
min_survivors = {survivors}
degree = {degree}

[noise]
none = "{acknowledgement}"

[rounds]
advertise_keys = {join_seconds}
choose_edges = {join_seconds}
share_keys = {join_seconds}
masked_input = {round_seconds}
consistency = {join_seconds}
unmasking = {join_seconds}

[enrolment]
{enrolment}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The parameters of a load test.

    Attributes:
        clients: Size of the cohort; each has a certificate and connections of its own.
        dimension: Entries of one vector.
        degree: Neighbours of each client on a ring, or that each draws; 0 for the
            complete graph.
        lost: Clients that vanish when they are asked for their vector: after their
            shares and before their upload, where a dropout costs the aggregator most.
        round_seconds: How long the aggregator waits for those; all others wait too.
        profile: Named threat model.
        servers: Aggregators that share one store.
    """

    clients: int
    dimension: int
    degree: int
    lost: int
    round_seconds: int
    profile: Profile = Profile.HONEST_CURIOUS_SERVER
    servers: int = 1

    @property
    def survivors(self) -> int:
        """Clients that stay."""
        return self.clients - self.lost

    @property
    def graph(self) -> Graph:
        """Who shares with whom."""
        return Graph.of(self.profile, self.degree)

    @property
    def packed_bytes(self) -> int:
        """Bytes of one upload: 32 bits an entry."""
        return 4 * self.dimension

    def is_lost(self, number: int) -> bool:
        """Whether a client vanishes: they are spread evenly over all numbers."""
        return number * self.lost // self.clients > (
            (number - 1) * self.lost // self.clients
        )

    def policy(self) -> ClientPolicy:
        """Return what the clients insist on: exactly this cohort."""
        return ClientPolicy(
            profiles=frozenset({self.profile}),
            graphs=frozenset({self.graph}),
            min_clients=2,
            max_clients=self.clients,
            min_survivors=min(self.survivors, 2),
            require_noise=False,
        )


def write_server_settings(
    layout: LoadLayout, planned: LoadPlan, *, enrolment_key: str, store: str | None
) -> list[ServerSettings]:
    """Write the settings of all aggregators and load them as they will.

    Args:
        layout: The files.
        planned: The parameters of the load test.
        enrolment_key: Of its issuer, as text.
        store: Address of their PostgreSQL store; None for a file, of one aggregator.

    Raises:
        ServiceError: BAD_SETTINGS; no session can be like this.
    """
    written = []
    for number in range(1, planned.servers + 1):
        name, path = f"server-{number}", layout.settings_of(number)
        path.write_text(
            _TEMPLATE.format(
                head=settings_head(name),
                sharing=""
                if store is None
                else f'store = "{store}"\nblobs = "file:{layout.blobs}"',
                task=TASK_ID,
                profile=planned.profile.label,
                dimension=planned.dimension,
                clients=planned.clients,
                survivors=planned.survivors - planned.clients // _FAULTS_PER_CLIENTS,
                degree=planned.degree,
                acknowledgement=NO_NOISE_ACKNOWLEDGEMENT,
                join_seconds=_JOIN_SECONDS,
                round_seconds=planned.round_seconds,
                enrolment=f'enrolment_key = "{enrolment_key}"'
                if planned.profile.has_identities
                else "",
            ),
            encoding="utf-8",
        )
        written.append(load_server_settings(path, environment={}).settings)
    return written


# The largest prime below 2^12: 65 535 clients stay below 2^28.
_PRIME: Final = 4093


def vector_of(number: int, dimension: int) -> npt.NDArray[np.int64]:
    """Return the vector of one client, shape (dimension,), entries below 2^12.

    Args:
        number: Of the client, counted from 1.
        dimension: Entries.
    """
    places = np.arange(1, dimension + 1, dtype=np.int64)
    return (number * places + number // _PRIME) % _PRIME


def expected_sum(numbers: Iterable[int], dimension: int) -> npt.NDArray[np.int64]:
    """Return the sum of the vectors of these clients, shape (dimension,)."""
    total = np.zeros(dimension, dtype=np.int64)
    for number in numbers:
        total += vector_of(number, dimension)
    return total
