"""The leader's program: what ends a session and not it, and what it leaves behind."""

import asyncio
import json
import logging
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TASK, Between, TwoAggregators, noise_for

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.packing import pack
from secagg.two_aggregators.messages import NoisyShare
from secagg.two_aggregators.party_server import PartyTask
from secagg.two_aggregators.program import ReleasingLeader
from secagg.wire.calls import BlobChunk, FetchChunk, GetOffer, UploadChunk, UploadStatus

ZEROS = np.zeros(5)


class Unheard(Between):
    """A way to the helper on which seeds are lost unnoticed."""

    async def call(self, request):
        if isinstance(request, UploadChunk):
            return UploadStatus(request.total_size, complete=True)
        return await super().call(request)


class Program:
    """The program of a leader, and its reports."""

    def __init__(self, deployment, clock, folder):
        self.deployment, self.sums, self.failures = deployment, [], []
        self._lead = ReleasingLeader(deployment.leader, folder, clock)

    def start(self):
        return asyncio.ensure_future(
            self._lead.release(written=self.sums.append, failed=self.failures.append)
        )

    def give(self, *names, unheard=()):
        ways = {
            name: {"helper": Unheard(self.deployment.way_to("helper", name))}
            for name in unheard
        }
        return asyncio.gather(
            *(
                self.deployment.client(name, **ways.get(name, {})).contribute(ZEROS)
                for name in names
            ),
            return_exceptions=True,
        )

    @property
    def codes(self):
        return [error.code for error in self.failures]


def test_a_leader_is_busy_until_its_sum_is_stored(tmp_path):
    """So that a process that drains leaves it on the disk."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        program = Program(deployment, clock, tmp_path)
        busy = [program._lead.is_busy]
        program.sums = CallingList(lambda: busy.append(program._lead.is_busy))
        releasing = program.start()
        await program.give("a", "b", "c", "d")
        await releasing
        return [*busy, program._lead.is_busy]

    assert run(main) == [False, True, False]


class CallingList(list):
    """Calls a function with each item that is appended."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def append(self, item):
        super().append(item)
        self.then()


def test_clients_that_equivocate_to_the_helper_end_only_the_session(tmp_path):
    """That the helper refuses a set is no lie of the helper's."""

    async def main(clock):
        program = Program(
            TwoAggregators(clock, noise_for(participations=1)), clock, tmp_path
        )
        releasing = program.start()
        lost = await program.give("a", "b", "c", "d", unheard="ab")
        await program.give("e", "f", "g", "h")
        await releasing
        return program, lost

    program, lost = run(main)
    assert program.codes == [ErrorCode.U3_TOO_SMALL]
    assert {error.code for error in lost} == {ErrorCode.U3_TOO_SMALL}
    assert [each.inputs for each in program.sums] == [4]


def test_a_helper_that_lost_the_session_does_not_end_the_leader(tmp_path):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        await clock.sleep_until(clock.now() + 1.0)
        giving = asyncio.ensure_future(program.give("a", "b", "c"))
        await clock.sleep_until(clock.now() + 100.0)
        await deployment.helper._abort_stale(
            deployment.helper._live
        )  # restored from a backup
        deployment.helper._live = None
        lost = await giving
        await program.give("e", "f", "g", "h")
        await releasing
        return program, lost

    program, lost = run(main)
    assert program.codes == [ErrorCode.UNKNOWN_SESSION]
    assert {error.code for error in lost} == {ErrorCode.UNKNOWN_SESSION}
    assert len(program.sums) == 1


def test_a_malicious_helper_ends_the_leader(tmp_path):
    """An operator has to look: further sessions would cost clients their budget."""

    def stranger(piece):
        part = NoisyShare.decode(piece.data)
        changed = replace(part, names=(*part.names, "z")).encode()
        return BlobChunk(changed, len(changed))

    async def main(clock):
        deployment = TwoAggregators(
            clock,
            noise_for(),
            helper_way=lambda way: LyingConnection(way, {FetchChunk: stranger}),
        )
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        await program.give("a", "b", "c", "d")
        with pytest.raises(RemoteProtocolError) as lie:
            await releasing
        return lie.value.code

    assert run(main) is ErrorCode.U3_INVALID


@pytest.mark.parametrize("is_spent", [True, False])
def test_a_helper_without_further_sessions_is_not_asked_indefinitely(
    tmp_path, is_spent
):
    """Its budget is used though the leader's is not, or it runs another task."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        if is_spent:
            await deployment.give([ZEROS] * 4)
            fresh = TwoAggregators(clock, noise_for(participations=1))
            deployment.leader._storage = fresh.leader._storage
            deployment.leader._history = None
        else:
            deployment.helper._task = "another"
        program = Program(deployment, clock, tmp_path)
        await program.start()
        assert not deployment.leader.may_serve
        assert (await PartyTask.of(deployment.leader).view())["state"] == "done"
        left = [reading[1] for reading in (await deployment.leader.readings())[:3]]
        with pytest.raises(ServiceError) as over:
            await deployment.client("late").contribute(ZEROS)
        assert over.value.code is ErrorCode.TASK_OVER
        return program, left

    program, left = run(main)
    assert left == [0.0, 0.0, 0.0]
    (error,) = program.failures
    assert str(error).startswith("the helper refuses: ")
    assert error.code is (
        ErrorCode.POLICY_VIOLATION if is_spent else ErrorCode.TASK_OVER
    )
    assert not program.sums


def test_a_refusal_within_a_session_ends_only_that_session(tmp_path):
    """The helper states whether there is another one when it is asked."""

    async def main(clock):
        refusals = [ServiceError("not this list", code=ErrorCode.POLICY_VIOLATION)]

        def refused(answer):
            if refusals:
                raise refusals.pop()
            return answer

        deployment = TwoAggregators(
            clock,
            noise_for(participations=3),
            helper_way=lambda way: LyingConnection(way, {FetchChunk: refused}),
        )
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        await program.give("a", "b", "c", "d")
        assert deployment.leader.may_serve
        await program.give("a", "b", "c", "d")
        releasing.cancel()
        return program

    program = run(main)
    assert program.codes == [ErrorCode.POLICY_VIOLATION]
    assert [each.session_number for each in program.sums] == [2]


def test_clients_of_a_completed_task_receive_task_over(tmp_path):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        given = await program.give("a", "b", "c", "d")
        await releasing
        began = clock.now()
        with pytest.raises(ServiceError) as over:
            await deployment.client("e").contribute(ZEROS)
        return given, over.value.code, clock.now() - began

    given, code, seconds = run(main)
    assert all(each.is_included for each in given)
    assert code is ErrorCode.TASK_OVER
    assert seconds < 1.0


def test_a_restarted_leader_asks_the_helper_before_the_session_ends(tmp_path):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        first = Program(deployment, clock, tmp_path).start()
        await clock.sleep_until(clock.now() + 1.0)
        giving = [
            asyncio.ensure_future(deployment.client(name).contribute(ZEROS))
            for name in "abc"  # one less than would end the collection
        ]
        await clock.sleep_until(clock.now() + 10.0)
        first.cancel()
        for each in giving:
            each.cancel()
        offer = deployment.leader._live.offer
        deadlines = offer.parameters.deadlines
        left = offer.session_end - clock.date()
        # Less is left than a whole collection takes, but more than an answer does.
        clock.advance(left - deadlines.unmasking - deadlines.masked_input / 2)
        again = deployment.restarted(noise_for(participations=1))
        await again.helper.recover()
        await again.leader.recover()
        program = Program(again, clock, tmp_path)
        await program.start()
        return program

    program = run(main)
    assert not program.failures
    assert [each.inputs for each in program.sums] == [3]


def test_shares_of_an_ended_session_are_removed_at_a_restart():
    class CrashError(BaseException):
        pass

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        spool, blobs = deployment.storages[0].spool, deployment.storages[0].spool._blobs
        drop = spool.drop_uploads

        def crash(_):
            raise CrashError

        spool.drop_uploads = crash
        giving = [
            asyncio.ensure_future(deployment.client(name).contribute(ZEROS))
            for name in "abcd"
        ]
        with pytest.raises(CrashError):
            await deployment.leader.next_sum()
        for each in giving:
            each.cancel()
        spool.drop_uploads = drop
        before = [name for name in blobs._objects if "/uploads/" in name]
        again = deployment.restarted(noise_for(participations=1))
        await again.leader.recover()
        after = [name for name in blobs._objects if "/uploads/" in name]
        return before, after, await again.leader.last_sum()

    before, after, kept = run(main)
    assert before
    assert not after
    assert kept.inputs == 4


def test_reports_and_logs_state_released_sums_and_remaining_sessions(tmp_path, caplog):
    async def main(clock):
        noise = noise_for(participations=2)
        deployment = TwoAggregators(clock, noise)
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        with caplog.at_level(logging.INFO, logger="secagg.server"):
            await program.give("a", "b", "c", "d")
            last = await deployment.leader.last_sum()
        releasing.cancel()
        return program, noise, last

    program, noise, last = run(main)
    report = json.loads((tmp_path / "report-1.json").read_text())
    packed = pack(last.residues, noise.parameters.bits)
    assert report["sum_hash"] == sha256(packed).hexdigest()
    assert report["privacy"] == json.loads(json.dumps(noise.report().to_dict()))
    assert report["file"] == program.sums[0].path.name
    assert report["released"].endswith("+00:00")
    assert (report["task"], report["inputs"]) == (TASK, 4)
    assert (report["leader"], report["helper"]) == ("leader", "helper")
    assert (report["charges_in_budget"], report["sessions_left_in_budget"]) == (2, 1)
    assert last.session_id.hex() == report["session_id"]
    said = [record.message for record in caplog.records if "number=1" in record.message]
    assert [line.split()[0] for line in said] == [
        "session_opened",  # the helper's, then the leader's
        "session_opened",
        "session_completed",
        "session_completed",
    ]
    assert all("inputs=4" in line for line in said[2:])


def test_the_last_sum_is_served_after_the_task_has_ended(tmp_path):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        program = Program(deployment, clock, tmp_path)
        releasing = program.start()
        await program.give("a", "b", "c", "d")
        await releasing
        again = deployment.restarted(noise_for(participations=1))
        await again.leader.recover()
        late = Program(again, clock, tmp_path)
        await late.start()
        with pytest.raises(ServiceError):
            await again.leader.answer("a", GetOffer(TASK))
        return late, await again.leader.last_sum()

    late, last = run(main)
    assert not late.sums + late.failures
    assert last.inputs == 4


@pytest.mark.parametrize("is_released", [True, False])
def test_no_task_writes_over_the_files_of_another(tmp_path, is_released):
    """The sessions of every task begin at 1, and all may name one folder."""

    def files():
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    async def main(clock):
        givers = "abcd" if is_released else "a"
        one = TwoAggregators(clock, noise_for(participations=1))
        releasing = Program(one, clock, tmp_path).start()
        await Program(one, clock, tmp_path).give(*givers)
        releasing.cancel()
        before = files()
        other = TwoAggregators(clock, noise_for(participations=1), task="another")
        program = Program(other, clock, tmp_path)
        releasing = program.start()
        await program.give("e", "f", "g", "h")
        with pytest.raises(ServiceError, match="another") as refused:
            await releasing
        assert files() == before
        for path in tmp_path.iterdir():
            path.unlink()
        later = Program(other, clock, tmp_path)  # as in the next process
        await later.start()
        return refused.value.code, [each.inputs for each in later.sums]

    assert run(main) == (ErrorCode.STORAGE_FAILED, [4])
