"""Our encodings, shares, masks and packing against `secagg.conformance`.

The vectors come from a reference that was written from the specification alone.  It is
also run here beside ours on inputs that are in no file.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import parameters_for
from secagg_testing.scripted_entropy import ScriptedEntropy

from secagg.conformance import VECTOR_FILES, read_vectors
from secagg.crypto import key_derivation as kdf
from secagg.crypto import shamir
from secagg.crypto.canonical import CanonicalEncodingError, Reader
from secagg.crypto.cipher_suite import CipherSuite, open_sealed, seal
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.modular import word_dtype, zeros
from secagg.crypto.prg import Mask, add_masks, expand
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    BadShareError,
    check_shares,
    decode_shares,
    encode_shares,
)
from secagg.crypto.signature import IdentityKey
from secagg.crypto.transcript import decode_set, domain_tag, encode_set, hash_parts
from secagg.protocol import context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import Credential, EnrolmentRules
from secagg.protocol.graphs.neighbours import sharing_graph
from secagg.protocol.membership import Member, signed_advert
from secagg.protocol.messages import Advert, Roster, RosterFrame
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    MaliciousParameters,
    RoundDeadlines,
    Trust,
)

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "tests" / "vectors" / "protocol"
SHIPPED = ROOT / "secagg" / "conformance" / "vectors"
ENCODINGS, SECRETS, MASKS = map(read_vectors, ("encodings", "secrets", "masks"))
MAX_BYTES = 500_000  # of one file: people read and copy them


def bytes_of(record, name):
    return bytes.fromhex(record[name])


def secret_of(record, name):
    return SecretBytes(bytes_of(record, name))


# --- the files -----------------------------------------------------------------------


def test_the_files_match_the_output_of_the_reference(reference_modules):
    written = reference_modules["generate"].files()
    found = {path.name: path.read_text() for path in SHIPPED.glob("*.json")}
    assert found == written
    assert max(len(content) for content in found.values()) <= MAX_BYTES


def test_every_vector_file_can_be_read_by_name():
    assert sorted(f"{name}.json" for name in VECTOR_FILES) == sorted(
        path.name for path in SHIPPED.glob("*.json")
    )
    assert all(read_vectors(name)["protocol"] == "secagg/v1" for name in VECTOR_FILES)
    with pytest.raises(ValueError, match="sessions"):
        read_vectors("../vectors/sessions")


def test_the_reference_shares_no_code_with_the_product():
    for path in REFERENCE.glob("*.py"):
        source = path.read_text()
        assert "import secagg" not in source
        assert "from secagg" not in source
        assert "numpy" not in source


# --- encodings -----------------------------------------------------------------------


def trust_of(fields):
    return Trust(
        fields["trust_domain"],
        bytes_of(fields, "enrolment_key"),
        fields["revocation_number"],
        bytes_of(fields, "revocation_hash"),
    )


@pytest.mark.parametrize("case", ENCODINGS["offers"], ids=lambda case: case["name"])
def test_offers(case):
    fields, numbers = case["fields"], case["fields"]["parameters"]
    trust = numbers["trust"]
    descriptor = SessionDescriptor(
        aggregator=fields["aggregator"],
        task_id=fields["task_id"],
        session_number=fields["session_number"],
        server_nonce=bytes_of(fields, "server_nonce"),
        session_end=fields["session_end"],
        payload_hash=bytes_of(fields, "payload_hash"),
        noise_terms=fields["noise_terms"].encode(),
        parameters=ProtocolParameters(
            tail=HonestCuriousParameters(numbers["graph_bits"])
            if trust is None
            else MaliciousParameters(trust_of(trust)),
            suite=CipherSuite(numbers["suite"]),
            modulus=int(numbers["modulus"]),
            dimension=numbers["dim"],
            min_clients=numbers["min_clients"],
            max_clients=numbers["max_clients"],
            threshold=numbers["threshold"],
            degree=numbers["degree"],
            min_survivors=numbers["min_survivors"],
            max_dropouts=numbers["max_dropouts"],
            max_losses=numbers["max_losses"],
            colluders=numbers["colluders"],
            noise_layers=numbers["noise_layers"],
            noise_block=numbers["noise_block"].encode(),
            deadlines=RoundDeadlines(*numbers["deadlines"]),
        ),
    )
    assert descriptor.encode().hex() == case["offer"]
    assert SessionDescriptor.decode(bytes_of(case, "offer")) == descriptor
    assert descriptor.configuration_hash.hex() == case["cfg_hash"]
    assert descriptor.session_id.hex() == case["sid"]
    assert context.session_context(descriptor).hex() == case["ctx0"]


@pytest.mark.parametrize("case", ENCODINGS["context_chains"])
def test_context_chains(case):
    suite = CipherSuite(case["suite"])
    assert domain_tag("client", "share bundle", suite).hex() == case["tag"]
    chain = [bytes.fromhex(case["contexts"][0])]
    chain.append(
        context.committed_roster(
            chain[-1],
            case["count"],
            bytes_of(case, "top"),
            bytes_of(case, "graph_seed"),
            suite,
        )
    )
    chain.append(
        context.mask_context(
            chain[-1],
            bytes_of(case, "u2"),
            suite,
            edge_root=bytes_of(case, "edge_root"),
            noise_context=bytes_of(case, "noise_context"),
        )
    )
    chain.append(context.unmask_context(chain[-1], bytes_of(case, "u3"), suite))
    assert [link.hex() for link in chain] == case["contexts"]


@pytest.mark.parametrize("case", ENCODINGS["sets"])
def test_sets(case):
    if not case.get("success", True):  # R3.3-1
        with pytest.raises(CanonicalEncodingError):
            decode_set(bytes_of(case, "bitmap"), case["size"])
        return
    assert encode_set(case["members"], case["size"]).hex() == case["bitmap"]
    decoded = decode_set(bytes_of(case, "bitmap"), case["size"])
    assert list(decoded) == case["members"]


@pytest.mark.parametrize(
    "case", ENCODINGS["adverts"], ids=lambda case: case["identity"][:20]
)
def test_adverts(case):
    suite = CipherSuite(case["suite"])
    identity, seed = case["identity"], secret_of(case, "self_mask_seed")
    keys = [
        KeyPair.from_private_bytes(secret_of(case, name)).public_bytes
        for name in ("channel_private_key", "mask_private_key")
    ]
    sid, ctx0 = bytes_of(case, "sid"), bytes_of(case, "ctx0")
    commitment = context.self_mask_commitment(sid, identity, seed, suite)
    assert commitment.hex() == case["commitment"]
    layers = tuple(
        context.noise_commitment(sid, identity, layer, bytes.fromhex(drawn), suite)
        for layer, drawn in enumerate(case["noise_seeds"])
    )
    advert = Advert(identity, *keys, commitment, layers)
    if case["credential"]:
        reader = Reader(bytes_of(case, "credential"), "credential")
        member = Member(
            key=IdentityKey.from_bytes(secret_of(case, "identity_seed")),
            credential=Credential.decode_from(reader, name=identity),
            rules=EnrolmentRules(
                trust_domain="any", enrolment_key=bytes(32), session_end=0
            ),
        )
        advert = signed_advert(advert, member, ctx0=ctx0, suite=suite)
    assert advert.encode().hex() == case["advert"]
    assert Advert.decode(bytes_of(case, "advert")) == advert
    shown = RosterFrame(6, {5: advert.encode()}, b"", reader=5, proof=(bytes(32),) * 2)
    top = hash_parts("roster node", bytes(32), bytes_of(case, "leaf_5"), suite=suite)
    # Leaf 5 of 6 has two hashes to its left, in one subtree and beside it.
    top = hash_parts("roster node", bytes(32), top, suite=suite)
    assert context.roster_context(ctx0, shown, suite) == context.committed_roster(
        ctx0, 6, top, b"", suite
    )


@pytest.mark.parametrize("case", ENCODINGS["rosters"])
def test_rosters(case):
    suite, ctx0 = CipherSuite(case["suite"]), bytes_of(case, "ctx0")
    adverts = tuple(Advert.decode(bytes.fromhex(data)) for data in case["adverts"])
    roster = Roster(adverts, bytes_of(case, "graph_seed"))
    assert roster.encode().hex() == case["roster"]
    assert Roster.decode(bytes_of(case, "roster")) == roster
    whole = RosterFrame.decode(bytes_of(case, "roster"))
    ctx1 = context.committed_roster(
        ctx0, len(adverts), bytes_of(case, "top"), roster.graph_seed, suite
    )
    assert context.roster_context(ctx0, whole, suite) == ctx1
    for reader, data in enumerate(case.get("neighbourhoods", ())):
        part = Roster.decode(bytes.fromhex(data))
        assert (part.size, part.reader) == (len(adverts), reader)
        assert all(part.adverts[i] == adverts[i] for i in part.adverts)
        assert part.encode().hex() == data
        shown = RosterFrame.decode(bytes.fromhex(data))
        assert context.roster_context(ctx0, shown, suite) == ctx1
        tree = context.roster_tree(ctx0, whole, suite)
        assert tree.proof(list(part.adverts)) == part.proof


@pytest.mark.parametrize("case", ENCODINGS["rings"], ids=lambda case: case["degree"])
def test_rings(case):
    names, degree = case["identities"], case["degree"]
    seed, clients = bytes_of(case, "graph_seed"), len(names)
    adverts = (Advert(name, *(bytes(32),) * 3) for name in sorted(names))
    roster = Roster.of(adverts, seed)
    assert [advert.identity for advert in roster.adverts] == names
    parameters = parameters_for(clients, dimension=1, threshold=2, degree=degree)
    graph = sharing_graph(parameters, clients, seed)
    shown = [graph.mask_peers(place) for place in (0, clients // 2, clients - 1)]
    assert [list(peers) for peers in shown] == case["neighbours"]


# --- secrets -------------------------------------------------------------------------


@pytest.mark.parametrize("case", SECRETS["shares"], ids=lambda case: case["threshold"])
def test_shares(case):
    words = np.array(case["coefficients"], "<u4").tobytes()
    shares = shamir.share_secrets(
        [secret_of(case, "secret")],
        case["threshold"],
        case["points"],
        ScriptedEntropy(words),
    )
    assert [share.tobytes().hex() for share in shares[0]] == case["shares"]
    assert decode_shares(shares[0]).tolist() == case["limbs"]
    used = slice(1, 1 + case["threshold"])
    found = shamir.reconstruct(case["points"][used], shares[:, used].transpose(1, 0, 2))
    assert found == [secret_of(case, "secret")]


def test_some_share_has_a_limb_of_65536():
    assert any(65536 in limbs for case in SECRETS["shares"] for limbs in case["limbs"])


@pytest.mark.parametrize("case", SECRETS["share_encodings"])
def test_share_encodings(case):
    encoded = np.frombuffer(bytes_of(case, "share"), np.uint8)
    if case["success"]:
        assert encode_shares(np.array(case["limbs"])).tobytes() == encoded.tobytes()
        assert decode_shares(encoded).tolist() == case["limbs"]
    elif encoded.size == shamir.SHARE_SIZE:
        assert not check_shares(encoded).any()
        with pytest.raises(BadShareError):
            decode_shares(encoded)
    else:
        with pytest.raises(ValueError, match="34"):
            decode_shares(encoded)


@pytest.mark.parametrize("case", SECRETS["bundles"])
def test_bundles(case):
    suite = CipherSuite(case["suite"])
    pair = KeyPair.from_private_bytes(secret_of(case, "sender_private_key"))
    peer = KeyPair.from_private_bytes(secret_of(case, "receiver_private_key"))
    agreed = pair.agree(peer.public_bytes)
    assert agreed == secret_of(case, "agreed_secret")
    assert peer.agree(pair.public_bytes) == agreed
    sender, receiver = case["sender"], case["receiver"]
    key = kdf.share_channel_key(
        agreed,
        session_id=bytes_of(case, "sid"),
        context=bytes_of(case, "ctx1"),
        sender=sender,
        receiver=receiver,
        suite=suite,
    )
    assert key == secret_of(case, "key")
    inside = (sender, receiver, case["abscissa"])
    plaintext = b"".join(number.to_bytes(4, "big") for number in inside)
    plaintext += bytes_of(case, "share_of_key") + bytes_of(case, "share_of_seed")
    associated = bytes_of(case, "associated_data")
    assert seal(key, plaintext, associated).hex() == case["bundle"]
    assert open_sealed(key, bytes_of(case, "bundle"), associated) == plaintext


# --- masks and packing ---------------------------------------------------------------


def numbers_of(case, name):
    return [int(number) for number in case[name]]


@pytest.mark.parametrize(
    "case", MASKS["keys"], ids=lambda case: f"{case['role']}-{case['suite']}"
)
def test_masks(case):
    where = {
        "session_id": bytes_of(case, "sid"),
        "context": bytes_of(case, "ctx2"),
        "suite": CipherSuite(case["suite"]),
    }
    if case["role"] == "pair":
        low, high = case["indices"]
        key, iv = kdf.pair_mask_key(
            secret_of(case, "secret"), low=low, high=high, **where
        )
    else:
        (index,) = case["indices"]
        key, iv = kdf.self_mask_key(secret_of(case, "secret"), client=index, **where)
    assert (key.reveal().hex(), iv.hex()) == (case["key"], case["iv"])
    for mask in case["masks"]:
        modulus, expected = int(mask["modulus"]), numbers_of(mask, "coordinates")
        accumulator = zeros(len(expected), modulus)
        add_masks(accumulator, [Mask(key, iv, 1)], modulus)
        assert accumulator.tolist() == expected
        assert expand(key, iv, len(expected), modulus).tolist() == expected
        add_masks(accumulator, [Mask(key, iv, -1)], modulus)
        assert not accumulator.any()


@pytest.mark.parametrize(
    "case", MASKS["seeks"], ids=lambda case: f"{case['modulus']} at {case['start']}"
)
def test_seeks(case):
    modulus, dim, start = int(case["modulus"]), case["dim"], case["start"]
    mask = Mask(secret_of(case, "key"), bytes_of(case, "iv"), 1)
    part = zeros(dim - start, modulus)
    add_masks(part, [mask], modulus, start=start, dim=dim)
    if "coordinates" in case:
        assert part.tolist() == numbers_of(case, "coordinates")
    else:
        digest = hashlib.sha256(part.astype("<u2").tobytes()).hexdigest()
        assert digest == case["sha256_of_u16_le"]


@pytest.mark.parametrize(
    "case", MASKS["packing"], ids=lambda case: f"{case['dim']}x{case['bits']}"
)
def test_packing(case):
    dim, bits = case["dim"], case["bits"]
    golden = np.uint64(0x9E3779B97F4A7C15)
    entries = (np.arange(dim, dtype=np.uint64) * golden) >> np.uint64(64 - bits)
    entries = entries.astype(word_dtype(1 << bits))
    packed = pack(entries, bits)
    assert len(packed) == case["size"] == packed_size(dim, bits)
    if "packed" in case:
        assert packed.hex() == case["packed"]
    else:
        assert hashlib.sha256(packed).hexdigest() == case["sha256"]
    assert np.array_equal(unpack(packed, dim, bits, 1 << bits), entries)


# --- the reference beside ours, on inputs that are in no file ------------------------

MODULI = st.one_of(
    st.integers(1, 62).map(lambda bits: 1 << bits), st.integers(2, 1 << 62)
)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(min_size=32, max_size=32), MODULI, st.integers(1, 80), st.integers(0, 79)
)
def test_masks_of_any_modulus_agree_with_the_reference(
    reference_modules, key, modulus, dim, start
):
    start = min(start, dim - 1)
    stream = reference_modules["reference_keys"].MaskStream(key, bytes(12), modulus)
    part = zeros(dim - start, modulus)
    mask = Mask(SecretBytes(key), bytes(12), 1)
    add_masks(part, [mask], modulus, start=start, dim=dim)
    assert part.tolist() == stream.coordinates(dim, start)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 62), st.lists(st.integers(0, 2**62 - 1), max_size=150))
def test_any_packed_vector_agrees_with_the_reference(reference_modules, bits, entries):
    values = [entry % (1 << bits) for entry in entries]
    packed = pack(np.array(values, word_dtype(1 << bits)), bits)
    assert packed == reference_modules["reference"].pack(values, bits)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(min_size=32, max_size=32),
    st.lists(st.integers(1, 65535), min_size=5, max_size=9, unique=True),
    st.integers(2, 5),
    st.binary(min_size=256, max_size=256),
)
def test_any_sharing_agrees_with_the_reference(
    reference_modules, secret, points, threshold, words
):
    reference = reference_modules["reference"]
    words = words[: 64 * (threshold - 1)].replace(b"\xff", b"\xfe")
    drawn = np.frombuffer(words, "<u4").reshape(-1, 16) % 65537
    shares = shamir.share_secrets(
        [SecretBytes(secret)], threshold, points, ScriptedEntropy(words)
    )[0]
    for point, share in zip(points, shares, strict=True):
        limbs = reference.share_at(secret, drawn.tolist(), point)
        assert share.tobytes() == reference.encode_share(limbs)
    chosen = dict(zip(points, decode_shares(shares).tolist(), strict=True))
    kept = {point: chosen[point] for point in points[-threshold:]}
    assert reference.rebuild(kept) == secret


@given(st.integers(0, 40), st.binary(max_size=6))
def test_any_bitmap_is_read_as_by_the_reference(reference_modules, size, data):
    # R3.3-1
    reference = reference_modules["reference"]
    try:
        expected = sorted(reference.members_of(data, size))
    except reference.Refused:
        with pytest.raises(CanonicalEncodingError):
            decode_set(data, size)
    else:
        assert list(decode_set(data, size)) == expected
