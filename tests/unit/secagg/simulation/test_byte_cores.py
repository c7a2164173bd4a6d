"""Two cores that take and give byte strings add up what their clients gave."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import signing_parameters_for, sparse_parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, plan, read_noise_terms
from secagg.distributed_dp.plain_sums import encode_integers
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SessionAbortedError,
)
from secagg.protocol.client import machine as client
from secagg.protocol.events import NoisyVector
from secagg.protocol.messages import Aborted, Envelope, Fate, Quorum, Round, Upload
from secagg.protocol.packing import packed_size
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.simulation.byte_cores import ClientCore, ServerCore
from secagg.simulation.driver import accepting
from secagg.simulation.enrolled import membership_of

NAMES = ("ann", "bob", "cleo", "dan")
DIMENSION = 5
PARAMETERS = ProtocolParameters(
    modulus=1000,
    dimension=DIMENSION,
    min_clients=3,
    max_clients=4,
    threshold=3,
    min_survivors=3,
    max_dropouts=1,
    max_losses=1,
)
LENIENT = ClientPolicy(min_clients=3, min_survivors=3, require_noise=False)


NOW = 1_800_000_000.5


def hub_of(parameters=PARAMETERS, **options):
    entropy = SeededEntropy(SecretBytes(bytes(32)), b"test")
    return ServerCore(
        parameters,
        aggregator="hub",
        task_id="sums",
        now=NOW,
        entropy=entropy,
        **options,
    )


def vector_of(number):
    return encode_integers(np.full(DIMENSION, number), PARAMETERS)


def seed_of(name):
    return SecretBytes(hashlib.sha256(name.encode()).digest())


def person(name, session, *, policy=LENIENT):
    number = NAMES.index(name)
    return ClientCore(
        session,
        name,
        aggregator="hub",
        now=NOW,
        seed=seed_of(name),
        policy=policy,
        make_input=lambda _: vector_of(number),
    )


class Session:
    """Carries bytes between cores, and remembers them."""

    def __init__(self, make=person, parameters=PARAMETERS, **options):
        self.hub = hub_of(parameters, **options)
        self.people = {name: make(name, self.hub.session) for name in NAMES}
        self.heard = {name: [] for name in NAMES}
        self.said = {name: [] for name in NAMES}

    def carry(self, name, messages):
        self.said[name] += messages
        for data in messages:
            self.hub.receive(name, data)

    def join(self):
        for name, one in self.people.items():
            self.carry(name, one.join())

    def round(self):
        self.hub.close_round()
        for name, one in self.people.items():
            news = self.hub.news_for(name, after=one.round)
            self.heard[name].append(news)
            self.carry(name, one.receive(news))

    def run(self):
        self.join()
        while not self.hub.is_over:
            self.round()
        return self.hub.total


def test_the_sum_is_exact():
    session = Session()
    np.testing.assert_array_equal(session.run(), [0 + 1 + 2 + 3] * DIMENSION)
    assert all(one.is_over for one in session.people.values())
    assert isinstance(session.people["ann"].state, client.Completed)


ENROLLED = {
    "signed": signing_parameters_for(4, dimension=DIMENSION),
    "drawn": sparse_parameters_for(4, dimension=DIMENSION, degree=3),
}


def enrolled(name, session, **changes):
    parameters, number = session.parameters, NAMES.index(name)
    return ClientCore(
        session,
        name,
        aggregator="hub",
        now=NOW,
        seed=seed_of(name),
        policy=accepting(parameters),
        make_input=lambda _: encode_integers(np.full(DIMENSION, number), parameters),
        **({"membership": membership_of(name, 1 + number)} | changes),
    )


@pytest.mark.parametrize("parameters", ENROLLED.values(), ids=ENROLLED)
def test_the_sum_of_the_enrolled_is_exact_in_every_profile(parameters):
    assert {one.profile for one in ENROLLED.values()} == {
        profile for profile in Profile if profile.has_identities
    }
    session = Session(enrolled, parameters)
    np.testing.assert_array_equal(session.run(), [0 + 1 + 2 + 3] * DIMENSION)
    assert all(one.is_over for one in session.people.values())


def test_who_was_away_while_the_others_signed_is_shown_the_sets_first():
    session = Session(enrolled, ENROLLED["signed"])
    session.join()
    for _ in range(2):
        session.round()
    away = session.people.pop("dan")
    assert away.round is Round.MASKED_INPUT_COLLECTION
    for _ in range(2):
        session.round()  # the others sign, and answer
    before = session.hub.news_for("dan")
    assert Envelope(Quorum, before[1:]).open()
    assert before[0] == Quorum.KIND
    for _ in range(2):
        away.receive(session.hub.news_for("dan", after=away.round))
    assert away.round is Round.UNMASKING


def test_who_has_no_place_among_the_enrolled_takes_no_part():
    offer = hub_of(ENROLLED["signed"]).session
    with pytest.raises(RemoteProtocolError) as caught:
        enrolled("ann", offer, membership=None).join()
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_who_was_revoked_is_not_let_in():
    hub = hub_of(ENROLLED["signed"], revoked=frozenset({2}))
    for name in ("ann", "bob"):
        (advert,) = enrolled(name, hub.session).join()
        if name == "ann":
            hub.receive(name, advert)
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            hub.receive(name, advert)
        assert caught.value.code is ErrorCode.BAD_CREDENTIAL


def test_a_client_that_is_lost_is_left_out():
    session = Session()
    session.join()
    session.round()
    del session.people["dan"]
    while not session.hub.is_over:
        session.round()
    np.testing.assert_array_equal(session.hub.total, [0 + 1 + 2] * DIMENSION)


def test_noise_of_a_task_is_added_by_its_reader():
    made = plan(
        clients=4,
        min_survivors=3,
        dimension=DIMENSION,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    task = NoisyTask.from_plan(made, PARAMETERS)

    def noisy(name, session):
        def make(secrets):
            vector = np.full(DIMENSION, 0.5)
            return task.encode(
                vector, session_id=session.session_id, secrets=secrets
            ).vector

        return ClientCore(
            session,
            name,
            aggregator="hub",
            now=NOW,
            seed=seed_of(name),
            policy=ClientPolicy(min_clients=3, min_survivors=3),
            make_input=make,
            read_noise=read_noise_terms,
        )

    session = Session(noisy, task.parameters, read_noise=read_noise_terms)
    values = task.decode(session.run(), session_id=session.hub.session.session_id)
    # Everything here is seeded: it is the same sum in every run.
    assert np.abs(values - 2.0).max() < 8 * made.forecast.expected_mse**0.5


def test_a_client_with_other_tables_is_refused_and_the_sum_is_of_the_others():
    # R5.3-14
    made = plan(
        clients=4,
        min_survivors=3,
        dimension=DIMENSION,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    parameters = NoisyTask.from_plan(made, PARAMETERS).parameters

    def other_tables(parameters, sharers):
        terms = read_noise_terms(parameters, sharers)
        return replace(terms, context=hashlib.sha256(terms.context).digest())

    def exact(name, session):
        """Return a client whose noise is nothing, so that the sum can be compared."""
        residues = zeros(parameters.dimension, parameters.modulus) + 1
        block = parameters.noise_block
        return ClientCore(
            session,
            name,
            aggregator="hub",
            now=NOW,
            seed=seed_of(name),
            policy=ClientPolicy(min_clients=3, min_survivors=3),
            make_input=lambda given: NoisyVector(residues, block, given.context),
            read_noise=other_tables if name == "bob" else read_noise_terms,
        )

    session = Session(exact, parameters, read_noise=read_noise_terms)
    session.join()
    session.round()
    with pytest.raises(RemoteProtocolError, match="'bob' has another view") as caught:
        session.round()
    assert caught.value.code is ErrorCode.VIEW_DIFFERS
    for name in ("cleo", "dan"):
        session.carry(name, session.people[name].receive(session.hub.news_for(name)))
    session.hub.close_round()
    for name in ("ann", "cleo", "dan"):
        session.carry(name, session.people[name].receive(session.hub.news_for(name)))
    session.hub.close_round()
    assert session.hub.total.tolist() == [3] * parameters.dimension


def test_a_client_that_begins_anew_and_hears_the_same_says_the_same():
    session = Session()
    session.run()
    again = person("bob", session.hub.session)
    said = again.join()
    for news in session.heard["bob"]:
        said += again.receive(news)
    assert said == session.said["bob"]
    assert again.is_over


def test_every_client_draws_a_seed_of_its_own():
    seeds = {
        ClientCore(
            hub_of().session,
            name,
            aggregator="hub",
            now=NOW,
            policy=LENIENT,
            make_input=lambda _: vector_of(1),
        ).seed.reveal()
        for name in NAMES
    }
    assert len(seeds) == len(NAMES)
    assert {len(seed) for seed in seeds} == {32}


def test_floors_of_the_cohort_are_kept():
    strict = person("ann", hub_of().session, policy=ClientPolicy(min_clients=100))
    with pytest.raises(RemoteProtocolError) as caught:
        strict.join()
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 40])
def test_what_is_no_message_is_refused_on_both_sides(data):
    session = Session()
    session.join()
    for receive in (
        lambda: session.hub.receive("ann", data),
        lambda: session.people["ann"].receive(data),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            receive()
        assert caught.value.code is ErrorCode.BAD_ENCODING
    while not session.hub.is_over:  # nobody is worse off
        session.round()
    assert session.hub.total is not None


def refused_upload(change):
    session = Session()
    session.join()
    session.round()
    session.hub.close_round()
    (upload,) = session.people["ann"].receive(session.hub.news_for("ann"))
    with pytest.raises(RemoteProtocolError) as caught:
        session.hub.receive("ann", change(upload))
    session.hub.receive("ann", upload)  # the right one is still welcome
    return caught.value.code


def named(packed):
    digest = hashlib.sha256(packed).digest()
    return bytes([Upload.KIND]) + Upload(len(packed), digest).encode() + packed


def test_an_upload_is_what_its_name_says():
    assert refused_upload(lambda data: data[:-1]) is ErrorCode.UPLOAD_CORRUPT
    assert refused_upload(lambda data: data + b"\0") is ErrorCode.UPLOAD_CORRUPT
    flipped = refused_upload(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert flipped is ErrorCode.UPLOAD_CORRUPT
    assert refused_upload(lambda _: named(b"\0")) is ErrorCode.UPLOAD_CORRUPT


def test_an_upload_has_entries_below_the_modulus():
    packed = bytes([255]) * packed_size(DIMENSION, PARAMETERS.bits)
    assert refused_upload(lambda _: named(packed)) is ErrorCode.BAD_VECTOR


def test_an_end_without_a_sum_is_said():
    session = Session()
    session.join()
    end = Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, "enough").encode()
    envelope = Envelope(Aborted, end)
    with pytest.raises(SessionAbortedError, match="enough") as caught:
        session.people["ann"].receive(bytes([Aborted.KIND]) + envelope.data)
    assert caught.value.code is ErrorCode.CANCELLED


def test_a_round_of_a_session_that_is_over_cannot_be_closed():
    session = Session()
    session.run()
    with pytest.raises(LocalProtocolError, match="over"):
        session.hub.close_round()


def test_only_who_is_invited_takes_part():
    session = Session(invited=frozenset(NAMES[:3]))
    with pytest.raises(RemoteProtocolError):
        session.join()
