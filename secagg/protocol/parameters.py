"""The parameters of a task's sessions: public numbers that all parties agree on.

Rule 1: every field enters the configuration hash, hence every key, mask and associated
        datum of the session (PROTOCOL §4). Parties that hold different parameters
        produce masks that do not cancel.
Rule 2: `validate` refuses what no client can accept. A client's
        `secagg.protocol.policy` refuses what this client does not want.

Parameters hold no secrets.  The noise block is opaque bytes, written and read by
`secagg.distributed_dp`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.graphs.bounds import (
    EdgeBound,
    bits_of,
    client_demand,
    edge_bound,
    log_corrupt_holders,
)
from secagg.protocol.profiles import (
    MAX_DEADLINE_SECONDS,
    MAX_GRAPH_BITS,
    TAILS,
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
    SparseParameters,
    Tail,
    Trust,
    check_supported,
)

_PROTOCOL_VERSION: Final = 1

# Shamir abscissae are 1..65536 without zero; one roster index each (PROTOCOL §7).
MAX_CLIENTS: Final = 65_535
# 2^30 words of eight bytes stay below the 2^36 - 32 byte limit of one mask stream.
MAX_DIMENSION: Final = 1 << 30
# Masks read words of at most eight bytes; two bits of reserve keep sums in int64.
MAX_MODULUS: Final = 1 << 62
_MIN_MODULUS: Final = 2
# One client's sum is its input.
_MIN_COHORT: Final = 2
# A mechanism and its budget in canonical JSON take well under one kilobyte.
MAX_NOISE_BLOCK_BYTES: Final = 4096
# What a profile adds to the parameters: a name, a key, a hash and a few numbers.
MAX_TAIL_BYTES: Final = 512
# A ladder of L layers commits to L + 1 seeds; sixteen halvings reach any dropout rate.
MAX_NOISE_LAYERS: Final = 17
_MIN_NOISE_LAYERS: Final = 2
# A global quorum costs every client work that grows with the cohort.
MAX_SPARSE_CLIENTS: Final = 10_000
# Three times the mean: with k choices each, chance alone does not exceed it.
MAX_IN_DEGREES: Final = 3


@unique
class Graph(StrEnum):
    """Which clients share with which (PROTOCOL §11)."""

    COMPLETE = "complete"
    RING = "ring"
    K_OUT = "k-out"

    @classmethod
    def of(cls, profile: Profile, degree: int) -> Self:
        """Return the graph of a profile's sessions; `degree` is 0 except on a ring."""
        if profile is Profile.MALICIOUS_SERVER_SPARSE:
            return cls.K_OUT
        return cls.RING if degree else cls.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolParameters:
    """The configuration of every session of one task.

    Attributes:
        tail: The parameters of the threat model; its class names the profile.
        suite: Named algorithms.
        modulus: m; inputs and sums are in Z_m.  2 <= m <= 2^62.
        dimension: d; entries of one vector.  1 <= d <= 2^30.
        min_clients: Smallest roster |U1| that continues.
        max_clients: Largest roster; the first round closes early when it is full.
        threshold: t; shares that rebuild a secret.  t >= 2; on the complete graph t >=
            colluders + 1.
        degree: k; neighbours of each client on the Harary ring, even; 0 means the
            complete graph.
        min_survivors: Smallest |U3| that is ever unmasked.
        max_dropouts: Most clients of U2 that may be missing from U3.
        max_losses: Most clients of U1 that may be missing from U3; at least
            `max_dropouts`.
        colluders: c; clients of the whole roster assumed to share their secrets with
            the server.
        noise_layers: Number of noise seeds that each client commits to, 2 to 17: one
            more than the rungs of the block's ladder.  0 without a ladder.
        noise_block: Canonical description of the noise that every input carries, or b""
            for a task without differential privacy.
        deadlines: Longest duration of each round.
    """

    tail: Tail = HonestCuriousParameters()  # noqa: RUF009 - frozen
    suite: CipherSuite = CipherSuite.AES_256_CTR
    modulus: int
    dimension: int
    min_clients: int
    max_clients: int
    threshold: int
    degree: int = 0
    min_survivors: int
    max_dropouts: int
    max_losses: int
    colluders: int = 0
    noise_layers: int = 0
    noise_block: bytes = b""
    deadlines: RoundDeadlines = RoundDeadlines()  # noqa: RUF009 - frozen

    @property
    def profile(self) -> Profile:
        """Named threat model."""
        return self.tail.PROFILE

    @property
    def trust(self) -> Trust | None:
        """The issuer of credentials; None in a profile without credentials."""
        return self.tail.trust

    def under(self, trust: Trust) -> Self:
        """Return the same parameters under another issuer or revocation list.

        Raises:
            LocalProtocolError: The profile has no credentials.
        """
        if isinstance(self.tail, HonestCuriousParameters):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"profile {self.profile.label} has no credentials"
            )
        return replace(self, tail=replace(self.tail, trust=trust))

    @property
    def quorum(self) -> int:
        """Signatures on one U3 that a client needs; 0 in profiles without them."""
        match self.tail:
            case HonestCuriousParameters():
                return 0
            case MaliciousParameters():
                return self.threshold
            case SparseParameters():
                return self.tail.quorum

    @property
    def graph_bits(self) -> int:
        """-log2 of the tolerated chance that the graph is unsafe; 0 if it never is."""
        return self.tail.graph_bits

    @property
    def graph(self) -> Graph:
        """Which clients share with which."""
        return Graph.of(self.profile, self.degree)

    @property
    def is_complete_graph(self) -> bool:
        """Whether every client shares with every other one."""
        return self.graph is Graph.COMPLETE

    @property
    def bits(self) -> int:
        """Bits of one packed coordinate, ceil(log2 m)."""
        return (self.modulus - 1).bit_length()

    def validate(
        self, *, demanded_bits: Callable[[int], float] = client_demand
    ) -> Self:
        """Return self if this release can run a session with these parameters.

        Args:
            demanded_bits: Bits required of a ring for its `graph_bits`: the server
                passes `bounds.server_demand`, which is a little more.

        Raises:
            RemoteProtocolError: With BAD_CONFIG; names the field, the rule and the
                nearest value that works.  Correct the task's configuration.
        """
        check_supported(self.profile)
        return self.check_possible(demanded_bits=demanded_bits)

    def check_possible(
        self, *, demanded_bits: Callable[[int], float] = client_demand
    ) -> Self:
        """Return self if these numbers make a session at all, in any release.

        Args:
            demanded_bits: As for `validate`.

        Raises:
            RemoteProtocolError: As for `validate`.
        """
        # The order is that of PROTOCOL §3.2.  The costly checks come last, with numbers
        # that the others have checked.
        for rules in (
            self._ranges,
            self.tail.rules,
            self._round_rules,
            self._cohort_rules,
            self._graph_rules,
        ):
            for holds, complaint in rules():
                if not holds:
                    raise _infeasible_error(complaint)
        if self.graph is Graph.RING:
            self._check_ring_bounds(demanded_bits(self.graph_bits))
        if isinstance(self.tail, SparseParameters):
            self._check_edge_bounds(demanded_bits(self.graph_bits))
        return self

    def _ranges(self) -> Iterator[tuple[bool, str]]:
        """R3.2-3 and R3.2-10: the range of every number by itself."""
        yield (
            _MIN_MODULUS <= self.modulus <= MAX_MODULUS,
            f"modulus must be between 2 and 2^62, not {self.modulus}",
        )
        yield (
            1 <= self.dimension <= MAX_DIMENSION,
            f"dimension must be between 1 and {MAX_DIMENSION}, not {self.dimension}",
        )
        yield (
            _MIN_COHORT <= self.min_clients <= self.max_clients <= MAX_CLIENTS,
            (
                "need 2 <= min_clients <= max_clients <= "
                f"{MAX_CLIENTS}, not {self.min_clients} and {self.max_clients}"
            ),
        )
        yield (
            self.colluders >= 0,
            f"colluders must be at least 0, not {self.colluders}",
        )
        yield (
            self.noise_layers == 0
            or _MIN_NOISE_LAYERS <= self.noise_layers <= MAX_NOISE_LAYERS,
            (
                f"noise_layers must be 0, or between {_MIN_NOISE_LAYERS} and "
                f"{MAX_NOISE_LAYERS}, not {self.noise_layers}"
            ),
        )
        yield (  # R3.2-10, as far as it can be checked without the block
            self.noise_layers == 0 or bool(self.noise_block),
            f"noise_layers must be 0 without a noise block, not {self.noise_layers}",
        )
        yield (
            len(self.noise_block) <= MAX_NOISE_BLOCK_BYTES,
            (
                f"noise block has {len(self.noise_block)} bytes, "
                f"at most {MAX_NOISE_BLOCK_BYTES} are allowed"
            ),
        )

    def _round_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-4: exactly the rounds that the profile lacks last 0 seconds."""
        for name, seconds in self.deadlines:
            if name in self.profile.absent_rounds:
                yield (
                    seconds == 0,
                    (
                        f"profile {self.profile.label} has no round {name}: its "
                        f"deadline must be 0, not {seconds}"
                    ),
                )
            else:
                yield (
                    1 <= seconds <= MAX_DEADLINE_SECONDS,
                    (
                        f"the deadline of round {name} must be between 1 and "
                        f"{MAX_DEADLINE_SECONDS} seconds, not {seconds}"
                    ),
                )

    def _cohort_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-5: the numbers of clients and of tolerated dropouts."""
        t, spare = self.threshold, self.max_clients - self.threshold
        # One share would be the secret.
        yield t >= _MIN_COHORT, f"threshold must be at least 2, not {t}"
        yield (
            t <= self.min_survivors <= self.min_clients,
            (
                "need threshold <= min_survivors <= min_clients, not "
                f"{t}, {self.min_survivors} and {self.min_clients}"
            ),
        )
        # A sum of one honest input is that input, so two parties beside the colluders
        # must be honest.
        yield (
            self.min_survivors >= self.colluders + 2,
            (
                f"min_survivors must be at least {self.colluders + 2}: two clients "
                f"beyond the {self.colluders} colluders, not {self.min_survivors}"
            ),
        )
        yield (
            0 <= self.max_dropouts <= self.max_losses,
            (
                f"max_dropouts must be between 0 and max_losses = {self.max_losses}, "
                f"not {self.max_dropouts}"
            ),
        )
        yield (
            self.max_losses <= spare,
            (
                f"max_losses must be at most {spare} (max_clients - threshold), "
                f"not {self.max_losses}"
            ),
        )

    def _graph_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-6 to R3.2-9: the requirements of the profile and its graph."""
        match self.tail:
            case HonestCuriousParameters() if self.degree == 0:
                yield from self._complete_rules()
            case HonestCuriousParameters():
                yield from self._ring_rules()
            case MaliciousParameters():
                yield from self._malicious_rules()
            case SparseParameters():
                yield from self._sparse_rules(self.tail)

    def _complete_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-6: c corrupt holders hold c shares of every secret."""
        yield (
            self.graph_bits == 0,
            f"graph_bits must be 0 on the complete graph, not {self.graph_bits}",
        )
        yield (
            self.threshold >= self.colluders + 1,
            (
                f"threshold must be at least {self.colluders + 1} (more than the "
                f"{self.colluders} colluders), not {self.threshold}"
            ),
        )

    def _ring_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-7, without the failure bounds."""
        t, k = self.threshold, self.degree
        yield (
            1 <= self.graph_bits <= MAX_GRAPH_BITS,
            (
                f"graph_bits must be between 1 and {MAX_GRAPH_BITS} on a ring, "
                f"not {self.graph_bits}"
            ),
        )
        yield (
            k % 2 == 0 and t <= k <= self.min_clients - 2,
            (
                "degree must be 0 (complete graph) or an even number between the "
                f"threshold {t} and min_clients - 2 = {self.min_clients - 2}, not {k}"
            ),
        )

    def _malicious_rules(self) -> Iterator[tuple[bool, str]]:
        """R3.2-8: two sets of t clients have an honest client in common."""
        yield (
            self.degree == 0,
            f"degree must be 0 in profile {self.profile.label}, not {self.degree}",
        )
        most = self.max_clients + self.colluders
        yield (
            2 * self.threshold > most,
            (
                f"threshold must be at least {most // 2 + 1} (more than half of "
                f"clients and colluders together), not {self.threshold}"
            ),
        )

    def _sparse_rules(self, tail: SparseParameters) -> Iterator[tuple[bool, str]]:
        """R3.2-9, without the failure bounds."""
        t, k = self.threshold, self.degree
        yield (
            1 <= tail.graph_bits <= MAX_GRAPH_BITS,
            f"graph_bits must be between 1 and {MAX_GRAPH_BITS}, not {tail.graph_bits}",
        )
        yield (
            self.max_clients <= MAX_SPARSE_CLIENTS,
            (
                f"max_clients must be at most {MAX_SPARSE_CLIENTS} in profile "
                f"{self.profile.label}, not {self.max_clients}"
            ),
        )
        yield (
            t <= k <= self.min_clients - 1,
            (
                f"degree must be between the threshold {t} and min_clients - 1 = "
                f"{self.min_clients - 1}, not {k}"
            ),
        )
        yield (
            k <= tail.in_cap <= MAX_IN_DEGREES * k,
            (
                f"in_cap must be between the degree {k} and {MAX_IN_DEGREES * k}, "
                f"not {tail.in_cap}"
            ),
        )
        least = max((self.max_clients + self.colluders) // 2 + 1, self.min_survivors)
        yield (
            least <= tail.quorum <= self.min_clients,
            (
                f"quorum must be between {least} and min_clients = {self.min_clients}, "
                f"not {tail.quorum}"
            ),
        )

    def _check_ring_bounds(self, demanded_bits: float) -> None:
        """R3.2-7: on the smallest roster, where the bound is the worst."""
        bits = bits_of(
            log_corrupt_holders(
                clients=self.min_clients,
                degree=self.degree,
                threshold=self.threshold,
                colluders=self.colluders,
            )
        )
        if bits < demanded_bits:
            raise _infeasible_error(
                f"on a ring of {self.min_clients} with degree {self.degree}, "
                f"{self.colluders} colluders reach a threshold of {self.threshold} "
                f"with probability 2^-{bits:.1f}; at most 2^-{demanded_bits:.2f} is "
                "allowed: raise threshold and degree, or assume fewer colluders"
            )

    def _check_edge_bounds(self, demanded_bits: float) -> None:
        """R3.2-9: on the smallest roster and on the largest one."""
        for clients in (self.min_clients, self.max_clients):
            shortcoming = self.edge_shortcoming(clients, demanded_bits)
            if shortcoming is not None:
                raise _infeasible_error(shortcoming)

    def edge_shortcoming(self, clients: int, demanded_bits: float) -> str | None:
        """Return why edges drawn by so many clients are not safe; None if they are.

        Args:
            clients: n.
            demanded_bits: Each of the two failure probabilities must be at most
                2^-demanded_bits.
        """
        bounds = self._edge_bounds(clients, demanded_bits)
        if self.threshold < bounds.least_threshold:
            return (
                f"of {clients} clients that draw {self.degree} others each, "
                f"{bounds.set_apart} may stand apart with "
                f"{bounds.corrupt_holders} colluders among the holders of each, "
                f"with probability above 2^-{demanded_bits:.2f}: threshold must be "
                f"at least {bounds.least_threshold}, not {self.threshold}"
            )
        # As many may be omitted from a sum without being noticed by its signers.
        least = self.min_survivors + bounds.set_apart
        if self.quorum < least:
            return (
                f"quorum must be at least {least} (min_survivors and "
                f"{bounds.set_apart} that may stand apart), not {self.quorum}"
            )
        return None

    def max_omitted(self, clients: int) -> int:
        """Return how many honest clients a lying server can omit from a sum.

        Args:
            clients: n.

        Returns:
            0 in every profile but malicious-server-sparse.  There the bound holds
                except with probability 2^-graph_bits.
        """
        if self.graph is not Graph.K_OUT:
            return 0
        return self._edge_bounds(clients, client_demand(self.graph_bits)).set_apart

    def _edge_bounds(self, clients: int, demanded_bits: float) -> EdgeBound:
        """Return the failure bounds of drawn edges for a size of the roster."""
        return edge_bound(
            clients=clients,
            degree=self.degree,
            colluders=self.colluders,
            losses=min(self.max_losses, clients - self.min_survivors),
            demanded_bits=demanded_bits,
        )

    def encode(self) -> bytes:
        """Return the canonical encoding (PROTOCOL §3.2)."""
        writer = Writer()
        writer.u16(_PROTOCOL_VERSION)
        writer.u16(self.profile)
        writer.u16(self.suite)
        writer.u64(self.modulus)
        writer.u64(self.dimension)
        for number in (
            self.min_clients,
            self.max_clients,
            self.threshold,
            self.degree,
            self.min_survivors,
            self.max_dropouts,
            self.max_losses,
            self.colluders,
        ):
            writer.u32(number)
        writer.u8(self.noise_layers)
        writer.blob(self.noise_block)
        self.deadlines.encode_into(writer)
        writer.blob(self.tail.encode())
        return writer.getvalue()

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode` wrote and validate it.

        Raises:
            RemoteProtocolError: BAD_VERSION for another protocol version,
                BAD_CONFIG for values that no session can have.
            CanonicalEncodingError: The bytes are not an encoding at all.
        """
        # R3.2-1
        version = reader.u16()
        if version != _PROTOCOL_VERSION:
            raise ErrorCode.BAD_VERSION.error(
                f"the peer uses protocol version {version}, "
                f"this release uses {_PROTOCOL_VERSION}",
                fix="Upgrade the older side.",
            )
        # R3.2-2
        profile, suite = reader.u16(), reader.u16()
        try:
            named_profile, named_suite = Profile(profile), CipherSuite(suite)
        except ValueError:
            raise ErrorCode.BAD_CONFIG.error(
                f"unknown profile {profile} or suite {suite:#06x}"
            ) from None
        modulus, dimension = reader.u64(), reader.u64()
        counts = [reader.u32() for _ in range(8)]
        noise_layers = reader.u8()
        noise_block = reader.blob(max_bytes=MAX_NOISE_BLOCK_BYTES)
        deadlines = RoundDeadlines.decode_from(reader)
        tail = _read_tail(reader.blob(max_bytes=MAX_TAIL_BYTES), named_profile)
        return cls(
            tail=tail,
            suite=named_suite,
            modulus=modulus,
            dimension=dimension,
            min_clients=counts[0],
            max_clients=counts[1],
            threshold=counts[2],
            degree=counts[3],
            min_survivors=counts[4],
            max_dropouts=counts[5],
            max_losses=counts[6],
            colluders=counts[7],
            noise_layers=noise_layers,
            noise_block=noise_block,
            deadlines=deadlines,
        ).validate()


def _read_tail(data: bytes, profile: Profile) -> Tail:
    """Read the profile's own parameters, to their last byte (R3.2-2)."""
    reader = Reader(data, f"tail of profile {profile.label}")
    tail = TAILS[profile].decode_from(reader)
    reader.end()
    return tail


def _infeasible_error(complaint: str) -> SecAggError:
    return ErrorCode.BAD_CONFIG.error(
        complaint, fix="Correct the configuration of the task."
    )
