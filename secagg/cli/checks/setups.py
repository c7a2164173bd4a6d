"""Setups of each part: its settings files, as its checks read them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from secagg.cli.checks.connectivity import ConnectivityCheck
from secagg.config import (
    ClientSettings,
    HostSettings,
    TaskSettings,
    has_task_section,
    is_client_file,
    load_client_settings,
    load_host_settings,
    load_server_settings,
    load_task_settings,
)
from secagg.config.common import TLSSection
from secagg.config.files import is_file_of_two_aggregators, party_of
from secagg.config.server import files_in
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    PartySettings,
    SharedTaskSection,
    SharingClientSettings,
    load_two_aggregator_settings,
    tasks_of_party,
)
from secagg.errors import ErrorCode
from secagg.transport.peer_identity import Role

C = TypeVar("C", ClientSettings, SharingClientSettings)
Certificates: TypeAlias = list[tuple[TLSSection, Role]]


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """Setup of `secagg server`.

    Attributes:
        file: Its settings file.
        host: Its settings.
        tasks: Those in files that are checked.
        owner: A line about the aggregator that runs with them; None for none.
        accepts_restored: Whether a restored state is accepted.
    """

    file: Path
    host: HostSettings
    tasks: Sequence[TaskSettings] = ()
    owner: str | None = None
    accepts_restored: bool = False

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark; None for the mark by default."""
        own = self.host.server
        return [(own.state_dir, own.rollback_mark)]

    @property
    def certificates(self) -> Certificates:
        """Files of the certificates that it shows, and its role under each."""
        return [(self.host.tls, Role.SERVER)]


@dataclass(frozen=True, slots=True)
class GivingSetup(Generic[C]):
    """Setup of a client of either kind.

    Attributes:
        file: Its settings file.
        settings: The client's.
        vector: The file of --input; None for the doctor, which is handed none.
        describe_input: Reads and describes it; None where it is read later.
        outputs: Files to be written, by the option that names them.
        accepts_restored: Whether a restored state is accepted.
    """

    file: Path
    settings: C
    vector: Path | None = None
    describe_input: Callable[[], str] | None = None
    outputs: Mapping[str, Path] = field(default_factory=dict)
    accepts_restored: bool = False

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark; None for the mark by default."""
        own = self.settings.client
        return [(own.state_dir, own.rollback_mark)]

    @property
    def inputs(self) -> list[tuple[str, Path]]:
        """Files to be read, by the option that names them."""
        return [] if self.vector is None else [("--input", self.vector)]


@dataclass(frozen=True, slots=True)
class ClientSetup(GivingSetup[ClientSettings]):
    """Setup of `secagg client`.

    Attributes:
        connectivity: Connectivity checks of the aggregator.
        task_file: The file of --tasks; None without.
        beside: With it, the clients of the other tasks, for one of them all.
    """

    connectivity: ConnectivityCheck | None = None
    task_file: Path | None = None
    beside: Sequence["ClientSetup"] = ()

    @property
    def certificates(self) -> Certificates:
        """Files of the certificates that it shows, and its role under each."""
        return [(self.settings.tls, Role.CLIENT)]

    def to_aggregator(self) -> ConnectivityCheck:
        """Return the connectivity checks, one object for all checks of the peer."""
        if self.connectivity is None:
            raise ErrorCode.INTERNAL.error(
                "a setup without a connection has no remote checks"
            )
        return self.connectivity


class SharingSetup(GivingSetup[SharingClientSettings]):
    """Setup of a client of two aggregators."""

    @property
    def certificates(self) -> Certificates:
        """Files of the certificates that it shows, and its role under each."""
        return [
            (each, Role.CLIENT) for each in (self.settings.leader, self.settings.helper)
        ]


@dataclass(frozen=True, slots=True)
class PartySetup:
    """Setup of the leader or the helper of two aggregators.

    Attributes:
        file: Its settings file.
        settings: The party's.
        owner: A line about the aggregator that runs with them; None for none.
        accepts_restored: Whether a restored state is accepted.
    """

    file: Path
    settings: PartySettings
    owner: str | None = None
    accepts_restored: bool = False

    @property
    def tasks(self) -> tuple[SharedTaskSection, ...]:
        """The tasks of its file and of server.tasks_dir."""
        return tasks_of_party(self.settings)

    @property
    def places(self) -> list[tuple[Path, Path | None]]:
        """State directory and rollback mark of each task."""
        from secagg.two_aggregators.program import state_of

        return [state_of(self.settings.server, each.id) for each in self.tasks]

    @property
    def host(self) -> PartySettings:
        """The settings of its process, under the name that a server's have."""
        return self.settings

    @property
    def certificates(self) -> Certificates:
        """Files of the certificates that it shows, and its role under each."""
        own: Certificates = [(self.settings.tls, Role.SERVER)]
        if isinstance(self.settings, LeaderSettings):
            own.append((self.settings.helper, Role.CLIENT))
        return own


Setup: TypeAlias = ServerSetup | ClientSetup | PartySetup | SharingSetup


def load_setup(path: Path, overrides: Sequence[str] = ()) -> Setup:
    """Load the settings of any part, without the tasks of an aggregator.

    Args:
        path: The settings file; its sections say whose it is.
        overrides: As for `doctor_results`.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    given: dict[str, Any] = {"environment": os.environ, "overrides": overrides}
    if is_file_of_two_aggregators(path):
        two = load_two_aggregator_settings(SharingClientSettings, path, **given)
        return SharingSetup(path, two.settings)
    if is_client_file(path):
        one = load_client_settings(path, **given).settings
        return ClientSetup(path, one, connectivity=ConnectivityCheck(one))
    kind = party_of(path)
    if kind is LeaderSettings:
        leader = load_two_aggregator_settings(LeaderSettings, path, **given)
        return PartySetup(path, leader.settings)
    if kind is not None:
        helper = load_two_aggregator_settings(HelperSettings, path, **given)
        return PartySetup(path, helper.settings)
    return ServerSetup(path, load_host_settings(path, **given).settings)


def tasks_of(
    path: Path, host: HostSettings, overrides: Sequence[str]
) -> list[TaskSettings]:
    """Return the tasks of the file itself and of the folder of tasks."""
    tasks: list[TaskSettings] = []
    if has_task_section(path):
        loaded = load_server_settings(path, environment=os.environ, overrides=overrides)
        tasks.append(loaded.settings.own_task)
    return tasks + tasks_in_folder(host)


def tasks_in_folder(host: HostSettings) -> list[TaskSettings]:
    """Return the tasks of ``server.tasks_dir``, in the order of their files' names.

    Raises:
        ServiceError: BAD_SETTINGS; the folder or a file of it cannot be read.
    """
    folder = host.server.tasks_dir
    if folder is None:
        return []
    return [load_task_settings(each) for each in files_in(folder)]
