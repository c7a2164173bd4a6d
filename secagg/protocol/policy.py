"""The limits that a client enforces against what the server proposes.

The client compares each proposal with its limits and leaves with POLICY_VIOLATION,
naming the limit (PROTOCOL §5.0).  No server setting can relax any of these.

A client has two kinds of limits.  The core enforces those of the cohort
(`ClientPolicy`).  Those of its privacy (`PrivacyLimits`) need `dpnoise` to evaluate;
`secagg.client` enforces them before a key is made.  A client without privacy limits
states that in words (`ExactSumWaiver`).
"""

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Final

from secagg.crypto.cipher_suite import CipherSuite
from secagg.errors import ErrorCode
from secagg.protocol.arguments import (
    as_path,
    check_kind,
    check_member,
    check_names,
    check_real,
    check_whole,
    did_you_mean,
    validates_arguments,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import Profile

NO_NOISE_ACKNOWLEDGEMENT: Final = (
    "I understand that the sum itself is released without noise"
)

GROUNDS: Final = ("proven", "certified", "numerical", "recalled", "published")
"""Words for how an epsilon may be known; no client accepts a hypothetical one."""
# A published proof adds nothing to a figure that is merely evaluated or recalled.
_PROOF_DECIDES: Final = frozenset({"proven", "certified"})
# 2^-40 for each session stays below 2^-26 over ten thousand of them.
_DEFAULT_MIN_GRAPH_BITS: Final = 40
COLLUDER_FRACTION: Final = 0.1
"""Fraction of a roster that noise assumes to collude in profiles that distrust the
server.  A larger roster thins every share, and an absolute number would not grow
with it.
"""
# A phone can hold a few vectors of 2^26 eight-byte words; so can a laptop.
_DEFAULT_MAX_DIMENSION: Final = 1 << 26
_MAX_DATA_NAME: Final = 200
"""Largest number of characters of a name that operators choose and read."""


@validates_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPolicy:
    """The limits of one client.

    Attributes:
        profiles: Threat models that the client accepts.
        suites: Algorithms that the client accepts.
        aggregators: Names of the servers that the client accepts; None for every one
            that its connection trusts.
        graphs: Accepted graphs.  The ring is weaker: it is safe except with a
            probability, and only against dropouts that are independent of it.
        min_graph_bits: On a ring, the session must state at least this many bits.
        min_clients: Smallest roster that the client shares with.
        max_clients: Largest roster that the client computes for.
        min_survivors: Smallest sum, in number of inputs, that the client unmasks.
        max_dropouts: Most dropped clients (U2 to U3) that the client unmasks; None for
            no limit beyond `min_survivors`.
        min_colluders: The session must tolerate at least this many colluders.
        require_majority: On the complete graph the threshold must exceed n/2, so that
            two disjoint groups cannot both rebuild secrets.
        whole_roster: On a ring, read all adverts and not only those of the neighbours.
            No client has to: it adds only checks of keys and names that the client
            shares nothing with.
        max_dimension: Longest vector that the client masks.
        max_modulus_bits: Widest coordinate that the client masks.
        require_noise: Refuse sessions that release an exact sum.

    Raises:
        LocalProtocolError: A value that no session could be compared with, such as a
            text in place of a set.
    """

    profiles: frozenset[Profile] = frozenset({Profile.HONEST_CURIOUS_SERVER})
    suites: frozenset[CipherSuite] = frozenset(CipherSuite)
    aggregators: frozenset[str] | None = None
    graphs: frozenset[Graph] = frozenset({Graph.COMPLETE})
    min_graph_bits: int = _DEFAULT_MIN_GRAPH_BITS
    min_clients: int = 3
    max_clients: int = 10_000
    min_survivors: int = 3
    max_dropouts: int | None = None
    min_colluders: int = 0
    require_majority: bool = True
    whole_roster: bool = False
    max_dimension: int = _DEFAULT_MAX_DIMENSION
    max_modulus_bits: int = 62
    require_noise: bool = True

    def __post_init__(self) -> None:
        """Refuse limits that no session meets, or that every session meets."""
        kinds: dict[str, type[Enum]] = {
            "profiles": Profile,
            "suites": CipherSuite,
            "graphs": Graph,
        }
        for name, kind in kinds.items():
            members = _members_of(name, getattr(self, name), kind)
            checked = frozenset(check_member(name, each, kind) for each in members)
            object.__setattr__(self, name, checked)
        if self.aggregators is not None:
            named = check_names("aggregators", self.aggregators)
            object.__setattr__(self, "aggregators", named)
        for name in _COUNTS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(name, value, least=0))
        for name in ("require_majority", "whole_roster", "require_noise"):
            check_kind(name, getattr(self, name), bool, make="True or False")

    def check(self, offer: SessionDescriptor) -> None:
        """Compare a proposal with every limit.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the limit and both values.
                Stay out of the session, or change the policy on purpose.
        """
        known = self.aggregators is None or offer.aggregator in self.aggregators
        accepted = (known, f"aggregator {offer.aggregator!r} is not accepted")
        for holds, complaint in (accepted, *self._rules(offer.parameters)):
            if not holds:
                raise ErrorCode.POLICY_VIOLATION.error(
                    f"the session breaks this client's policy: {complaint}",
                    fix="Ask the operator for other parameters, or give this "
                    "client another ClientPolicy if that is what you want.",
                    at_command="Ask the operator for other parameters, or change "
                    "[policy] in the client's settings if that is what you want.",
                )

    def _rules(self, proposed: ProtocolParameters) -> tuple[tuple[bool, str], ...]:
        """Return each rule of the policy: whether it holds, and what is wrong."""
        return (
            (
                proposed.profile in self.profiles,
                f"profile {proposed.profile.label} is not accepted",
            ),
            (
                proposed.suite in self.suites,
                f"suite {proposed.suite:#06x} is not accepted",
            ),
            (
                proposed.graph in self.graphs,
                f"the {proposed.graph} graph is not accepted",
            ),
            (
                proposed.is_complete_graph
                or proposed.graph_bits >= self.min_graph_bits,
                (
                    f"graph_bits is {proposed.graph_bits}, at least "
                    f"{self.min_graph_bits} is demanded"
                ),
            ),
            (
                proposed.min_clients >= self.min_clients,
                (
                    f"min_clients is {proposed.min_clients}, at least "
                    f"{self.min_clients} is demanded"
                ),
            ),
            (
                proposed.max_clients <= self.max_clients,
                (
                    f"max_clients is {proposed.max_clients}, at most "
                    f"{self.max_clients} is accepted"
                ),
            ),
            (
                proposed.min_survivors >= self.min_survivors,
                (
                    f"min_survivors is {proposed.min_survivors}, at least "
                    f"{self.min_survivors} is demanded"
                ),
            ),
            (
                self.max_dropouts is None or proposed.max_dropouts <= self.max_dropouts,
                (
                    f"max_dropouts is {proposed.max_dropouts}, at most "
                    f"{self.max_dropouts} is accepted"
                ),
            ),
            (
                proposed.colluders >= self.min_colluders,
                (
                    f"colluders is {proposed.colluders}, at least {self.min_colluders} "
                    "is demanded"
                ),
            ),
            (
                not self.require_majority
                or not proposed.is_complete_graph
                or 2 * proposed.threshold > proposed.max_clients,
                (
                    f"threshold {proposed.threshold} is no majority of "
                    f"{proposed.max_clients} clients; at least "
                    f"{proposed.max_clients // 2 + 1} is demanded"
                ),
            ),
            (
                proposed.dimension <= self.max_dimension,
                (
                    f"dimension is {proposed.dimension}, at most {self.max_dimension} "
                    "is accepted"
                ),
            ),
            (
                proposed.bits <= self.max_modulus_bits,
                (
                    f"coordinates have {proposed.bits} bits, at most "
                    f"{self.max_modulus_bits} are accepted"
                ),
            ),
            (
                bool(proposed.noise_block) or not self.require_noise,
                "the task releases the sum without noise",
            ),
        )


_COUNTS: Final = tuple(
    each.name for each in fields(ClientPolicy) if each.name.startswith(("min_", "max_"))
)


def _members_of(name: str, value: object, kind: type[Enum]) -> tuple[object, ...]:
    """Return the members of a collection; refuse a single member given alone."""
    if isinstance(value, frozenset | set | list | tuple):
        return tuple(value)
    check_member(name, value, kind)  # suggests the closest member
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{name} must be a set, got one member", fix=f"Give {name}={{{value}}}."
    )


def colluder_fraction_of(profile: Profile) -> float:
    """Return the default fraction of a roster that noise assumes to collude."""
    if profile is Profile.HONEST_CURIOUS_SERVER:
        return 0.0  # there the server does not invent clients
    return COLLUDER_FRACTION


@validates_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyLimits:
    """The privacy that one client requires; it computes the figures itself.

    Attributes:
        max_epsilon: Largest epsilon of a whole task, against the server.
        max_delta: Largest delta of a whole task.
        statuses: Accepted statuses of the proof of an epsilon: `proven`, `certified`,
            `numerical`, `recalled`, each whatever its proof.  `published` is proven or
            certified by a theorem whose proof is published.
        min_local_noise_stddev: The client's own noise in the caller's units, which
            protects it even if the server invents all other clients.  For a moving
            clip, the noise under the smallest clip of the task.
        min_local_noise_multiplier: The same over the longest vector that is not
            shortened, whatever its unit: no choice of clips changes it.
        min_colluder_fraction: Fraction of every roster that the noise must assume to
            collude; None for `COLLUDER_FRACTION` in profiles that distrust the server,
            and 0 otherwise.  A task that assumes an absolute number thins every share
            on a larger roster, and inventing clients makes it larger.
        max_local_epsilon: Largest epsilon of a whole task against a server that breaks
            the masks; requires a local randomiser.  None for no such limit.

    Raises:
        LocalProtocolError: A value bounds nothing, or `statuses` has a word that is
            not one of `GROUNDS`.
    """

    max_epsilon: float
    max_delta: float
    statuses: frozenset[str] = frozenset({"proven", "certified"})
    min_local_noise_stddev: float = 0.0
    min_local_noise_multiplier: float = 0.0
    min_colluder_fraction: float | None = None
    max_local_epsilon: float | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing, and words that no figure is known by."""
        limits = {
            "max_epsilon": check_real("max_epsilon", self.max_epsilon, above=0.0),
            "max_delta": check_real("max_delta", self.max_delta, least=0.0, below=1.0),
        }
        for name in ("min_local_noise_stddev", "min_local_noise_multiplier"):
            limits[name] = check_real(name, getattr(self, name), least=0.0)
        if (part := self.min_colluder_fraction) is not None:
            name = "min_colluder_fraction"
            limits[name] = check_real(name, part, least=0.0, below=1.0)
        if (local := self.max_local_epsilon) is not None:
            name = "max_local_epsilon"
            limits[name] = check_real(name, local, above=0.0)
        for name, value in limits.items():
            object.__setattr__(self, name, value)
        words = check_names("statuses", self.statuses)
        for word in sorted(words - {*GROUNDS}):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"statuses must be of {', '.join(GROUNDS)}, not {word!r}",
                fix=did_you_mean(word, GROUNDS),
            )
        object.__setattr__(self, "statuses", words)

    def accepts(self, *, status: str, proof: str) -> bool:
        """Return whether the client accepts a figure of this status.

        Args:
            status: How the figure is known, as `PrivacyStatement.status`.
            proof: Whether its proof is published, as `PrivacyStatement.proof`.
        """
        by_publication = status in _PROOF_DECIDES and proof == "published"
        return status in self.statuses or (
            by_publication and "published" in self.statuses
        )

    def colluder_fraction(self, profile: Profile) -> float:
        """Return the fraction of a roster assumed to collude in a profile."""
        if self.min_colluder_fraction is not None:
            return self.min_colluder_fraction
        return colluder_fraction_of(profile)


@validates_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TotalBudget:
    """What all tasks together may cost the data that they use.

    Attributes:
        data: Name of the data, chosen by their owner; no server learns it.  Tasks that
            use other data have another one.
        epsilon: Of all tasks together, against the adversary that `PrivacyLimits` name.
        delta: Of all tasks together.
        directory: Directory of the claims, one for all clients that use these data;
            None for the state of this client alone.
        rollback_mark: File outside `directory` that detects claims restored from a
            backup; by default one under the user's persistent state.

    Raises:
        LocalProtocolError: A value is not possible for a total.
    """

    data: str
    epsilon: float
    delta: float
    directory: Path | None = None
    rollback_mark: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        name: object = self.data
        if not isinstance(name, str) or not (
            name.isprintable() and 0 < len(name) <= _MAX_DATA_NAME
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the name of the data must have 1 to {_MAX_DATA_NAME} printable "
                "characters",
                fix="Choose one name for the same data, and keep it.",
            )
        limits = {
            "epsilon": check_real("epsilon", self.epsilon, above=0.0),
            "delta": check_real("delta", self.delta, above=0.0, below=1.0),
        }
        for field, value in limits.items():
            object.__setattr__(self, field, value)
        for field in ("directory", "rollback_mark"):
            place = as_path(field, getattr(self, field))
            object.__setattr__(self, field, place)


@dataclass(frozen=True, slots=True)
class ExactSumWaiver:
    """A waiver of privacy limits, in words.

    An exact sum hides single inputs and nothing else: differences of two sums, or a sum
    of similar inputs, can reveal a person.

    Attributes:
        sentence: `NO_NOISE_ACKNOWLEDGEMENT`, written out by the person who takes the
            responsibility.
        noised: Limits for tasks that nevertheless have noise; None for no limits.

    Raises:
        LocalProtocolError: Another sentence.
    """

    sentence: str
    noised: PrivacyLimits | None = None

    def __post_init__(self) -> None:
        """Refuse anything but the whole sentence."""
        if self.sentence != NO_NOISE_ACKNOWLEDGEMENT:
            raise ErrorCode.LOCAL_MISUSE.error(
                "exact sums are accepted with one sentence and no other",
                fix=f'Write "{NO_NOISE_ACKNOWLEDGEMENT}", or give PrivacyLimits(...).',
            )
        if self.noised is not None:
            check_kind(
                "noised", self.noised, PrivacyLimits, make="PrivacyLimits(...) or None"
            )
