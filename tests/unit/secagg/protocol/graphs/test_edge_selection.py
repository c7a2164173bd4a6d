"""Drawing neighbours, the trees over what was drawn, and a client's look at them."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
from secagg_testing.cohorts import sparse_parameters_for

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.crypto.transcript import hash_parts
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.agreement import Signers
from secagg.protocol.graphs.edge_selection import (
    EdgeTrees,
    check_edges,
    check_published,
    draw_neighbours,
    sign_edges,
)
from secagg.protocol.messages import Edges

SUITE = CipherSuite.AES_256_CTR
CTX1 = bytes(range(32))
SIZE, DEGREE = 9, 3
PARAMETERS = sparse_parameters_for(SIZE, dimension=1, degree=DEGREE)


def entropy(label):
    return SeededEntropy(SecretBytes(bytes(32)), b"%r" % (label,))


def key_of(index):
    seed = sha256(b"identity %d" % index).digest()
    return IdentityKey.from_bytes(SecretBytes(seed))


def signers_of(size):
    names = tuple(f"client-{index}" for index in range(size))
    return Signers(names, b"".join(key_of(i).public_bytes for i in range(size)))


def signed(index, drawn, *, key=None, ctx1=CTX1, place=None):
    return sign_edges(
        key or key_of(index),
        tuple(drawn),
        ctx1=ctx1,
        index=index if place is None else place,
        suite=SUITE,
    )


def drawn_lists(size=SIZE, degree=DEGREE, silent=()):
    return {
        index: signed(index, draw_neighbours(size, index, degree, entropy(index)))
        for index in range(size)
        if index not in silent
    }


# --- drawing ------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "degree"), [(2, 1), (9, 3), (9, 8), (300, 40)])
def test_a_client_draws_the_given_number_of_other_clients(size, degree):
    for index in (0, size // 2, size - 1):
        drawn = draw_neighbours(size, index, degree, entropy((size, index)))
        assert len(set(drawn)) == degree
        assert list(drawn) == sorted(drawn)
        assert index not in drawn
        assert 0 <= drawn[0] <= drawn[-1] < size


def test_the_same_entropy_draws_the_same():
    draws = {draw_neighbours(50, 7, 9, entropy("x")) for _ in range(3)}
    assert len(draws) == 1
    assert draws != {draw_neighbours(50, 7, 9, entropy("y"))}


def test_every_set_of_neighbours_is_equally_likely():
    """Chi-squared with 9 degrees of freedom; false alarm: below 1e-6 for 50."""
    source, rounds = entropy("uniform"), 4000
    found = Counter(draw_neighbours(6, 2, 2, source) for _ in range(rounds))
    expected = rounds / 10
    assert len(found) == 10
    assert sum((n - expected) ** 2 / expected for n in found.values()) < 50


class Bytes:
    """Entropy that is scripted."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def token(self, size):
        return self.numbers.pop(0).to_bytes(size, "big")


def test_biased_numbers_are_rejected_and_redrawn():
    # 2^32 mod 3 = 1: the last number has no two companions.
    assert draw_neighbours(4, 0, 1, Bytes((1 << 32) - 1, 2)) == (3,)
    assert draw_neighbours(4, 0, 1, Bytes((1 << 32) - 2, 0)) == (3,)


def test_more_neighbours_than_other_clients_cannot_be_drawn():
    with pytest.raises(ValueError, match="4 of 3 others"):
        draw_neighbours(4, 0, 4, entropy(0))


@pytest.mark.parametrize("drawn", [(), (1, 2), (1, 2, 3, 4), (0, 1, 2), (1, 2, SIZE)])
def test_a_list_that_cannot_have_been_drawn_is_rejected(drawn):
    # R5.9-3, R5.9-9
    with pytest.raises(RemoteProtocolError) as caught:
        check_edges(signed(0, drawn), size=SIZE, index=0, degree=3, name="client-0")
    assert caught.value.code is ErrorCode.BAD_EDGES
    check_edges(signed(0, (1, 2, 8)), size=SIZE, index=0, degree=3, name="client-0")


# --- trees, against a second reading of the text ------------------------------------


def u32(number):
    return number.to_bytes(4, "big")


def top_of(leaves, node):
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while 2 * half < len(leaves):
        half *= 2
    left, right = top_of(leaves[:half], node), top_of(leaves[half:], node)
    return hash_parts(node, left, right, suite=SUITE)


def root_by_the_text(size, lists):
    leaves = []
    for index in range(size):
        own = lists[index].listed() if index in lists else b""
        drawers = [d for d in sorted(lists) if index in lists[d].drawn]
        drawers = drawers if index in lists else []
        inner = [
            hash_parts("in leaf", CTX1, u32(index), u32(d), suite=SUITE)
            for d in drawers
        ]
        top = top_of(inner, "in node") if inner else b""
        leaves.append(
            hash_parts(
                "edge leaf",
                CTX1,
                u32(index),
                hash_parts("out", own, suite=SUITE),
                hash_parts("in list", u32(len(drawers)), top, suite=SUITE),
                suite=SUITE,
            )
        )
    top = top_of(leaves, "edge node")
    return hash_parts("edge root", u32(size), top, suite=SUITE)


@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("silent", [(), (0,), (1,)])
def test_every_client_can_verify_its_published_edges(size, silent):
    for degree in {1, size // 2, size - 1}:
        lists = drawn_lists(size, degree, silent)
        trees = EdgeTrees(CTX1, size, lists, SUITE)
        assert trees.root == root_by_the_text(size, lists)
        parameters = replace(
            PARAMETERS,
            degree=degree,
            tail=replace(PARAMETERS.tail, in_cap=size),
        )
        for index in lists:
            graph = check_published(
                parameters,
                trees.published(index),
                size=size,
                index=index,
                own=lists[index],
                signers=signers_of(size),
                ctx1=CTX1,
            )
            whole = trees.graph
            assert graph.holders(index) == whole.holders(index) == lists[index].drawn
            assert graph.dealers(index) == whole.dealers(index)
            assert graph.mask_peers(index) == whole.mask_peers(index)
            for dealer in graph.dealers(index):
                point = whole.abscissa(dealer, index)
                assert graph.abscissa(dealer, index) == point
                assert lists[dealer].drawn[point - 1] == index


def test_edges_are_symmetric_and_shares_are_directed():
    lists = drawn_lists()
    graph = EdgeTrees(CTX1, SIZE, lists, SUITE).graph
    assert not graph.has_common_holders
    for one in range(SIZE):
        for other in graph.mask_peers(one):
            assert one in graph.mask_peers(other)
            assert other in graph.holders(one) or other in graph.dealers(one)
        for dealer in graph.dealers(one):
            assert one in graph.holders(dealer)
            place = graph.place(dealer, one)
            assert graph.receivers(dealer)[place] == one
        assert one not in graph.holders(one)
        alive = frozenset(range(0, SIZE, 2))
        assert graph.count_holders(one, alive) == len(alive & set(lists[one].drawn))
    assert sum(len(graph.senders(n)) for n in range(SIZE)) == SIZE * DEGREE


# --- what a liar can show -----------------------------------------------------------


def code_of(shown, *, index=0, own, parameters=PARAMETERS):
    with pytest.raises(RemoteProtocolError) as caught:
        check_published(
            parameters,
            shown,
            size=SIZE,
            index=index,
            own=own,
            signers=signers_of(SIZE),
            ctx1=CTX1,
        )
    return caught.value.code


LISTS = drawn_lists()
TREES = EdgeTrees(CTX1, SIZE, LISTS, SUITE)
SHOWN = TREES.published(0)
RECEIVER = LISTS[0].drawn[0]


def without_edge(lists, drawer, drawn):
    """Return lists that hide an edge drawn by a client."""
    drew = lists[drawer].drawn
    other = next(n for n in range(SIZE) if n not in {drawer, *drew})
    changed = tuple(sorted({*drew, other} - {drawn}))
    return {**lists, drawer: signed(drawer, changed)}


def test_an_edge_hidden_from_its_receiver_is_detected_by_its_drawer():
    # R5.9-10: the receiver's leaf, which it checks, does not name the drawer.
    hiding = EdgeTrees(CTX1, SIZE, without_edge(LISTS, 0, RECEIVER), SUITE)
    assert 0 not in hiding.graph.dealers(RECEIVER)
    for lie in (
        replace(SHOWN, leaves_proof=hiding._tree.proof(LISTS[0].drawn)),
        replace(SHOWN, lists=(None, *SHOWN.lists[1:])),
        replace(SHOWN, lists=SHOWN.lists[1:]),
        replace(SHOWN, lists=(*SHOWN.lists, SHOWN.lists[0])),
        replace(SHOWN, leaves_proof=SHOWN.leaves_proof[1:]),
    ):
        assert code_of(lie, own=LISTS[0]) is ErrorCode.BAD_PROOF


@pytest.mark.parametrize(
    "changes",
    [
        {"drawn_hash": bytes(32)},
        {"size": 0},
        {"size": SIZE + 1},
        {"place": SIZE},
        {"proof": (bytes(32),) * 9},
    ],
)
def test_a_proof_of_another_list_is_refused(changes):
    # R5.9-10
    lists = (replace(SHOWN.lists[0], **changes), *SHOWN.lists[1:])
    lie = replace(SHOWN, lists=lists)
    assert code_of(lie, own=LISTS[0]) is ErrorCode.BAD_PROOF


def test_every_change_of_size_or_position_invalidates_the_proof():
    """Size and place of a list enter its leaf: no other pair proves the same."""
    for at, true in enumerate(SHOWN.lists):
        for size in range(1, SIZE + 1):
            for place in range(size):
                if (size, place) == (true.size, true.place):
                    continue
                lists = list(SHOWN.lists)
                lists[at] = replace(true, size=size, place=place)
                lie = replace(SHOWN, lists=tuple(lists))
                assert code_of(lie, own=LISTS[0]) is ErrorCode.BAD_PROOF


def test_a_leaf_that_contradicts_the_clients_own_edges_is_rejected():
    # R5.9-6: another list of its own, one drawer less, one more, another root.
    other = EdgeTrees(CTX1, SIZE, without_edge(LISTS, 0, RECEIVER), SUITE).published(0)
    assert code_of(other, own=LISTS[0]) is ErrorCode.SELF_MISSING
    for lie in (
        replace(SHOWN, edge_root=bytes(32)),
        replace(SHOWN, drawers=SHOWN.drawers[1:]),
        replace(SHOWN, own_proof=SHOWN.own_proof[1:]),
    ):
        assert code_of(lie, own=LISTS[0]) is ErrorCode.SELF_MISSING


def drawn_by(lists):
    """Return the view of client 0 when these clients are listed as having drawn it."""
    trees = EdgeTrees(CTX1, SIZE, {**LISTS, **lists}, SUITE)
    return trees.published(0)


def test_more_drawers_than_the_cap_are_rejected_before_verification():
    # R5.9-7: with signatures of no client, which would be found next.
    lists = {n: Edges((0, *LISTS[n].drawn[-2:]), bytes(64)) for n in range(1, SIZE)}
    tail = replace(PARAMETERS.tail, in_cap=SIZE - 2)
    capped = replace(PARAMETERS, tail=tail)
    shown = drawn_by(lists)
    assert len(shown.drawers) == SIZE - 1
    assert code_of(shown, own=LISTS[0], parameters=capped) is ErrorCode.BAD_EDGES
    assert code_of(shown, own=LISTS[0]) is ErrorCode.BAD_SIGNATURE


def test_the_number_of_drawers_is_limited_to_three_times_the_degree():
    # R5.9-7
    size = 3 * DEGREE + 2
    lists = drawn_lists(size)
    for n in range(1, size):
        others = [m for m in lists[n].drawn if m != 0][: DEGREE - 1]
        lists[n] = signed(n, (0, *others))
    shown = EdgeTrees(CTX1, size, lists, SUITE).published(0)
    assert len(shown.drawers) == 3 * DEGREE + 1
    view = {"size": size, "index": 0, "own": lists[0], "ctx1": CTX1}
    with pytest.raises(RemoteProtocolError) as caught:
        check_published(PARAMETERS, shown, signers=signers_of(size), **view)
    assert caught.value.code is ErrorCode.BAD_EDGES


@pytest.mark.parametrize("drawer", [0, SIZE])
def test_no_client_draws_itself_or_an_unknown_client(drawer):
    # R5.9-7; the leaf is the liar's own, so that it holds.
    drawers = tuple(sorted([*SHOWN.drawers, (drawer, LISTS[1])], key=lambda d: d[0]))
    shown = replace(SHOWN, drawers=drawers)
    hashes = TREES._hashes
    tree = hashes.in_tree(0, [each for each, _ in drawers])
    in_list = hashes.in_list_of(len(drawers), tree)
    leaf = hashes.leaf(0, hashes.drawn(LISTS[0].listed()), in_list)
    root = hashes.proven_root(SIZE, {0: leaf}, SHOWN.own_proof)
    assert code_of(replace(shown, edge_root=root), own=LISTS[0]) is ErrorCode.BAD_EDGES


@pytest.mark.parametrize(
    ("forged", "code"),
    [
        (lambda drawn: signed(4, drawn, key=key_of(5)), ErrorCode.BAD_SIGNATURE),
        (lambda drawn: signed(4, drawn, ctx1=bytes(32)), ErrorCode.BAD_SIGNATURE),
        (lambda drawn: signed(4, drawn, place=5), ErrorCode.BAD_SIGNATURE),
        (lambda drawn: Edges(drawn, bytes(64)), ErrorCode.BAD_SIGNATURE),
        (lambda drawn: signed(4, drawn[:2]), ErrorCode.BAD_EDGES),
        (lambda _: signed(4, (0, 4, 5)), ErrorCode.BAD_EDGES),
    ],
)
def test_a_forged_list_is_refused(forged, code):
    # R5.9-8, R5.9-9
    assert code_of(drawn_by({4: forged((0, 1, 2))}), own=LISTS[0]) is code


def test_a_drawer_that_does_not_name_the_reader_is_rejected():
    # R5.9-9
    shown = drawn_by({4: signed(4, (0, 1, 2))})
    stranger = signed(4, (1, 2, 3))
    drawers = tuple(
        (each, stranger if each == 4 else edges) for each, edges in shown.drawers
    )
    lie = replace(shown, drawers=drawers)
    assert code_of(lie, own=LISTS[0]) is ErrorCode.BAD_EDGES
