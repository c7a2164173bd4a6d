"""Dealing, sealing, opening and revealing of shares at the client.

A bundle carries two shares from one dealer to one holder: of the dealer's mask key s^SK
and of its self-mask seed b.  It is sealed under a directional single-use key bound to
ctx1, names both ends inside and outside (PROTOCOL §6.1), and has one length.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.cipher_suite import (
    AuthenticationError,
    CipherSuite,
    open_sealed,
    seal,
)
from secagg.crypto.entropy import Entropy
from secagg.crypto.key_agreement import BadPublicKeyError, KeyPair
from secagg.crypto.key_derivation import share_channel_key
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import SHARE_SIZE, check_shares, share_secrets
from secagg.crypto.transcript import decode_set, domain_tag, encode_set
from secagg.errors import ErrorCode
from secagg.protocol.client.checks import RosterView
from secagg.protocol.messages import BUNDLE_BYTES, Advert, Complaint
from secagg.protocol.parameters import Graph, ProtocolParameters

NOISE_SEED_BYTES: Final = 32
_PAIR_BYTES: Final = 2 * SHARE_SIZE


@dataclass(frozen=True, slots=True)
class Dealing:
    """The results of dealing.

    Attributes:
        bundles: One sealed bundle per holder, ascending by index, concatenated.
        channels: X25519 secret with each of them and with each dealer, for opening the
            dealer's bundle later.
        own_shares: The dealer's own pair of shares on the complete graph, else b"".
    """

    bundles: bytes = field(repr=False)
    channels: Mapping[int, SecretBytes] = field(repr=False)
    own_shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HeldShares:
    """The shares of other clients, and on the complete graph the client's own.

    Attributes:
        dealers: The dealers of these shares, roster indices in U2, ascending.
        pairs: Share of s^SK and share of b of each dealer, 68 bytes each; zeros if the
            dealer's bundle could not be used.
        complaints: One for each such dealer.
    """

    dealers: tuple[int, ...]
    pairs: tuple[bytes, ...] = field(repr=False)
    complaints: tuple[Complaint, ...] = ()

    def answer(self, survivors: AbstractSet[int]) -> bytes:
        """Return one share per dealer: of b for survivors, of s^SK for dropouts.

        Membership in one set decides, so that no call reveals both (PROTOCOL §5.5).
        """
        accused = {complaint.accused for complaint in self.complaints}
        absent = [
            place for place, dealer in enumerate(self.dealers) if dealer in accused
        ]
        return encode_set(absent, len(self.dealers)) + b"".join(
            pair[SHARE_SIZE:] if dealer in survivors else pair[:SHARE_SIZE]
            for dealer, pair in zip(self.dealers, self.pairs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """The revealed shares of one holder, decoded once for all uses.

    Attributes:
        revealed: As received; two answers are equal if it is.
        dealers: The dealers of the shares that the holder should hold, ascending, shape
            (h,).
        rows: One share for each, canonical, shape (h, 34); zeros for the absent.
        absent: Dealers whose share the holder states not to have.
        noise_seeds: The revealed noise seeds, unchecked, in order of layers.
    """

    revealed: bytes = field(repr=False)
    dealers: npt.NDArray[np.uint16] = field(compare=False)
    rows: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    absent: frozenset[int]
    noise_seeds: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def parse(
        cls, revealed: bytes, dealers: Sequence[int], *, noise_layers: int = 0
    ) -> Self:
        """Read what `HeldShares.answer` wrote, and the noise seeds behind it.

        Args:
            revealed: The answer.
            dealers: The dealers of the shares that the holder should hold, ascending.
            noise_layers: How many noise seeds follow.

        Raises:
            ValueError: It has another size, a share is not canonical, or one that is
                stated to be absent is not zero.
        """
        head = -(-len(dealers) // 8)
        tail = head + len(dealers) * SHARE_SIZE
        expected = tail + noise_layers * NOISE_SEED_BYTES
        if len(revealed) != expected:
            raise ValueError(f"it has {len(revealed)} bytes, expected {expected}")
        places = list(decode_set(revealed[:head], len(dealers)))
        rows = np.frombuffer(revealed[head:tail], np.uint8).reshape(-1, SHARE_SIZE)
        if not check_shares(rows).all():
            raise ValueError("a share is not canonical")
        if rows[places].any():
            raise ValueError("a share that is stated to be absent is not zero")
        absent = frozenset(dealers[place] for place in places)
        noise_seeds = tuple(
            revealed[at : at + NOISE_SEED_BYTES]
            for at in range(tail, expected, NOISE_SEED_BYTES)
        )
        numbers = np.array(dealers, np.uint16)
        return cls(revealed, numbers, rows, absent, noise_seeds)

    def shares_of(self, dealers: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Return the shares of some dealers, shape (s, 34)."""
        wanted = np.array(dealers, self.dealers.dtype)
        return self.rows[np.searchsorted(self.dealers, wanted)]


def deal(  # noqa: PLR0913 - everything that a dealing depends on
    parameters: ProtocolParameters,
    *,
    session_id: bytes,
    roster: RosterView,
    encryption_keys: KeyPair,
    mask_private_key: SecretBytes,
    self_mask_seed: SecretBytes,
    polynomials: Entropy,
) -> Dealing:
    """Share both secrets among the holders and seal every neighbour's bundle.

    Args:
        parameters: Threshold and suite.
        session_id: For key derivation.
        roster: This client's view of U1; its context binds every bundle.
        encryption_keys: c^SK of this client.
        mask_private_key: s^SK, the first secret.
        self_mask_seed: b, the second secret.
        polynomials: Source of the coefficients; a replay must give the same ones,
            because each sealing key serves one message.

    Raises:
        RemoteProtocolError: BAD_PUBLIC_KEY, if no secret can be agreed with a
            neighbour's key.
    """
    index, ctx1 = roster.index, roster.ctx1
    holders = roster.graph.holders(index)
    shares = share_secrets(
        (mask_private_key, self_mask_seed),
        parameters.threshold,
        np.arange(1, len(holders) + 1),  # ranks among the holders (PROTOCOL §7.1)
        polynomials,
    )
    # (2, holders, 34) -> (holders, 2 * 34): one holder's pair is contiguous.
    pairs = np.ascontiguousarray(shares.transpose(1, 0, 2)).reshape(-1, _PAIR_BYTES)
    channels: dict[int, SecretBytes] = {}
    bundles, own_shares = [], b""
    for abscissa, (holder, pair) in enumerate(zip(holders, pairs, strict=True), 1):
        if holder == index:
            own_shares = pair.tobytes()
            continue
        channels[holder] = _agreed(encryption_keys, roster.adverts[holder])
        header = Writer().u32(index).u32(holder).u32(abscissa).getvalue()
        bundles.append(
            seal(
                _channel_key(
                    channels[holder],
                    session_id=session_id,
                    ctx1=ctx1,
                    sender=index,
                    receiver=holder,
                    suite=parameters.suite,
                ),
                header + pair.tobytes(),
                _associated_data(ctx1, index, holder, parameters.suite),
            )
        )
    for dealer in roster.graph.senders(index):  # they may be others than the holders
        if dealer not in channels:
            channels[dealer] = _agreed(encryption_keys, roster.adverts[dealer])
    return Dealing(b"".join(bundles), channels, own_shares)


def _agreed(encryption_keys: KeyPair, advert: Advert) -> SecretBytes:
    """Agree a secret with another client, or blame its key."""
    try:
        return encryption_keys.agree(advert.encryption_key)
    except BadPublicKeyError as error:
        raise ErrorCode.BAD_PUBLIC_KEY.error(
            f"no key can be agreed with {advert.identity!r}: {error}",
            sender=advert.identity,
        ) from None


def collect(  # noqa: PLR0913 - everything that opening depends on
    parameters: ProtocolParameters,
    *,
    session_id: bytes,
    roster: RosterView,
    share_holders: AbstractSet[int],
    channels: Mapping[int, SecretBytes],
    own_shares: bytes,
    bundles: bytes,
) -> HeldShares:
    """Open the bundles of all neighbours in U2.

    An invalid bundle costs its dealer one holder and does not end the session
    (R5.3-11).  No secret depends on holding a share.  And if garbage could make a
    client leave, it could make clients leave where that cuts a ring.

    Args:
        parameters: Threshold and suite.
        session_id: For key derivation.
        roster: This client's view of U1; every bundle must be bound to its context.
        share_holders: U2.
        channels: X25519 secret with each neighbour.
        own_shares: Own pair of shares, or b"" if a dealer keeps none.
        bundles: As delivered, length already checked.

    Raises:
        RemoteProtocolError: BAD_SHARE_CIPHERTEXT if fewer than t are valid: then the
            other clients were shown another roster.  Not in the profile with drawn
            edges: there the number of drawers is random, and their signed lists have
            named its roster (R5.9-8).
    """
    suite, graph = parameters.suite, roster.graph
    index, ctx1 = roster.index, roster.ctx1
    dealers, pairs = [], []
    faults: dict[int, ErrorCode] = {}
    position = 0
    for dealer in graph.dealers(index):
        if dealer not in share_holders:
            continue
        if dealer == index:
            pair = own_shares
        else:
            sealed = bundles[position : position + BUNDLE_BYTES]
            position += BUNDLE_BYTES
            key = _channel_key(
                channels[dealer],
                session_id=session_id,
                ctx1=ctx1,
                sender=dealer,
                receiver=index,
                suite=suite,
            )
            try:
                pair = _open_bundle(
                    sealed,
                    key,
                    _associated_data(ctx1, dealer, index, suite),
                    inside=(dealer, index, graph.abscissa(dealer, index)),
                )
            except _UselessBundleError as error:
                pair = bytes(_PAIR_BYTES)
                faults[dealer] = error.code
        dealers.append(dealer)
        pairs.append(pair)
    for place in _misencoded(pairs):
        pairs[place] = bytes(_PAIR_BYTES)
        faults[dealers[place]] = ErrorCode.SHARE_CONFUSION
    complaints = [Complaint(faults[dealer], dealer) for dealer in sorted(faults)]
    held = len(dealers) - len(complaints)
    if held < parameters.threshold and parameters.graph is not Graph.K_OUT:
        first = (
            f", the first from {roster.adverts[complaints[0].accused].identity!r}"
            if complaints
            else ""
        )
        raise ErrorCode.BAD_SHARE_CIPHERTEXT.error(
            f"{len(complaints)} of {len(dealers)} share bundles are invalid{first}; "
            f"{parameters.threshold} valid ones are needed"
        )
    return HeldShares(tuple(dealers), tuple(pairs), tuple(complaints))


class _UselessBundleError(Exception):
    """One bundle cannot be used; the code is that of the complaint."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code: Final = code


def _open_bundle(
    sealed: bytes, key: SecretBytes, outside: bytes, *, inside: tuple[int, int, int]
) -> bytes:
    """Decrypt a bundle, and refuse one for another place."""
    try:
        plaintext = open_sealed(key, sealed, outside)
    except AuthenticationError:
        raise _UselessBundleError(ErrorCode.BAD_SHARE_CIPHERTEXT) from None
    reader = Reader(plaintext, "share bundle")
    # R5.3-7: the inside must repeat the outside.  The sealed length is fixed, so the
    # reader cannot run short.
    if (reader.u32(), reader.u32(), reader.u32()) != inside:
        raise _UselessBundleError(ErrorCode.SHARE_CONFUSION)
    return reader.fixed(_PAIR_BYTES)


def _misencoded(pairs: Sequence[bytes]) -> list[int]:
    """Return the places of pairs that contain a share that is not canonical."""
    # A check of all pairs costs little more than a check of one.
    encoded = np.frombuffer(b"".join(pairs), np.uint8).reshape(-1, 2, SHARE_SIZE)
    broken: list[int] = np.flatnonzero(~check_shares(encoded).all(axis=1)).tolist()
    return broken


def _channel_key(  # noqa: PLR0913 - one direction of one pair in one context
    secret: SecretBytes,
    *,
    session_id: bytes,
    ctx1: bytes,
    sender: int,
    receiver: int,
    suite: CipherSuite,
) -> SecretBytes:
    """Return the key of bundles from one client to another."""
    return share_channel_key(
        secret,
        session_id=session_id,
        context=ctx1,
        sender=sender,
        receiver=receiver,
        suite=suite,
    )


def _associated_data(
    ctx1: bytes, sender: int, receiver: int, suite: CipherSuite
) -> bytes:
    head = _associated_head(ctx1, suite)
    return head + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")


@lru_cache(maxsize=16)  # the same for all bundles of a session
def _associated_head(ctx1: bytes, suite: CipherSuite) -> bytes:
    tag = domain_tag("client", "share bundle", suite)
    return Writer().fixed(tag).blob(ctx1).getvalue()
