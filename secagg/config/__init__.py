"""Settings of the programs: file, environment and flags, in that order of weight."""

from secagg.config.loader import LoadedSettings, load_settings, setting
from secagg.config.settings import (
    ClientSettings,
    HostSettings,
    ServerSettings,
    TaskSettings,
    end_of_task,
    is_client_file,
    load_client_settings,
    load_host_settings,
    load_server_settings,
    load_task_settings,
    names_a_task,
    task_from_document,
)

__all__ = [
    "ClientSettings",
    "HostSettings",
    "LoadedSettings",
    "ServerSettings",
    "TaskSettings",
    "end_of_task",
    "is_client_file",
    "load_client_settings",
    "load_host_settings",
    "load_server_settings",
    "load_settings",
    "load_task_settings",
    "names_a_task",
    "setting",
    "task_from_document",
]
