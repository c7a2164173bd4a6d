"""A folder name for a task, whatever its name contains."""

from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

# A file system allows 255 bytes, and a name should fit on a line.
_MAX_FOLDER: Final = 100
# The folder of one task may lie among the files of another
# (`secagg.server.sum_writer`).
_FILES: Final = (".npy", ".json", ".bin")


def folder_of(task_id: str) -> str:
    """Return a folder name for a task: its own, escaped as in a URL, or a hash.

    A hash follows `=`, which no escaped name holds: no task can be named like it.
    """
    name = quote(task_id, safe="")
    if (
        not 0 < len(name) <= _MAX_FOLDER
        or name.startswith(".")
        or name.endswith(_FILES)
    ):
        return "=" + sha256(task_id.encode()).hexdigest()[:32]
    return name


def privacy_folder_of(state_dir: Path, task_id: str) -> Path:
    """Return where an aggregator keeps the privacy report of a task."""
    return state_dir / "tasks" / folder_of(task_id)
