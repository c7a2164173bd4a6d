"""The context chain: one hash that covers all that the parties must agree on.

ctx0 covers the configuration, ctx1 the roster, ctx2 the set U2, ctx3 the set U3
(PROTOCOL §4).  Every key, mask and associated datum derives from one of them. Parties
that were shown different values therefore produce masks that do not cancel.  No party
reads a context from a message (R4-1).
"""

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import MerkleTree, ProofError, hash_parts, proven_top
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import RosterFrame, advert_parts


def session_context(descriptor: SessionDescriptor) -> bytes:
    """Return ctx0: session id and configuration."""
    return hash_parts(
        "ctx0",
        descriptor.session_id,
        descriptor.configuration_hash,
        suite=descriptor.parameters.suite,
    )


def roster_tree(ctx0: bytes, roster: RosterFrame, suite: CipherSuite) -> MerkleTree:
    """Return the tree of a whole roster; it makes the proofs of neighbourhoods."""
    leaves = [
        _hash_advert(ctx0, i, advert, suite) for i, advert in roster.adverts.items()
    ]
    return MerkleTree(leaves, suite)


def roster_context(ctx0: bytes, roster: RosterFrame, suite: CipherSuite) -> bytes:
    """Return ctx1: ctx0, the number of clients, their adverts and the graph seed.

    The whole roster and a neighbourhood of one session have the same top.

    Args:
        ctx0: Of the session.
        roster: In either form, as received.
        suite: Of the session.

    Raises:
        RemoteProtocolError: BAD_PROOF; it covers another number of adverts (R5.2-24).
    """
    top = roster_top(ctx0, roster, suite)
    return committed_roster(ctx0, roster.size, top, roster.graph_seed, suite)


def roster_top(ctx0: bytes, roster: RosterFrame, suite: CipherSuite) -> bytes:
    """Return the top of the tree over a roster's adverts, 32 bytes.

    Args:
        ctx0: Of the session.
        roster: In either form, as received.
        suite: Of the session.

    Raises:
        RemoteProtocolError: BAD_PROOF; it covers another number of adverts (R5.2-24).
    """
    if roster.reader is None:
        return roster_tree(ctx0, roster, suite).top
    leaves = {i: _hash_advert(ctx0, i, raw, suite) for i, raw in roster.adverts.items()}
    try:
        return proven_top(roster.size, leaves, roster.proof, suite)
    except ProofError as error:
        raise ErrorCode.BAD_PROOF.error(
            f"the neighbourhood is not proven: {error}"
        ) from None


def context_of_tree(
    ctx0: bytes, tree: MerkleTree, graph_seed: bytes, suite: CipherSuite
) -> bytes:
    """Return ctx1 of a roster whose tree is known."""
    return committed_roster(ctx0, len(tree), tree.top, graph_seed, suite)


def committed_roster(
    ctx0: bytes, size: int, top: bytes, graph_seed: bytes, suite: CipherSuite
) -> bytes:
    """Return ctx1 of a roster of which only size, top and graph seed are known."""
    # The top alone does not bind the number of leaves (PROTOCOL §4.1).
    return hash_parts(
        "ctx1", ctx0, size.to_bytes(4, "big"), top, graph_seed, suite=suite
    )


def _hash_advert(ctx0: bytes, index: int, advert: bytes, suite: CipherSuite) -> bytes:
    """Hash one advert as it was received (R4.1-1)."""
    id_part, key_part, signature = advert_parts(advert)
    return hash_parts(
        "roster leaf",
        ctx0,
        index.to_bytes(4, "big"),
        hash_parts("id part", id_part, suite=suite),
        hash_parts("key part", key_part, signature, suite=suite),
        suite=suite,
    )


def mask_context(
    ctx1: bytes,
    share_holders: bytes,
    suite: CipherSuite,
    *,
    edge_root: bytes = b"",
    noise_context: bytes = b"",
) -> bytes:
    """Return ctx2: ctx1, the drawn edges, U2, and how noise is drawn for it.

    Args:
        ctx1: Of the roster.
        share_holders: Bitmap of U2.
        suite: Of the session.
        edge_root: Covers all drawn edges, 32 bytes; b"" in a profile that draws none.
        noise_context: 32 bytes; b"" for a task without noise.
    """
    parts = ctx1, edge_root, share_holders, noise_context
    return hash_parts("ctx2", *parts, suite=suite)


def view_of(ctx2: bytes, suite: CipherSuite) -> bytes:
    """Return the view, a hash of ctx2 that a client uploads, 32 bytes (R5.3-14).

    ctx2 covers roster, U2 and the tables of the noise, and holds no secret.
    """
    return hash_parts("view", ctx2, suite=suite)


def unmask_context(ctx2: bytes, survivors: bytes, suite: CipherSuite) -> bytes:
    """Return ctx3: ctx2 and the bitmap of U3."""
    return hash_parts("ctx3", ctx2, survivors, suite=suite)


def noise_commitment(
    session_id: bytes, identity: str, layer: int, seed: bytes, suite: CipherSuite
) -> bytes:
    """Return com_i, the commitment to the seed g_i of a noise layer (PROTOCOL §5.1)."""
    return hash_parts(
        "noise-commit",
        session_id,
        identity.encode(),
        layer.to_bytes(4, "big"),
        seed,
        suite=suite,
    )


def self_mask_commitment(
    session_id: bytes, identity: str, seed: SecretBytes, suite: CipherSuite
) -> bytes:
    """Return H_b, the commitment to a self-mask seed (PROTOCOL §5.1).

    The seed has 256 bits of entropy, so the hash hides it without a further salt.
    """
    return hash_parts(
        "b-commit", session_id, identity.encode(), seed.reveal(), suite=suite
    )
