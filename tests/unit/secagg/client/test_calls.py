"""What a client fetches is checked before it is used."""

import asyncio
import hashlib

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
)
from secagg_testing.held_executor import HeldExecutor
from secagg_testing.scripted_service import ScriptedService

from secagg.client.calls import AnotherAggregatorError, ClientCalls
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.messages import (
    MAX_REASON_BYTES,
    Aborted,
    Delivery,
    EdgesPublished,
    Envelope,
    Fate,
    Quorum,
    Released,
    Roster,
    Round,
    Survivors,
)
from secagg.runtime.workers import Workers
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.connection import InMemoryConnection
from secagg.transport.handshake import UnexpectedPeerError
from secagg.wire.calls import (
    MAX_INLINE_BYTES,
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    Reference,
    Wait,
    message_sizes,
)

WHOLE = bytes(range(250))
SIZES = message_sizes(parameters_for(4, dimension=4, threshold=3))
PROFILES = [
    parameters_for(4, dimension=4, threshold=3),
    parameters_for(12, dimension=4, threshold=3, degree=4),
    signing_parameters_for(4, dimension=4),
    sparse_parameters_for(12, dimension=4, degree=4),
]
UPDATES = [Envelope(kind, b"") for kind in (Delivery, Survivors, Quorum)]


def fetching(digest, *, workers):
    async def answer(_, request):
        return BlobChunk(WHOLE[request.offset :][:100], len(WHOLE))

    async def fetched(clock):
        calls = ClientCalls(
            InMemoryConnection(ScriptedService({FetchChunk: answer}), "client"),
            clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            workers,
            watch=False,
        )
        return await calls.fetch(
            bytes(32),
            Blob.PAYLOAD,
            max_bytes=len(WHOLE),
            digest=digest,
            deadline=clock.now() + 60,
        )

    return manual_clock.run(fetched)


def test_fetched_pieces_are_joined_and_compared_with_the_announced_hash():
    workers = Workers(general=InlineExecutor())
    assert fetching(hashlib.sha256(WHOLE).digest(), workers=workers) == WHOLE
    with pytest.raises(RemoteProtocolError) as caught:
        fetching(bytes(32), workers=workers)
    assert caught.value.code is ErrorCode.PAYLOAD_MISMATCH


def test_a_fetched_payload_is_hashed_by_a_worker_thread():
    executor = HeldExecutor()
    executor.is_holding = True
    with pytest.raises(manual_clock.DeadlockError):
        fetching(hashlib.sha256(WHOLE).digest(), workers=Workers(general=executor))
    assert executor.held == 1


def test_one_stream_serves_a_whole_session_and_ends_with_it():
    opened, closed = [], []

    class Streaming(InMemoryConnection):
        async def watch(self, request):
            opened.append(request.after)
            try:
                for update in UPDATES:
                    yield update
            finally:
                closed.append(request.session_id)

    async def follow(clock):
        calls = ClientCalls(
            Streaming(ScriptedService({}), "client"),
            clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            Workers(general=InlineExecutor()),
            watch=True,
        )

        async def update(session_id, after):
            return await calls.next_update(
                session_id,
                after=after,
                sizes=SIZES,
                deadline=clock.now() + 60,
                on_wait=lambda _: pytest.fail("no wait is expected"),
            )

        after = Round.SHARE_KEYS
        while after is not Round.UNMASKING:
            after = (await update(bytes(32), after)).kind.ROUND
        assert opened == [Round.SHARE_KEYS]
        assert not closed
        # Another session, or a round that the stream has left, needs another stream.
        await update(b"\x01" * 32, Round.SHARE_KEYS)
        assert closed == [bytes(32)]
        await update(b"\x01" * 32, Round.SHARE_KEYS)
        assert len(opened) == 3
        await calls.close_stream()
        assert closed == [bytes(32), b"\x01" * 32, b"\x01" * 32]
        await calls.close_stream()

    manual_clock.run(follow)


class Stream(InMemoryConnection):
    """Streams that send scripted messages at instants, and are then silent."""

    def __init__(self, clock, said, answer=None):
        super().__init__(ScriptedService({GetUpdate: answer}), "client")
        self.clock, self.said = clock, said
        self.opened, self.asked = [], []

    async def call(self, request):
        self.asked.append(self.clock.now())
        return await super().call(request)

    async def watch(self, request):
        self.opened.append((self.clock.now(), request.after))
        for seconds, said in self.said:
            await self.clock.sleep_until(self.clock.now() + seconds)
            if isinstance(said, ServiceError):
                raise said
            yield said
        await asyncio.Event().wait()

    def calls(self):
        return ClientCalls(
            self,
            self.clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            Workers(general=InlineExecutor()),
            watch=True,
        )


def test_a_round_absent_from_the_profile_needs_no_new_stream():
    """A roster opens ChooseEdges by name; a client that draws none is in ShareKeys."""
    roster = Envelope(Roster, b"")

    async def follow(clock):
        stream = Stream(clock, [(0, Wait(20)), (1, roster), (1, UPDATES[0])])
        calls = stream.calls()
        for after, expected in (
            (Round.ADVERTISE_KEYS, roster),
            (Round.SHARE_KEYS, UPDATES[0]),
        ):
            update = await calls.next_update(
                bytes(32),
                after=after,
                sizes=SIZES,
                deadline=clock.now() + 60,
                on_wait=lambda _: clock.now() + 60,
            )
            assert update == expected
        await calls.close_stream()
        assert [after for _, after in stream.opened] == [Round.ADVERTISE_KEYS]
        assert not stream.asked

    manual_clock.run(follow)


def test_a_quiet_stream_is_kept_while_it_sends_waits():
    """As long as messages arrive in time, for any duration; nothing is requested."""
    told = []

    async def follow(clock):
        quiet = [(39, Wait(40))] * 30
        stream = Stream(clock, [(0, Wait(40)), *quiet, (39, UPDATES[0])])

        def on_wait(wait):
            told.append(wait)
            return clock.now() + 60

        update = await stream.calls().next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            sizes=SIZES,
            deadline=clock.now() + 60,
            on_wait=on_wait,
        )
        assert update == UPDATES[0]
        assert len(stream.opened) == 1
        assert not stream.asked
        assert told == [Wait(40)] * 31

    manual_clock.run(follow)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        pytest.param([], 20, id="a stream that never says a word"),
        pytest.param([(5, Wait(100))], 105, id="one that said it would"),
        pytest.param([(5, Wait(0.001))], 25, id="never at once"),
        pytest.param([(5, Wait(3600))], 245, id="never much later"),
    ],
)
def test_a_silent_stream_is_closed_and_the_aggregator_polled(said, asked):
    async def follow(clock):
        async def answer(_identity, _request):
            return UPDATES[0]

        begun, stream = clock.now(), Stream(clock, said, answer)
        calls = stream.calls()
        update = await calls.next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            sizes=SIZES,
            deadline=begun + 9000,
            on_wait=lambda _: begun + 9000,
        )
        assert update == UPDATES[0]
        assert stream.asked == [begun + asked]
        assert calls._open_stream is None

    manual_clock.run(follow)


def test_after_an_update_the_timeout_of_a_stream_is_short_again():
    """Earlier silence does not count for the round that has opened."""

    async def follow(clock):
        async def answer(_identity, _request):
            return UPDATES[1]

        begun = clock.now()
        stream = Stream(clock, [(0, Wait(200)), (150, UPDATES[0])], answer)
        calls = stream.calls()
        for after, expected in (
            (Round.SHARE_KEYS, UPDATES[0]),
            (Round.MASKED_INPUT_COLLECTION, UPDATES[1]),
        ):
            update = await calls.next_update(
                bytes(32),
                after=after,
                sizes=SIZES,
                deadline=begun + 9000,
                on_wait=lambda _: begun + 9000,
            )
            assert update == expected
        assert stream.asked == [begun + 150 + 20]

    manual_clock.run(follow)


GONE = ServiceError(
    "gone", code=ErrorCode.UNREACHABLE, next_step="-", retry_after_seconds=1.0
)
GONE_UNTOLD = ServiceError("gone", code=ErrorCode.UNREACHABLE, next_step="-")


@pytest.mark.parametrize("said", [[(5, GONE)], [], [(0, Wait(20))]])
def test_a_new_stream_is_opened_if_the_aggregator_has_no_update(said):
    async def follow(clock):
        async def answer(_identity, _request):
            stream.said = [(1, UPDATES[0])]
            return Wait(0.5)

        stream = Stream(clock, said, answer)
        update = await stream.calls().next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            sizes=SIZES,
            deadline=clock.now() + 9000,
            on_wait=lambda _: clock.now() + 9000,
        )
        assert update == UPDATES[0]
        assert [after for _, after in stream.opened] == [Round.SHARE_KEYS] * 2
        assert len(stream.asked) == 1

    manual_clock.run(follow)


def test_a_client_that_loses_its_stream_polls_with_backoff_and_jitter():
    """Not all clients of an aggregator that cut them off at the same moment."""

    async def follow(clock):
        left = [Wait(0.5), Wait(0.5), UPDATES[0]]

        async def answer(_identity, _request):
            return left.pop(0)

        begun = clock.now()
        stream = Stream(clock, [(5, GONE_UNTOLD)], answer)
        await stream.calls().next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            sizes=SIZES,
            deadline=begun + 9000,
            on_wait=lambda _: begun + 9000,
        )
        opened = [when for when, _ in stream.opened]
        pauses = [b - a - 5 for a, b in zip(opened, stream.asked, strict=True)]
        for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True):
            assert 0.75 * least <= pause <= 1.25 * least

    manual_clock.run(follow)


def test_a_client_that_loses_its_stream_respects_the_retry_delay():
    async def follow(clock):
        async def answer(_identity, _request):
            return UPDATES[0]

        begun, stream = clock.now(), Stream(clock, [(5, GONE)], answer)
        await stream.calls().next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            sizes=SIZES,
            deadline=begun + 9000,
            on_wait=lambda _: begun + 9000,
        )
        assert 5.75 <= stream.asked[0] - begun <= 6.25

    manual_clock.run(follow)


def test_a_stream_is_closed_after_the_outcome_of_the_session():
    """The sum may take long to fetch, and the aggregator has places for others."""

    async def follow(clock):
        calls = Stream(clock, [(0, Envelope(Aborted, b""))]).calls()
        update = await calls.next_update(
            bytes(32),
            after=Round.UNMASKING,
            sizes=SIZES,
            deadline=clock.now() + 60,
            on_wait=lambda _: pytest.fail("no wait is expected"),
        )
        assert update.kind is Aborted
        assert calls._open_stream is None

    manual_clock.run(follow)


def test_a_stream_cannot_extend_the_deadline_of_a_round():
    """The wait is limited by the session: a promised message does not extend it."""

    async def follow(clock):
        async def answer(_identity, _request):
            return Wait(0.5)

        begun = clock.now()
        stream = Stream(clock, [(0, Wait(240)), *([(200, Wait(240))] * 9)], answer)
        with pytest.raises(SessionAbortedError) as caught:
            await stream.calls().next_update(
                bytes(32),
                after=Round.SHARE_KEYS,
                sizes=SIZES,
                deadline=begun + 500,
                on_wait=lambda _: begun + 500,
            )
        assert caught.value.code is ErrorCode.DEADLINE
        assert clock.now() == begun + 500

    manual_clock.run(follow)


def test_a_message_larger_than_its_session_allows_is_not_fetched():
    """R10-2: a reference may name 70 MB; here a roster has a few thousand bytes."""
    large = Reference(Roster, bytes(32), SIZES.roster + MAX_INLINE_BYTES, Blob.ROSTER)

    async def follow(clock):
        service = ScriptedService({GetUpdate: large})
        calls = calls_over(InMemoryConnection(service, "client"), clock)
        with pytest.raises(RemoteProtocolError, match="at most") as caught:
            await calls.next_update(
                bytes(32),
                after=Round.ADVERTISE_KEYS,
                sizes=SIZES,
                deadline=clock.now() + 60,
                on_wait=lambda _: clock.now() + 60,
            )
        assert caught.value.code is ErrorCode.BAD_ENCODING
        assert [type(request) for _, request in service.calls] == [GetUpdate]

    manual_clock.run(follow)


def updates_of(parameters):
    """Return the largest update of each kind that a session can have, and its bytes."""
    sizes = message_sizes(parameters)
    reason = "r" * MAX_REASON_BYTES
    released = Released(Fate.INCLUDED, bytes(32), 1, 2, 3)
    aborted = Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, reason)
    return {
        "roster": Envelope(Roster, bytes(sizes.roster)),
        # Where the graph has none, the session refuses it by its rule (R5.2-25).
        "neighbourhood": Envelope(
            Roster, b"\1" + bytes((sizes.neighbourhood or sizes.roster) - 1)
        ),
        "edges": Envelope(EdgesPublished, bytes(sizes.edges)),
        "delivery": Envelope(Delivery, bytes(sizes.delivery)),
        "survivors": Envelope(Survivors, bytes(sizes.survivors)),
        "quorum": Envelope(Quorum, bytes(sizes.quorum)),
        "release": Envelope.of(released),
        "abort": Envelope.of(aborted),
    }


@pytest.mark.parametrize("way", ["stream", "answer"])
@pytest.mark.parametrize("kind", sorted(updates_of(PROFILES[0])))
@pytest.mark.parametrize("parameters", PROFILES, ids=["1", "ring", "2", "3"])
def test_an_inline_update_larger_than_its_session_allows_is_rejected(
    parameters, kind, way
):
    """Else a call's 4 MiB of a quorum are decoded into lists in a session of four.

    One of the past is never decoded, but compared: its code is that of R5-8.
    """
    update = updates_of(parameters)[kind]
    too_large = Envelope(update.kind, update.data + b"\0")

    async def heard(clock, said, after=Round.ADVERTISE_KEYS):
        async def stream(_identity, _request):
            yield said

        service = ScriptedService({GetUpdate: said})
        connection = InMemoryConnection(service, "client")
        if way == "stream":
            connection.watch = lambda request: stream("client", request)
        calls = calls_over(connection, clock, watch=way == "stream")
        return await calls.next_update(
            bytes(32),
            after=after,
            sizes=message_sizes(parameters),
            deadline=clock.now() + 60,
            on_wait=lambda _: clock.now() + 60,
        )

    assert manual_clock.run(lambda clock: heard(clock, update)) == update
    with pytest.raises(RemoteProtocolError, match="at most") as caught:
        manual_clock.run(lambda clock: heard(clock, too_large))
    assert caught.value.code is ErrorCode.BAD_ENCODING
    past = manual_clock.run(lambda clock: heard(clock, too_large, update.kind.ROUND))
    assert past == too_large


# --- whose answers (R5.0-6) -----------------------------------------------------------


def calls_over(connection, clock, *, watch=False, named=None):
    return ClientCalls(
        connection,
        clock,
        SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
        Workers(general=InlineExecutor()),
        watch=watch,
        named=named,
    )


class Changing:
    """A way whose other end changes: its name is what the last call has left it."""

    identity = "client"

    def __init__(self, *names):
        self.names, self.asked = list(names), []

    @property
    def aggregator(self):
        return self.names[0]

    def turn(self):
        if len(self.names) > 1:
            self.names.pop(0)

    async def call(self, _):
        self.asked.append(self.aggregator)
        self.turn()
        return self.asked[-1]

    async def watch(self, _):
        self.asked.append(self.aggregator)
        self.turn()
        yield UPDATES[0]


def test_an_answer_received_during_a_change_of_peer_is_requested_again():
    async def main(clock):
        way = Changing("a", "b")
        calls = calls_over(way, clock)
        calls.bind("a")
        asking = asyncio.ensure_future(calls.send(GetOffer("t"), clock.now() + 60))
        await clock.sleep_until(clock.now() + 30)
        assert way.asked == ["a"]  # `b` has answered for `a`, and is not asked again
        way.names = ["a"]
        assert await asking == "a"
        assert way.asked == ["a", "a"]

    manual_clock.run(main)


def test_a_connection_that_switched_to_an_unknown_peer_probes_it_first():
    async def main(clock):
        class Turned(Changing):
            met = 0

            @property
            def aggregator(self):
                if not self.met:
                    raise LocalProtocolError("not known yet")
                return self.names[0]

            async def probe(self):
                self.met += 1
                return self.names[0]

        way = Turned("a")
        calls = calls_over(way, clock)
        calls.bind("a")
        assert await calls.send(GetOffer("t"), clock.now() + 60) == "a"
        assert way.met == 1

    manual_clock.run(main)


@pytest.mark.parametrize("names", [("b",), ("a", "b")])
def test_no_stream_of_another_aggregator_is_opened_or_accepted(names):
    async def main(clock):
        way = Changing(*names)
        calls = calls_over(way, clock, watch=True)
        calls.bind("a")
        with pytest.raises(AnotherAggregatorError) as caught:
            await calls.next_update(
                bytes(32),
                after=Round.SHARE_KEYS,
                sizes=SIZES,
                deadline=clock.now() + 60,
                on_wait=lambda _: clock.now() + 60,
            )
        assert caught.value.code is ErrorCode.UNREACHABLE
        assert "b" not in way.asked

    manual_clock.run(main)


@pytest.mark.parametrize("named", [None, "a", "b"])
def test_the_advice_names_the_configured_aggregator(named):
    """A client that is to call b has not to wait for a."""

    async def main(clock):
        calls = calls_over(Changing("c"), clock, named=named)
        calls.bind("a")
        with pytest.raises(AnotherAggregatorError) as caught:
            await calls.send(GetOffer("t"), clock.now() + 60)
        return caught.value.next_step

    advised = manual_clock.run(main)
    assert ("resumes when 'a' answers" in advised) is (named != "b")
    assert ("is left when 'b' answers" in advised) is (named == "b")


def test_an_unexpected_peer_ends_a_client_only_outside_a_session():
    async def main(clock):
        stranger = UnexpectedPeerError(
            "the aggregator there is 'b'", "Check client.server."
        )
        asked = []

        class Barred(Changing):
            async def call(self, request):
                asked.append(request)
                raise stranger

        calls = calls_over(Barred("aggregator"), clock)
        with pytest.raises(ServiceError) as caught:
            await calls.send(GetOffer("t"), clock.now() + 60)
        assert caught.value.code is ErrorCode.BAD_CERTIFICATE
        assert len(asked) == 1

        calls.bind("aggregator")
        with pytest.raises(AnotherAggregatorError, match="there is 'b'") as caught:
            await calls.send(GetOffer("t"), clock.now() + 60)
        assert caught.value.code is ErrorCode.UNREACHABLE
        assert len(asked) > 2  # it may pass, and was tried again until then

    manual_clock.run(main)
