"""Between two aggregators, too, each is the one that has made its offer (R5.0-6)."""

import asyncio

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.two_aggregators import Between, TwoAggregators, noise_for

from secagg.errors import ErrorCode, ServiceError
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


@pytest.mark.parametrize("turned", ["leader", "helper"])
def test_no_share_leaves_for_another_than_the_one_that_has_made_the_offer(turned):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        way = Turned(deployment.way_to(turned, "c0"))
        client = deployment.client("c0", **{turned: way})
        # The way turns after the offer was checked: names are compared at each call.
        judged = client._check_offers

        async def judge(*offers):
            way.aggregator = turned
            try:
                return await judged(*offers)
            finally:
                way.aggregator = "another"

        client._check_offers = judge
        with pytest.raises(ServiceError, match="'another' answers") as caught:
            await client.contribute(VECTORS[0])
        assert caught.value.code is ErrorCode.UNREACHABLE
        assert not any(isinstance(each, UploadChunk) for each in way.asked)
        summing.cancel()
        await asyncio.wait({summing})

    manual_clock.run(main)


@pytest.mark.parametrize("renamed", ["leader", "helper"])
def test_a_renamed_aggregator_does_not_start_with_an_open_session(renamed):
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
