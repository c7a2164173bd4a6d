"""§5.1 and §4.1: adverts, the roster, the tree over it, and neighbourhoods."""

import itertools
from dataclasses import dataclass

from reference import (
    BAD_CREDENTIAL,
    BAD_ENCODING,
    BAD_PROOF,
    BAD_SIGNATURE,
    CURIOUS,
    Decoder,
    Parameters,
    Refused,
    blob,
    digest,
    rank,
    tag,
    text,
    u32,
)
from reference_enrolment import Credential
from reference_signature import holds

MOST_CLIENTS = 65535


@dataclass(frozen=True)
class Advert:
    """What a client publishes in AdvertiseKeys."""

    identity: str
    channel_key: bytes
    mask_key: bytes
    commitment: bytes
    noise_commitments: tuple[bytes, ...] = ()
    credential: Credential | None = None
    signature: bytes = b""

    def id_part(self) -> bytes:
        if self.credential is None:
            return text(self.identity) + b"\0"
        return text(self.identity) + b"\1" + self.credential.encode()

    def key_part(self) -> bytes:
        keys = self.channel_key + self.mask_key + self.commitment
        count = bytes([len(self.noise_commitments)])
        return keys + count + b"".join(self.noise_commitments)

    def encode(self) -> bytes:
        return blob(self.id_part()) + blob(self.key_part()) + blob(self.signature)

    def signed_bytes(self, suite: int, ctx0: bytes) -> bytes:
        parts = blob(self.id_part()) + blob(self.key_part())
        return tag("client", "advert", suite) + blob(ctx0) + parts

    @staticmethod
    def decode(data: bytes, noise_layers: int = 0) -> "Advert":
        decoder = Decoder(data)
        id_part = Decoder(decoder.blob(len(data)))
        key_part = Decoder(decoder.blob(len(data)))
        signature = decoder.blob_or_nothing(64)
        decoder.end()
        identity, form = id_part.text(255, least=1), id_part.number(1)
        if form > 1:
            raise Refused(BAD_ENCODING)
        credential = Credential.read(id_part) if form == 1 else None
        id_part.end()
        keys = [key_part.take(32) for _ in range(3)]
        if key_part.number(1) != noise_layers:
            raise Refused(BAD_ENCODING)
        commitments = tuple(key_part.take(32) for _ in range(noise_layers))
        key_part.end()
        return Advert(identity, *keys, commitments, credential, signature)

    def check_form(self, profile: int) -> None:
        """R2.1-1."""
        if profile == CURIOUS:
            if self.credential is not None or self.signature:
                raise Refused(BAD_SIGNATURE)
        elif self.credential is None or not self.signature:
            raise Refused(BAD_CREDENTIAL)

    def all_keys(self) -> list[bytes]:
        """All that must be distinct (R5.2-5)."""
        own = [self.channel_key, self.mask_key]
        return own if self.credential is None else [*own, self.credential.key]

    def check_signature(self, suite: int, ctx0: bytes) -> None:
        if self.credential is None:
            return
        signed = self.signed_bytes(suite, ctx0)
        if not holds(self.credential.key, signed, self.signature):
            raise Refused(BAD_SIGNATURE)


def commitment_to(suite: int, sid: bytes, identity: str, seed: bytes) -> bytes:
    """H_b."""
    return digest(suite, "b-commit", sid, identity.encode(), seed)


def noise_commitment(
    suite: int, sid: bytes, identity: str, layer: int, seed: bytes
) -> bytes:
    """com_i."""
    return digest(suite, "noise-commit", sid, identity.encode(), u32(layer), seed)


ROSTER_NODE = "roster node"

# --- §4.1 The tree -------------------------------------------------------------------


def leaf(suite: int, ctx0: bytes, index: int, advert: Advert) -> bytes:
    id_part = digest(suite, "id part", advert.id_part())
    key_part = digest(suite, "key part", advert.key_part(), advert.signature)
    return digest(suite, "roster leaf", ctx0, u32(index), id_part, key_part)


def first_part(count: int) -> int:
    """The largest power of two below a number above 1."""
    return 2 ** ((count - 1).bit_length() - 1)


def top_of(suite: int, leaves: list[bytes], node: str = ROSTER_NODE) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    cut = first_part(len(leaves))
    halves = (leaves[:cut], leaves[cut:])
    return digest(suite, node, *(top_of(suite, half, node) for half in halves))


def proof_for(
    suite: int, leaves: list[bytes], shown: set[int], node: str = ROSTER_NODE
) -> list[bytes]:
    """The hashes that a reader of the shown leaves is missing, from left to right."""
    if not shown:
        return [top_of(suite, leaves, node)]
    if len(leaves) == 1:
        return []
    cut = first_part(len(leaves))
    left = {place for place in shown if place < cut}
    right = {place - cut for place in shown if place >= cut}
    first = proof_for(suite, leaves[:cut], left, node)
    return first + proof_for(suite, leaves[cut:], right, node)


def proven_top(
    suite: int,
    count: int,
    shown: dict[int, bytes],
    proof: list[bytes],
    node: str = ROSTER_NODE,
) -> bytes:
    """R4.1-1: the top of a tree of which some leaves are known."""
    rest = list(proof)
    top = _proven(suite, range(count), shown, rest, node)
    if rest:
        raise Refused(BAD_PROOF)
    return top


def _proven(
    suite: int, places: range, shown: dict[int, bytes], rest: list[bytes], node: str
) -> bytes:
    if not any(place in places for place in shown):
        if not rest:
            raise Refused(BAD_PROOF)
        return rest.pop(0)
    if len(places) == 1:
        return shown[places[0]]
    cut = first_part(len(places))
    left = _proven(suite, places[:cut], shown, rest, node)
    right = _proven(suite, places[cut:], shown, rest, node)
    return digest(suite, node, left, right)


# --- the roster, whole or in part ----------------------------------------------------


@dataclass(frozen=True)
class Roster:
    """What a client is shown: all adverts, or some with a proof."""

    count: int
    adverts: dict[int, Advert]
    graph_seed: bytes
    reader: int | None = None  # of a neighbourhood
    proof: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        if self.reader is None:
            rows = b"".join(blob(advert.encode()) for advert in self.adverts.values())
            return b"\0" + u32(self.count) + rows + blob(self.graph_seed)
        rows = b"".join(
            u32(index) + blob(advert.encode()) for index, advert in self.adverts.items()
        )
        return (
            b"\1"
            + u32(self.count)
            + u32(self.reader)
            + blob(self.graph_seed)
            + u32(len(self.adverts))
            + rows
            + u32(len(self.proof))
            + b"".join(self.proof)
        )

    def top(self, suite: int, ctx0: bytes) -> bytes:
        leaves = {
            index: leaf(suite, ctx0, index, advert)
            for index, advert in self.adverts.items()
        }
        if self.reader is None:
            return top_of(suite, list(leaves.values()))
        return proven_top(suite, self.count, leaves, list(self.proof))

    @staticmethod
    def whole(adverts: list[Advert], graph_seed: bytes) -> "Roster":
        return Roster(len(adverts), dict(enumerate(adverts)), graph_seed)

    def neighbourhood(
        self, suite: int, ctx0: bytes, reader: int, around: list[int]
    ) -> "Roster":
        shown = sorted([reader, *around])
        leaves = [leaf(suite, ctx0, i, advert) for i, advert in self.adverts.items()]
        return Roster(
            self.count,
            {index: self.adverts[index] for index in shown},
            self.graph_seed,
            reader,
            tuple(proof_for(suite, leaves, set(shown))),
        )


def decode_roster(data: bytes, rules: Parameters) -> Roster:
    """R5.2-1 and R5.2-20."""
    decoder = Decoder(data)
    form, count = decoder.number(1), decoder.number(4)
    if form > 1 or count > MOST_CLIENTS:
        raise Refused(BAD_ENCODING)
    layers = rules.noise_layers
    if form == 0:
        adverts = {
            index: Advert.decode(decoder.blob(len(data)), layers)
            for index in range(count)
        }
        roster = Roster(count, adverts, decoder.blob_or_nothing(32))
        decoder.end()
        check_order(roster)
        return roster
    reader, graph_seed = decoder.number(4), decoder.blob(32, least=32)
    rows = []
    for _ in range(decoder.number(4)):
        index = decoder.number(4)
        rows.append((index, Advert.decode(decoder.blob(len(data)), layers)))
    proof = tuple(decoder.take(32) for _ in range(decoder.number(4)))
    decoder.end()
    indices = [index for index, _ in rows]
    ascending = all(left < right for left, right in itertools.pairwise(indices))
    if not ascending or any(index >= count for index in indices):
        raise Refused(BAD_ENCODING)
    roster = Roster(count, dict(rows), graph_seed, reader, proof)
    check_order(roster)
    return roster


def check_order(roster: Roster) -> None:
    ranks = [rank(one.identity, roster.graph_seed) for one in roster.adverts.values()]
    if any(left >= right for left, right in itertools.pairwise(ranks)):
        raise Refused(BAD_ENCODING)
