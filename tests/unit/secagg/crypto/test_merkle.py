import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.conformance import read_vectors
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.transcript import MerkleTree, ProofError, hash_parts, proven_top

SUITE = CipherSuite(1)
ENCODINGS = read_vectors("encodings")
TREES, PROOFS = ENCODINGS["trees"], ENCODINGS["proofs"]


def leaves_of(count):
    return [bytes([place % 256]) * 32 for place in range(count)]


@st.composite
def partly_known(draw):
    count = draw(st.integers(1, 60))
    places = draw(st.sets(st.integers(0, count - 1)))
    return count, sorted(places)


def from_the_definition(leaves):
    """Cut after the largest power of two below n, by the words of the text."""
    if len(leaves) == 1:
        return leaves[0]
    cut = max(1 << i for i in range(20) if 1 << i < len(leaves))
    left, right = from_the_definition(leaves[:cut]), from_the_definition(leaves[cut:])
    return hash_parts("roster node", left, right, suite=SUITE)


@pytest.mark.parametrize("row", TREES, ids=lambda row: row["leaves"])
def test_roots_and_proofs_match_the_vectors(row):
    count = row["leaves"]
    tree = MerkleTree(leaves_of(count), CipherSuite(row["suite"]))
    assert tree.top.hex() == row["top"]
    if "shown" in row:
        # R4.1-1
        proof = tree.proof(row["shown"])
        assert [part.hex() for part in proof] == row["proof"]
        shown = {place: leaves_of(count)[place] for place in row["shown"]}
        assert proven_top(count, shown, proof, SUITE) == tree.top


@pytest.mark.parametrize("row", PROOFS, ids=lambda row: row["name"])
def test_tampered_proofs_are_rejected(row):
    shown = {place: leaves_of(11)[place] for place in row["shown"]}
    proof = [bytes.fromhex(part) for part in row["proof"]]
    if "top" in row:
        assert proven_top(row["leaves"], shown, proof, SUITE).hex() == row["top"]
    else:
        with pytest.raises(ProofError):
            proven_top(row["leaves"], shown, proof, SUITE)


@given(st.integers(1, 200))
def test_the_tree_matches_the_recursive_definition(count):
    leaves = leaves_of(count)
    assert MerkleTree(leaves, SUITE).top == from_the_definition(leaves)


@given(partly_known())
def test_a_proof_gives_the_top_from_any_leaves(known):
    count, places = known
    leaves = leaves_of(count)
    tree = MerkleTree(leaves, SUITE)
    proof = tree.proof(places)
    shown = {place: leaves[place] for place in places}
    assert proven_top(count, shown, proof, SUITE) == tree.top


@given(partly_known(), st.data())
def test_a_proof_with_a_missing_or_additional_hash_is_rejected(known, data):
    count, places = known
    leaves = leaves_of(count)
    proof = MerkleTree(leaves, SUITE).proof(places)
    shown = {place: leaves[place] for place in places}
    place = data.draw(st.integers(0, len(proof)))
    longer = (*proof[:place], bytes(32), *proof[place:])
    with pytest.raises(ProofError):
        proven_top(count, shown, longer, SUITE)
    if proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        with pytest.raises(ProofError):
            proven_top(count, shown, proof[:place] + proof[place + 1 :], SUITE)


@given(partly_known(), st.data())
def test_another_leaf_or_hash_gives_another_top(known, data):
    count, places = known
    leaves = leaves_of(count)
    tree = MerkleTree(leaves, SUITE)
    proof = list(tree.proof(places))
    shown = {place: leaves[place] for place in places}
    row = data.draw(st.integers(0, len(places) + len(proof) - 1))
    if row < len(places):
        shown[places[row]] = b"\xff" * 32
    else:
        proof[row - len(places)] = b"\xff" * 32
    assert proven_top(count, shown, proof, SUITE) != tree.top


def test_two_hashes_swapped_give_another_top():
    leaves = leaves_of(8)
    tree = MerkleTree(leaves, SUITE)
    first, *rest, last = tree.proof([3])
    shown = {3: leaves[3]}
    assert proven_top(8, shown, (last, *rest, first), SUITE) != tree.top


def test_each_suite_has_a_different_tree():
    leaves = leaves_of(2)
    assert MerkleTree(leaves, SUITE).top != MerkleTree(leaves, CipherSuite(2)).top


def test_proofs_are_logarithmic():
    leaves = leaves_of(1 << 16)
    proof = MerkleTree(leaves, SUITE).proof([40_000])
    assert len(proof) == 16


@pytest.mark.parametrize("places", [[1, 1], [2, 1], [-1], [5]])
def test_invalid_positions_raise_value_error(places):
    tree = MerkleTree(leaves_of(5), SUITE)
    with pytest.raises(ValueError, match="places"):
        tree.proof(places)


def test_a_position_beyond_the_tree_raises_value_error():
    with pytest.raises(ValueError, match="places"):
        proven_top(2, {2: bytes(32)}, (), SUITE)


@pytest.mark.parametrize("leaves", [[], [bytes(31)]])
def test_invalid_leaves_are_rejected(leaves):
    with pytest.raises(ValueError, match="leaf"):
        MerkleTree(leaves, SUITE)
