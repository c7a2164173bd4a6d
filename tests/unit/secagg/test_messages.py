"""Messages: one canonical encoding each, and one row of the table of rounds."""

from dataclasses import replace

import pytest

from secagg.crypto.canonical import Writer
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import messages
from secagg.protocol.enrolment import Credential
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Fate,
    ListProof,
    Neighbourhood,
    Quorum,
    Released,
    Roster,
    RosterFrame,
    Round,
    Shares,
    Survivors,
    Upload,
    is_neighbourhood,
)
from secagg.protocol.profiles import Profile, RoundDeadlines
from secagg.protocol.rounds import FROM_CLIENTS, FROM_SERVER, ROUNDS

CREDENTIAL = Credential(
    name="clïent",
    identity_key=b"i" * 32,
    not_before=1,
    not_after=2,
    serial=3,
    signature=b"S" * 64,
)
ADVERT = Advert(
    "clïent",
    b"e" * 32,
    b"m" * 32,
    b"c" * 32,
    (b"0" * 32, b"1" * 32),
    CREDENTIAL,
    b"s" * 64,
)
SAMPLES = [
    ADVERT,
    Bundles(b"sealed"),
    Upload(1 << 40, b"d" * 32),
    Shares(b"revealed"),
    Roster((ADVERT,), b"g" * 32),
    Delivery(b"\x07", b"bundles"),
    Survivors(b"\x03"),
    Released(Fate.INCLUDED, b"h" * 32, 25, 3, 1_800_000_000),
    Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, "too late"),
    Complaint(ErrorCode.SHARE_CONFUSION, 7),
    Consistency(b"s" * 64),
    Quorum(((0, b"a" * 64), (7, b"b" * 64))),
    Edges((1, 4), b"s" * 64),
    EdgesPublished(
        b"r" * 32,
        ((1, Edges((0, 3), b"s" * 64)),),
        (b"h" * 32,) * 2,
        (ListProof(b"d" * 32, 3, 1, (b"i" * 32,)), None),
        (b"l" * 32,),
    ),
]
# The other form of a roster has no number of its own.
# In order with a seed and without, so that order is never what is refused.
NEIGHBOURHOOD = Neighbourhood(
    9,
    3,
    {3: ADVERT, 4: replace(ADVERT, identity="d", credential=None)},
    b"g" * 32,
    (b"h" * 32,) * 3,
)


@pytest.mark.parametrize(
    "message", [*SAMPLES, NEIGHBOURHOOD], ids=lambda m: type(m).__name__
)
def test_a_message_survives_its_envelope(message):
    envelope = Envelope.of(message)
    assert envelope.open() == message
    assert envelope.data == message.encode()
    assert KINDS[message.KIND] is envelope.kind


def test_the_numbers_of_messages_never_change():
    assert [kind.__name__ for _, kind in sorted(KINDS.items())] == [
        type(sample).__name__ for sample in SAMPLES
    ]
    assert sorted(KINDS) == list(range(1, 15))


@pytest.mark.parametrize(
    "message",
    [
        sample
        for sample in (*SAMPLES, NEIGHBOURHOOD)
        if not isinstance(sample, Bundles | Edges | Shares | Survivors)
    ],
    ids=lambda m: type(m).__name__,
)
def test_truncated_and_extended_messages_are_rejected(message):
    data = message.encode()
    for damaged in (*(data[:size] for size in range(len(data))), data + b"\0"):
        with pytest.raises(RemoteProtocolError) as caught:
            type(message).decode(damaged)
        assert caught.value.code is ErrorCode.BAD_ENCODING


def frame(**changes):
    whole = RosterFrame.decode(NEIGHBOURHOOD.encode())
    return replace(whole, **changes).encode()


def twice_the_same_index():
    head = Writer().u8(1).u32(9).u32(3).blob(b"g" * 32).u32(2)
    for _ in range(2):
        head.u32(3).blob(ADVERT.encode())
    return head.u32(0).getvalue()


@pytest.mark.parametrize(
    "data",
    [
        frame(adverts={3: ADVERT.encode(), 1: ADVERT.encode()}),
        frame(adverts={9: ADVERT.encode()}),
        frame(size=2),
        frame(graph_seed=b""),
        frame(graph_seed=b"g" * 31),
        frame(size=65_536),
        b"\2" + frame()[1:],
        frame(proof=(b"h" * 32,) * 10),
        twice_the_same_index(),
    ],
    ids=[
        "descending",
        "index beyond n",
        "n below an index",
        "no seed",
        "short seed",
        "n beyond all",
        "third form",
        "more hashes than adverts",
        "one index twice",
    ],
)
def test_an_unordered_or_oversized_roster_is_rejected(data):
    with pytest.raises(RemoteProtocolError) as caught:
        Roster.decode(data)
    assert caught.value.code is ErrorCode.BAD_ENCODING


@pytest.mark.parametrize(
    "data",
    [
        Quorum(((1, b"a" * 64), (1, b"b" * 64))).encode(),
        Quorum(((2, b"a" * 64), (1, b"b" * 64))).encode(),
        Writer().u32(65_536).getvalue(),
    ],
    ids=["twice", "descending", "beyond all"],
)
def test_a_quorum_counts_each_client_once(data):
    """R5.5-1"""
    with pytest.raises(RemoteProtocolError) as caught:
        Quorum.decode(data)
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_roster_is_decoded_up_to_its_maximum_size(monkeypatch):
    assert RosterFrame.decode(frame(size=65_535)).size == 65_535
    monkeypatch.setattr(messages, "MAX_CLIENTS", 2)
    rows = tuple((index, b"a" * 64) for index in range(3))
    assert len(Quorum.decode(Quorum(rows[:2]).encode())) == 2
    with pytest.raises(RemoteProtocolError, match="at most 2 are possible"):
        Quorum.decode(Quorum(rows).encode())


def test_only_rosters_have_a_neighbourhood_form():
    assert is_neighbourhood(Envelope.of(NEIGHBOURHOOD))
    assert not is_neighbourhood(Envelope.of(Roster((ADVERT,))))
    assert not is_neighbourhood(Envelope(Survivors, b"\1"))


@pytest.mark.parametrize("drawn", [(3, 3), (4, 3)])
def test_edges_naming_a_client_twice_are_rejected(drawn):
    # R5.9-3
    with pytest.raises(RemoteProtocolError) as caught:
        Edges.decode(Edges(drawn, b"s" * 64).encode())
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_extra_bytes_after_the_keys_of_an_advert_are_rejected():
    keys = ADVERT.key_part() + b"\0"
    data = Writer().blob(ADVERT.id_part()).blob(keys).blob(ADVERT.signature)
    with pytest.raises(RemoteProtocolError) as caught:
        Advert.decode(data.getvalue())
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_complaint_requires_a_bundle_error_code():
    with pytest.raises(RemoteProtocolError) as caught:
        Complaint.decode(Complaint(ErrorCode.DEADLINE, 7).encode())
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_an_advert_has_exactly_two_forms():
    bare = replace(ADVERT, credential=None, signature=b"")
    for advert in (ADVERT, bare):
        who = advert.id_part()
        place = 4 + len(advert.identity.encode())
        assert who[place] == (advert.credential is not None)
        for form in (2, 255, 1 - who[place]):
            other = who[:place] + bytes((form,)) + who[place + 1 :]
            data = Writer().blob(other).blob(advert.key_part()).blob(b"").getvalue()
            with pytest.raises(RemoteProtocolError) as caught:
                Advert.decode(data)
            assert caught.value.code is ErrorCode.BAD_ENCODING


def test_the_signature_of_bundles_is_optional():
    bundles = b"b" * 96 * 3
    for message in (Bundles(bundles), Bundles(bundles, b"s" * 64), Bundles(b"")):
        assert Bundles.decode(message.encode()) == message


def test_the_reason_of_an_abort_is_sanitised():
    data = (
        Writer()
        .u8(0)
        .u16(ErrorCode.DEADLINE)
        .text("\x1b[2Jline\nline\u202e")
        .getvalue()
    )
    aborted = Aborted.decode(data)
    assert aborted.code is ErrorCode.DEADLINE
    assert aborted.reason == " [2Jline line "


def test_an_abort_with_an_unknown_code_is_decoded_as_internal():
    aborted = Aborted.decode(Writer().u8(2).u16(65535).text("why").getvalue())
    assert aborted == Aborted(Fate.INCLUDED, ErrorCode.INTERNAL, "why")


@pytest.mark.parametrize("fate", [0, 3, 255])
def test_a_sum_without_a_set_and_an_undefined_fate_are_rejected(fate):
    released = bytearray(Released(Fate.INCLUDED, b"h" * 32, 25, 3, 0).encode())
    aborted = bytearray(Aborted(Fate.INCLUDED, ErrorCode.DEADLINE, "").encode())
    released[0] = aborted[0] = fate
    for kind, data in ((Released, released), (Aborted, aborted)):
        if (kind, fate) == (Aborted, 0):
            assert Aborted.decode(bytes(data)).fate is Fate.NEVER_FIXED
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            kind.decode(bytes(data))
        assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_reason_is_truncated_to_the_accepted_length():
    long = Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, "ü\n" * 2000)
    read = Aborted.decode(long.encode())
    assert len(read.reason.encode()) <= 1000
    assert read.reason.startswith("ü ü")


def test_message_reprs_contain_no_secret_bytes():
    for message in (Bundles(b"secret"), Shares(b"secret"), Delivery(b"", b"secret")):
        assert "secret" not in f"{message!r} {Envelope.of(message)!r}"


def test_every_message_belongs_to_one_row_of_its_round():
    assert set(KINDS.values()) == FROM_CLIENTS | FROM_SERVER
    assert not FROM_CLIENTS & FROM_SERVER
    for which, row in ROUNDS.items():
        for kind in (*row.opened_by, row.message):
            # The agreed set opens Unmasking where clients do not sign it, and the
            # roster ShareKeys where clients do not draw on it.
            both = (kind, which) in {
                (Survivors, Round.UNMASKING),
                (Roster, Round.SHARE_KEYS),
            }
            assert kind is None or kind.ROUND is which or both


def test_every_round_exists_in_the_profiles_that_give_it_a_deadline():
    for row in ROUNDS.values():
        if row.deadline:
            lacking = {p for p in Profile if row.deadline in p.absent_rounds}
            assert row.profiles == frozenset(Profile) - lacking


def test_every_deadline_belongs_to_one_round():
    deadlines = RoundDeadlines(1, 2, 3, 4, 5, 6)
    assert [row.seconds(deadlines) for row in ROUNDS.values()] == [
        *(1, 2, 3, 4, 5, 6),
        0,
    ]
