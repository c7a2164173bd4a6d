"""Settings of sums between two aggregators: the leader's, the helper's, a client's.

Rule 1: the files of both aggregators contain the same task.  A difference makes offers
        that do not match, and no client answers them.
Rule 2: a client's file has its limits and both names, and nothing of the task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from secagg.config.common import (
    ProcessSection,
    SeriesSection,
    TLSSection,
    clients_setting,
    deadline_setting,
)
from secagg.config.loader import LoadedSettings, load_settings, setting
from secagg.config.policy import LimitsSection
from secagg.config.server import AdmissionSection, HostSection, files_in
from secagg.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PartySection(HostSection):
    """One of the two aggregators."""

    name: str = setting("Its name, as its certificate has it.")
    state_dir: Path = setting(
        "receipt.key, and for each task a folder of tasks/ with store and shares; for "
        "this aggregator alone, and not where the other one can read.",
        default=Path("state"),
    )
    rollback_mark: Path | None = setting(
        "File outside state_dir and its backups that tells a state that was restored "
        "from the newest one; that of each task ends in its name. Empty for one under "
        "~/.local/state/secagg.",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaderSection(PartySection):
    """The aggregator that releases the sums."""

    output_dir: Path = setting(
        "Where sum-<n>.npy, report-<n>.json and receipt-<n>.bin are written; of a task "
        "that is not in this file, in a folder of its name.",
        default=Path("sums"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTaskSection(SeriesSection):
    """The task, the same at both aggregators."""

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
        "The task's claim against either aggregator, over all sessions of one client."
    )
    delta: float = setting("Failure probability of that claim.")
    spare_sessions: int = setting(
        "Sessions of one client beyond its participations that may end without a sum.",
        default=0,
        low=0,
        unit="sessions",
    )
    min_survivors: int = clients_setting("Fewest vectors in a sum.")
    max_clients: int = clients_setting("Most vectors in a sum.")
    collect_seconds: int = deadline_setting(
        "How long shares are waited for.", default=300
    )
    agree_seconds: int = deadline_setting("How long the leader waits for the helper.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSection(TLSSection):
    """An aggregator that is called, and the certificate it is called with."""

    name: str = setting("Its name, as its certificate has it.")
    address: str = setting("Its address and port.")
    receipt_key: str = setting(
        "The key that signs its receipts, ed25519: and 64 digits, as it prints it at "
        "its start and its operator confirms it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallerSection:
    """The client whose calls the helper accepts as the leader's."""

    name: str = setting(
        "The leader's name, for which the helper's authority has issued the leader a "
        "client's certificate."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharingClientSection(ProcessSection):
    """The client process."""

    task: str = setting("Name of the task to take part in.")
    state_dir: Path = setting(
        "Spent budget and assigned inputs; must survive restarts.",
        default=Path("state"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharingPolicySection(LimitsSection):
    """Limits that no aggregator can relax."""

    max_epsilon: float = setting(
        "Largest epsilon over all sessions of the task, against either aggregator."
    )
    max_delta: float = setting("Largest failure probability of it.")
    min_survivors: int = clients_setting("Fewest vectors in a sum.")


@dataclass(frozen=True, slots=True)
class HelperSettings:
    """The helper's file."""

    server: PartySection
    tls: TLSSection
    admission: AdmissionSection
    leader: _CallerSection
    task: SharedTaskSection


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The leader's file."""

    server: _LeaderSection
    tls: TLSSection
    admission: AdmissionSection
    helper: OtherSection
    task: SharedTaskSection


@dataclass(frozen=True, slots=True)
class SharingClientSettings:
    """A client's file."""

    client: _SharingClientSection
    leader: OtherSection
    helper: OtherSection
    policy: _SharingPolicySection


@dataclass(frozen=True, slots=True)
class _FurtherTask:
    """A file of `server.tasks_dir`."""

    task: SharedTaskSection


PartySettings: TypeAlias = HelperSettings | LeaderSettings

_Settings = TypeVar(
    "_Settings", bound=HelperSettings | LeaderSettings | SharingClientSettings
)


def load_two_aggregator_settings(
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
    loaded = load_settings(
        kind, path=path, environment=environment, overrides=overrides
    )
    if not isinstance(loaded.settings, SharingClientSettings):
        refuse_database(loaded.settings.server.store is not None)
    return loaded


def refuse_database(is_one: bool) -> None:  # noqa: FBT001 - the one thing that is asked
    """Refuse a store of a leader or helper that is not SQLite's.

    Args:
        is_one: Whether the store is in a database.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if is_one:
        raise ErrorCode.BAD_SETTINGS.error(
            "server.store names a database, and leader and helper keep seeds and "
            "shares in SQLite alone, which overwrites what is erased: row versions, "
            "logs and backups of a database keep it",
            fix="Leave server.store out.",
        )


def tasks_of_party(settings: PartySettings) -> tuple[SharedTaskSection, ...]:
    """Return the task of a party's own file, and those of ``server.tasks_dir``.

    Raises:
        ServiceError: BAD_SETTINGS; a file cannot be read, or two tasks have one name.
    """
    folder = settings.server.tasks_dir
    files = [] if folder is None else files_in(folder)
    further = (load_settings(_FurtherTask, path=each, environment={}) for each in files)
    tasks = (settings.task, *(each.settings.task for each in further))
    names = [each.id for each in tasks]
    if len(set(names)) < len(names):
        raise ErrorCode.BAD_SETTINGS.error(
            f"two tasks of one name are in the settings and in {folder}",
            fix="Give each task an id of its own; the same at both aggregators.",
        )
    return tasks
