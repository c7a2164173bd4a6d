"""Rules that a carrier of a client's bytes keeps, at each carrier of the library."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from secagg.client.client import Client
from secagg.client.enrolment_files import read_enrolled
from secagg.client.step_client import StepClient
from secagg.client.visit import visit
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import AdvertiseKeys
from tests.rules import drivers


class Proxied(InMemoryConnection):
    """A way on which TLS may end in a proxy, as at an HTTP edge."""

    is_direct = False


def _state(home, settings, **changes):
    files = settings.enrolment
    domain = drivers.enrolled().domain
    own = files and read_enrolled(files, name=drivers.NAME, trust_domain=domain)
    return StepClient(
        drivers.NAME,
        **{
            "aggregator": "aggregator",
            "privacy_limits": settings.limits,
            "cohort": settings.cohort,
            "tasks": ["t"],
            "enrolment": own,
            "state_dir": home / "state",
            "rollback_mark": home / "mark",
        }
        | changes,
    )


async def _client(home, settings, connection):
    async with Client(
        connection,
        task="t",
        privacy_limits=settings.limits,
        cohort=settings.cohort,
        enrolment=settings.enrolment,
        state_dir=home / "state",
        rollback_mark=home / "mark",
        attempts=1,
        wait_seconds=1.0,
    ) as client:
        await client.contribute(np.zeros(drivers.DIMENSION))


async def _shared(home, settings, connection):
    with _state(home, settings) as state:
        async with Client(
            connection, task="t", step_client=state, attempts=1, wait_seconds=1.0
        ) as client:
            await client.contribute(np.zeros(drivers.DIMENSION))


async def _visit(home, settings, connection):
    with _state(home, settings) as state:
        await visit(
            state,
            connection,
            task="t",
            vector=lambda *_: np.zeros(drivers.DIMENSION),
        )


CARRIERS = {"client": _client, "shared": _shared, "visit": _visit}


def _offers():
    """Return an offer of each of the first two profiles, and who takes part in it."""
    own = replace(drivers.WAIVED, enrolment=drivers.enrolled().files)
    return (
        (drivers.exact_offer(), drivers.WAIVED),
        (drivers.enrolled().offer(), own),
    )


@pytest.mark.parametrize("begun", [False, True], ids=["offer", "resume"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_profile_1_is_rejected_where_a_proxy_could_read(carrier, begun, tmp_path):
    # R10.3-4: one that was begun on a direct way is left, and nothing of it said.
    async def takes_part(offer, own, way):
        home = tmp_path / offer.parameters.profile.name
        home.mkdir(exist_ok=True)
        service = drivers.service(offer)
        connection = way(service, drivers.NAME)
        try:
            await CARRIERS[carrier](home, own, connection)
        except drivers.TookPartError:
            return service
        raise AssertionError("a sound session is joined")

    async def main():
        (exact, waived), (signed, enrolled) = _offers()
        for offer, own in ((exact, waived), (signed, enrolled)):
            if begun:
                await takes_part(offer, own, InMemoryConnection)
        await takes_part(signed, enrolled, Proxied)
        with pytest.raises(RemoteProtocolError, match="proxy") as refused:
            await takes_part(exact, waived, Proxied)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        with _state(tmp_path / exact.parameters.profile.name, waived) as state:
            assert state.place("t").offer == b""

    (tmp_path / _offers()[0][0].parameters.profile.name).mkdir()
    asyncio.run(main())


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({"identity": "another"}, "of 'another'"),
        ({"trust_domain": "another.example"}, "trust domain"),
    ],
    ids=["client", "domain"],
)
@pytest.mark.parametrize("carrier", ["shared", "visit"])
def test_a_connection_of_another_client_or_domain_is_rejected(
    carrier, connection, words, tmp_path
):
    # R5.0-1, R5.0-6: budgets and sessions are those of one aggregator of one domain.
    offer = drivers.exact_offer()
    service = drivers.service(offer)
    way = InMemoryConnection(service, **({"identity": drivers.NAME} | connection))
    with pytest.raises(LocalProtocolError, match=words):
        asyncio.run(CARRIERS[carrier](tmp_path, drivers.WAIVED, way))
    assert not any(isinstance(said, AdvertiseKeys) for _, said in service.calls)


def test_a_visit_rejects_an_offer_of_another_task(tmp_path):
    # The owner has named both: nothing else would keep a budget from being spent.
    offer = drivers.offered()
    way = InMemoryConnection(drivers.service(offer), drivers.NAME)
    lax = drivers.Settings()
    with _state(tmp_path, lax, tasks=["t", "another"]) as state:
        with pytest.raises(RemoteProtocolError, match="instead of") as refused:
            asyncio.run(
                visit(state, way, task="another", vector=lambda *_: np.zeros(4))
            )
        assert refused.value.code is ErrorCode.BAD_CONFIG
        assert state.place("t").highest_number == 0


def test_a_visit_to_a_task_that_a_client_has_is_refused(tmp_path):
    # Both would ask their owner for a vector of one session.
    async def main():
        with _state(tmp_path, drivers.WAIVED) as state:
            service = drivers.service(drivers.exact_offer())
            way = InMemoryConnection(service, drivers.NAME)
            vector = lambda *_: np.zeros(drivers.DIMENSION)  # noqa: E731 - one line
            async with Client(way, task="t", step_client=state):
                with pytest.raises(LocalProtocolError, match="another client"):
                    await visit(state, way, task="t", vector=vector)
            assert not any(isinstance(said, AdvertiseKeys) for _, said in service.calls)
            with pytest.raises(drivers.TookPartError):
                await visit(state, way, task="t", vector=vector)

    asyncio.run(main())
