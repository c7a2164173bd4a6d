"""Where the files of one task lie, whatever its name contains."""

from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

__all__ = ["folder_of", "reports_of"]

# A file system allows 255 bytes, and a name should fit on a line.
_MAX_FOLDER: Final = 100


def folder_of(task_id: str) -> str:
    """Return the name of a task's folder: one step, and never a hidden one."""
    name = quote(task_id, safe="")
    if not name or len(name) > _MAX_FOLDER or name.startswith("."):
        return sha256(task_id.encode()).hexdigest()[:32]
    return name


def reports_of(state_dir: Path, task_id: str) -> Path:
    """Return where an aggregator keeps the privacy report of a task."""
    return state_dir / "tasks" / folder_of(task_id)
