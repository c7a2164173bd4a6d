"""Damaged bytes: decoders and both machines return a value or raise their error.

Inputs are made from real ones (of sessions that are played, of the vectors) by
flipping, cutting, repeating and crossing; what a decoder accepts joins the stock from
which the next ones are made.  A value must encode to the bytes that it was read from,
so that nothing has two encodings.

The suite makes a few; `make fuzz` makes ten million.  A failure names its seed and its
input; the same seed makes the same inputs of each target.
"""

import contextlib
import hashlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import grpc
import pytest
from secagg_testing.cohorts import (
    RecordedSession,
    any_noise,
    one_hot,
    parameters_for,
    sparse_parameters_for,
)
from secagg_testing.stored_header import stored_header

from secagg.conformance import read_vectors
from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError, ServiceError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import Credential, CredentialRequest, RevocationList
from secagg.protocol.events import Finish, NoisyVector, Received, SessionOffered
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Complaint,
    Envelope,
    Fate,
    Neighbourhood,
    Released,
    Roster,
)
from secagg.protocol.packing import BadVectorError, pack, unpack
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import MaliciousParameters, RoundDeadlines
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Outcome,
    RosterCommitment,
    WrittenBy,
)
from secagg.protocol.rounds import FROM_CLIENTS, FROM_SERVER, rounds_of
from secagg.protocol.server import machine as server
from secagg.server.session.report import SessionReceipt
from secagg.server.session.state import SessionRecord
from secagg.server.task.history import TaskHistory
from secagg.simulation.driver import accepting, identity_of, issued_to, simulated_trust
from secagg.storage import journal
from secagg.storage.change import Record
from secagg.transport import status
from secagg.two_aggregators.messages import AcceptedShares, HelperShare, NoisyShare
from secagg.two_aggregators.receipt import NamePath, TwoAggregatorReceipt
from secagg.wire.calls import CALLS, Blob, BlobChunk, Reference, UploadStatus, Wait

CLIENTS = 5
SESSION = bytes(32)
MODULUS = 1 << 20

# --- damage ---------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
STOCK = 64


class Numbers:
    """Reproducible 32-bit numbers, taken from one stream in large pieces."""

    def __init__(self, seed: int, name: str) -> None:
        key = SecretBytes(hashlib.sha256(b"fuzz %d" % seed).digest())
        self._stream = SeededEntropy(key, name.encode())
        self._next: Iterator[int] = iter(())

    def take(self) -> int:
        for number in self._next:
            return number
        self._next = iter(array("I", self._stream.token(1 << 16)))
        return next(self._next)

    def below(self, limit: int) -> int:
        return self.take() % limit

    def token(self, size: int) -> bytes:
        return self._stream.token(size)


def damaged(stock: list[bytes], numbers: Numbers) -> bytes:
    """Return one of the stock with one to three changes."""
    data = bytearray(stock[numbers.below(len(stock))])
    for _ in range(1 + numbers.below(3)):
        at = numbers.below(len(data) + 1)
        match numbers.below(10):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << numbers.below(8)
            case 2 if at < len(data):
                data[at] = NUMBERS[numbers.below(6)]
            case 3:
                del data[at:]
            case 4:
                data += numbers.token(1 + numbers.below(9))
            case 5:
                del data[at : at + 1 + numbers.below(40)]
            case 6:
                data[at:at] = data[at : at + 1 + numbers.below(40)]
            case 7:
                number = NUMBERS[numbers.below(len(NUMBERS))]
                data[at : at + 4] = number.to_bytes(4, "big")
            case 8:
                other = stock[numbers.below(len(stock))]
                data[at:] = other[numbers.below(len(other) + 1) :]
            case _:
                data[at : at + 1] = numbers.token(1 + numbers.below(4))
    return bytes(data)


# --- what is fed ----------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """One decoder.

    Attributes:
        decode: Bytes to a value.
        seeds: Valid bytes.
        refusals: What it may raise.
        codes: With which codes; any for None.
        encode: The value to bytes; None where one value has many encodings.
    """

    decode: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    refusals: type[Exception] = RemoteProtocolError
    codes: frozenset[ErrorCode] | None = frozenset({ErrorCode.BAD_ENCODING})
    encode: Callable[[Any], bytes] | None = None

    def feed(self, data: bytes) -> bool:
        """Return whether the bytes are accepted."""
        value, refusal = None, None
        try:
            value = self.decode(data)
        except self.refusals as error:
            refusal = error
        if refusal is None:
            assert self.encode is None or self.encode(value) == data
        else:
            assert self.codes is None or refusal.code in self.codes, refusal
            assert str(refusal).isprintable()
        return refusal is None


CASES = {
    "complete": parameters_for(
        CLIENTS, dimension=4, threshold=3, noise_layers=2, noise_block=b"any"
    ),
    "ring": parameters_for(8, dimension=4, threshold=3, degree=4, min_clients=6),
    "signed": parameters_for(
        CLIENTS,
        dimension=4,
        threshold=3,
        tail=MaliciousParameters(simulated_trust()),
        deadlines=RoundDeadlines(consistency=60),
    ),
    "drawn": sparse_parameters_for(8, dimension=4, degree=4),
}
CASES["sparse"] = sparse_parameters_for(CLIENTS, dimension=4, degree=4)
PLAIN = replace(CASES["complete"], noise_layers=0, noise_block=b"")
CASES["plain"] = PLAIN


@dataclass(frozen=True)
class Scene:
    """A state of a machine, and messages like those that it may be sent.

    Attributes:
        state: Of a client or, with a sender, of the server.
        told: What it was sent next, or has been sent until now.
        policy: Of the client.
        sender: Whose messages the server gets.
    """

    state: Any
    told: tuple[Envelope, ...]
    policy: ClientPolicy
    sender: str = ""


@dataclass
class WatchedSession(RecordedSession):
    """Remembers in which states its first client and its server were, and the news."""

    scenes: list[Scene] = field(default_factory=list)
    said: dict[type, set[bytes]] = field(default_factory=dict)

    def to_client(self, number, event):
        if number == 0 and not isinstance(event, SessionOffered):
            news = self._note(event, FROM_SERVER)
            self.scenes.append(Scene(self.clients[0], news, accepting(self.parameters)))
        return super().to_client(number, event)

    def step_server(self, event):
        if not isinstance(event, Received) or event.sender == identity_of(1):
            news = self._note(event, FROM_CLIENTS)
            fork = server.fork(self.server_state)
            policy = accepting(self.parameters)
            self.scenes.append(Scene(fork, news, policy, identity_of(1)))
        return super().step_server(event)

    def _note(self, event, kinds):
        """Return the received message; for another event, all messages sent before."""
        if isinstance(event, Received):
            envelope = event.envelope
            self.said.setdefault(envelope.kind, set()).add(envelope.data)
            return (envelope,)
        return tuple(
            Envelope(kind, data)
            for kind, found in self.said.items()
            if kind in kinds
            for data in sorted(found)
        )


@cache
def played(name):
    """Run a session to its end, with every message delivered twice."""
    parameters = CASES[name]
    vectors = [one_hot(n, 4, MODULUS) for n in range(parameters.max_clients)]
    if block := parameters.noise_block:
        vectors = [partial(NoisyVector, vector, block) for vector in vectors]
    session = WatchedSession(parameters, vectors, read_noise=any_noise)
    for which in rounds_of(parameters.profile):
        session.play(which)
        session.close(which)
    for _ in range(2):
        session.update(0)
    assert isinstance(session.clients[0], client.Completed)
    return session


def messages(kind):
    found = set()
    for name in CASES:
        found |= played(name).said.get(kind, set())
    if kind is Complaint:
        found.add(Complaint(ErrorCode.SHARE_CONFUSION, 1).encode())
    if kind is Aborted:
        found.add(Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, "late").encode())
    return tuple(sorted(found))


def offers():
    return tuple(played(name).descriptor.encode() for name in CASES)


def records(events):
    found = []
    for event in events:
        try:
            record = journal.record_of(event)
        except TypeError:
            continue
        found.append(record.kind.to_bytes(2, "big") + record.body)
    return tuple(found)


def as_record(data):
    return Record(int.from_bytes(data[:2], "big"), "client", data[2:])


def of_storage(decode, seeds):
    return Decoder(decode, seeds, ServiceError, frozenset({ErrorCode.STORAGE_FAILED}))


def calls():
    """Yield each call with bytes of its requests and of its answers."""
    session = played("plain")
    said = session.said
    bodies = [data for found in said.values() for data in sorted(found)]
    answers = [
        None,
        session.descriptor,
        Wait(1.5, 3, 5, 2.0),
        UploadStatus(1 << 33, complete=True),
        BlobChunk(b"piece", 1 << 40),
        Reference(KINDS[5], SESSION, 3 << 20, Blob.ROSTER),
        *(Envelope(kind, min(said[kind])) for kind in FROM_SERVER & set(said)),
    ]
    for call in CALLS.values():
        encoded = []
        for answer in answers:
            with contextlib.suppress(Exception):  # the answer to another call
                encoded.append(call.encode(answer))
        requests = [request_bytes(body) for body in bodies]
        yield call, (b"\x0a\x06digits\x10\x03", *requests), tuple(encoded)


def request_bytes(body):
    """Return a request as protobuf has it: a session and a message."""
    body = body[:127]
    return b"\x0a\x20" + SESSION + b"\x12" + bytes([len(body)]) + body


def decoders():
    found = {
        kind.__name__: Decoder(
            kind.decode,
            messages(kind),
            # A code of a later release is read as INTERNAL, and so written.
            encode=(lambda value: value.encode()) if kind is not Aborted else None,
        )
        for kind in (*KINDS.values(), Neighbourhood)
        if messages(kind)
    }
    of_offers = frozenset(
        {ErrorCode.BAD_ENCODING, ErrorCode.BAD_CONFIG, ErrorCode.BAD_VERSION}
    )
    found["SessionDescriptor"] = Decoder(
        SessionDescriptor.decode,
        offers(),
        codes=of_offers,
        encode=SessionDescriptor.encode,
    )
    for call, requests, answers in calls():
        found[f"request {call.name}"] = Decoder(call.request.decode, requests)
        found[f"answer to {call.name}"] = Decoder(call.decode, answers, codes=of_offers)
    session = played("complete")
    found["server's journal"] = of_storage(
        lambda data: journal.decode_server_event(as_record(data)),
        records(session.journal),
    )
    found["client's journal"] = of_storage(
        lambda data: journal.decode_client_event(as_record(data)),
        records(session.client_journals[0]),
    )
    offered = session.client_journals[0][0]
    assert isinstance(offered, SessionOffered)
    found["stored offer"] = of_storage(
        journal.decode_offer, (journal.encode_offer(offered),)
    )
    found |= _enrolment() | _outcomes(session) | _receipts(session)
    return found | _between_two() | _others()


def _enrolment():
    made = read_vectors("enrolment")
    found = {}
    for name, kind in (
        ("requests", CredentialRequest),
        ("revocations", RevocationList),
    ):
        seeds = _encodings(made, kind)
        if seeds:
            found[kind.__name__] = Decoder(kind.decode, seeds, encode=kind.encode)
        assert seeds, name
    credential = issued_to(identity_of(0), 1)
    writer = Writer()
    credential.encode_into(writer)

    def read(data):
        reader = Reader(data, "credential")
        value = Credential.decode_from(reader, name=credential.name)
        reader.end()
        return value

    def write(value):
        again = Writer()
        value.encode_into(again)
        return again.getvalue()

    found["Credential"] = Decoder(
        read, (writer.getvalue(),), ValueError, codes=None, encode=write
    )
    return found


def _encodings(vectors, kind):
    """Return all strings of hexadecimal digits among vectors that a class decodes."""
    found = set()

    def walk(value):
        match value:
            case dict():
                for each in value.values():
                    walk(each)
            case list():
                for each in value:
                    walk(each)
            case str():
                try:
                    kind.decode(bytes.fromhex(value))
                except (ValueError, RemoteProtocolError):
                    return
                found.add(bytes.fromhex(value))

    walk(vectors)
    return tuple(sorted(found))


def _outcomes(session):
    failed = client.Failed(ErrorCode.DEADLINE, "late", session.clients[0].charge)
    endings = [
        journal.Ending(ended, b"a receipt") for ended in (session.clients[0], failed)
    ]
    return {
        "stored ending": of_storage(
            journal.decode_ending, tuple(map(journal.encode_ending, endings))
        )
    }


def _receipts(session):
    offer = session.descriptor.encode()
    roster = min(session.said[Roster])
    kinds = [
        AuditReceipt(
            writer=WrittenBy.CLIENT,
            offer=offer,
            view=view,
            outcome=Outcome.ABORTED,
            code=3,
        )
        for view in (None, roster, RosterCommitment(5, bytes(32), bytes(32)))
    ]
    released = Released(Fate.INCLUDED, bytes(32), 10, 2, 0)
    receipt = SessionReceipt(
        descriptor=session.descriptor,
        outcome=released,
        members=("a", "b"),
        survivors=("a",),
        disputes=(("a", "b", 10),),
        was_unmasked=False,
        finishers=("a",),
        contexts=(bytes(32),),
        seconds=(("UNMASKING", 0.5),),
    )
    facts = TaskHistory(excluded=frozenset({"a", "ü"}))
    record = SessionRecord(session.descriptor, frozenset({"a", "ü"}), attempt=3)
    return {
        # Its last 32 bytes, a hash against accidents, are not looked at.
        "AuditReceipt": Decoder(
            AuditReceipt.decode,
            tuple(each.encode() for each in kinds),
            encode=None,
        ),
        "server's receipt": of_storage(SessionReceipt.decode, (receipt.encode(),)),
        "server's header": of_storage(
            lambda data: SessionRecord.decode(stored_header(data)),
            (record.encode_header(),),
        ),
        "task's facts": of_storage(TaskHistory.decode, (facts.encode(),)),
    }


def _between_two():
    """What two aggregators send each other, and sign; each value has one encoding."""
    offer, names, key = b"an offer", ("a", "b", "ü"), bytes([1]) * 32
    path = NamePath(3, bytes(32), 1, (bytes(32), bytes(32)))
    shared = TwoAggregatorReceipt(
        leader_offer=offer,
        helper_offer=offer,
        leader_key=key,
        helper_key=key,
        roster=names,
        survivors=names[1:],
        helper_signature=bytes(64),
        outcome=Outcome.RELEASED,
        size=9,
        ended=7,
        leader_signature=bytes(64),
    )
    absent = replace(path, place=None, path=())
    receipts = (
        shared,
        replace(shared, reader="b", roster=path, survivors=path),
        replace(shared, reader="b", roster=path, survivors=absent),
    )
    parts = {
        HelperShare: (HelperShare(SecretBytes(key), bytes(32)),),
        AcceptedShares: (AcceptedShares(offer, names), AcceptedShares(offer, ())),
        NoisyShare: (NoisyShare(bytes(32), names, key, bytes(64), b"packed"),),
        TwoAggregatorReceipt: receipts,
    }
    return {
        kind.__name__: Decoder(
            kind.decode, tuple(each.encode() for each in values), encode=kind.encode
        )
        for kind, values in parts.items()
    }


def _others():
    vector = one_hot(1, 4, MODULUS)
    return {
        "packed vector": Decoder(
            lambda data: unpack(data, 4, 20, MODULUS),
            (pack(vector, 20),),
            BadVectorError,
            codes=None,
            encode=lambda value: pack(value, 20),
        ),
        "error of a call": Decoder(
            lambda data: status.error_of(
                grpc.StatusCode.ABORTED, "text", ((status.DETAIL_KEY, data),)
            ),
            (b"", b"\x08\x05\x12\x04late"),
            SecAggError,
            codes=None,
        ),
    }


DECODERS = decoders()
SCENES = {
    f"{name} {'server' if scene.sender else 'client'} {number} "
    f"{type(scene.state).__name__}": scene
    for name in CASES
    for number, scene in enumerate(played(name).scenes)
}


def test_the_scenes_cover_every_state():
    for machine, module in (("client", client_machine), ("server", server)):
        met = {
            type(scene.state)
            for what, scene in SCENES.items()
            if f" {machine} " in what
        }
        states = {state for rows in module.TRANSITIONS.values() for state, _ in rows}
        assert states - met <= {client.Idle, client.Failed}


@pytest.fixture
def budget(request):
    """The number of inputs of one target: a tenth of all are for the machines."""
    inputs = request.config.getoption("--fuzz-inputs")
    return {
        "decoders": inputs * 9 // 10 // len(DECODERS),
        "scenes": inputs // 10 // len(SCENES),
    }


@pytest.fixture
def numbers(request):
    seed = request.config.getoption("--fuzz-seed")
    return Numbers(seed, request.node.name)


@pytest.mark.parametrize("what", DECODERS)
def test_damaged_bytes_are_rejected_or_decode_consistently(what, numbers, budget):
    decoder = DECODERS[what]
    stock = list(decoder.seeds)
    for seed in stock:
        assert decoder.feed(seed) or what.startswith("request"), seed.hex()
    for _ in range(budget["decoders"]):
        data = damaged(stock, numbers)
        try:
            is_accepted = decoder.feed(data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error
        if is_accepted and len(data) < 4096:
            place = numbers.below(STOCK)
            if len(stock) < STOCK:
                stock.append(data)
            elif place >= len(decoder.seeds):
                stock[place] = data


@pytest.mark.parametrize("what", SCENES)
def test_damaged_messages_end_a_session_only_with_a_documented_error(
    what, numbers, budget
):
    scene = SCENES[what]
    stock = [envelope.data for envelope in scene.told] or [b""]
    fitting = [envelope.kind for envelope in scene.told] or list(KINDS.values())
    for _ in range(budget["scenes"]):
        # Mostly what the state waits for; sometimes anything else.
        kinds = fitting if numbers.below(8) else list(KINDS.values())
        kind = kinds[numbers.below(len(kinds))]
        envelope = Envelope(kind, damaged(stock, numbers))
        try:
            (send_to_server if scene.sender else send_to_client)(scene, envelope)
        except Exception as error:
            told = f"{kind.__name__} {envelope.data.hex()}"
            raise AssertionError(f"input {told}") from error


def send_to_client(scene, envelope):
    """A client continues, stays, or leaves with a code; it raises nothing."""
    before = scene.state
    result = client_machine.step(before, Received(envelope), policy=scene.policy)
    if isinstance(result.state, client.Failed) and not client_machine.is_over(before):
        assert {type(output) for output in result.outputs} == {Finish}
        assert result.state.reason.isprintable()
    elif type(result.state) is not type(before):
        # Whatever it has accepted, it can be told again.
        assert client_machine.step(
            result.state, Received(envelope), policy=scene.policy
        ).is_repeat


def send_to_server(scene, envelope):
    """The server records, or refuses by name and stays as it was."""
    state, event = server.fork(scene.state), Received(envelope, scene.sender)
    result, refusal = None, None
    try:
        result = server.step(state, event)
    except RemoteProtocolError as error:
        refusal = error
    if refusal is not None:
        assert refusal.sender in {event.sender, None}
        assert str(refusal).isprintable()
        assert state == scene.state
    else:
        assert result.is_repeat or server.step(result.state, event).is_repeat
