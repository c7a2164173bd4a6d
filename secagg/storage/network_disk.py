"""Whether a directory lies on another machine: no place for a store in a file.

SQLite needs locks that hold and a log that is on the disk when it says so.  Network
file systems promise neither, and two machines that share one would both believe that
they have the store alone.
"""

import re
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        *("afs", "ceph", "cifs", "lustre", "nfs", "nfs4", "smb3", "smbfs"),
        *("fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    }
)
_MOUNT_POINT: Final = 4
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def refuse_network_disk(directory: Path) -> None:
    """Refuse a directory on a network file system; a system that says nothing passes.

    Args:
        directory: Of the store; what does not exist yet counts as what is above it.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    kind = _kind_of(directory.resolve())
    if kind in _NETWORK:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{directory} is on a network file system ({kind}), where a book in a file "
            "is not safe",
            fix="Keep state_dir on a disk of this machine, even if your home "
            "directory is not on one; what `secagg server` keeps may be in a database "
            "instead (server.store).",
        )


def _kind_of(path: Path) -> str:
    """Return the file system of a path, as `proc(5)` names it; empty if unknown."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return ""
    kind, depth = "", -1
    for line in lines:
        mounted, _, source = line.partition(" - ")
        escaped = mounted.split(" ")[_MOUNT_POINT]
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped))
        # Of two at one place the later one hides the other.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = source.partition(" ")[0], len(point.parts)
    return kind
