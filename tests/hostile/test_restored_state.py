"""A state that is restored from an older copy of itself, on either side.

What must hold: it is refused until a person accepts it; a session that was open in it
sends nothing more; and every input of that session counts as summed.
"""

import shutil

import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import parameters_for, signing_parameters_for
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of, inline_store

from secagg.client.contribution import SessionOutcome
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol import refund
from secagg.protocol.client import states as client_states
from secagg.protocol.messages import Aborted, Fate, Round
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.simulation import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Change, Side
from secagg.storage.journal import decode_ending, decode_offer
from secagg.storage.queries import ListSessions, LoadSession, ReadTally
from secagg.storage.rows import SessionState
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.wire.calls import GetUpdate

CLIENTS = 3
VICTIM = 1
ANSWERED = "answered"
PARAMETERS = parameters_for(CLIENTS, dimension=7, threshold=2)
SIGNED = signing_parameters_for(CLIENTS, dimension=7)


class CopyingStore(CrashingStore):
    """Has its file copied when a session holds so many records, or has answered."""

    def __init__(self, path, copy, *, records, make=inline_store):
        self.seeds = []
        self.inner = make(path, mark=path.with_suffix(".mark"))
        super().__init__(self.inner, CrashSwitch())
        self._path, self._copy, self._records = path, copy, records

    async def commit(self, change):
        answer = await super().commit(change)
        if not isinstance(change, Change):
            return answer
        if change.create is not None and change.create.role is Side.CLIENT:
            self.seeds.append(decode_offer(change.create.header).offered.seed.reveal())
        if self._records == ANSWERED:
            is_there = change.reseal is not None
        else:
            is_there = answer.sequence >= self._records
        if is_there and not self._copy.exists():
            _file_of(self.inner).erase()  # folds the log into the file
            shutil.copy(self._path, self._copy)
        return answer


def _file_of(store):
    is_client = isinstance(store, LastingStore)
    return store.file if is_client else store.engine.transactions.file


def put_back(path, copy, make=inline_store):
    shutil.copy(copy, path)
    mark = path.with_suffix(".mark")
    with pytest.raises(ServiceError, match="older state") as caught:
        make(path, mark=mark)
    assert caught.value.code is ErrorCode.RESTORED_STATE
    assert "accept" in caught.value.next_step
    return make(path, mark=mark, accept_restored=True)


def run(parameters=PARAMETERS, **options):
    async def main(clock):
        deployment = Deployment(clock, parameters, CLIENTS, **options)
        return deployment, await deployment.run()

    return manual_clock.run(main)


# two adverts; the roster and a set of bundles; U2 and an upload; U3 and an answer
@pytest.mark.parametrize("records", [2, 5, 9, 13])
def test_a_restored_server_ends_its_session_with_every_client_included(
    tmp_path, records
):
    # R5-6
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    store = CopyingStore(path, copy, records=records)
    deployment, endings = run(server_store=store)
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    session_id = deployment.sums[0].descriptor.session_id
    answer_of(store.inner.close())

    restored = put_back(path, copy)
    assert answer_of(restored.read(ReadTally(Side.SERVER, TASK_ID))).spent == int(
        records > 11
    )
    all_clients = (*map(identity_of, range(CLIENTS)), "who was forgotten")

    def fates():
        async def main(clock):
            aggregator = Aggregator(
                restored,
                UploadSpool(MemoryBlobs()),
                clock=clock,
                workers=Workers(general=InlineExecutor()),
            )
            await aggregator.recover()
            for identity in all_clients:
                update = await aggregator.answer(
                    identity, GetUpdate(session_id, after=Round.ADVERTISE_KEYS)
                )
                assert update.kind is Aborted
                yield update.open().fate
            await aggregator.close()

        async def collected(clock):
            return [fate async for fate in main(clock)]

        return manual_clock.run(collected)

    assert fates() == [Fate.INCLUDED] * len(all_clients)
    # The task continues with a number of its own, and the session has used its part.
    again, _ = run(server_store=restored)
    number = again.sums[0].descriptor.session_number
    assert number > 1_577_836_800  # no client has seen it: the year 2020
    assert answer_of(restored.read(ReadTally(Side.SERVER, TASK_ID))).spent == 2
    assert fates() == [Fate.INCLUDED] * len(all_clients)  # from the receipt, too
    answer_of(restored.close())


# roster, delivery, input, and where sets are signed, what was signed
@pytest.mark.parametrize(
    ("parameters", "records"),
    [
        *((PARAMETERS, records) for records in (1, 2, 3, ANSWERED)),
        *((SIGNED, records) for records in (3, 4, ANSWERED)),
    ],
)
def test_a_restored_client_does_not_answer_from_its_old_state(
    tmp_path, parameters, records
):
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    store = CopyingStore(path, copy, records=records, make=LastingStore.make)
    first, _ = run(parameters, client_stores={VICTIM: store})
    store.inner.end()
    # A thief of the disk of a client that has answered finds no seed any more.
    (seed,) = store.seeds
    assert (seed in copy.read_bytes()) == (records != ANSWERED)

    restored = put_back(path, copy, LastingStore.make)
    again, endings = run(
        parameters,
        sessions=2,
        server_store=first.server_store,
        spool=first.spool,
        client_stores={**first.client_stores, VICTIM: restored},
    )
    assert isinstance(endings[VICTIM], SessionOutcome)
    forsaken = first.sums[0].descriptor.session_id
    assert forsaken not in {sid for sid, _ in again.links[VICTIM].distinct_messages()}
    rows = answer_of(
        restored.read(ListSessions(role=Side.CLIENT, state=SessionState.ENDED))
    )
    ended = decode_ending(
        answer_of(restored.read(LoadSession(rows[-1].key))).receipt
    ).state
    assert isinstance(ended, client_states.Failed)
    assert ended.code is ErrorCode.RESTORED_STATE
    assert ended.charge is refund.ChargeOutcome.KEPT
    restored.end()
