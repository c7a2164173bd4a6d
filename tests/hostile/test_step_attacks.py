"""What a lying aggregator, a copied directory and a second process get from a step."""

import os
import shutil
from dataclasses import replace
from threading import Thread

import pytest
from secagg_testing.carrier import Carrier, memory_directory, step_client
from secagg_testing.cohorts import with_noise

from secagg.client.gate import Need
from secagg.crypto.transcript import encode_set
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.messages import Consistency, Round, Shares, Survivors
from secagg.storage.queries import ListCharges
from secagg.storage.sqlite import file as sqlite_file
from secagg.storage.store import run_inline
from tests.cases import cells_from, on_every_graph

NAMES = ("ann", "bob", "cleo", "dan")
EVERY = on_every_graph(5)
EXACT = EVERY["complete"]
every_profile = cells_from(EVERY, "complete")


@pytest.fixture
def tmp_path():
    with memory_directory() as home:
        yield home


def joining(parameters, home=None):
    names = (*NAMES, "eve", "fay")[: parameters.max_clients]
    return Carrier(parameters, names, home)


def until(session, last):
    """Carry a session until a round is open."""
    while session.server.round is not last:
        for name in session.names:
            session.deliver_update(name)
        session.server.close_round()
    return session


def masked(parameters, home):
    """Carry a session until all inputs are in."""
    session = until(joining(parameters, home), Round.MASKED_INPUT_COLLECTION)
    for name in session.names:
        session.deliver_update(name)
    session.server.close_round()
    return session


def session_at_vector(parameters, home):
    """Carry a session until it asks "ann" for a vector."""
    session = until(joining(parameters, home), Round.MASKED_INPUT_COLLECTION)
    update = session.server.update_for("ann")
    done = session.client("ann").step(session.server.offer, update)
    assert done.needs == {Need.VECTOR}
    return session


def survivors(session, *, but=None):
    """Return an update that shows a set of survivors: all, or all but one."""
    places = session.server._state.cohort.index_of
    shown = frozenset(place for name, place in places.items() if name != but)
    return bytes([Survivors.KIND]) + encode_set(shown, len(places))


def closed(session):
    session.close()
    return session.server.offer


@every_profile
def test_of_two_survivor_sets_only_one_is_answered(parameters, tmp_path):
    session = masked(parameters, tmp_path)
    offer, first = session.server.offer, survivors(session)
    said = session.client("ann").step(offer, first)
    assert session.client("ann").step(offer, first).messages == said.messages
    with pytest.raises(RemoteProtocolError) as caught:
        session.client("ann").step(offer, survivors(session, but="cleo"))
    assert caught.value.code is ErrorCode.EQUIVOCATION
    with pytest.raises(SessionAbortedError) as again:
        session.client("ann").step(offer, first)
    assert again.value.code is ErrorCode.EQUIVOCATION
    session.close()


@cells_from(EVERY, "ring")
def test_two_processes_shown_two_sets_give_one_answer(parameters, tmp_path):
    session = masked(parameters, tmp_path)
    offer = closed(session)
    sets = (survivors(session), survivors(session, but="cleo"))
    said, refused = [], []

    def ask(update):
        with step_client("ann", parameters, tmp_path, lock_seconds=60.0) as ann:
            try:
                said.append(ann.step(offer, update).messages)
            except RemoteProtocolError as error:
                refused.append(error.code)

    threads = [Thread(target=ask, args=(each,)) for each in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1
    assert refused == [ErrorCode.EQUIVOCATION]


@every_profile
@pytest.mark.parametrize("place", ["elsewhere", "restored"])
def test_a_copied_state_gives_no_second_answer(parameters, place, tmp_path):
    session = masked(parameters, tmp_path)
    offer = closed(session)
    shutil.copytree(tmp_path / "ann", tmp_path / "copy")
    with step_client("ann", parameters, tmp_path) as ann:
        (answer,) = ann.step(offer, survivors(session)).messages
    assert answer[0] in {Shares.KIND, Consistency.KIND}
    if place == "restored":
        shutil.rmtree(tmp_path / "ann")
        shutil.copytree(tmp_path / "copy", tmp_path / "ann")
        mark = tmp_path / "marks" / "ann"
        copied = step_client("ann", parameters, tmp_path, rollback_mark=mark)
    else:
        copied = step_client(
            "ann",
            parameters,
            tmp_path,
            state_dir=tmp_path / "copy",
            rollback_mark=tmp_path / "marks" / "copy",
        )
    with pytest.raises(ServiceError) as caught, copied:
        pass
    assert caught.value.code is ErrorCode.RESTORED_STATE


@cells_from(EVERY, "ring")
def test_an_emptied_state_cannot_start_again(parameters, tmp_path):
    masked(parameters, tmp_path).close()
    shutil.rmtree(tmp_path / "ann")
    for _ in range(2):
        again = step_client("ann", parameters, tmp_path)
        with pytest.raises(ServiceError) as caught, again:
            pass
        assert caught.value.code is ErrorCode.RESTORED_STATE
        shutil.rmtree(tmp_path / "ann")


@every_profile
def test_accepting_a_restored_state_ends_its_sessions_as_included(parameters, tmp_path):
    noisy = with_noise(parameters)
    session = masked(noisy, tmp_path)
    offer = closed(session)
    shutil.copytree(tmp_path / "ann", tmp_path / "old")
    with step_client("ann", noisy, tmp_path) as ann:
        ann.step(offer, survivors(session))
    shutil.rmtree(tmp_path / "ann")
    (tmp_path / "old").rename(tmp_path / "ann")
    with step_client("ann", noisy, tmp_path, accept_restored=True) as ann:
        with pytest.raises(SessionAbortedError) as caught:
            ann.step(offer, survivors(session, but="cleo"))
        assert caught.value.code is ErrorCode.RESTORED_STATE
        assert ann.sessions_left("sums") == 0
    assert not list((tmp_path / "ann").glob("upload-*"))


@cells_from(EVERY, "signed")
def test_a_second_process_is_rejected_with_the_id_of_the_first(parameters, tmp_path):
    session = joining(parameters, tmp_path)
    session.deliver_update("ann")
    with (
        pytest.raises(ServiceError, match=f"held by process {os.getpid()}") as caught,
        step_client("ann", parameters, tmp_path),
    ):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    session.close()


@cells_from(EVERY, "drawn")
def test_an_empty_state_elsewhere_is_a_new_client_unless_the_mark_is_shared(
    parameters, tmp_path, monkeypatch
):
    session = joining(parameters, tmp_path)
    session.deliver_update("ann")
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_SECONDS", 0.0)
    offer = session.server.offer
    elsewhere = {"state_dir": tmp_path / "elsewhere"}
    marked = elsewhere | {"rollback_mark": tmp_path / "marks" / "ann"}
    for code in (ErrorCode.STORAGE_FAILED, ErrorCode.RESTORED_STATE):
        other = step_client("ann", parameters, tmp_path, **marked)
        with pytest.raises(ServiceError) as caught, other:
            pass
        assert caught.value.code is code
        session.close()
    alone = elsewhere | {"rollback_mark": tmp_path / "marks" / "elsewhere"}
    with step_client("ann", parameters, tmp_path, **alone) as other:
        (advert,) = other.step(offer).messages
    assert advert not in session.said["ann"]
    with pytest.raises(RemoteProtocolError):  # the aggregator takes one for each name
        session.server.receive("ann", advert)


@cells_from(EVERY, "ring")
def test_a_state_restored_together_with_its_mark_answers_twice(parameters, tmp_path):
    """What no file on the same disk can notice, and SECURITY.md says."""
    session = masked(parameters, tmp_path)
    offer = closed(session)
    shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "-snapshot"))
    said = []
    for but in (None, "cleo"):
        with step_client("ann", parameters, tmp_path) as ann:
            said += ann.step(offer, survivors(session, but=but)).messages
        snapshot = tmp_path.with_name(tmp_path.name + "-snapshot")
        for part in ("ann", "marks"):
            shutil.rmtree(tmp_path / part)
            shutil.copytree(snapshot / part, tmp_path / part)
    shutil.rmtree(snapshot)
    assert len(set(said)) == 2


def test_a_mark_inside_the_state_directory_is_rejected(tmp_path):
    mark = tmp_path / "ann" / "mark"
    with (
        pytest.raises(LocalProtocolError) as caught,
        step_client("ann", EXACT, tmp_path, rollback_mark=mark),
    ):
        pass
    assert caught.value.code is ErrorCode.BAD_SETTINGS


@cells_from(EVERY, "ring")
def test_two_processes_with_two_vectors_send_one(parameters, tmp_path):
    offer, said = closed(session_at_vector(parameters, tmp_path)), []

    def give(number):
        with step_client("ann", parameters, tmp_path, lock_seconds=60.0) as ann:
            said.append(ann.step(offer, vector=[number] * 5).messages)

    threads = [Thread(target=give, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 3
    assert len(set(said)) == 1


@pytest.mark.parametrize("graph", ["signed", "drawn"])
def test_only_members_accept_a_released_sum(graph, tmp_path):
    session = masked(EVERY[graph], tmp_path)
    offer = session.server.offer
    for _ in range(2):
        for name in set(session.names) - {"dan"}:
            session.deliver_update(name)
        session.server.close_round()
    release = session.server.update_for("ann")
    assert session.server.round is Round.FINISHED
    with pytest.raises((SessionAbortedError, RemoteProtocolError)):
        session.client("dan").step(offer, release)  # it has signed nothing (R5.6-4)
    forged = replace(session.server.result.receipt.outcome, survivors=2)
    data = release[:1] + forged.encode()
    with pytest.raises(RemoteProtocolError) as caught:
        session.client("ann").step(offer, data)
    assert caught.value.code is ErrorCode.U3_INVALID
    session.close()


@cells_from(EVERY, "signed")
def test_a_forked_process_sends_no_second_vector(parameters, tmp_path):
    session = session_at_vector(parameters, tmp_path)
    offer, ann = session.server.offer, session.client("ann")
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(LocalProtocolError, match="fork"):
                ann.step(offer, vector=[1] * 5)
            with pytest.raises(ServiceError, match="fork"):
                run_inline(ann._client._opened.store.read(ListCharges("sums")))
            ann.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    said = ann.step(offer, vector=[2] * 5).messages
    session.close()
    with step_client("ann", parameters, tmp_path) as ann:
        assert ann.step(offer, vector=[2] * 5).messages == said


def test_a_client_name_that_is_a_prefix_of_another_does_not_end_its_session(tmp_path):
    # One state, two names of its owner, one after the other.
    first = Carrier(EXACT, ("ann/x",), None)
    second = Carrier(EXACT, ("ann",), None, number=2)
    shared = {"state_dir": tmp_path / "s", "rollback_mark": tmp_path / "mark"}
    with step_client("ann/x", EXACT, tmp_path, **shared) as longer:
        said = longer.step(first.server.offer).messages
    with step_client("ann", EXACT, tmp_path, **shared) as shorter:
        assert shorter.step(second.server.offer).messages
    with step_client("ann/x", EXACT, tmp_path, **shared) as longer:
        assert longer.step(first.server.offer).messages == said


@cells_from(EVERY, "drawn")
def test_a_restored_state_can_be_accepted_only_once(parameters, tmp_path):
    ann = step_client("ann", parameters, tmp_path, accept_restored=True)
    with ann:
        pass
    shutil.copytree(tmp_path / "ann", tmp_path / "old")
    with ann:
        ann.step(joining(parameters).server.offer)
    shutil.rmtree(tmp_path / "ann")
    (tmp_path / "old").rename(tmp_path / "ann")
    with pytest.raises(ServiceError) as caught, ann:
        pass
    assert caught.value.code is ErrorCode.RESTORED_STATE


def test_tasks_must_be_a_list_and_not_a_string():
    with pytest.raises(LocalProtocolError, match="tasks"):
        step_client("ann", EXACT, None, tasks="sums")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "é" * 128, "\ud800"])
def test_an_invalid_client_name_is_rejected(name):
    with pytest.raises(LocalProtocolError, match="name"):
        step_client(name, EXACT, None)
