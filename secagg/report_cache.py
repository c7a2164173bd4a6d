"""A task's privacy report, computed once: an accountant may take many seconds.

Rule 1: a report belongs to one noise block and one release of this distribution.  Any
        other block, and any other release, is computed afresh.
Rule 2: only a party's own computation is kept, in its own directory.  Nothing that
        another party said about epsilon is ever read from here.
Rule 3: a cache that is missing, damaged or on a full disk costs time and nothing else.
Rule 4: one report per directory: whoever sends many blocks fills no disk.
"""

import contextlib
import json
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.distributed_dp import NoisedTask, PrivacyReport
from secagg.errors import ServiceError
from secagg.storage.vector_files import write_json

__all__ = ["privacy_report"]

_FILE: Final = "privacy-report.json"


def privacy_report(
    task: NoisedTask, directory: Path, *, keep: bool = True
) -> PrivacyReport:
    """Return the report of a task, from the disk if this release has computed it.

    Args:
        task: Whose block decides.
        directory: Of the party's state.
        keep: Whether a new report is written down; False changes no file.
    """
    path, key = directory / _FILE, _key_of(task)
    known = _read(path, key)
    if known is not None:
        # The graph is no part of the noise block, and costs nothing to judge again.
        return replace(known, graph_delta=task.graph_delta)
    report = task.report()
    if keep:
        with contextlib.suppress(ServiceError):
            write_json(path, {"key": key, "report": report.to_dict()})
    return report


def _read(path: Path, key: str) -> PrivacyReport | None:
    try:
        document = json.loads(path.read_bytes())
        if document["key"] != key:
            return None
        return PrivacyReport.from_dict(document["report"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _key_of(task: NoisedTask) -> str:
    """Return a digest of everything that decides the report."""
    release = metadata.version("secagg").encode()
    return sha256(release + b"\0" + task.parameters.noise_block).hexdigest()
