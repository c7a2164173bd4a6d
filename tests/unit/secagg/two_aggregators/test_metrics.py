"""What leader and helper tell a scraper, on a clock by hand."""

import asyncio
import re

import numpy as np
import pytest
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TASK, Between, TwoAggregators, noise_for

from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.server.telemetry.measures import PrometheusMeter
from secagg.storage.rows import TaskState
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import GetOffer, UploadChunk

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]


def series(meter, readings):
    """Return what a scrape reads, by name and labels."""
    lines = meter.scraped(readings).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("secagg_"))
    return {name: float(value) for name, value in pairs}


def scraped_pair(clock, noise=None, **changes):
    meters = PrometheusMeter(), PrometheusMeter()
    deployment = TwoAggregators(clock, noise or noise_for(), meters=meters, **changes)

    async def scraped():
        return [
            series(meter, await party.readings())
            for meter, party in zip(
                meters, (deployment.leader, deployment.helper), strict=True
            )
        ]

    return deployment, scraped


def test_a_sum_is_counted_by_both_aggregators() -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        before = await scraped()
        await deployment.give(VECTORS)
        return before, await scraped()

    before, after = run(main)
    task = f'{{task="{TASK}"}}'
    report = noise_for().report()
    for at_first, now in zip(before, after, strict=True):
        ended = f'secagg_sessions_total{{outcome="released",task="{TASK}"}}'
        assert ended not in at_first
        assert now[ended] == 1
        assert at_first[f"secagg_task_sums_left{task}"] == 2
        assert now[f"secagg_task_sums_left{task}"] == 1
        assert now[f"secagg_task_slot_seconds{task}"] == 1
        assert now[f"secagg_sessions_open{task}"] == 0
        assert now["secagg_sum_seconds_count"] == 1
        # Beginning, four shares, the set, the end; the leader's names as well.
        assert now["secagg_store_commit_seconds_count"] in {7, 8}
        for against, stated in (
            ("server", report.aggregator),
            ("model_reader", report.reader),
        ):
            name = f'secagg_task_epsilon{{against="{against}",task="{TASK}"}}'
            assert now[name] == stated.epsilon
    leader, helper = after
    closed = 'closed_by="full",round="MASKED_INPUT_COLLECTION"'
    assert leader[f"secagg_round_seconds_count{{{closed}}}"] == 1
    assert leader['secagg_peer_up{which="helper"}'] == 1
    assert not any("peer" in name for name in helper)
    assert helper[f"secagg_upload_bytes_total{task}"] > 4 * 64
    assert leader[f"secagg_download_bytes_total{task}"] > 4 * 9
    assert leader['secagg_calls_total{method="UploadChunk"}'] == 4


def test_metrics_of_an_open_session_count_received_shares() -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(2)
        ]
        await clock.sleep_until(clock.now() + 10.0)
        found = await scraped()
        for each in (summing, *giving):
            each.cancel()
        return found

    for found in run(main):
        assert found[f'secagg_sessions_open{{task="{TASK}"}}'] == 1
        assert found[f'secagg_round_answered{{task="{TASK}"}}'] == 2
        assert found[f'secagg_round_expected{{task="{TASK}"}}'] == 4


def test_failures_are_counted_by_code() -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        with pytest.raises(SessionAbortedError):
            await deployment.leader.next_sum()
        # The leader continues without the helper's session, whatever it held.
        with pytest.raises(SessionAbortedError):
            await deployment.leader.next_sum()
        with pytest.raises(SecAggError):
            await InMemoryConnection(deployment.helper, "c0").call(
                UploadChunk(bytes(32), 0, 1, b"", b"x")
            )
        return await scraped()

    leader, helper = run(main)
    ended = f'secagg_sessions_total{{outcome="%s",task="{TASK}"}}'
    assert leader[ended % "U3_TOO_SMALL"] == 2
    assert helper[ended % "CANCELLED"] == 1
    closed = 'closed_by="deadline",round="MASKED_INPUT_COLLECTION"'
    assert leader[f"secagg_round_seconds_count{{{closed}}}"] == 2
    assert helper['secagg_refusals_total{code="BAD_ENCODING"}'] == 1


class Away(Between):
    """A way to a helper that is not there, or does not want to."""

    def __init__(self, inner, error):
        super().__init__(inner)
        self.error = error

    async def call(self, _):
        raise self.error


@pytest.mark.parametrize(
    ("code", "answers"),
    [
        (ErrorCode.UNREACHABLE, 0),
        (ErrorCode.UNAUTHENTICATED, 0),
        (ErrorCode.TASK_OVER, 1),
    ],
)
def test_an_unreachable_helper_is_reported_before_a_session_fails(
    code, answers
) -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(
            clock, helper_way=lambda way: Away(way, ServiceError("away", code=code))
        )
        with pytest.raises(SessionAbortedError):
            await deployment.leader.next_sum()
        return (await scraped())[0]

    found = run(main)
    assert found['secagg_peer_up{which="helper"}'] == answers
    assert not any("secagg_sessions_total{" in name for name in found)


def test_a_paused_helper_is_reported_as_up() -> None:
    """And of a leader that asks for nothing, nothing is said."""

    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        await deployment.helper.set_state(TaskState.PAUSED)
        with pytest.raises(SessionAbortedError, match="answers, but offers no") as one:
            await deployment.leader.next_sum()
        assert one.value.code is ErrorCode.DEADLINE
        paused = (await scraped())[0]
        # Its downtime of before would otherwise be told for as long as it is paused.
        deployment.leader._helper_answers = False
        await deployment.leader.set_state(TaskState.PAUSED)
        waiting = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1)
        idle = (await scraped())[0]
        waiting.cancel()
        return paused, idle

    paused, idle = run(main)
    assert paused['secagg_peer_up{which="helper"}'] == 1
    assert not any("peer" in name for name in idle)


def test_store_errors_are_counted(monkeypatch) -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        await deployment.helper.answer("leader", GetOffer(TASK))

        async def refuse(_):
            raise ServiceError("disk full", code=ErrorCode.STORAGE_FAILED)

        monkeypatch.setattr(deployment.storages[1].store, "commit", refuse)
        with pytest.raises(ServiceError, match="disk full"):
            await deployment.helper.answer("leader", GetOffer(TASK, 1))
        return (await scraped())[1]

    assert run(main)["secagg_store_errors_total"] == 1


def test_no_metric_names_a_client() -> None:
    async def main(clock):
        deployment, scraped = scraped_pair(clock)
        await deployment.give(VECTORS)
        return await scraped()

    for found in run(main):
        assert not re.search("client-", " ".join(found))
