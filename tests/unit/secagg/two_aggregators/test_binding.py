"""Between two aggregators, too, each is the one that has made its offer (R5.0-6)."""

import asyncio

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.two_aggregators import Between, TwoAggregators, noise_for

from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.wire.calls import GetOffer, UploadChunk

VECTORS = [np.full(5, 0.1)] * 4


class Turned(Between):
    """A way that leads to another aggregator once an offer was made."""

    asked: tuple = ()

    async def call(self, request):
        if self.aggregator == "another":
            self.asked += (request,)
        answer = await self._inner.call(request)
        if isinstance(request, GetOffer):
            self.aggregator = "another"
        return answer


def stays_until_checked(client, way, name):
    """Have a way turn after the offer was checked: names are compared at each call."""
    judged = client._check_offers

    async def judge(*offers):
        way.aggregator = name
        try:
            return await judged(*offers)
        finally:
            way.aggregator = "another"

    client._check_offers = judge


@pytest.mark.parametrize("turned", ["leader", "helper"])
def test_a_share_is_sent_only_to_the_aggregator_that_made_the_offer(turned):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        way = Turned(deployment.way_to(turned, "c0"))
        client = deployment.client("c0", **{turned: way})
        stays_until_checked(client, way, turned)
        with pytest.raises(ServiceError, match="'another' answers") as caught:
            await client.contribute(VECTORS[0])
        assert caught.value.code is ErrorCode.UNREACHABLE
        assert not any(isinstance(each, UploadChunk) for each in way.asked)
        summing.cancel()
        await asyncio.wait({summing})

    manual_clock.run(main)


class Held(Between):
    """A way on which the first share waits until it is let go."""

    def __init__(self, inner):
        super().__init__(inner)
        self.has_share, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, request):
        if isinstance(request, UploadChunk):
            self.has_share.set()
            await self.go.wait()
        return await self._inner.call(request)


def test_a_second_vector_at_once_is_refused_and_frees_no_way():
    # Its end would free the ways of the first one, whose share would then leave for
    # the aggregator that answers by now.
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        leader = Turned(deployment.way_to("leader", "c0"))
        helper = Held(deployment.way_to("helper", "c0"))
        client = deployment.client("c0", leader=leader, helper=helper)
        stays_until_checked(client, leader, "leader")
        first = asyncio.ensure_future(client.contribute(VECTORS[0]))
        await helper.has_share.wait()
        with pytest.raises(LocalProtocolError, match="another client contributes"):
            await client.contribute(VECTORS[1])
        helper.go.set()
        with pytest.raises(ServiceError, match="'another' answers"):
            await first
        assert not any(isinstance(each, UploadChunk) for each in leader.asked)
        summing.cancel()
        await asyncio.wait({summing})

    manual_clock.run(main)


@pytest.mark.parametrize("proxied", ["leader", "helper"])
def test_no_share_leaves_where_a_proxy_could_read_it(proxied):
    # R10.3-4: one proxy in front of both would read both shares.
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        way = Between(deployment.way_to(proxied, "c0"))
        way.is_direct = False
        client = deployment.client("c0", **{proxied: way})
        with pytest.raises(RemoteProtocolError, match="proxy") as caught:
            await client.contribute(VECTORS[0])
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
        summing.cancel()
        await asyncio.wait({summing})

    manual_clock.run(main)


@pytest.mark.parametrize("renamed", ["leader", "helper"])
def test_a_renamed_party_does_not_start_with_an_open_session(renamed):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        giving = asyncio.ensure_future(deployment.client("c0").contribute(VECTORS[0]))
        await clock.sleep_until(clock.now() + 5)
        for task in (summing, giving):
            task.cancel()
        await asyncio.wait({summing, giving})
        again = deployment.restarted(noise_for())
        party = getattr(again, renamed)
        party._name = "another"
        with pytest.raises(ServiceError, match=f"one of '{renamed}'") as caught:
            await party.recover()
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        party._name = renamed
        await party.recover()

    manual_clock.run(main)
