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

from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ClientPolicy
from secagg.testbed.run_folder import (
    ROUNDS_OF_ANSWERS,
    RunFolder,
    RunPlan,
    SettingsTables,
)

TASK_ID = "load"


@dataclass(frozen=True, slots=True)
class LoadLayout(RunFolder):
    """The directory of one run."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan(RunPlan):
    """The parameters of a load test.

    Each client has a certificate and connections of its own.  While a round waits for
    the lost ones, all others wait too.

    Attributes:
        dimension: Entries of one vector.
        lost: Clients that vanish when they are asked for their vector: after their
            shares and before their upload, where a dropout costs the aggregator most.
        servers: Aggregators that share one store.
    """

    dimension: int
    lost: int
    servers: int = 1

    @property
    def survivors(self) -> int:
        """Clients that stay."""
        return self.clients - self.lost

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

    def settings(self, layout: LoadLayout, store: str | None) -> SettingsTables:
        """Return what an aggregator is asked for.

        Args:
            layout: The files.
            store: Address of the PostgreSQL store of all aggregators; None for a file,
                of one aggregator.
        """
        shared = {"store": store, "blobs": f"file:{layout.blobs}"}
        return {
            "server": {} if store is None else shared,
            "task": {
                "id": TASK_ID,
                "steps": 1,
                "attempts": 1,
                "profile": self.profile.label,
            },
            "vector": {"dimension": self.dimension},
            "cohort": {
                "min_clients": self.clients,
                "max_clients": self.clients,
                "min_survivors": self.survivors - self.clients // _FAULTS_PER_CLIENTS,
                "degree": self.degree,
            },
            "noise": {"none": NO_NOISE_ACKNOWLEDGEMENT},
            "rounds": {
                "advertise_keys": _JOIN_SECONDS,
                **dict.fromkeys(ROUNDS_OF_ANSWERS, _JOIN_SECONDS),
                "masked_input": self.round_seconds,
            },
            "enrolment": {"enrolment_key": self.enrolment_key},
        }


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
