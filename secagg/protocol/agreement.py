"""Agreement of clients on roster, U2 and U3 without trust in the server (§5.4).

Rule 1: each client signs the context of its sets once, and unmasks for them only when a
        quorum has signed the same context.  Two quorums over one roster share an honest
        client (R3.2-8), which has signed one context. Hence all honest clients of one
        roster that unmask do so for one U3, whatever sets the server shows.

Rule 2: a client unmasks only if every member of U3 has signed the roster that this
        client received (R5.3-13).  A client has one advert in all rosters of a session.
        So a member of another roster, whose mask key may be rebuilt there, is kept out
        of U3.

Two rosters in one session are two sums, each over the honest members of its own U3.

Source: [Bon17], the consistency check of the malicious-server variant. Rule 2 is an
addition of this protocol.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from secagg.crypto.canonical import Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.signature import IDENTITY_SIZE, IdentityKey, SignatureError, verify
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode
from secagg.protocol.messages import Advert, Consistency, Quorum


@dataclass(frozen=True, slots=True)
class Signers:
    """Names and identity keys of a roster, without the rest of its adverts.

    Attributes:
        names: By roster index.
        keys: By roster index, 32 bytes each, end to end.
    """

    names: tuple[str, ...] = field(repr=False)
    keys: bytes = field(repr=False)

    @classmethod
    def of(cls, adverts: Sequence[Advert]) -> Self:
        """Extract from a roster what verifies signatures."""
        return cls(
            tuple(advert.identity for advert in adverts),
            b"".join(_identity_key(advert) for advert in adverts),
        )

    def identity_key(self, index: int) -> bytes:
        """Return the key of one client, 32 bytes."""
        return self.keys[index * IDENTITY_SIZE : (index + 1) * IDENTITY_SIZE]


def _identity_key(advert: Advert) -> bytes:
    """Return the identity key of an advert with a credential."""
    if advert.credential is None:
        raise ErrorCode.INTERNAL.error(
            "an advert without credential is in a roster with signatures"
        )
    return advert.credential.identity_key


def sign_context(key: IdentityKey, ctx3: bytes, suite: CipherSuite) -> Consistency:
    """Sign the sets that this client received; deterministic.

    The caller has durably recorded that it signs these sets and no others (R5.4-6).
    """
    return Consistency(key.sign(_context_message(ctx3, suite)))


def check_signature(
    signature: bytes,
    *,
    signers: Signers,
    index: int,
    ctx3: bytes,
    suite: CipherSuite,
) -> None:
    """Verify a client's signature over its sets (R5.4-7, R5.5-4).

    Args:
        signature: 64 bytes.
        signers: Of the roster.
        index: Roster index of the signer.
        ctx3: As computed by the verifying party.
        suite: Of the session.

    Raises:
        RemoteProtocolError: BAD_SIGNATURE.
    """
    check_signed(
        signers,
        index,
        _context_message(ctx3, suite),
        signature,
        "has not signed the sets of clients that this session has",
    )


def check_quorum(  # noqa: PLR0913 - what is signed, by whom, and how many
    quorum: Quorum,
    *,
    needed: int,
    survivors: AbstractSet[int],
    signers: Signers,
    ctx1: bytes,
    ctx3: bytes,
    suite: CipherSuite,
) -> None:
    """Check that enough clients signed the same sets as this client (PROTOCOL §5.5).

    Args:
        quorum: Decoded, hence with signers strictly ascending (R5.5-1).
        needed: Q.
        survivors: U3 as this client has signed it.
        signers: Names and identity keys of all clients.
        ctx1: Context of the roster that this client received.
        ctx3: As this client has signed it.
        suite: Of the session.

    Raises:
        RemoteProtocolError: NO_QUORUM, U3_INVALID or BAD_SIGNATURE.
    """
    # R5.5-2: count before verifying, so that a long list cannot cost verifications.
    if len(quorum) < needed:
        raise ErrorCode.NO_QUORUM.error(
            f"{len(quorum)} clients have signed, {needed} are needed"
        )
    # R5.5-3
    signed = {signer for signer, _ in quorum.signatures}
    if not survivors >= signed:
        raise ErrorCode.U3_INVALID.error("the quorum names a signer that is not in U3")
    # R5.5-4
    for signer, signature in quorum.signatures:
        check_signature(
            signature, signers=signers, index=signer, ctx3=ctx3, suite=suite
        )
    # R5.3-13: ctx3 covers ctx1, so that a signer has shown its roster already.  The
    # list is counted before anything of it is verified.
    unsigned = sorted(frozenset(survivors) - signed)
    if [proof.index for proof in quorum.roster_proofs] != unsigned:
        raise ErrorCode.U3_INVALID.error(
            "the quorum must show the roster of exactly the members of U3 without "
            "signature"
        )
    for proof in quorum.roster_proofs:
        check_bundle_signature(
            proof.signature,
            proof.digest,
            signers=signers,
            ctx1=ctx1,
            index=proof.index,
            suite=suite,
        )


def sign_bundles(
    key: IdentityKey, sealed: bytes, *, ctx1: bytes, index: int, suite: CipherSuite
) -> bytes:
    """Sign all bundles of a dealer together (PROTOCOL §5.2).

    Returns:
        64 bytes, which are evidence in disputes of what the dealer sent.
    """
    digest = sha256(sealed).digest()
    return key.sign(_bundles_message(digest, ctx1, index, suite))


def check_bundle_signature(  # noqa: PLR0913 - what is signed, by whom, and where
    signature: bytes,
    digest: bytes,
    *,
    signers: Signers,
    ctx1: bytes,
    index: int,
    suite: CipherSuite,
) -> None:
    """Verify a dealer's signature over its bundles (R5.2-11, R5.3-13, R5.8-1).

    Args:
        signature: 64 bytes.
        digest: SHA-256 of the sealed bundles, 32 bytes.
        signers: Of the roster.
        ctx1: Context of the roster.
        index: The dealer's.
        suite: Of the session.

    Raises:
        RemoteProtocolError: BAD_SIGNATURE.
    """
    check_signed(
        signers,
        index,
        _bundles_message(digest, ctx1, index, suite),
        signature,
        "has not signed these bundles for this roster",
    )


def check_signed(
    signers: Signers, index: int, message: bytes, signature: bytes, what: str
) -> None:
    """Verify one client's signature.

    Args:
        signers: Of the roster.
        index: Roster index of the signer.
        message: The signed bytes, beginning with their domain tag.
        signature: 64 bytes.
        what: The end of a sentence about a client whose signature is invalid.

    Raises:
        RemoteProtocolError: BAD_SIGNATURE.
    """
    try:
        verify(signers.identity_key(index), message, signature)
    except SignatureError:
        raise ErrorCode.BAD_SIGNATURE.error(
            f"{signers.names[index]!r} {what}", sender=signers.names[index]
        ) from None


def _context_message(ctx3: bytes, suite: CipherSuite) -> bytes:
    tag = domain_tag("client", "consistency", suite)
    return Writer().fixed(tag).blob(ctx3).getvalue()


def _bundles_message(
    digest: bytes, ctx1: bytes, index: int, suite: CipherSuite
) -> bytes:
    tag = domain_tag("client", "bundles", suite)
    return Writer().fixed(tag).blob(ctx1).u32(index).fixed(digest).getvalue()
