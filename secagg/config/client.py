"""Settings of a client: its aggregator, its identity, and its own limits.

Rule 1: privacy limits exist here only (`PolicySection`); the server's sections describe
        a proposal that clients are free to refuse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config.common import DataSection, ProgramSection, TLSSection, total_budget
from secagg.config.loader import setting
from secagg.errors import ErrorCode
from secagg.pki.key_files import parse_key
from secagg.protocol.policy import GROUNDS
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS, Profile

_WITH_IDENTITIES: Final = tuple(
    profile.label for profile in Profile if profile.has_identities
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSection(ProgramSection):
    """The client process."""

    server: str = setting(
        "Address and port of the aggregator; the host must be in its certificate, "
        "unless aggregator is set."
    )
    task: str = setting("Name of the task to take part in.")
    aggregator: str | None = setting(
        "Name in the certificate of the one aggregator to accept, wherever it listens; "
        "empty for the one whose certificate has the host of server.",
        default=None,
    )
    state_dir: Path = setting(
        "One record per session, so that no input is ever sent twice; must survive "
        "restarts.",
        default=Path("client-state"),
    )
    sessions: int = setting(
        "How many sessions to take part in before stopping.",
        default=1,
        low=1,
        high=1_000_000,
        unit="sessions",
    )
    attempts: int = setting(
        "How often to try again in a row when a session is aborted or continues "
        "without this client.",
        default=3,
        low=1,
        high=1000,
        unit="attempts",
    )
    wait_seconds: float = setting(
        "How long to wait for the server to come up and open a session. A session "
        "that has not begun is waited for at least that long while the server is "
        "silent. The place in it is kept for the next start.",
        default=120.0,
        low=0.0,
        high=float(MAX_DEADLINE_SECONDS),
        unit="seconds",
    )
    answer_at: float | None = setting(
        "In tasks with noise, when the input leaves, as a part of the round of masked"
        " inputs. Zeros leave at the same time where the file cannot be used. Empty "
        "for as soon as it is ready.",
        default=None,
        low=0.01,
        high=0.99,
    )
    max_payload_bytes: int = setting(
        "Largest payload of a session that is fetched; it is held in memory.",
        default=1 << 30,
        low=0,
        high=1 << 40,
        unit="bytes",
    )
    keep_receipts_days: float = setting(
        "How long this client's receipts of ended sessions stay in state_dir.",
        default=400.0,
        low=1.0,
        high=36_500.0,
        unit="days",
    )


@dataclass(frozen=True, slots=True)
class IdentitySection:
    """The client's identity, and the key that verifies other clients.

    Required by profiles that distrust the server: all three or none.
    """

    identity: Path | None = setting(
        "Private key, identity.seed of `secagg pki identity`; no other user may read "
        "it. Empty for none.",
        default=None,
    )
    credential: Path | None = setting(
        "The issuer's credential for that key; empty for none.", default=None
    )
    enrolment_key: str | None = setting(
        "Public key of the issuer, ed25519: and 64 digits, as stated by the issuer "
        "and not by the aggregator; no other key is trusted. Empty for none.",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection(DataSection):
    """Limits of clients of one aggregator and of two."""

    suites: tuple[str, ...] = setting(
        "Cipher suites that are accepted: aes-256-ctr, aes-128-ctr.",
        default=("aes-256-ctr", "aes-128-ctr"),
    )
    max_clients: int = setting(
        "Largest cohort.", default=10_000, low=2, high=65_535, unit="clients"
    )
    max_dimension: int = setting(
        "Longest vector.", default=1 << 26, low=1, high=1 << 30, unit="entries"
    )
    max_modulus_bits: int = setting(
        "Widest entry.", default=62, low=1, high=62, unit="bits"
    )
    grounds: tuple[str, ...] = setting(
        "Which grounds of an epsilon are accepted: proven, certified, numerical, "
        "recalled, each whatever its proof; published for proven or certified by a "
        "published proof. With published alone, theorems of this project are refused.",
        default=("proven", "certified"),
        choices=GROUNDS,
    )


@dataclass(frozen=True, slots=True)
class PolicySection(LimitsSection):
    """Limits that no server can relax.  The client leaves a session below them."""

    profiles: tuple[str, ...] = setting(
        "Threat models that are accepted; malicious-server-sparse is experimental and "
        "unreviewed.",
        default=("honest-curious-server",),
    )
    graphs: tuple[str, ...] = setting(
        "Accepted graphs: complete, ring, k-out (drawn neighbours, in the profile "
        "malicious-server-sparse).",
        default=("complete",),
    )
    min_graph_bits: int = setting(
        "On a ring or with drawn neighbours, the session must be safe but for a chance "
        "of one in two to this.",
        default=40,
        low=1,
        high=128,
        unit="bits",
    )
    min_clients: int = setting(
        "Smallest cohort.", default=3, low=2, high=65_535, unit="clients"
    )
    min_survivors: int = setting(
        "Fewest inputs in a released sum.",
        default=3,
        low=2,
        high=65_535,
        unit="clients",
    )
    max_dropouts: int | None = setting(
        "Most lost clients; empty for no cap beyond min_survivors.",
        default=None,
        low=0,
        high=65_535,
        unit="clients",
    )
    min_colluders: int = setting(
        "Colluders that the session must tolerate.",
        default=0,
        low=0,
        high=65_535,
        unit="clients",
    )
    whole_roster: bool = setting(
        "On a ring, read the adverts of all clients and not only those of the "
        "neighbours.",
        default=False,
    )
    require_majority: bool = setting(
        "Demand a threshold above half of the cohort on the complete graph.",
        default=True,
    )
    require_noise: bool = setting("Refuse tasks that release exact sums.", default=True)
    max_revocation_days: float | None = setting(
        "Oldest revocation list, in profiles with credentials: older ones, and none at "
        "all, are refused. Empty for no limit.",
        default=None,
        low=0.01,
        high=3650.0,
        unit="days",
    )
    max_epsilon: float | None = setting(
        "Largest epsilon of a whole task, recomputed by this client; required while "
        "noise is required.",
        default=None,
        low=1e-6,
        high=1e4,
    )
    max_delta: float | None = setting(
        "Largest delta that goes with it.", default=None, low=1e-300, high=0.999999
    )
    min_local_noise_stddev: float = setting(
        "Least noise that this client itself adds to every entry, which protects it "
        "even if the server invents all other clients.",
        default=0.0,
        low=0.0,
        high=1e300,
        unit="caller's units",
    )
    max_local_epsilon: float | None = setting(
        "Largest epsilon of a whole task against a server that sees this client's "
        "vector without masks: demands a local randomiser. Empty for no such demand.",
        default=None,
        low=1e-3,
        high=1e9,
    )
    min_local_noise_multiplier: float = setting(
        "The same over the longest vector that is not shortened: whatever the unit.",
        default=0.0,
        low=0.0,
        high=1e300,
    )
    min_colluder_fraction: float | None = setting(
        "Part of every roster that the noise must take for colluders. An absolute "
        "number alone is thinned out by a larger roster, and inventing clients makes "
        "it larger. Empty means 0.1 in profiles that distrust the server, else 0.",
        default=None,
        low=0.0,
        high=0.999999,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All settings of `secagg client`."""

    client: ClientSection
    tls: TLSSection
    enrolment: IdentitySection
    policy: PolicySection


def check_client(settings: ClientSettings) -> None:
    """Refuse contradictory settings.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    _check_identity(settings)
    policy = settings.policy
    if total_budget(policy) is not None and not policy.require_noise:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.data = {policy.data!r} has a total, and require_noise = false "
            "lets tasks release sums of it that no epsilon bounds",
            fix="Leave require_noise out, or give data without a total.",
        )
    if policy.require_noise and (
        policy.max_epsilon is None or policy.max_delta is None
    ):
        raise ErrorCode.BAD_SETTINGS.error(
            "policy.max_epsilon and policy.max_delta are missing: a client that "
            "demands noise has to say how much",
            fix="Set both under [policy], or require_noise = false for tasks "
            "that release exact sums.",
        )


def _check_identity(settings: ClientSettings) -> None:
    """Refuse an identity in part, and a profile that needs one without it."""
    enrolment = settings.enrolment
    values = {
        "identity": enrolment.identity,
        "credential": enrolment.credential,
        "enrolment_key": enrolment.enrolment_key,
    }
    missing = [name for name, value in values.items() if value is None]
    signed = [name for name in settings.policy.profiles if name in _WITH_IDENTITIES]
    if enrolment.enrolment_key is not None:
        parse_key(enrolment.enrolment_key)
    if not missing or (len(missing) == len(values) and not signed):
        return
    needs = (
        f"the profile {signed[0]} needs"
        if signed
        else "the other settings of [enrolment] are half of"
    )
    raise ErrorCode.BAD_SETTINGS.error(
        f"enrolment.{missing[0]} is missing: {needs} an identity",
        fix="Make the key and the request with `secagg pki identity new`; ask "
        "the issuer for the enrolment key.",
    )
