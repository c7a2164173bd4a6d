"""Settings of the programs: file, environment and flags, in rising priority.

The classes are the reference of all settings: `deploy/config/*.full.toml` lists exactly
their keys, and a test compares the two.
"""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".client": ("ClientSettings",),
    ".files": (
        "is_client_file",
        "load_client_settings",
        "load_host_settings",
        "load_server_settings",
        "load_task_settings",
        "names_a_task",
        "task_from_document",
    ),
    ".loader": ("LoadedSettings", "load_settings", "setting"),
    ".server": ("HostSettings", "ServerSettings"),
    ".task": ("TaskSettings", "end_of_task"),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
