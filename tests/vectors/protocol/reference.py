"""A second, slow implementation of what PROTOCOL.md says about bytes.

Rule 1: it was written from the specification alone, shares no line with the product,
        and uses neither an array library nor a trick: plain integers and lists.
Rule 2: a violation is `Refused`, with the code that the specification names.

This file holds encodings, context chain, sharing, packing and graphs; whole sessions
are in `reference_session.py`.  It is neither fast nor constant-time: it exists to make
vectors and to be compared with.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

VERSION = 1
CURIOUS, MALICIOUS, SPARSE = 1, 2, 3
PROFILES_HERE = {CURIOUS, MALICIOUS, SPARSE}
MOST_WHERE_ALL_SIGN = 10_000
ROUNDS = {CURIOUS: (1, 3, 4, 6), MALICIOUS: (1, 3, 4, 5, 6), SPARSE: (1, 2, 3, 4, 5, 6)}
KEY_SIZES = {0x0001: 32, 0x0002: 16}  # of the mask stream, by suite
FIELD = 65537
LIMBS = 16
SHARE_SIZE = 34
BUNDLE_SIZE = 96
BLOCK = 2**17
DAY_SECONDS = 86400

# §9, and codes of the service that a message can be answered with: as far as a client
# or a server can be made to.
BAD_VERSION = 1
BAD_CONFIG = 2
POLICY_VIOLATION = 3
BAD_SIGNATURE = 4
BAD_PUBLIC_KEY = 5
DUPLICATE_KEY = 6
SELF_MISSING = 7
ROSTER_TOO_SMALL = 8
ROSTER_TOO_LARGE = 9
BAD_SHARE_CIPHERTEXT = 10
SHARE_CONFUSION = 11
U2_TOO_SMALL = 12
U3_INVALID = 13
U3_TOO_SMALL = 14
TOO_MANY_DROPOUTS = 15
NO_QUORUM = 16
EQUIVOCATION = 17
REPLAYED_SESSION = 18
UNEXPECTED_MESSAGE = 19
BAD_VECTOR = 20
DEADLINE = 21
RECONSTRUCTION_FAILED = 22
BAD_NOISE_REVEAL = 23
PAYLOAD_MISMATCH = 24
INTERNAL = 25
BAD_ENCODING = 26
TOO_FEW_ANSWERS = 27
BAD_CREDENTIAL = 28
BAD_PROOF = 29
BAD_EDGES = 30
DISPUTED = 31
VIEW_DIFFERS = 32
BAD_CLOCK = 33
UNAUTHENTICATED = 41
SESSION_OVER = 43


class Refused(Exception):  # noqa: N818 - the word of the specification
    """A message, or a session, is refused with a code of §9."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


# --- §3 Encoding ---------------------------------------------------------------------


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def blob(data: bytes) -> bytes:
    return u32(len(data)) + data


def text(words: str) -> bytes:
    return blob(words.encode("utf-8"))


class Decoder:
    """Reads fields one after the other; what does not fit is BAD_ENCODING."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def take(self, size: int) -> bytes:
        if len(self._rest) < size:
            raise Refused(BAD_ENCODING)
        head, self._rest = self._rest[:size], self._rest[size:]
        return head

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def blob(self, most: int, least: int = 0) -> bytes:
        size = self.number(4)
        if not least <= size <= most:
            raise Refused(BAD_ENCODING)
        return self.take(size)

    def blob_or_nothing(self, size: int) -> bytes:
        data = self.blob(size)
        if len(data) not in {0, size}:
            raise Refused(BAD_ENCODING)
        return data

    def text(self, most: int, least: int = 0) -> str:
        try:
            words = self.blob(most, least).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(BAD_ENCODING) from None
        if chr(0) in words:
            raise Refused(BAD_ENCODING)
        return words

    def end(self) -> None:
        if self._rest:
            raise Refused(BAD_ENCODING)


@dataclass(frozen=True)
class Trust:
    """§3.2: whose credentials count, and which of them no longer do."""

    trust_domain: str
    enrolment_key: bytes
    revocation_number: int = 0
    revocation_hash: bytes = bytes(32)

    def encode(self) -> bytes:
        number = u32(self.revocation_number)
        return (
            text(self.trust_domain) + self.enrolment_key + number + self.revocation_hash
        )

    @staticmethod
    def decode(decoder: Decoder) -> "Trust":
        return Trust(
            decoder.text(255, least=1),
            decoder.take(32),
            decoder.number(4),
            decoder.take(32),
        )


@dataclass(frozen=True)
class Parameters:
    """§3.2, in the order of the encoding."""

    version: int
    profile: int
    suite: int
    modulus: int
    dim: int
    min_clients: int
    max_clients: int
    threshold: int
    degree: int
    min_survivors: int
    max_dropouts: int
    max_losses: int
    colluders: int
    noise_layers: int
    noise_block: bytes
    deadlines: tuple[int, int, int, int, int, int]
    trust: Trust | None = None
    graph_bits: int = 0
    in_cap: int = 0
    own_quorum: int = 0  # Q where the tail names it

    @property
    def quorum(self) -> int:
        """Q."""
        return self.own_quorum if self.profile == SPARSE else self.threshold

    def encode(self) -> bytes:
        counts = (
            self.min_clients,
            self.max_clients,
            self.threshold,
            self.degree,
            self.min_survivors,
            self.max_dropouts,
            self.max_losses,
            self.colluders,
        )
        return (
            u16(self.version)
            + u16(self.profile)
            + u16(self.suite)
            + u64(self.modulus)
            + u64(self.dim)
            + b"".join(u32(count) for count in counts)
            + bytes([self.noise_layers])
            + blob(self.noise_block)
            + b"".join(u32(seconds) for seconds in self.deadlines)
            + blob(self.tail())
        )

    def tail(self) -> bytes:
        trust = b"" if self.trust is None else self.trust.encode()
        bits = bytes([self.graph_bits])
        if self.profile == SPARSE:
            return trust + bits + u32(self.in_cap) + u32(self.own_quorum)
        return trust if self.profile == MALICIOUS else bits

    @staticmethod
    def decode(decoder: Decoder) -> "Parameters":
        version = decoder.number(2)
        if version != VERSION:
            raise Refused(BAD_VERSION)
        profile, suite = decoder.number(2), decoder.number(2)
        if profile not in ROUNDS or suite not in KEY_SIZES:
            raise Refused(BAD_CONFIG)
        numbers = [decoder.number(8), decoder.number(8)]
        numbers += [decoder.number(4) for _ in range(8)]
        noise_layers, noise_block = decoder.number(1), decoder.blob(4096)
        deadlines = tuple(decoder.number(4) for _ in range(6))
        tail = Decoder(decoder.blob(512))
        trust = None if profile == CURIOUS else Trust.decode(tail)
        graph_bits = 0 if profile == MALICIOUS else tail.number(1)
        caps = (tail.number(4), tail.number(4)) if profile == SPARSE else (0, 0)
        tail.end()
        return Parameters(
            version,
            profile,
            suite,
            *numbers,
            noise_layers=noise_layers,
            noise_block=noise_block,
            deadlines=deadlines,
            trust=trust,
            graph_bits=graph_bits,
            in_cap=caps[0],
            own_quorum=caps[1],
        )

    def check(self) -> None:
        """R3.2-2 to R3.2-10, whose order does not show: they share a code."""
        trust = self.trust
        rules = (
            self.profile in PROFILES_HERE,
            2 <= self.modulus <= 2**62,
            1 <= self.dim <= 2**30,
            2 <= self.min_clients <= self.max_clients <= 65535,
            trust is None
            or trust.revocation_number > 0
            or trust.revocation_hash == bytes(32),
            all(
                1 <= seconds <= 7 * DAY_SECONDS
                if number in ROUNDS[self.profile]
                else seconds == 0
                for number, seconds in enumerate(self.deadlines, start=1)
            ),
            self.threshold >= 2,
            self.threshold <= self.min_survivors <= self.min_clients,
            self.min_survivors >= self.colluders + 2,
            self.max_dropouts <= self.max_losses <= self.max_clients - self.threshold,
            self.noise_layers == 0 or 2 <= self.noise_layers <= 17,
            self.noise_layers == 0 or self.noise_block != b"",
            self._suits_profile(),
        )
        if not all(rules):
            raise Refused(BAD_CONFIG)

    def _suits_profile(self) -> bool:
        """R3.2-6 to R3.2-9."""
        if self.profile == SPARSE:
            return self._suits_sparse()
        if self.profile == MALICIOUS:
            majority = 2 * self.threshold > self.max_clients + self.colluders
            return self.degree == 0 and majority
        if self.degree == 0:
            return self.graph_bits == 0 and self.threshold >= self.colluders + 1
        return (
            self.degree % 2 == 0
            and self.threshold <= self.degree <= self.min_clients - 2
            and 1 <= self.graph_bits <= 128
            and self.is_drawn_safely(self.min_clients)
        )

    def _suits_sparse(self) -> bool:
        """R3.2-9."""
        least = max((self.max_clients + self.colluders) // 2 + 1, self.min_survivors)
        return (
            1 <= self.graph_bits <= 128
            and self.max_clients <= MOST_WHERE_ALL_SIGN
            and self.threshold <= self.degree <= self.min_clients - 1
            and self.degree <= self.in_cap <= 3 * self.degree
            and least <= self.own_quorum <= self.min_clients
            and self.edges_are_safe(self.min_clients)
            and self.edges_are_safe(self.max_clients)
        )

    def edges_are_safe(self, count: int) -> bool:
        """§11.4 at a size of the roster, as a client checks it."""
        from reference_edges import are_safe  # noqa: PLC0415 - built on this

        return are_safe(self, count, self.graph_bits + 1)

    def is_drawn_safely(self, count: int) -> bool:
        """E1 of §11.2 at a size of the roster, as a client checks it."""
        from reference_ring import corrupt_holders  # noqa: PLC0415 - built on this

        bits = corrupt_holders(count, self.degree, self.threshold, self.colluders)
        return bits >= self.graph_bits + 1


@dataclass(frozen=True)
class Offer:
    """§3.2."""

    aggregator: str
    task_id: str
    session_number: int
    server_nonce: bytes
    session_end: int
    payload_hash: bytes
    parameters: Parameters
    noise_terms: bytes = b""

    def encode(self) -> bytes:
        return (
            text(self.aggregator)
            + text(self.task_id)
            + u64(self.session_number)
            + self.server_nonce
            + u64(self.session_end)
            + blob(self.payload_hash)
            + blob(self.noise_terms)
            + self.parameters.encode()
        )

    @staticmethod
    def decode(data: bytes) -> "Offer":
        decoder = Decoder(data)
        before = (
            decoder.text(255, least=1),
            decoder.text(256, least=1),
            decoder.number(8),
            decoder.take(32),
            decoder.number(8),
            decoder.blob_or_nothing(32),
        )
        noise_terms = decoder.blob(256)
        offer = Offer(*before, Parameters.decode(decoder), noise_terms)
        decoder.end()
        if offer.session_number >= 2**63 or offer.session_end >= 2**63:
            raise Refused(BAD_CONFIG)
        if offer.noise_terms and not offer.parameters.noise_block:  # R3.2-10
            raise Refused(BAD_CONFIG)
        offer.parameters.check()
        return offer


def bitmap(members: set[int], size: int) -> bytes:
    """§3.3."""
    octets = [0] * -(-size // 8)
    for member in members:
        octets[member // 8] |= 1 << (member % 8)
    return bytes(octets)


def members_of(data: bytes, size: int) -> set[int]:
    """§3.3, the way back."""
    if len(data) != -(-size // 8):
        raise Refused(BAD_ENCODING)
    places = {i for i in range(8 * len(data)) if data[i // 8] >> (i % 8) & 1}
    if any(place >= size for place in places):
        raise Refused(BAD_ENCODING)
    return places


# --- §4 Domain tags and context chain ------------------------------------------------


def tag(role: str, usage: str, suite: int) -> bytes:
    return blob(b"SecAgg/1") + blob(u16(suite)) + text(role) + text(usage)


def digest(suite: int, usage: str, *parts: bytes) -> bytes:
    """H of §4."""
    whole = tag("hash", usage, suite) + b"".join(blob(part) for part in parts)
    return hashlib.sha256(whole).digest()


def configuration_hash(offer: Offer) -> bytes:
    parameters = offer.parameters
    return digest(
        parameters.suite,
        "configuration",
        parameters.encode(),
        offer.payload_hash,
        offer.noise_terms,
    )


def session_id(offer: Offer) -> bytes:
    return digest(
        offer.parameters.suite,
        "sid",
        offer.aggregator.encode(),
        offer.task_id.encode(),
        u64(offer.session_number),
        offer.server_nonce,
        u64(offer.session_end),
        configuration_hash(offer),
    )


def context_0(offer: Offer) -> bytes:
    suite = offer.parameters.suite
    return digest(suite, "ctx0", session_id(offer), configuration_hash(offer))


def context_1(
    suite: int, ctx0: bytes, count: int, top: bytes, graph_seed: bytes
) -> bytes:
    return digest(suite, "ctx1", ctx0, u32(count), top, graph_seed)


def context_2(
    suite: int,
    ctx1: bytes,
    share_holders: bytes,
    *,
    edge_root: bytes = b"",
    noise_context: bytes = b"",
) -> bytes:
    return digest(suite, "ctx2", ctx1, edge_root, share_holders, noise_context)


def view_beside_upload(suite: int, ctx2: bytes) -> bytes:
    """R5.3-14."""
    return digest(suite, "view", ctx2)


def context_3(suite: int, ctx2: bytes, survivors: bytes) -> bytes:
    return digest(suite, "ctx3", ctx2, survivors)


# --- §7 Secret sharing ---------------------------------------------------------------


def limbs_of(secret: bytes) -> list[int]:
    return [int.from_bytes(secret[2 * i : 2 * i + 2], "big") for i in range(LIMBS)]


def share_at(secret: bytes, coefficients: list[list[int]], point: int) -> list[int]:
    """Limbs of the share at a point; coefficients[p][i] goes with x^(p+1), limb i."""
    share = limbs_of(secret)
    for power, row in enumerate(coefficients, start=1):
        for i in range(LIMBS):
            share[i] = (share[i] + row[i] * point**power) % FIELD
    return share


def encode_share(limbs: list[int]) -> bytes:
    flags = sum(1 << i for i in range(LIMBS) if limbs[i] == FIELD - 1)
    return b"".join(u16(limb % (FIELD - 1)) for limb in limbs) + u16(flags)


def decode_share(data: bytes, code: int = BAD_ENCODING) -> list[int]:
    if len(data) != SHARE_SIZE:
        raise Refused(code)
    limbs = limbs_of(data)
    flags = int.from_bytes(data[32:], "big")
    for i in range(LIMBS):
        if flags >> i & 1:
            if limbs[i] != 0:
                raise Refused(code)
            limbs[i] = FIELD - 1
    return limbs


def rebuild(shares: dict[int, list[int]]) -> bytes | None:
    """The secret from exactly t shares by point; None if a limb is 65536."""
    total = [0] * LIMBS
    for point, share in shares.items():
        over = under = 1
        for other in shares:
            if other != point:
                over = over * -other % FIELD
                under = under * (point - other) % FIELD
        weight = over * pow(under, -1, FIELD)
        for i in range(LIMBS):
            total[i] = (total[i] + weight * share[i]) % FIELD
    if FIELD - 1 in total:
        return None
    return b"".join(u16(limb) for limb in total)


# --- §8 Packing ----------------------------------------------------------------------


def residue_bits(modulus: int) -> int:
    return (modulus - 1).bit_length()


def packed_size(dim: int, bits: int) -> int:
    return -(-dim * bits // 8)


def word_bits(modulus: int) -> int:
    """W of §6.4."""
    return next(width for width in (16, 32, 64) if modulus - 1 < 2**width)


def _block_sizes(dim: int, width: int) -> tuple[list[int], int]:
    blocks, rest = divmod(dim, BLOCK)
    tail = rest % width
    short = [rest - tail] if rest - tail else []
    return [BLOCK] * blocks + short, tail


def pack(values: list[int], bits: int) -> bytes:
    width = word_bits(2**bits)
    sizes, tail = _block_sizes(len(values), width)
    packed, start = b"", 0
    for size in sizes:
        columns = size // width
        words = [[0] * columns for _ in range(bits)]
        for column in range(columns):
            string = 0
            for row in range(width):
                entry = values[start + row * columns + column]
                string |= entry << (row * bits)
            for i in range(bits):
                words[i][column] = string >> (i * width) & (2**width - 1)
        packed += b"".join(
            word.to_bytes(width // 8, "little") for row in words for word in row
        )
        start += size
    string = 0
    for place, entry in enumerate(values[start:]):
        string |= entry << (place * bits)
    return packed + string.to_bytes(packed_size(tail, bits), "little")


def unpack(data: bytes, dim: int, modulus: int) -> list[int]:
    bits = residue_bits(modulus)
    width = word_bits(2**bits)
    if len(data) != packed_size(dim, bits):
        raise Refused(BAD_VECTOR)
    sizes, tail = _block_sizes(dim, width)
    values: list[int] = []
    start = 0
    octets = width // 8
    for size in sizes:
        columns = size // width
        strings = [0] * columns
        for i in range(bits):
            for column in range(columns):
                word = int.from_bytes(data[start : start + octets], "little")
                strings[column] |= word << (i * width)
                start += octets
        values += [
            strings[column] >> (row * bits) & (2**bits - 1)
            for row in range(width)
            for column in range(columns)
        ]
    string = int.from_bytes(data[start:], "little")
    values += [string >> (place * bits) & (2**bits - 1) for place in range(tail)]
    if string >> (tail * bits) or any(value >= modulus for value in values):
        raise Refused(BAD_VECTOR)
    return values


# --- §11 Graphs ----------------------------------------------------------------------


def rank(identity: str, graph_seed: bytes) -> bytes:
    """What a roster is sorted by, §5.1."""
    name = identity.encode()
    if graph_seed == b"":
        return name
    return hashlib.sha256(tag("ring", "order", 0) + graph_seed + name).digest()


def roster_order(identities: Iterable[str], graph_seed: bytes) -> list[str]:
    return sorted(identities, key=lambda name: rank(name, graph_seed))


def neighbours(degree: int, count: int) -> list[list[int]]:
    """For each client, its neighbours, ascending."""
    if degree == 0:
        return [[v for v in range(count) if v != u] for u in range(count)]
    steps = [s for s in range(-(degree // 2), degree // 2 + 1) if s != 0]
    return [sorted((u + s) % count for s in steps) for u in range(count)]


def holders(degree: int, around: list[list[int]]) -> list[list[int]]:
    """For each dealer, who holds its shares; on the complete graph itself too."""
    if degree == 0:
        return [sorted([*row, dealer]) for dealer, row in enumerate(around)]
    return around
