"""Ways by which an offer or a stored session reaches a client, as tests drive them.

Each driver runs the product's client end to end, and returns whether it takes part.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from secagg_testing import manual_clock
from secagg_testing.cohorts import (
    offer_of,
    parameters_for,
    signing_parameters_for,
    with_noise,
)
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.two_aggregators import Between, TwoAggregators, noise_for

from secagg.client.client import Client
from secagg.client.enrolment import ClientEnrolment
from secagg.client.enrolment_files import read_enrolled
from secagg.client.step_client import StepClient
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.client_identity import (
    CREDENTIAL,
    IDENTITY_SEED,
    new_identity,
    write_credential,
)
from secagg.pki.credential_issuer import Issuer
from secagg.pki.key_files import key_text
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.protocol.profiles import MaliciousParameters, Profile, Trust
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import (
    AdvertiseKeys,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    UploadChunk,
    Wait,
)

NAME: Final = "client-0"
DIMENSION: Final = 4
CLIENTS: Final = 4
DAY: Final = 86_400
LAX: Final = {
    "max_epsilon": 1e9,
    "max_delta": 0.99,
    "statuses": frozenset({"proven", "certified", "numerical", "recalled"}),
}
LAX_COHORT: Final = ClientPolicy(
    profiles=frozenset(Profile),
    graphs=frozenset(Graph),
    min_graph_bits=1,
    min_clients=2,
    min_survivors=2,
    require_majority=False,
)


class TookPartError(Exception):
    """The client has sent its first message in the session."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a client's owner has settled; every part at its most permissive."""

    limits: PrivacyLimits | ExactSumWaiver = field(
        default_factory=lambda: PrivacyLimits(**LAX)
    )
    cohort: ClientPolicy = LAX_COHORT
    enrolment: ClientEnrolment | None = None
    total: TotalBudget | None = None


WAIVED: Final = Settings(limits=ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT))


def offered(**changes: Any) -> SessionDescriptor:
    """Return an offer of a noisy task, sound for the machine's clock."""
    parameters = with_noise(parameters_for(CLIENTS, dimension=DIMENSION, threshold=3))
    fields = {"session_end": int(time.time()) + 300} | changes
    return offer_of(fields.pop("parameters", parameters), **fields)


def ring_offer() -> SessionDescriptor:
    """Return an offer of exact sums on a ring."""
    parameters = parameters_for(
        40,
        dimension=DIMENSION,
        threshold=12,
        degree=24,
        max_dropouts=2,
        max_losses=2,
        min_clients=38,
        min_survivors=36,
    )
    return offered(parameters=parameters)


def minority_offer() -> SessionDescriptor:
    """Return an offer of exact sums whose threshold is no majority."""
    parameters = parameters_for(
        CLIENTS,
        dimension=DIMENSION,
        threshold=2,
        min_survivors=3,
        min_clients=3,
        max_dropouts=1,
        max_losses=1,
    )
    return offered(parameters=parameters)


def exact_offer() -> SessionDescriptor:
    """Return an offer of exact sums."""
    return offered(parameters=parameters_for(CLIENTS, dimension=DIMENSION, threshold=3))


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An issuer, a client of its, and the lists that it has published."""

    files: ClientEnrolment
    domain: str
    key: bytes
    lists: tuple[bytes, ...]

    def trust(self, number: int) -> Trust:
        """Return the list number of an offer; 0 for none."""
        if not number:
            return Trust(self.domain, self.key)
        digest = sha256(self.lists[number - 1]).digest()
        return Trust(self.domain, self.key, number, digest)

    def offer(self, number: int = 2, **changes: Any) -> SessionDescriptor:
        """Return an offer of profile malicious-server with a revocation list."""
        trust = changes.pop("trust", self.trust(number))
        parameters = signing_parameters_for(
            5, dimension=DIMENSION, colluders=1, tail=MaliciousParameters(trust)
        )
        return offered(parameters=parameters, **changes)


@cache
def enrolled() -> Enrolled:
    """Return a client with files, and two lists of ten days ago and of today."""
    home = Path(tempfile.mkdtemp(prefix="rules-"))
    domain, now = "deployment.example", int(time.time())
    key = Issuer.create(home / "issuer", trust_domain=domain, entropy=SystemEntropy())
    request = new_identity(
        home / "id", trust_domain=domain, name=NAME, now=now, entropy=SystemEntropy()
    )
    others = [
        new_identity(
            home / other,
            trust_domain=domain,
            name=other,
            now=now,
            entropy=SystemEntropy(),
        )
        for other in ("one", "two")
    ]
    with Issuer.open(home / "issuer") as issuer:
        issued = issuer.sign(request, now=now, days=90)
        serials = [
            issuer.sign(other, now=now, days=90).credential.serial for other in others
        ]
        lists = tuple(
            issuer.revoke([serial], now=now - ago).encode()
            for serial, ago in zip(serials, (20 * DAY, 10 * DAY), strict=True)
        )
    write_credential(home / "id" / CREDENTIAL, issued)
    files = ClientEnrolment(
        seed=home / "id" / IDENTITY_SEED,
        credential=home / "id" / CREDENTIAL,
        enrolment_key=key_text(key),
    )
    return Enrolled(files, domain, key, lists)


def service(offer: SessionDescriptor) -> ScriptedService:
    """Return an aggregator that has this one offer, and its revocation list."""

    async def chunk(_: str, request: FetchChunk) -> BlobChunk:
        trust = offer.parameters.trust
        number = 0 if trust is None else trust.revocation_number
        data = enrolled().lists[number - 1]
        return BlobChunk(data[request.offset :][: request.max_bytes], len(data))

    return ScriptedService(
        {
            GetOffer: offer,
            GetUpdate: Wait(1.0),
            AdvertiseKeys: TookPartError(),
            FetchChunk: chunk,
        }
    )


@dataclass
class Stored:
    """A client's state on the disk, for one process after the other.

    Attributes:
        directory: Where it is kept.
        connection: Makes the way to an aggregator; in memory by default.
    """

    directory: Path
    aggregator: str = "aggregator"

    async def takes_part(
        self, offer: SessionDescriptor, settings: Settings, **more: Any
    ) -> None:
        """Have a client look for one session of the offer's task.

        Raises:
            TookPartError: It takes part.
            SecAggError: Why it does not.
        """
        asked = service(offer)
        connection = InMemoryConnection(asked, NAME, aggregator=self.aggregator)
        async with Client(
            connection,
            task=more.get("task", offer.task_id),
            privacy_limits=settings.limits,
            cohort=settings.cohort,
            enrolment=settings.enrolment,
            total=settings.total,
            state_dir=self.directory / "state",
            rollback_mark=self.directory / "mark",
            attempts=1,
            wait_seconds=1.0,
        ) as client:
            await client.contribute(np.zeros(DIMENSION))


def _settles(work: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="rules-") as home:
        asyncio.run(work(Path(home)))


def offer(settings: Settings, session: SessionDescriptor) -> None:
    """Offer a session to a client that knows nothing yet; see `Stored.takes_part`."""
    _settles(lambda home: Stored(home).takes_part(session, settings))


def resume(
    settings: Settings, session: SessionDescriptor, *, begun_under: Settings
) -> None:
    """Interrupt a client after its first message, and start it under other settings."""

    async def work(home: Path) -> None:
        state = Stored(home)
        try:
            await state.takes_part(session, begun_under)
        except TookPartError:
            await state.takes_part(session, settings)
        else:
            raise AssertionError("a sound session is joined")

    _settles(work)


def step(
    settings: Settings,
    session: SessionDescriptor,
    *,
    begun_under: Settings | None = None,
) -> None:
    """Hand an offer to a client without a connection, as `offer` and `resume` do.

    Args:
        settings: Of the client.
        session: The offer.
        begun_under: Settings of an earlier object that has joined it; None for none.
    """
    trust = session.parameters.trust
    number = 0 if trust is None else trust.revocation_number
    revocations = enrolled().lists[number - 1] if number else None
    with tempfile.TemporaryDirectory(prefix="rules-") as home:
        for each in filter(None, (begun_under, settings)):
            files, place = each.enrolment, Path(home)
            own = (
                None
                if files is None
                else read_enrolled(files, name=NAME, trust_domain=enrolled().domain)
            )
            with StepClient(
                NAME,
                aggregator="aggregator",
                privacy_limits=each.limits,
                tasks=[session.task_id],
                cohort=each.cohort,
                enrolment=own,
                total=each.total,
                state_dir=place / "state",
                rollback_mark=place / "mark",
            ) as client:
                done = client.step(session.encode(), revocations=revocations)
    if done.messages:
        raise TookPartError


class _Uploads(Between):
    async def call(self, request: Any) -> Any:
        if isinstance(request, UploadChunk):
            raise TookPartError
        return await super().call(request)


def two_aggregators(settings: Settings, **changes: Any) -> None:
    """Offer a session between two aggregators; see `Stored.takes_part`."""

    async def main(clock: manual_clock.ManualClock) -> None:
        both = TwoAggregators(clock, noise_for(max_clients=CLIENTS))
        summing = asyncio.ensure_future(both.leader.next_sum())
        ways = {
            name: _Uploads(both.way_to(name, NAME)) for name in ("leader", "helper")
        }
        arguments = {
            "privacy_limits": settings.limits,
            "cohort": settings.cohort,
            "total": settings.total,
        } | ways
        client = both.client(NAME, **(arguments | changes))
        try:
            await client.contribute(np.zeros(5))
        finally:
            summing.cancel()

    manual_clock.run(main)
