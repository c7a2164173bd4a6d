"""Limits of privacy in the settings of a client: sections, and what they become.

`secagg client` and a node of Flower read the same limits here, so that neither lacks
one.  Nothing of a network is imported: a node needs none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from secagg.config.common import DataSection, clients_setting, total_budget
from secagg.config.loader import setting
from secagg.crypto.cipher_suite import CipherSuite
from secagg.errors import ErrorCode
from secagg.protocol.policy import (
    GROUNDS,
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection(DataSection):
    """Limits of clients of one aggregator and of two."""

    suites: tuple[str, ...] = setting(
        "Cipher suites that are accepted: aes-256-ctr, aes-128-ctr.",
        default=("aes-256-ctr", "aes-128-ctr"),
    )
    max_clients: int = clients_setting("Largest cohort.", default=10_000)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortPolicySection(LimitsSection):
    """Limits that no server can relax."""

    min_clients: int = clients_setting("Smallest cohort.", default=3)
    min_survivors: int = clients_setting("Fewest inputs in a released sum.", default=3)
    max_dropouts: int | None = clients_setting(
        "Most lost clients; empty for no cap beyond min_survivors.", default=None, low=0
    )
    require_noise: bool = setting("Refuse tasks that release exact sums.", default=True)
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
    min_local_noise_multiplier: float = setting(
        "The same over the longest vector that is not shortened: whatever the unit.",
        default=0.0,
        low=0.0,
        high=1e300,
    )
    max_local_epsilon: float | None = setting(
        "Largest epsilon of a whole task against a server that sees this client's "
        "vector without masks: demands a local randomiser. Empty for no such demand.",
        default=None,
        low=1e-3,
        high=1e9,
    )
    min_colluder_fraction: float | None = setting(
        "Part of every roster that the noise must take for colluders. An absolute "
        "number alone is thinned out by a larger roster, and inventing clients makes "
        "it larger. Empty means 0.1 in profiles that distrust the server, else 0.",
        default=None,
        low=0.0,
        high=0.999999,
    )


# How the names of limits of noise begin: without epsilon and delta none is compared.
_OF_NOISE: Final = ("grounds", "max_eps", "max_del", "max_loc", "min_loc", "min_coll")


def privacy_limits_of(section: CohortPolicySection) -> PrivacyLimits | ExactSumWaiver:
    """Return the privacy limits of a section, or the waiver written there.

    Raises:
        ServiceError: BAD_SETTINGS; noise is demanded or limited, and not how much.
    """
    limits = None
    if section.max_epsilon is not None and section.max_delta is not None:
        limits = PrivacyLimits(
            max_epsilon=section.max_epsilon,
            max_delta=section.max_delta,
            statuses=frozenset(section.grounds),
            min_local_noise_stddev=section.min_local_noise_stddev,
            min_local_noise_multiplier=section.min_local_noise_multiplier,
            min_colluder_fraction=section.min_colluder_fraction,
            max_local_epsilon=section.max_local_epsilon,
        )
    is_limited = any(
        getattr(section, each.name) != each.default
        for each in fields(CohortPolicySection)
        if each.name.startswith(_OF_NOISE)
    )
    if limits is None and (section.require_noise or is_limited):
        raise ErrorCode.BAD_SETTINGS.error(
            "policy.max_epsilon and policy.max_delta are not both set: a client that "
            "demands or limits noise has to say how much",
            fix="Set both under [policy], or require_noise = false and no limit of "
            "noise for tasks that release exact sums.",
        )
    if limits is not None and section.require_noise:
        return limits
    return ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT, noised=limits)


def total_of(section: CohortPolicySection) -> TotalBudget | None:
    """Return the total of a section; None if it has no total.

    Raises:
        ServiceError: BAD_SETTINGS; it is incomplete, or exact sums would evade it.
    """
    total = total_budget(section)
    if total is not None and not section.require_noise:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.data = {section.data!r} has a total, and require_noise = false "
            "lets tasks release sums of it that no epsilon bounds",
            fix="Leave require_noise out, or give data without a total.",
        )
    return total


def cohort_of(section: CohortPolicySection) -> ClientPolicy:
    """Return the limits of the cohort that a section states.

    Raises:
        ServiceError: BAD_SETTINGS for an unknown suite.
    """
    return ClientPolicy(
        suites=suites_of(section.suites),
        min_clients=section.min_clients,
        max_clients=section.max_clients,
        min_survivors=section.min_survivors,
        max_dropouts=section.max_dropouts,
        max_dimension=section.max_dimension,
        max_modulus_bits=section.max_modulus_bits,
        require_noise=section.require_noise,
    )


def suites_of(labels: Iterable[str]) -> frozenset[CipherSuite]:
    """Return the cipher suites of `policy.suites`.

    Raises:
        ServiceError: BAD_SETTINGS for an unknown one.
    """
    try:
        return frozenset(map(CipherSuite.from_label, labels))
    except ValueError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.suites: {error}", fix="Name only suites of that list."
        ) from None
