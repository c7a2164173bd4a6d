"""What a call of `StepClient` does, row by row, in every profile, on every graph."""

import threading
import traceback
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing.carrier import (
    NOW,
    WAIVER,
    Carrier,
    enrolled,
    memory_directory,
    step_client,
)
from secagg_testing.cohorts import LENIENT_POLICY, with_noise

from secagg.client.budget import TotalBudgetExceededError
from secagg.client.gate import Need
from secagg.client.open_client import HEARING_SECONDS
from secagg.client.step_client import StepClient
from secagg.errors import (
    ErrorCode,
    InputError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.pki.key_files import PublishedEnrolment
from secagg.protocol.messages import Aborted, Envelope, Fate, Round, Upload
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.protocol.profiles import Profile
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome
from secagg.protocol.rounds import rounds_of
from secagg.server.step_server import StepServer
from secagg.server.task.setup import PreparedTask
from secagg.simulation.driver import published_in_simulation
from secagg.storage.change import Side
from secagg.storage.queries import ReadTally
from secagg.storage.rows import Retention
from secagg.storage.store import run_inline
from tests.cases import cells_from, on_every_graph

NAMES = ("ann", "bob", "cleo", "dan")
DIMENSION = 5
EVERY = on_every_graph(DIMENSION)
EXACT = EVERY["complete"]
# A graph that six clients draw is too small for any bound of delta.
BOUNDED = {graph: of for graph, of in EVERY.items() if graph != "drawn"}
every_profile = cells_from(EVERY, "complete")


@pytest.fixture
def tmp_path():
    with memory_directory() as home:
        yield home


def names_of(parameters):
    return (*NAMES, "eve", "fay")[: parameters.max_clients]


def carrier(parameters=EXACT, home=None, **options):
    return Carrier(parameters, names_of(parameters), home, **options)


def until_vector(session, name="ann"):
    """Carry a session until inputs are taken, and a client is asked for its own."""
    for _ in range(6):
        for each in session.names:
            if each == name:
                done = session.last.get(each)
                update = session.server.update_for(
                    each, after=None if done is None else done.round
                )
                done = session.client(each).step(session.server.offer, update or b"")
                if Need.VECTOR in done.needs:
                    return done
                session.last[each] = done
                session.send(each, done)
            elif session.server.round is not Round.MASKED_INPUT_COLLECTION:
                session.deliver_update(each)
        session.server.close_round()
    raise AssertionError("no vector was asked for")


def until_inputs_are_in(session):
    while session.server.round <= Round.MASKED_INPUT_COLLECTION:
        for name in session.names:
            session.deliver_update(name)
        session.server.close_round()


@every_profile
@pytest.mark.parametrize("noisy", [False, True], ids=["exact", "noisy"])
def test_new_objects_and_repeated_messages_change_nothing(parameters, noisy, tmp_path):
    parameters = with_noise(parameters) if noisy else parameters
    session = carrier(parameters, tmp_path, often=2, new_objects=True)
    session.run()
    result, count = session.server.result, parameters.max_clients
    assert result.inputs == count
    assert set(session.made.values()) == {1}
    if not noisy:
        total = sum(range(count))
        np.testing.assert_array_equal(result.values, [total] * DIMENSION)
    for name in session.names:
        last = session.last[name]
        assert last.is_over
        assert last.contribution.inputs == count
        given = session.client(name).read_sum(
            session.server.offer, session.server.packed_sum
        )
        np.testing.assert_array_equal(given.values, result.values)
        assert AuditReceipt.decode(given.audit).outcome is Outcome.RELEASED
        assert session.client(name).receipt("sums", 1) == given.audit
        assert session.client(name).last_part("sums").inputs == count
    session.close()
    for name in session.names:
        assert not list((tmp_path / name).glob("upload-*"))


@every_profile
def test_the_last_message_is_repeated_byte_for_byte(parameters, tmp_path):
    session = carrier(parameters, tmp_path, new_objects=True)
    offer = session.server.offer
    while not session.server.is_over:
        for name in session.names:
            before = session.last.get(name)
            after = None if before is None else before.round
            update = session.server.update_for(name, after=after) or b""
            done = session.hand(name, update)
            session.send(name, done)
            again = session.client(name).step(offer, update, vector=[9.0] * 5)
            assert again.messages == done.messages
            assert session.client(name).step(offer).messages == done.messages
        session.server.close_round()
    session.close()
    assert session.server.failure is None


@every_profile
def test_an_end_without_a_sum_is_reported_on_every_call(parameters):
    for closed in range(len(rounds_of(parameters.profile))):
        session = carrier(parameters)
        for _ in range(closed):
            for name in session.names:
                session.deliver_update(name)
            session.server.close_round()
        for name in session.names:
            session.deliver_update(name)
        session.server.abort(ErrorCode.CANCELLED, "enough")
        session.server.abort(ErrorCode.INTERNAL, "it is over already")
        assert session.server.failure.code is ErrorCode.CANCELLED
        for _ in range(2):
            for ending in session.endings().values():
                assert isinstance(ending, SessionAbortedError)
                assert ending.code is ErrorCode.CANCELLED
                assert "enough" in str(ending)
        session.close()


# --- row 1: the offer -----------------------------------------------------------------


def test_an_invalid_offer_is_refused():
    with step_client("ann", EXACT, None) as ann:
        for garbage in (b"", b"\x00", bytes(50)):
            with pytest.raises(RemoteProtocolError) as caught:
                ann.step(garbage)
            assert caught.value.code in {ErrorCode.BAD_ENCODING, ErrorCode.BAD_VERSION}


@cells_from(EVERY, "ring")
def test_a_session_of_another_aggregator_is_refused(parameters):
    offer = carrier(parameters, options={"aggregator": "other"}).server.offer
    with step_client("ann", parameters, None) as ann:
        for ask in (ann.step, ann.check_offer):
            with pytest.raises(RemoteProtocolError) as caught:
                ask(offer)
            assert caught.value.code is ErrorCode.UNAUTHENTICATED


@cells_from(EVERY, "signed")
def test_an_expired_session_is_rejected(parameters):
    offer = carrier(parameters).server.offer
    with (
        step_client("ann", parameters, None, clock=lambda: NOW + 10**6) as ann,
        pytest.raises(RemoteProtocolError) as caught,
    ):
        ann.step(offer)
    assert caught.value.code is ErrorCode.BAD_CLOCK


# --- row 2: known sessions ------------------------------------------------------------


@cells_from(EVERY, "drawn")
def test_a_stored_session_is_checked_again_and_left_if_it_violates_limits(
    parameters, tmp_path
):
    parameters = with_noise(parameters)
    session = carrier(parameters, tmp_path)
    offer = session.server.offer
    limits = PrivacyLimits(max_epsilon=0.5, max_delta=1e-5)
    stricter = {
        "ann": {"cohort": replace(LENIENT_POLICY, min_clients=100)},
        "bob": {"privacy_limits": limits, "tasks": ["sums"]},
    }
    for name in stricter:
        session.hand(name)
    session.close()
    for name, changes in stricter.items():
        with step_client(name, parameters, tmp_path, **changes) as one:
            with pytest.raises(RemoteProtocolError) as caught:
                one.step(offer)
            assert caught.value.code is ErrorCode.POLICY_VIOLATION
            with pytest.raises(SessionAbortedError) as again:
                one.step(offer)
            assert again.value.code is ErrorCode.POLICY_VIOLATION


@cells_from(EVERY, "ring")
def test_a_session_of_another_aggregator_is_not_resumed(parameters, tmp_path):
    session = carrier(parameters, tmp_path)
    offer = session.server.offer
    first = session.hand("ann")
    session.close()
    domain = {"trust_domain": "elsewhere"}
    for changes in ({"aggregator": "other"}, domain):
        with (
            step_client("ann", parameters, tmp_path, **changes) as ann,
            pytest.raises(RemoteProtocolError) as caught,
        ):
            ann.step(offer)
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert session.hand("ann").messages == first.messages  # it was not ended
    session.close()


@pytest.mark.parametrize("graph", ["signed", "drawn"])
def test_a_session_of_another_credential_is_not_resumed(graph, tmp_path):
    parameters = EVERY[graph]
    session = carrier(parameters, tmp_path)
    session.hand("ann")
    session.close()
    other = enrolled("another", parameters)
    with (
        step_client("ann", parameters, tmp_path, enrolment=other) as ann,
        pytest.raises(ServiceError) as caught,
    ):
        ann.step(session.server.offer)
    assert caught.value.code is ErrorCode.BAD_CREDENTIAL


@cells_from(EVERY, "signed")
def test_a_session_with_a_purged_receipt_counts_as_replayed(parameters, tmp_path):
    session = carrier(parameters, tmp_path)
    session.hand("ann")
    session.client("ann").leave(session.server.offer, "enough")
    session.close()
    gone = Retention(keep_receipts=0)
    with (
        step_client("ann", parameters, tmp_path, retention=gone) as ann,
        pytest.raises(RemoteProtocolError) as caught,
    ):
        ann.step(session.server.offer)
    assert caught.value.code is ErrorCode.REPLAYED_SESSION


# --- rows 3 to 5: checking and joining ------------------------------------------------


def test_a_step_client_requires_privacy_limits():
    for nothing in (None, 1.0):
        with pytest.raises(LocalProtocolError, match="limits of privacy"):
            StepClient("ann", aggregator="h", privacy_limits=nothing, state_dir=None)


@cells_from(EVERY, "complete")
def test_a_step_client_requires_named_tasks_or_a_total_budget(parameters, tmp_path):
    parameters = with_noise(parameters)
    limits = PrivacyLimits(max_epsilon=9.0, max_delta=1e-5)
    with pytest.raises(LocalProtocolError, match="together"):
        StepClient("ann", aggregator="hub", privacy_limits=limits, state_dir=None)
    session = carrier(parameters, tmp_path)
    said = session.hand("ann")
    session.close()
    named = {"tasks": ["another"]}
    with step_client("ann", parameters, tmp_path, **named) as ann:
        for ask in (ann.step, ann.check_offer):
            with pytest.raises(RemoteProtocolError) as caught:
                ask(session.server.offer)
            assert caught.value.code is ErrorCode.BAD_CONFIG
    named["tasks"] = ["another", "sums"]  # what was joined before was not ended
    with step_client("ann", parameters, tmp_path, **named) as ann:
        assert ann.step(session.server.offer).messages == said.messages


@cells_from(EVERY, "ring")
def test_a_session_beyond_the_limits_is_rejected_without_a_claim(parameters, tmp_path):
    parameters = with_noise(parameters)
    offer = carrier(parameters).server.offer
    limits = PrivacyLimits(max_epsilon=0.5, max_delta=1e-5)
    with step_client(
        "ann", parameters, tmp_path, privacy_limits=limits, tasks=["sums"]
    ) as ann:
        for ask in (ann.step, ann.check_offer):
            with pytest.raises(RemoteProtocolError) as caught:
                ask(offer)
            assert caught.value.code is ErrorCode.POLICY_VIOLATION
    with step_client("ann", parameters, tmp_path) as ann:
        assert ann.check_offer(offer).privacy is not None
        assert ann.check_offer(offer).session_number == 1
        assert ann.step(offer).messages  # no number was claimed before


@cells_from(EVERY, "signed")
def test_exact_sums_require_the_waiver(parameters):
    limits = PrivacyLimits(max_epsilon=9.0, max_delta=1e-5)
    with (
        step_client(
            "ann", parameters, None, privacy_limits=limits, tasks=["sums"]
        ) as ann,
        pytest.raises(RemoteProtocolError) as caught,
    ):
        ann.step(carrier(parameters).server.offer)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


@cells_from(EVERY, "complete")
def test_the_number_of_sessions_is_limited_by_the_budget(parameters, tmp_path):
    parameters = with_noise(parameters)
    left = []
    for number in (1, 2):
        session = carrier(parameters, tmp_path, number=number)
        if number == 1:
            assert session.client("ann").sessions_left("sums") is None
            session.run()
            left.append(session.client("ann").sessions_left("sums"))
        else:
            with pytest.raises(RemoteProtocolError) as caught:
                session.hand("ann")
            assert caught.value.code is ErrorCode.POLICY_VIOLATION
        session.close()
    assert left == [0]


@cells_from(BOUNDED, "signed")
def test_the_total_budget_covers_all_tasks_of_all_clients(parameters, tmp_path):
    parameters = with_noise(parameters)
    total = TotalBudget(
        data="data", epsilon=9.0, delta=1e-4, directory=tmp_path / "claims"
    )
    total = replace(total, rollback_mark=tmp_path / "claims.mark")
    for name, task in (("ann", "first"), ("bob", "second")):
        offer = carrier(parameters, options={"task_id": task}).server.offer
        with step_client(name, parameters, tmp_path, total=total) as one:
            if task == "first":
                assert one.step(offer).messages
                assert one.data_use().claims[0].task == "first"
            else:
                with pytest.raises(TotalBudgetExceededError):
                    one.step(offer)


@cells_from(EVERY, "drawn")
def test_a_later_session_ends_the_earlier_one_permanently(parameters, tmp_path):
    first, second = (
        carrier(parameters, tmp_path),
        carrier(parameters, tmp_path, number=2),
    )
    until_vector(first)
    first.close()
    assert second.hand("ann").messages
    with pytest.raises(SessionAbortedError) as caught:
        second.client("ann").step(first.server.offer)
    assert caught.value.code is ErrorCode.SESSION_OVER
    older = carrier(parameters, options={"entropy": None})  # number 1, another session
    with pytest.raises(RemoteProtocolError) as caught:
        second.client("ann").step(older.server.offer)
    assert caught.value.code is ErrorCode.REPLAYED_SESSION
    second.close()


@cells_from(EVERY, "complete")
def test_several_tasks_share_one_state(parameters, tmp_path):
    both = [
        carrier(parameters, tmp_path, options={"task_id": task}, new_objects=True)
        for task in ("one", "two")
    ]
    total = sum(range(parameters.max_clients))
    while not all(each.server.is_over for each in both):
        for name in names_of(parameters):
            for each in both:
                each.deliver_update(name)
                each.close()
        for each in both:
            each.server.close_round()
    for each in both:
        np.testing.assert_array_equal(each.server.result.values, [total] * DIMENSION)


@pytest.mark.parametrize("graph", ["signed", "drawn"])
def test_a_revocation_list_is_requested_and_then_remembered(graph):
    published = published_in_simulation(3, 12345)
    assert isinstance(published, PublishedEnrolment)
    parameters = EVERY[graph].under(published.trust)
    task = PreparedTask(parameters, None, None, enrolment=published)
    named = {"aggregator": "hub", "task_id": "sums", "session_number": 1, "now": NOW}
    offer = StepServer(task, **named).offer
    with step_client("ann", parameters, None) as ann:
        assert ann.step(offer).needs == {Need.REVOCATIONS}
        with pytest.raises(LocalProtocolError, match="revocation list"):
            ann.check_offer(offer)
        with pytest.raises(RemoteProtocolError):
            ann.step(offer, revocations=b"another list")
        assert ann.step(offer, revocations=published.revocations).messages
        assert ann.step(offer).messages


# --- row 6: updates -------------------------------------------------------------------


@cells_from(EVERY, "ring")
def test_malformed_messages_change_nothing(parameters):
    session = carrier(parameters)
    said = session.hand("ann")
    for garbage in (b"\x00", b"\xff" * 40):
        with pytest.raises(RemoteProtocolError) as caught:
            session.client("ann").step(session.server.offer, garbage)
        assert caught.value.code is ErrorCode.BAD_ENCODING
    assert session.hand("ann").messages == said.messages
    with pytest.raises(RemoteProtocolError):  # of a known kind: it ends the session
        session.client("ann").step(session.server.offer, bytes([Upload.KIND]))
    with pytest.raises(SessionAbortedError):
        session.hand("ann")


# --- row 7: the vector ----------------------------------------------------------------


@cells_from(EVERY, "signed")
def test_an_unusable_vector_is_replaced_by_zeros_in_a_task_with_noise(
    parameters, tmp_path
):
    parameters = with_noise(parameters)
    for number, given in enumerate(
        (
            {"vector": [float("nan")] * DIMENSION},
            {"vector": [1.0]},
            {"vector": "text"},
            {"unusable": "the program was killed"},
        )
    ):
        session = carrier(parameters, tmp_path / str(number))
        until_vector(session)
        done = session.client("ann").step(session.server.offer, **given)
        assert [m[0] for m in done.messages] == [Upload.KIND]
        assert done.replaced
        assert done.shortened_by is None
        session.close()


@cells_from(EVERY, "drawn")
def test_an_unusable_vector_is_an_error_in_a_task_without_noise(parameters):
    session = carrier(parameters)
    until_vector(session)
    ann, offer = session.client("ann"), session.server.offer
    for given in (
        {"vector": [float("nan")] * DIMENSION},
        {"vector": [1]},
        {"vector": [0.5] * DIMENSION},
        {"unusable": "the program was killed"},
    ):
        with pytest.raises(InputError):
            ann.step(offer, **given)
    with pytest.raises(LocalProtocolError, match="together"):
        ann.step(offer, vector=[1] * DIMENSION, unusable="x")
    assert ann.step(offer, vector=[1] * DIMENSION).messages


@cells_from(EVERY, "ring")
def test_a_clipped_vector_is_reported_to_its_owner(parameters):
    parameters = with_noise(parameters)
    session = carrier(parameters)
    until_vector(session)
    given = np.full(DIMENSION, 3.0)
    done = session.client("ann").step(session.server.offer, vector=given)
    assert done.shortened_by == pytest.approx(np.linalg.norm(given))
    again = session.client("ann").step(session.server.offer, vector=given)
    assert again.shortened_by is None
    assert again.messages == done.messages


@cells_from(EVERY, "ring")
def test_what_is_no_bytes_is_the_callers_fault_and_ends_nothing(parameters):
    session = carrier(parameters)
    until_vector(session)
    ann, offer = session.client("ann"), session.server.offer
    for call in (
        lambda: ann.step(offer.hex()),
        lambda: ann.step(offer, "update"),
        lambda: ann.check_offer(offer.hex()),
        lambda: ann.read_sum(None, b""),
        lambda: ann.leave(bytearray(offer), "by mistake"),
    ):
        with pytest.raises(LocalProtocolError, match="must be of class bytes"):
            call()
    assert ann.step(offer, vector=[1] * DIMENSION).messages


@cells_from(EVERY, "signed")
def test_a_payload_hash_other_than_that_of_the_session_is_rejected(parameters):
    payload = sha256(b"model").digest()
    session = carrier(parameters, options={"payload_hash": payload})
    until_vector(session)
    ann, offer, given = session.client("ann"), session.server.offer, [1] * DIMENSION
    with pytest.raises(LocalProtocolError, match="hash"):
        ann.step(offer, vector=given)
    with pytest.raises(LocalProtocolError, match="payload_hash"):
        ann.step(offer, vector=given, payload_hash=payload.hex())
    with pytest.raises(RemoteProtocolError) as caught:
        ann.step(offer, vector=given, payload_hash=sha256(b"other").digest())
    assert caught.value.code is ErrorCode.PAYLOAD_MISMATCH
    with pytest.raises(SessionAbortedError):
        ann.step(offer, vector=given, payload_hash=payload)


@cells_from(EVERY, "ring")
def test_the_upload_is_kept_in_a_file_and_sent_only_after_its_binding(
    parameters, tmp_path
):
    session = carrier(parameters, tmp_path)
    done = until_vector(session)
    assert len(done.view) == 32
    bound = session.hand("ann")
    session.close()
    (file,) = (tmp_path / "ann").glob("upload-*")
    assert file.stat().st_mode & 0o777 == 0o600
    stray = file.with_name("upload-" + "ab" * 32)
    stray.write_bytes(file.read_bytes())
    with step_client("ann", parameters, tmp_path) as ann:
        assert not stray.exists()
        assert ann.step(session.server.offer).messages == bound.messages
    sound = file.read_bytes()
    of_another = bytes(32) + sound[32:-32]  # whole, and of another input
    of_another += sha256(of_another).digest()
    for damaged in (sound[:-1], b"", bytes(32) + sound[32:], of_another):
        file.write_bytes(damaged)
        with step_client("ann", parameters, tmp_path) as ann:
            asked = ann.step(session.server.offer)
            assert asked.needs == {Need.VECTOR}
            assert asked.messages == ()
            with pytest.raises(LocalProtocolError, match="another input"):
                ann.step(session.server.offer, vector=[9] * DIMENSION)
            again = ann.step(session.server.offer, vector=session.whole_number("ann"))
            assert again.messages == bound.messages


@cells_from(EVERY, "drawn")
def test_without_a_kept_upload_the_same_vector_is_requested_again(parameters, tmp_path):
    options = {"ann": {"keep_upload": False}}
    session = carrier(parameters, tmp_path, client_options=options)
    until_vector(session)
    bound = session.hand("ann")
    assert not list((tmp_path / "ann").glob("upload-*"))
    asked = session.client("ann").step(session.server.offer)
    assert asked.needs == {Need.VECTOR}
    with pytest.raises(LocalProtocolError, match="another input"):
        session.client("ann").step(session.server.offer, vector=[9] * DIMENSION)
    vector = session.whole_number("ann")
    again = session.client("ann").step(session.server.offer, vector=vector)
    assert again.messages == bound.messages
    session.close()


@cells_from(EVERY, "complete")
def test_bound_zeros_are_sent_again(parameters, tmp_path):
    parameters = with_noise(parameters)
    options = {"ann": {"keep_upload": False}}
    session = carrier(parameters, tmp_path, client_options=options)
    until_vector(session)
    ann, offer = session.client("ann"), session.server.offer
    bound = ann.step(offer, unusable="killed")
    again = ann.step(offer, vector=[0.1] * DIMENSION)  # made after all
    assert again.messages == bound.messages
    session.close()


# --- row 8: the end -------------------------------------------------------------------


@cells_from(EVERY, "signed")
def test_a_copy_of_the_directory_after_the_answer_does_not_reveal_the_input(
    parameters, tmp_path
):
    session = carrier(parameters, tmp_path)
    until_inputs_are_in(session)
    seed_of = session.client("ann")._client._opened._live
    (live,) = seed_of.values()
    secret = live.session._seed.reveal()
    directory = tmp_path / "ann"
    at_rest = b"".join(p.read_bytes() for p in directory.iterdir())
    assert secret in at_rest
    assert list(directory.glob("upload-*"))
    while session.last["ann"].round is not Round.UNMASKING:
        assert list(directory.glob("upload-*"))
        for name in session.names:
            session.deliver_update(name)
        session.server.close_round()
    assert not list(directory.glob("upload-*"))
    at_rest = b"".join(p.read_bytes() for p in directory.iterdir())
    assert secret not in at_rest
    assert secret.hex().encode() not in at_rest
    session.close()


@cells_from(EVERY, "ring")
def test_the_seed_of_an_expired_session_is_erased_when_the_directory_is_opened(
    parameters, tmp_path
):
    session = carrier(parameters, tmp_path)
    until_vector(session)
    session.hand("ann")
    session.close()
    later = {"clock": lambda: NOW + 10**7}
    directory = tmp_path / "ann"
    # Another name over the same directory ends what the first one has left.
    with StepClient(
        "zoe",
        aggregator="elsewhere",
        privacy_limits=WAIVER,
        state_dir=directory,
        rollback_mark=tmp_path / "marks" / "ann",
        **later,
    ):
        assert not list(directory.glob("upload-*"))
    with (
        step_client("ann", parameters, tmp_path, **later) as ann,
        pytest.raises(SessionAbortedError) as caught,
    ):
        ann.step(session.server.offer)
    assert caught.value.code is ErrorCode.DEADLINE


@cells_from(EVERY, "drawn")
@pytest.mark.parametrize("answered", [False, True])
def test_after_the_session_end_only_an_answer_is_sent(parameters, answered, tmp_path):
    now = [NOW]
    session = carrier(
        parameters, tmp_path, client_options={"ann": {"clock": lambda: now[0]}}
    )
    until_inputs_are_in(session)
    while answered and session.last["ann"].round is not Round.UNMASKING:
        for name in session.names:
            session.deliver_update(name)
        if session.server.round is Round.CONSISTENCY_CHECK:
            session.server.close_round()
    now[0] = session.server.descriptor.session_end
    ann, offer = session.client("ann"), session.server.offer
    if answered:
        assert ann.step(offer).messages == session.last["ann"].messages
    else:  # its input may be in a sum: what became of it is listened for
        assert ann.step(offer).messages == ()
        now[0] += HEARING_SECONDS
        with pytest.raises(SessionAbortedError) as caught:
            ann.step(offer)
        assert caught.value.code is ErrorCode.DEADLINE
    session.close()


@cells_from(EVERY, "ring")
def test_an_abort_that_denies_a_confirmed_membership_raises_u3_invalid(parameters):
    # R5.6-2
    session = carrier(parameters)
    while not session.server.is_over:
        for name in session.names:
            session.deliver_update(name)
        session.server.close_round()
    end = Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, "enough")
    update = bytes([Aborted.KIND]) + Envelope.of(end).data
    with pytest.raises(RemoteProtocolError) as caught:
        session.client("ann").step(session.server.offer, update)
    assert caught.value.code is ErrorCode.U3_INVALID


@cells_from(EVERY, "signed")
def test_a_sum_other_than_the_released_one_is_rejected(parameters):
    session = carrier(parameters)
    session.run()
    ann, offer = session.client("ann"), session.server.offer
    sound = session.server.packed_sum
    with pytest.raises(RemoteProtocolError) as caught:
        ann.read_sum(offer, bytes(len(sound)))
    assert caught.value.code is ErrorCode.PAYLOAD_MISMATCH
    with step_client("ann", parameters, None) as other:
        with pytest.raises(LocalProtocolError, match="released no sum"):
            other.read_sum(offer, sound)
        with pytest.raises(LocalProtocolError, match="never joined"):
            other.leave(offer, "no")


@cells_from(EVERY, "complete")
def test_an_aborted_session_settles_its_charge(parameters, tmp_path):
    parameters = with_noise(parameters)
    session = carrier(parameters, tmp_path)
    until_vector(session)
    session.hand("ann")
    assert session.client("ann").sessions_left("sums") == 0
    end = Aborted(Fate.NEVER_FIXED, ErrorCode.CANCELLED, "enough")
    update = bytes([Aborted.KIND]) + Envelope.of(end).data
    with pytest.raises(SessionAbortedError):
        session.client("ann").step(session.server.offer, update)
    # R5.6-3: given back where the server follows the protocol, as it is trusted to.
    is_believed = parameters.profile is Profile.HONEST_CURIOUS_SERVER
    assert session.client("ann").sessions_left("sums") == is_believed
    session.close()


# --- the object -----------------------------------------------------------------------


@cells_from(EVERY, "signed")
def test_threads_can_share_one_step_client(parameters):
    session = carrier(parameters)
    until_vector(session)
    ann, offer, said = session.client("ann"), session.server.offer, []

    def give(number):
        said.append(ann.step(offer, vector=[number] * DIMENSION).messages)

    threads = [threading.Thread(target=give, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(said)) == 1


def test_a_step_client_can_be_used_only_while_it_is_open():
    ann = step_client("ann", EXACT, None)
    with pytest.raises(LocalProtocolError, match="not open"):
        ann.step(b"")
    with ann, pytest.raises(LocalProtocolError, match="open already"):
        ann.__enter__()
    ann.close()


@cells_from(EVERY, "ring")
def test_after_a_disk_failure_nothing_is_sent(parameters, tmp_path, monkeypatch):
    session = carrier(parameters, tmp_path)
    ann, offer = session.client("ann"), session.server.offer
    store = ann._client._opened.store

    async def failing(_):
        raise ServiceError("full", code=ErrorCode.STORAGE_FAILED, next_step="Free it.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", failing)
        with pytest.raises(ServiceError, match="full"):
            ann.step(offer)
    for vector in ([1] * DIMENSION, None):
        with pytest.raises(ServiceError, match="an earlier call") as caught:
            ann.step(offer, vector=vector)
        assert caught.value.code is ErrorCode.STORAGE_FAILED
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert all(frame.f_locals.get("vector") is None for frame in frames[1:])
    session.close()
    assert session.hand("ann").messages
    session.close()


@cells_from(EVERY, "complete")
def test_no_log_or_repr_contains_a_secret(parameters, tmp_path, caplog):
    parameters = with_noise(parameters)
    caplog.set_level("DEBUG")
    session = carrier(parameters, tmp_path, vector=lambda _: [12345.625] * DIMENSION)
    shown = []
    while not session.server.is_over:
        for name in session.names:
            session.deliver_update(name)
            shown += [repr(session.client(name)), repr(session.last[name])]
            (live,) = session.client(name)._client._opened._live.values()
            seed = live.session._seed
            if seed is not None:
                shown.append(repr(live))
        secret = session.client("ann")._client._opened._live
        secrets = [e.session._seed.reveal() for e in secret.values() if e.session._seed]
        text = "".join((*shown, *(record.getMessage() for record in caplog.records)))
        for each in secrets:
            assert each.hex() not in text
            assert repr(each)[2:-1] not in text
        session.server.close_round()
    assert "12345" not in text
    session.close()


@pytest.mark.parametrize("graph", ["ring", "drawn"])
def test_an_accepted_sparse_roster_is_counted(graph, tmp_path):
    parameters = with_noise(EVERY[graph])
    session = carrier(parameters, tmp_path)
    for name in session.names:
        session.deliver_update(name)
    session.server.close_round()
    store = session.client("ann")._client._opened.store
    assert run_inline(store.read(ReadTally(Side.CLIENT, "sums", peer="hub"))).spent == 0
    session.deliver_update("ann")
    session.close()
    store = session.client("ann")._client._opened.store
    assert run_inline(store.read(ReadTally(Side.CLIENT, "sums", peer="hub"))).spent == 1
    session.close()
