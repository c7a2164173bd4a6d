"""Round 2: clients draw their share holders, and verify that no edge is hidden.

Each client draws k others from its own entropy, after the roster is fixed, and signs
the list.  The server commits to all lists with one hash, the *edge root*, which enters
ctx2.  A client that was shown another root masks with keys that no other client has.

An edge between two honest clients is then in both views, or one of them leaves.  A
drawn client finds, signed, the names of its drawers in its own leaf.  The drawer proves
nothing about itself: it requests the leaf of each client that it drew, and searches for
itself there.  Without that second check a server could hide an edge from the end that
did not draw it.  It could then choose whose inputs stay out of the sum (PROTOCOL §5.9).

Experimental: the security argument is an addition of this protocol, and unreviewed.

Source: PROTOCOL §5.9 and §11.4; drawing k neighbours is from [Bell20], section 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg.crypto.canonical import Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.entropy import Entropy
from secagg.crypto.signature import IdentityKey
from secagg.crypto.transcript import (
    MerkleTree,
    ProofError,
    domain_tag,
    hash_parts,
    proven_top,
)
from secagg.errors import ErrorCode
from secagg.protocol.agreement import Signers, check_signed
from secagg.protocol.graphs.neighbours import DrawnGraph
from secagg.protocol.messages import Edges, EdgesPublished, ListProof
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import SparseParameters

_EDGE_NODE: Final = "edge node"
_IN_NODE: Final = "in node"
_U32: Final = 1 << 32


# --- drawing ------------------------------------------------------------------------


def draw_neighbours(
    size: int, index: int, degree: int, entropy: Entropy
) -> tuple[int, ...]:
    """Draw distinct other clients, uniformly (R5.9-1).

    Args:
        size: n.
        index: The drawer's; it does not draw itself.
        degree: k, below n.
        entropy: The client's own; a replay must give the same clients.

    Returns:
        k roster indices, ascending.
    """
    others = size - 1
    if not 0 <= degree <= others:
        raise ValueError(f"{degree} of {others} others cannot be drawn")
    fair = _U32 - _U32 % others  # reject larger numbers, which would favour low indices
    drawn: set[int] = set()
    while len(drawn) < degree:
        number = int.from_bytes(entropy.token(4), "big")
        if number < fair:
            drawn.add(number % others)
    # Clients at the drawer's own index or above are one place further.
    return tuple(sorted(each + (each >= index) for each in drawn))


def sign_edges(
    key: IdentityKey,
    drawn: tuple[int, ...],
    *,
    ctx1: bytes,
    index: int,
    suite: CipherSuite,
) -> Edges:
    """Sign a list for one roster; deterministic."""
    edges = Edges(drawn, b"")
    return Edges(drawn, key.sign(_edges_message(edges, ctx1, index, suite)))


def check_edges(edges: Edges, *, size: int, index: int, degree: int, name: str) -> None:
    """Check that a client can have drawn this list (R5.9-3, R5.9-9).

    Args:
        edges: Decoded, hence strictly ascending.
        size: n.
        index: The drawer's roster index.
        degree: k.
        name: The client's, for the complaint.

    Raises:
        RemoteProtocolError: BAD_EDGES.
    """
    drawn = edges.drawn
    if len(drawn) == degree and index not in drawn and max(drawn) < size:
        return
    raise ErrorCode.BAD_EDGES.error(
        f"the list of {name!r} does not name {degree} other clients of {size}",
        sender=name,
    )


def check_edges_signature(
    edges: Edges, *, signers: Signers, ctx1: bytes, index: int, suite: CipherSuite
) -> None:
    """Verify a client's signature over its list for this roster (R5.9-4, R5.9-8).

    Raises:
        RemoteProtocolError: BAD_SIGNATURE.
    """
    check_signed(
        signers,
        index,
        _edges_message(edges, ctx1, index, suite),
        edges.signature,
        "has not signed this list of neighbours for this roster",
    )


def _edges_message(edges: Edges, ctx1: bytes, index: int, suite: CipherSuite) -> bytes:
    tag = domain_tag("client", "edges", suite)
    return Writer().fixed(tag).blob(ctx1).u32(index).fixed(edges.listed()).getvalue()


# --- what covers all lists ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hashes:
    """The hashes of PROTOCOL §5.9 for one roster."""

    ctx1: bytes
    suite: CipherSuite

    def drawn(self, listed: bytes) -> bytes:
        return hash_parts("out", listed, suite=self.suite)

    def in_leaf(self, drawn: int, drawer: int) -> bytes:
        """Return the leaf of one drawer of a client."""
        return hash_parts(
            "in leaf",
            self.ctx1,
            _encode_u32(drawn),
            _encode_u32(drawer),
            suite=self.suite,
        )

    def in_tree(self, drawn: int, drawers: Sequence[int]) -> MerkleTree | None:
        """Return the tree over a client's drawers; None without drawers."""
        if not drawers:
            return None
        leaves = [self.in_leaf(drawn, drawer) for drawer in drawers]
        return MerkleTree(leaves, self.suite, node=_IN_NODE)

    def in_list(self, size: int, top: bytes) -> bytes:
        """Hash the number of drawers with their tree, which does not bind it."""
        return hash_parts("in list", _encode_u32(size), top, suite=self.suite)

    def in_list_of(self, size: int, tree: MerkleTree | None) -> bytes:
        return self.in_list(size, b"" if tree is None else tree.top)

    def leaf(self, index: int, drawn_hash: bytes, in_list: bytes) -> bytes:
        """Return the leaf of one client with its list and its drawers."""
        return hash_parts(
            "edge leaf",
            self.ctx1,
            _encode_u32(index),
            drawn_hash,
            in_list,
            suite=self.suite,
        )

    def empty_leaf(self, index: int) -> bytes:
        return self.leaf(index, self.drawn(b""), self.in_list(0, b""))

    def root(self, size: int, top: bytes) -> bytes:
        return hash_parts("edge root", _encode_u32(size), top, suite=self.suite)

    def proven_root(
        self, size: int, leaves: Mapping[int, bytes], proof: Sequence[bytes]
    ) -> bytes:
        top = proven_top(size, leaves, proof, self.suite, node=_EDGE_NODE)
        return self.root(size, top)


def _encode_u32(number: int) -> bytes:
    """Return a number as four bytes."""
    return number.to_bytes(4, "big")


class EdgeTrees:
    """All lists of a session, and the trees over them, at the server.

    Args:
        ctx1: Context of the roster.
        size: n.
        lists: The clients' lists; a client without one is out of the session.
        suite: Of the session.
        drawers: The drawers that each client is shown; None for the true ones.

    Attributes:
        lists: As given, ascending by roster index.
        graph: Holders of shares, and mask pairs.
        root: The edge root, 32 bytes.
    """

    __slots__ = (
        *("_drawn_hashes", "_hashes", "_in_trees", "_tree"),
        *("graph", "lists", "root"),
    )

    def __init__(
        self,
        ctx1: bytes,
        size: int,
        lists: Mapping[int, Edges],
        suite: CipherSuite,
        *,
        drawers: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.lists: Final = dict(sorted(lists.items()))
        self.graph: Final = DrawnGraph(
            {index: edges.drawn for index, edges in self.lists.items()},
            _drawers(self.lists) if drawers is None else drawers,
        )
        self._hashes: Final = _Hashes(ctx1, suite)
        # All drawers of a client read these.  Caching them makes the server's time grow
        # with n k in place of n k^2.
        self._drawn_hashes: Final = {
            index: self._hashes.drawn(edges.listed())
            for index, edges in self.lists.items()
        }
        self._in_trees: Final = {
            index: self._hashes.in_tree(index, self.graph.dealers(index))
            for index in self.lists
        }
        leaves = [self._leaf(index) for index in range(size)]
        self._tree: Final = MerkleTree(leaves, suite, node=_EDGE_NODE)
        self.root: Final = self._hashes.root(size, self._tree.top)

    def _leaf(self, index: int) -> bytes:
        """Return the leaf of one client in the tree of edges."""
        if index not in self.lists:
            return self._hashes.empty_leaf(index)
        return self._hashes.leaf(
            index,
            self._drawn_hashes[index],
            self._hashes.in_list_of(
                len(self.graph.dealers(index)), self._in_trees[index]
            ),
        )

    def published(self, reader: int) -> EdgesPublished:
        """Return what one client with a list is shown."""
        drawn = self.lists[reader].drawn
        return EdgesPublished(
            edge_root=self.root,
            drawers=tuple(
                (each, self.lists[each]) for each in self.graph.dealers(reader)
            ),
            own_proof=self._tree.proof([reader]),
            lists=tuple(self._list_proof(each, reader) for each in drawn),
            leaves_proof=self._tree.proof(drawn),
        )

    def _list_proof(self, drawn: int, reader: int) -> ListProof | None:
        """Return the proof that a client has drawn the reader."""
        if drawn not in self.lists:
            return None
        drawers, tree = self.graph.dealers(drawn), self._in_trees[drawn]
        place = drawers.index(reader)
        return ListProof(
            drawn_hash=self._drawn_hashes[drawn],
            size=len(drawers),
            place=place,
            proof=() if tree is None else tree.proof([place]),
        )


def _drawers(lists: Mapping[int, Edges]) -> dict[int, tuple[int, ...]]:
    """Return by which clients each client was drawn."""
    found: dict[int, list[int]] = {index: [] for index in lists}
    for drawer, edges in lists.items():
        for each in edges.drawn:
            if each in found:
                found[each].append(drawer)
    return {index: tuple(each) for index, each in found.items()}


# --- checks of the client -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reader:
    """The client that verifies the lists, and its keys."""

    size: int
    index: int
    own: Edges
    hashes: _Hashes = field(repr=False)

    def check_own_leaf(self, shown: EdgesPublished) -> None:
        """R5.9-6: the root covers what it drew, and the drawers that it is shown."""
        drawers = [each for each, _ in shown.drawers]
        tree = self.hashes.in_tree(self.index, drawers)
        leaf = self.hashes.leaf(
            self.index,
            self.hashes.drawn(self.own.listed()),
            self.hashes.in_list_of(len(drawers), tree),
        )
        if not self._is_covered(shown.edge_root, {self.index: leaf}, shown.own_proof):
            raise ErrorCode.SELF_MISSING.error(
                "the edge root does not cover this client's own list, or names other "
                "clients that drew it"
            )

    def check_drawn(self, shown: EdgesPublished) -> None:
        """R5.9-10: each client that it drew is shown the edge, or is out."""
        drawn = self.own.drawn
        if len(shown.lists) == len(drawn):
            proofs = zip(drawn, shown.lists, strict=True)
            leaves = {each: self._leaf_of(each, proof) for each, proof in proofs}
            known = {each: leaf for each, leaf in leaves.items() if leaf is not None}
            if len(known) == len(drawn) and self._is_covered(
                shown.edge_root, known, shown.leaves_proof
            ):
                return
        raise ErrorCode.BAD_PROOF.error(
            "a client that this client drew is not proven to be shown the edge"
        )

    def _leaf_of(self, drawn: int, proof: ListProof | None) -> bytes | None:
        """Return the leaf of a client that knows of the reader, if it is proven."""
        if proof is None:
            return self.hashes.empty_leaf(drawn)
        if not proof.place < proof.size:
            return None
        own = {proof.place: self.hashes.in_leaf(drawn, self.index)}
        try:
            top = proven_top(
                proof.size, own, proof.proof, self.hashes.suite, node=_IN_NODE
            )
        except ProofError:
            return None
        in_list = self.hashes.in_list(proof.size, top)
        return self.hashes.leaf(drawn, proof.drawn_hash, in_list)

    def _is_covered(
        self, root: bytes, leaves: Mapping[int, bytes], proof: Sequence[bytes]
    ) -> bool:
        """Return whether a proof shows that leaves are in a tree."""
        try:
            return self.hashes.proven_root(self.size, leaves, proof) == root
        except ProofError:
            return False


def check_published(  # noqa: PLR0913 - a reader, what it is shown and its keys
    parameters: ProtocolParameters,
    shown: EdgesPublished,
    *,
    size: int,
    index: int,
    own: Edges,
    signers: Signers,
    ctx1: bytes,
) -> DrawnGraph:
    """Check what a client is shown of all lists (PROTOCOL §5.9).

    Args:
        parameters: Of the session.
        shown: Decoded, hence with drawers strictly ascending (R5.9-5).
        size: n.
        index: The reader's own.
        own: The list that the reader sent.
        signers: Names and identity keys of all clients.
        ctx1: Context of the roster.

    Returns:
        The graph, limited to the reader's edges.

    Raises:
        RemoteProtocolError: SELF_MISSING, BAD_EDGES, BAD_SIGNATURE or BAD_PROOF.
    """
    if not isinstance(parameters.tail, SparseParameters):
        raise ErrorCode.INTERNAL.error("no other profile has this round")
    reader = _Reader(size, index, own, _Hashes(ctx1, parameters.suite))
    reader.check_own_leaf(shown)
    # R5.9-7: count before verifying anything.
    drawers = [each for each, _ in shown.drawers]
    if len(drawers) > parameters.tail.in_cap or not all(
        each < size and each != index for each in drawers
    ):
        raise ErrorCode.BAD_EDGES.error(
            f"the server names {len(drawers)} clients that drew this one, at most "
            f"{parameters.tail.in_cap} are possible"
        )
    for each, edges in shown.drawers:
        check_edges_signature(
            edges, signers=signers, ctx1=ctx1, index=each, suite=parameters.suite
        )
    for each, edges in shown.drawers:  # R5.9-9
        name = signers.names[each]
        check_edges(edges, size=size, index=each, degree=parameters.degree, name=name)
        if index not in edges.drawn:
            raise ErrorCode.BAD_EDGES.error(
                f"{name!r} is said to have drawn this client, and has not", sender=name
            )
    reader.check_drawn(shown)
    lists = {each: edges.drawn for each, edges in shown.drawers}
    return DrawnGraph({**lists, index: own.drawn}, {index: tuple(drawers)})
