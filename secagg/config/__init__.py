"""Settings of the programs: file, environment and flags, in that order of weight.

The classes are the reference of what can be set: `deploy/config/*.full.toml` lists
exactly their keys, and a test compares the two.
"""

from secagg.config.client import ClientSettings
from secagg.config.files import (
    is_client_file,
    load_client_settings,
    load_host_settings,
    load_server_settings,
    load_task_settings,
    names_a_task,
    task_from_document,
)
from secagg.config.loader import LoadedSettings, load_settings, setting
from secagg.config.server import HostSettings, ServerSettings
from secagg.config.task import TaskSettings, end_of_task

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
