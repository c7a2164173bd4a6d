"""Settings of sums between two aggregators: the leader's, the helper's, a client's.

Rule 1: the task stands in the files of both aggregators, word for word: what differs
        makes offers that do not belong together, and no client answers them.
Rule 2: a client's file has its floors and both names, and nothing of the task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from secagg.config.loader import LoadedSettings, load_settings, setting
from secagg.config.program import ProcessSection, TLSSection
from secagg.config.total_budget import DataSection
from secagg.protocol.policy import GROUNDS
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorSection(ProcessSection):
    """One of the two aggregators."""

    name: str = setting("Its name, as its certificate has it.")
    listen: str = setting("Address and port to listen on, for example 0.0.0.0:7400.")
    health_listen: str | None = setting(
        "Address for health checks without TLS (grpc.health.v1), and nothing else; "
        "empty for none.",
        default=None,
    )
    metrics_listen: str | None = setting(
        "Address for /metrics (Prometheus), /healthz and /readyz, without TLS; empty "
        "for none. They name the task, never clients.",
        default=None,
    )
    revoked: Path | None = setting(
        "File of callers' certificates that were taken back, from `secagg pki revoke`; "
        "looked at once a minute. Empty for none.",
        default=None,
    )
    state_dir: Path = setting(
        "Book, shares and receipt.key; for this aggregator alone, and not where the "
        "other one can read.",
        default=Path("state"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaderSection(AggregatorSection):
    """The aggregator that releases the sums."""

    sums_dir: Path = setting(
        "Where sum-<n>.npy, report-<n>.json and receipt-<n>.bin of session n go.",
        default=Path("sums"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTaskSection:
    """The task, the same at both aggregators."""

    id: str = setting("Name of the task.")
    dimension: int = setting(
        "Numbers in a vector.", low=1, high=1 << 26, unit="numbers"
    )
    l2_clip: float = setting(
        "Longest vector, as an L2 norm; longer ones are shortened.", default=1.0, low=0
    )
    fixed_point_bits: int = setting(
        "Bits of one number of a vector, the sign among them.",
        default=16,
        low=2,
        high=26,
        unit="bits",
    )
    rho: float = setting(
        "zCDP of one sum against either aggregator, where one vector is replaced by "
        "another; it decides about the noise."
    )
    epsilon: float = setting(
        "What the task claims against either aggregator, over all sessions of one "
        "client."
    )
    delta: float = setting("Failure probability of that claim.")
    steps: int = setting(
        "Sums that the task is to release.", default=1, low=1, unit="sums"
    )
    participations: int | None = setting(
        "Most of these sums that hold the data of one client; clients give to no more. "
        "Empty means all steps.",
        default=None,
        low=1,
        unit="sums",
    )
    spare: int = setting(
        "Sessions of one client beyond its participations that may end without a sum.",
        default=0,
        low=0,
        unit="sessions",
    )
    min_survivors: int = setting(
        "Fewest vectors in a sum.", low=2, high=65_535, unit="clients"
    )
    max_clients: int = setting(
        "Most vectors in a sum.", low=2, high=65_535, unit="clients"
    )
    collect_seconds: int = setting(
        "How long shares are waited for.",
        default=300,
        low=1,
        high=MAX_DEADLINE_SECONDS,
        unit="seconds",
    )
    agree_seconds: int = setting(
        "How long the leader waits for the helper.",
        default=60,
        low=1,
        high=MAX_DEADLINE_SECONDS,
        unit="seconds",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSection(TLSSection):
    """An aggregator that is called, and the certificate it is called with."""

    name: str = setting("Its name, as its certificate has it.")
    address: str = setting("Its address and port.")
    receipt_key: str = setting(
        "What it signs receipts with, ed25519: and 64 digits, as it prints it at its "
        "start and its operator says it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallerSection:
    """Whose calls the helper takes for the leader's."""

    name: str = setting(
        "The leader's name, for which the helper's authority has issued the leader a "
        "client's certificate."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharingClientSection(ProcessSection):
    """The client process."""

    task: str = setting("Name of the task to take part in.")
    state_dir: Path = setting(
        "What was spent and given; must survive restarts.", default=Path("state")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharingPolicySection(DataSection):
    """Floors that no aggregator can lower."""

    max_epsilon: float = setting(
        "Largest epsilon over all sessions of the task, against either aggregator."
    )
    max_delta: float = setting("Largest failure probability of it.")
    grounds: tuple[str, ...] = setting(
        "Which grounds of an epsilon are accepted: proven, certified, numerical, "
        "recalled, each whatever its proof; published for proven or certified by a "
        "published proof. With published alone, theorems of this project are refused.",
        default=("proven", "certified"),
        choices=GROUNDS,
    )
    min_survivors: int = setting(
        "Fewest vectors in a sum.", low=2, high=65_535, unit="clients"
    )
    max_clients: int = setting(
        "Most vectors in a sum.", default=10_000, low=2, high=65_535, unit="clients"
    )
    suites: tuple[str, ...] = setting(
        "Cipher suites that are accepted: aes-256-ctr, aes-128-ctr.",
        default=("aes-256-ctr", "aes-128-ctr"),
    )
    max_dimension: int = setting(
        "Longest vector.", default=1 << 26, low=1, high=1 << 30, unit="entries"
    )
    max_modulus_bits: int = setting(
        "Widest entry.", default=62, low=1, high=62, unit="bits"
    )


@dataclass(frozen=True, slots=True)
class HelperSettings:
    """The helper's file."""

    aggregator: AggregatorSection
    tls: TLSSection
    leader: _CallerSection
    task: SharedTaskSection


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The leader's file."""

    aggregator: _LeaderSection
    tls: TLSSection
    helper: OtherSection
    task: SharedTaskSection


@dataclass(frozen=True, slots=True)
class SharingClientSettings:
    """A client's file."""

    client: _SharingClientSection
    leader: OtherSection
    helper: OtherSection
    policy: _SharingPolicySection


_Settings = TypeVar(
    "_Settings", bound=HelperSettings | LeaderSettings | SharingClientSettings
)


def load_two_server_settings(
    kind: type[_Settings],
    path: Path,
    *,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> LoadedSettings[_Settings]:
    """Load the settings of one part.

    Args:
        kind: `HelperSettings`, `LeaderSettings` or `SharingClientSettings`.
        path: TOML file.
        environment: The variables of the process.
        overrides: Flags of the form ``section.key=value``.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    return load_settings(kind, path=path, environment=environment, overrides=overrides)
