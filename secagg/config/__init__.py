"""Settings of the programs: file, environment and flags, in that order of weight."""

from secagg.config.loader import LoadedSettings, load_settings, setting
from secagg.config.settings import (
    ClientSettings,
    ServerSettings,
    end_of_task,
    load_client_settings,
    load_server_settings,
)

__all__ = [
    "ClientSettings",
    "LoadedSettings",
    "ServerSettings",
    "end_of_task",
    "load_client_settings",
    "load_server_settings",
    "load_settings",
    "setting",
]
