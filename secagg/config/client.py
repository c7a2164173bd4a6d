"""Settings of a client: its aggregator, its identity, and its own limits.

Rule 1: privacy limits exist here only (`PolicySection`); the server's sections describe
        a proposal that clients are free to refuse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config.common import ProgramSection, TLSSection
from secagg.config.loader import setting
from secagg.config.policy import CohortPolicySection, privacy_limits_of, total_of
from secagg.errors import ErrorCode
from secagg.pki.key_files import parse_key
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


@dataclass(frozen=True, slots=True)
class PolicySection(CohortPolicySection):
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
    max_revocation_days: float | None = setting(
        "Oldest revocation list, in profiles with credentials: older ones, and none at "
        "all, are refused. Empty for no limit.",
        default=None,
        low=0.01,
        high=3650.0,
        unit="days",
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
    total_of(settings.policy)
    privacy_limits_of(settings.policy)


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
