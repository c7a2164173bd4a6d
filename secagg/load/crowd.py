"""A process full of clients: each a `secagg.Client` over TLS of its own.

Run as ``python -m secagg.load.crowd DIRECTORY SERVER FIRST LAST ...``.

Rule 1: every client is the product's own, with a certificate and connections of its
        own; what they share is the process and its event loop.  Their books are in
        memory: the aggregator is what is measured.
Rule 2: a client that is to be lost vanishes when it is asked for its vector: it has
        shared its keys, says nothing more, and closes its connection.
"""

import argparse
import asyncio
import hashlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import (
    NO_NOISE_ACKNOWLEDGEMENT,
    Address,
    Client,
    ClientEnrolment,
    ExactSumsAccepted,
    GrpcConnection,
    Profile,
    Role,
    SecAggError,
    SessionInfo,
    TLSIdentity,
)
from secagg.child_process import say, say_failed
from secagg.load.layout import TASK_ID, LoadLayout
from secagg.load.plan import LoadPlan
from secagg.load.vectors import vector_of
from secagg.run_folder import client_name

__all__ = ["main"]

# Between the arrivals of two clients of one process, which share a core for their
# handshakes: a hundred a second.
_ARRIVAL_SECONDS: Final = 0.01


def main(arguments: Sequence[str]) -> int:
    """Let all clients of this process take part in one session."""
    parser = argparse.ArgumentParser(prog="secagg.load.crowd")
    parser.add_argument("directory", type=Path)
    parser.add_argument("server", type=Address.parse)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--degree", type=int, required=True)
    parser.add_argument("--lost", type=int, required=True)
    parser.add_argument("--round-seconds", type=int, required=True)
    parser.add_argument("--profile", type=Profile.from_label, required=True)
    parser.add_argument("--enrolment-key", default="")
    given = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = _Crowd(
        LoadLayout(given.directory),
        LoadPlan(
            clients=given.clients,
            dimension=given.dimension,
            degree=given.degree,
            lost=given.lost,
            round_seconds=given.round_seconds,
            profile=given.profile,
        ),
        given.server,
        given.enrolment_key,
    )
    asyncio.run(crowd.take_part(range(given.first, given.last + 1)))
    return 0


class _Crowd:
    """The clients of this process."""

    def __init__(
        self, layout: LoadLayout, planned: LoadPlan, server: Address, enrolment_key: str
    ) -> None:
        self._layout = layout
        self._planned = planned
        self._server = server
        self._enrolment_key = enrolment_key

    async def take_part(self, numbers: range) -> None:
        """Run all clients until each has its sum, is lost or has failed."""
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self._run_one(number))
                await asyncio.sleep(_ARRIVAL_SECONDS)

    async def _run_one(self, number: int) -> None:
        layout, name = self._layout, client_name(number)
        identity = TLSIdentity.load(
            certificate=layout.pki / f"{name}.pem",
            private_key=layout.pki / f"{name}.key",
            authority=layout.pki / "ca.pem",
            role=Role.CLIENT,
        )
        async with GrpcConnection(self._server, identity=identity) as connection:
            try:
                await self._contribute(number, connection)
            except _VanishedError:
                say("lost", number=number, **_traffic(connection))
            except SecAggError as error:
                say_failed(error, number=number, **_traffic(connection))

    async def _contribute(self, number: int, connection: GrpcConnection) -> None:
        planned = self._planned

        def make(_: SessionInfo) -> npt.NDArray[Any]:
            if planned.is_lost(number):
                raise _VanishedError
            return vector_of(number, planned.dimension)

        client = Client(
            connection,
            task=TASK_ID,
            floors=ExactSumsAccepted(NO_NOISE_ACKNOWLEDGEMENT),
            enrolment=self._enrolment(number),
            cohort=planned.policy(),
            attempts=1,
            wait_seconds=None,
        )
        async with client:
            given = await client.contribute(make)
        values = np.asarray(given.values, dtype="<i8")
        say(
            "completed",
            number=number,
            sum_sha256=hashlib.sha256(values.tobytes()).hexdigest(),
            **_traffic(connection),
        )

    def _enrolment(self, number: int) -> ClientEnrolment | None:
        if not self._planned.profile.has_identities:
            return None
        files, name = self._layout.enrolment, client_name(number)
        return ClientEnrolment(
            seed=files.seed(name),
            credential=files.credential(name),
            enrolment_key=self._enrolment_key,
        )


class _VanishedError(Exception):
    """A client is gone, for this process to know and for nobody else."""


def _traffic(connection: GrpcConnection) -> dict[str, dict[str, list[int]]]:
    return {
        "traffic": {
            name: [each.calls, each.bytes_sent, each.bytes_received]
            for name, each in connection.traffic.items()
        }
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
