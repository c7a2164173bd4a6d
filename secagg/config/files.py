"""Settings files: their programs and their contents, cross-checked.

Rule 1: a task stands in the file of the aggregator that runs it or in one of its own.
Rule 2: the environment may hold variables of the other program; a file may not hold its
        sections.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from secagg.config.client import ClientSettings, check_client
from secagg.config.common import TLSSection
from secagg.config.loader import (
    LoadedSettings,
    load_settings,
    sections_in,
    settings_from,
)
from secagg.config.server import HostSettings, ServerSettings
from secagg.config.task import TaskSettings, check_task
from secagg.config.two_aggregators import HelperSettings, LeaderSettings
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity

_TASK_SECTIONS: Final = tuple(each.name for each in dataclasses.fields(TaskSettings))
# The task's section, which the aggregator also reads for its HTTP edge.
_HOST_SECTIONS: Final = tuple(
    each.name
    for each in dataclasses.fields(HostSettings)
    if each.name not in _TASK_SECTIONS
)
_ONLY_TASK_SECTIONS: Final = tuple(set(_TASK_SECTIONS) - {"enrolment"})
_CLIENT_SECTIONS: Final = ("client", "policy")


def load_server_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[ServerSettings]:
    """Load and cross-check the settings of an aggregator and the task in its file.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        ServerSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections=_CLIENT_SECTIONS,
    )
    check_task(loaded.settings, origins=loaded.origins)
    return loaded


def load_host_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[HostSettings]:
    """Load the settings of an aggregator; a task in its file is ignored.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    return load_settings(
        HostSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections=(*_ONLY_TASK_SECTIONS, *_CLIENT_SECTIONS),
        passed_over=_ONLY_TASK_SECTIONS,
    )


def load_task_settings(path: Path) -> TaskSettings:
    """Load and cross-check one task, from a file of its own or an aggregator's.

    Environment and flags are ignored: the file alone defines a task.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        TaskSettings, path=path, environment={}, passed_over=_HOST_SECTIONS
    )
    check_task(loaded.settings, origins=loaded.origins)
    return loaded.settings


def task_from_document(document: Mapping[str, object], *, origin: str) -> TaskSettings:
    """Read what `TaskSettings.document` returned, and cross-check it.

    Args:
        document: Sections and their keys.
        origin: Where it comes from, for messages.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = settings_from(TaskSettings, document, origin=origin)
    check_task(loaded.settings, origins=loaded.origins)
    return loaded.settings


def load_client_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[ClientSettings]:
    """Load and cross-check the settings of a client.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        ClientSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections={*_HOST_SECTIONS, *_TASK_SECTIONS} - {"tls", "enrolment"},
    )
    check_client(loaded.settings)
    return loaded


def has_task_section(path: Path) -> bool:
    """Whether a settings file has a task in it.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return "task" in sections_in(path)


def is_file_of_two_aggregators(path: Path) -> bool:
    """Whether a client's settings file names two aggregators.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return {"leader", "helper"} <= sections_in(path)


def party_of(path: Path) -> type[LeaderSettings] | type[HelperSettings] | None:
    """Return which of two aggregators a file configures; None for neither.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    sections = sections_in(path)
    if "server" not in sections or not sections & {"leader", "helper"}:
        return None
    return LeaderSettings if "helper" in sections else HelperSettings


def is_client_file(path: Path) -> bool:
    """Whether a settings file is a client's, not an aggregator's.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return "client" in sections_in(path)


def identity_of(files: TLSSection, role: Role, *, quiet: bool = False) -> TLSIdentity:
    """Load the files that [tls] names; see `TLSIdentity.load`.

    Raises:
        ServiceError: BAD_CERTIFICATE; names the file and what is wrong.
    """
    return TLSIdentity.load(
        certificate=files.certificate,
        private_key=files.key,
        authority=files.ca,
        role=role,
        quiet=quiet,
    )
