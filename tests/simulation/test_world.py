"""The simulated service: it repeats itself, holds, and notices when it does not.

`make simulation` runs the same over ten thousand seeds.
"""

import itertools
import os
import select
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from secagg_testing.world.directed import Directed
from secagg_testing.world.plan import Direction, Fault, Plan
from secagg_testing.world.run import simulate, simulate_plan
from secagg_testing.world.tasks import Kind, parameters_of

from secagg.client.calls import ClientCalls
from secagg.client.contribution import extended
from secagg.client.open_client import OpenClient
from secagg.client.service import ClientService
from secagg.client.session import ClientSession
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.pki.certificate_revocations import CertificateRevocations
from secagg.protocol import refund
from secagg.protocol.messages import Envelope, Round, Survivors
from secagg.protocol.noise_terms import NoiseTerms
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.server.aggregator import Aggregator
from secagg.server.session.runner import MOST_ATTEMPTS
from secagg.server.session.state import DurableState, JournalPosition
from secagg.server.supervisor import TaskRows
from secagg.server.task.schedule import TaskSchedule
from secagg.storage.change import Change
from secagg.storage.changes import Touch
from secagg.storage.journal import StoredOffer, record_of
from secagg.storage.queries import LoadSession
from secagg.storage.rows import TaskRow
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite import file as sqlite_file
from secagg.storage.store import StoreUnavailableError


def test_a_seed_determines_a_run():
    first, second = simulate(3), simulate(3)
    assert first.digest == second.digest
    assert first.steps > 500
    assert simulate(4).digest != first.digest


# One of every kind, whatever else they have.
@pytest.mark.parametrize("kind", Kind)
def test_a_run_of_every_kind_has_no_faults(kind):
    run = simulate(next(s for s in itertools.count() if Plan.of(s).kind is kind))
    assert run.faults == (), f"make simulation SEED={run.plan.seed} shows how"


# A stopped task taken up after a restart; a drain while the disk is full; a session
# that ends while another word about it waits for the disk.
@pytest.mark.parametrize("seed", [575, 6352, 7147, 40100])
def test_recorded_seeds_run_without_faults(seed):
    assert simulate(seed).faults == ()


# --- directed worlds: a restart inside each round, after no, one and most losses


def directed(round_, losses=0, *, server=True):
    return Direction(round_, losses, restarts_server=server)


def between_chunks():
    inside = directed(Round.MASKED_INPUT_COLLECTION, server=False)
    return replace(inside, after_chunk=True)


def directions():
    """Return every direction of every profile, with its kind of task."""
    for kind in (Kind.LADDER, Kind.SIGNED, Kind.DRAWN):
        parameters = parameters_of(kind)
        most = min(parameters.max_dropouts, parameters.max_losses)
        places = itertools.product(
            rounds_of(parameters.profile), sorted({0, 1, most}), (True, False)
        )
        for round_, losses, is_server in places:
            yield kind, directed(round_, losses, server=is_server)
            if is_server and losses == 1:
                late = replace(directed(round_, losses), after_message=True)
                yield kind, late
        yield kind, between_chunks()


def test_directed_runs_cover_every_round_of_every_profile_with_losses():
    found = {
        (parameters_of(kind).profile, each.round, min(each.losses, 1))
        for kind, each in directions()
    }
    assert found == {
        (profile, each, losses)
        for profile in Profile
        for each in rounds_of(profile)
        for losses in (0, 1)
    }
    assert max(each.losses for _, each in directions()) > 1


@pytest.mark.parametrize(
    ("kind", "direction"), [*directions()], ids=lambda each: str(each).replace(" ", "-")
)
def test_a_restart_inside_a_round_changes_nothing(kind, direction, monkeypatch):
    resumed = set()
    replay, interrupted = DurableState.replay, OpenClient.unfinished_sessions

    def replayed(self, events):
        replay(self, events)
        state = self._state
        is_fixed = isinstance(state, server.ConsistencyCheck | server.Unmasking)
        lost = len(state.share_holders - state.survivors) if is_fixed else None
        resumed.add(("server", state.ROUND, lost))

    async def looked_for(self, task):
        sessions = await interrupted(self, task)
        resumed.update(("client", session.round) for session in sessions)
        return sessions

    monkeypatch.setattr(DurableState, "replay", replayed)
    monkeypatch.setattr(OpenClient, "unfinished_sessions", looked_for)
    run = simulate_plan(Plan.directed(kind, direction))
    assert run.faults == ()
    assert run.sums == 2
    if not direction.restarts_server:
        assert ("client", direction.round) in resumed
    else:
        is_fixed = direction.round > Round.MASKED_INPUT_COLLECTION
        losses = direction.losses if is_fixed else None
        assert ("server", direction.round, losses) in resumed


def grows_its_survivors_at_a_restart(monkeypatch):
    replay = DurableState.replay

    def replayed_and_grown(self, events):
        replay(self, events)
        state = self._state
        if (
            isinstance(state, server.Unmasking)
            and state.survivors < state.share_holders
        ):
            more = {min(state.share_holders - state.survivors)}
            grown = state.survivors | more
            bitmap = encode_set(grown, len(state.cohort.roster))
            shown = Envelope.of(Survivors(bitmap))
            self._state = replace(
                state, survivors=grown, survivors_shown=shown, opening=shown
            )

    monkeypatch.setattr(DurableState, "replay", replayed_and_grown)


def commits_without_sync(monkeypatch):
    pragmas = tuple(
        "synchronous = OFF" if "synchronous" in each else each
        for each in sqlite_file._PRAGMAS
    )
    monkeypatch.setattr(sqlite_file, "_PRAGMAS", pragmas)
    monkeypatch.setattr(sqlite_file, "_NEEDED", {})


def accepts_uploads_without_sync(monkeypatch):
    commit = UploadSpool.commit

    def committed_unsynced(self, *words):
        with monkeypatch.context() as patch:
            patch.setattr(type(self._blobs), "sync", lambda *_: None)
            commit(self, *words)

    monkeypatch.setattr(UploadSpool, "commit", committed_unsynced)


def releases_a_sum_without_sync(monkeypatch):
    put = UploadSpool.put

    def put_unsynced(self, *words):
        with monkeypatch.context() as patch:
            patch.setattr(type(self._blobs), "sync", lambda *_: None)
            put(self, *words)

    monkeypatch.setattr(UploadSpool, "put", put_unsynced)


def removes_noise_as_if_no_client_dropped_out(monkeypatch):
    monkeypatch.setattr(
        NoiseTerms, "revealed", lambda self, _: self.reveals[0] if self.reveals else ()
    )


def begins_its_upload_again(monkeypatch):
    upload = ClientCalls.upload

    async def uploaded_from_the_beginning(self, *words, **more):
        await upload(self, *words, **(more | {"offset": 0}))

    monkeypatch.setattr(ClientCalls, "upload", uploaded_from_the_beginning)


@pytest.mark.parametrize(
    ("defect", "kind", "direction"),
    [
        (grows_its_survivors_at_a_restart, Kind.EXACT, directed(Round.UNMASKING, 1)),
        (commits_without_sync, Kind.EXACT, directed(Round.SHARE_KEYS)),
        (
            commits_without_sync,
            Kind.EXACT,
            directed(Round.UNMASKING, server=False),
        ),
        (
            removes_noise_as_if_no_client_dropped_out,
            Kind.LADDER,
            directed(Round.UNMASKING, 2),
        ),
        (begins_its_upload_again, Kind.EXACT, between_chunks()),
        (
            accepts_uploads_without_sync,
            Kind.EXACT,
            replace(directed(Round.MASKED_INPUT_COLLECTION), after_message=True),
        ),
        (
            releases_a_sum_without_sync,
            Kind.EXACT,
            directed(Round.ADVERTISE_KEYS),
        ),
    ],
)
def test_a_defect_at_a_restart_is_detected(defect, kind, direction, monkeypatch):
    plan = Plan.directed(kind, direction)
    assert simulate_plan(plan).faults == ()
    defect(monkeypatch)
    assert simulate_plan(plan).faults


def test_a_missing_restart_is_a_fault(monkeypatch):
    monkeypatch.setattr(Directed, "committed", lambda *_: None)
    direction = Direction(Round.SHARE_KEYS, 0, restarts_server=True)
    (fault,) = simulate_plan(Plan.directed(Kind.EXACT, direction)).faults
    assert "did not come" in fault


def test_workers_end_with_their_parent_process():
    words = ["-m", "secagg_testing.world", "--seeds", "1000000", "--processes", "2"]
    with subprocess.Popen([sys.executable, *words]) as parent:
        workers = []
        while len(workers) < 2:
            assert parent.poll() is None
            path = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
            workers = [os.pidfd_open(int(each)) for each in path.read_text().split()]
        parent.kill()
    for worker in workers:
        ended, _, _ = select.select([worker], [], [], 60)
        os.close(worker)
        assert ended, "a worker outlives its parent"


# --- what the simulation is worth: the product with one defect, and seeds that show it


def answers_before_it_has_stored(monkeypatch):
    judge = DurableState._commit_batch

    async def judged_in_haste(self, batch):
        self._validated(batch)
        for message in batch:
            message.settle(message.refusal)
        await judge(self, batch)

    monkeypatch.setattr(DurableState, "_commit_batch", judged_in_haste)


def opens_a_round_before_it_is_stored(monkeypatch):
    async def applied_in_haste(self, make_event, _lease):
        event = make_event(self._state)
        if event is None or server_machine.is_over(self._state):
            return
        step = server_machine.step(server_machine.fork(self._state), event)
        self._enter(event, step)
        await self._commit(
            Change(key=self._key, records=(record_of(event),), round=step.state.ROUND)
        )

    monkeypatch.setattr(DurableState, "_apply_own", applied_in_haste)


def submits_blindly_again(monkeypatch):
    commit = DurableState._commit

    async def committed_in_any_case(self, change):
        try:
            return await commit(self, change)
        except ServiceError:
            stored = await self._store.read(LoadSession(self._key))
            self._position = JournalPosition(stored.sequence, stored.chain)
            return await commit(self, change)

    monkeypatch.setattr(DurableState, "_commit", committed_in_any_case)


def loses_the_last_record_at_a_restart(monkeypatch):
    replay = DurableState.replay

    def replayed_in_part(self, events):
        replay(self, list(events)[:-1])

    monkeypatch.setattr(DurableState, "replay", replayed_in_part)


def treats_a_repetition_as_equivocation(monkeypatch):
    step = server_machine.step

    def suspicious(state, event):
        taken = step(state, event)
        if taken.is_repeat:
            raise RemoteProtocolError("again?", code=ErrorCode.EQUIVOCATION)
        return taken

    monkeypatch.setattr(server_machine, "step", suspicious)


def refunds_a_masked_input(monkeypatch):
    generous = {
        key: refund.ChargeOutcome.GIVEN_BACK
        if charge is refund.ChargeOutcome.KEPT
        else charge
        for key, charge in refund._FOLLOWED.items()
    }
    charges = dict.fromkeys(refund.CHARGES, generous)
    monkeypatch.setattr(refund, "CHARGES", charges)


def charges_nothing(monkeypatch):
    monkeypatch.setattr("secagg.client.session.charge_of", lambda _: None)


def sends_before_it_has_stored(monkeypatch):
    commit = ClientSession._commit

    async def committed_in_part(self, change):
        if change.records and change.charge is None:
            return
        await commit(self, change)

    monkeypatch.setattr(ClientSession, "_commit", committed_in_part)


def draws_its_seed_again_after_a_restart(monkeypatch):
    resumed = StoredOffer.resumed

    def with_another_seed(self, own, verified):
        offered = resumed(self, own, verified)
        return replace(offered, seed=SecretBytes(b"another" * 5))

    monkeypatch.setattr(StoredOffer, "resumed", with_another_seed)


def ignores_the_rollback_mark(monkeypatch):
    monkeypatch.setattr("secagg.storage.sqlite.file.refuse_restored", lambda *_: None)


def assumes_that_it_alone_writes(monkeypatch):
    async def ignored(self, behind):
        self._position = JournalPosition(behind.sequence, behind.chain)

    monkeypatch.setattr(DurableState, "_load_missed", ignored)


# --- the same for promises that only some worlds are about


def ignores_a_pause(monkeypatch):
    monkeypatch.setattr(TaskSchedule, "pause", lambda _: None)


def loses_operator_commands(monkeypatch):
    async def said_without_a_row(_, row, state, reason):
        said = replace(row.task, state=state, reason=reason)
        return TaskRow(said, row.version, row.tally)

    monkeypatch.setattr(TaskRows, "write_state", said_without_a_row)


def shows_every_task_as_running(monkeypatch):
    monkeypatch.setattr("secagg.server.admin.views.state_of", lambda *_: "running")


def opens_sessions_while_it_drains(monkeypatch):
    monkeypatch.setattr(Aggregator, "drain", lambda _: None)


def never_reads_revocations(monkeypatch):
    monkeypatch.setattr(CertificateRevocations, "refresh", lambda _: False)


def treats_transient_errors_as_final(monkeypatch):
    monkeypatch.setattr(ClientService, "_passes", lambda *_: False)


def removes_no_noise(monkeypatch):
    monkeypatch.setattr(
        "secagg.server.engine.mask_removal.subtract_layers", lambda *_: None
    )


def has_another_root_in_its_receipt(monkeypatch):
    def seen_wrongly(seen, descriptor, events):
        seen = extended(seen, descriptor, events)
        return replace(seen, edge_root=bytes(32) if seen.edge_root else b"")

    monkeypatch.setattr("secagg.client.session.extended", seen_wrongly)


def omits_a_client_from_its_receipt(monkeypatch):
    monkeypatch.setattr(
        "secagg.server.session.report.encode_set",
        lambda members, size: encode_set(sorted(members)[1:], size),
    )


def treats_a_lost_answer_as_committed(monkeypatch):
    commit = DurableState._commit

    async def committed_as_far_as_known(self, change):
        try:
            return await commit(self, change)
        except StoreUnavailableError:
            return True

    monkeypatch.setattr(DurableState, "_commit", committed_as_far_as_known)


def waits_for_no_book(monkeypatch):
    async def looked_once(self):
        await self._context.store.commit(Touch())

    monkeypatch.setattr(Aggregator, "_wait_for_store", looked_once)


def uses_only_its_own_messages(monkeypatch):
    append, arrived = UploadSpool.append, UploadSpool._arrived
    own = defaultdict(int)

    def noted(self, session_id, sender, *words, **more):
        received = append(self, session_id, sender, *words, **more)
        own[self, session_id, sender] = received
        return received

    def known(self, session_id, sender):
        digest, chunks = arrived(self, session_id, sender)
        end = own[self, session_id, sender]
        return digest, tuple(each for each in chunks if each.end <= end)

    monkeypatch.setattr(UploadSpool, "append", noted)
    monkeypatch.setattr(UploadSpool, "_arrived", known)


def counts_no_beginning_of_a_sum(monkeypatch):
    async def never_noted(*_, **__):
        pass

    monkeypatch.setattr(DurableState, "record_attempt", never_noted)


def counts_silence_as_time(monkeypatch):
    monkeypatch.setattr(
        "secagg.storage.postgres.notifications.downtime_between", lambda *_: 0
    )


def uses_only_its_own_timers(monkeypatch):
    commit = DurableState._commit

    async def committed_at_once(self, change):
        return await commit(self, replace(change, due=False))

    monkeypatch.setattr(DurableState, "_commit", committed_at_once)


def loses_its_book(plan):
    return any(
        each.fault in {Fault.CUT_OFF_SERVER, Fault.RESTART_DATABASE}
        for each in plan.incidents
    )


def uploads_to_several(plan):
    return plan.chunk_bytes is not None and plan.servers > 1


def is_drained_for_long(plan):
    return any(
        each.fault is Fault.DRAIN_SERVER and each.seconds > 60
        for each in plan.incidents
    )


def is_revoked(plan):
    return any(each.fault is Fault.REVOKE_CLIENT for each in plan.incidents)


def is_of(kind):
    return lambda plan: plan.kind is kind


def falls_silent(plan):
    return plan.servers > 1 and any(
        each.fault in {Fault.STOP_SERVERS, Fault.RESTART_DATABASE} and each.seconds > 20
        for each in plan.incidents
    )


def has_a_deadly_sum(plan):
    return plan.poison > MOST_ATTEMPTS


FITTING = {
    ignores_a_pause: is_of(Kind.FILED),
    loses_operator_commands: is_of(Kind.FILED),
    shows_every_task_as_running: is_of(Kind.FILED),
    opens_sessions_while_it_drains: is_drained_for_long,
    never_reads_revocations: is_revoked,
    treats_transient_errors_as_final: lambda plan: plan.is_service and plan.is_operated,
    removes_no_noise: is_of(Kind.LADDER),
    has_another_root_in_its_receipt: is_of(Kind.DRAWN),
    omits_a_client_from_its_receipt: is_of(Kind.SIGNED),
    treats_a_lost_answer_as_committed: loses_its_book,
    waits_for_no_book: loses_its_book,
    uses_only_its_own_messages: uploads_to_several,
    counts_no_beginning_of_a_sum: has_a_deadly_sum,
    counts_silence_as_time: falls_silent,
    uses_only_its_own_timers: falls_silent,
}


# From where on the seeds are tried, so that the first or second one shows it.
FIRST = {
    submits_blindly_again: 8,
    loses_the_last_record_at_a_restart: 18,
    draws_its_seed_again_after_a_restart: 8,
    opens_sessions_while_it_drains: 100,
    never_reads_revocations: 569,
    waits_for_no_book: 62,
    counts_silence_as_time: 128,
    uses_only_its_own_timers: 128,
}


@pytest.mark.parametrize(
    "defect",
    [
        answers_before_it_has_stored,
        opens_a_round_before_it_is_stored,
        submits_blindly_again,
        loses_the_last_record_at_a_restart,
        treats_a_repetition_as_equivocation,
        refunds_a_masked_input,
        charges_nothing,
        sends_before_it_has_stored,
        draws_its_seed_again_after_a_restart,
        ignores_the_rollback_mark,
        assumes_that_it_alone_writes,
        *FITTING,
    ],
)
def test_a_defect_is_detected(defect, monkeypatch):
    defect(monkeypatch)
    is_fitting = FITTING.get(defect, lambda _: True)
    seeds = (s for s in itertools.count(FIRST.get(defect, 4)) if is_fitting(Plan.of(s)))
    assert any(simulate(seed).faults for seed in itertools.islice(seeds, 20))
