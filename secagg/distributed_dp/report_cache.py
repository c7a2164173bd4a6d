"""A task's privacy report, computed once: an accountant may take many seconds.

Rule 1: a report belongs to one noise block and to the exact sources that computed it.
        Any other block is computed again. So is the same block after any change of an
        accountant: no figure from before a fix is returned again.
Rule 2: only a party's own computation is cached, in its own directory. No statement of
        another party about epsilon is ever read from here.
Rule 3: a cache that is missing, damaged or on a full disk only costs time.
Rule 4: a directory keeps the latest few reports, one for each of the party's tasks, so
        that a peer with many blocks cannot fill the disk.
"""

import contextlib
import functools
import json
import sys
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.errors import ServiceError
from secagg.runtime.vector_files import write_json

_FILE: Final = "privacy-reports.json"
# A report has some two kilobytes; one client serves tens of tasks, not thousands.
_KEPT: Final = 32
_SOURCES: Final = ("dpnoise", "secagg.distributed_dp")


def privacy_report(
    task: NoisyTask, directory: Path, *, keep: bool = True
) -> PrivacyReport:
    """Return the report of a task, from the cache if these sources have computed it.

    Args:
        task: The task whose block decides.
        directory: State directory of the party.
        keep: Whether a new report is written to the cache; False changes no file.
    """
    if b'"own-' in task.parameters.noise_block:
        return task.report()  # no digest covers a program's own code
    path, key = directory / _FILE, _key_of(task)
    known = _read_reports(path)
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        document, digest = known[key]
        if digest == _digest_of(key, document):
            # The graph is not part of the noise block, and costs nothing to check.
            found = PrivacyReport.from_dict(document)
            return replace(found, graph_delta=task.graph_delta)
    report = task.report()
    if keep:
        known.pop(key, None)
        made = report.to_dict()
        newest = [*known.items(), (key, [made, _digest_of(key, made)])][-_KEPT:]
        with contextlib.suppress(ServiceError):
            write_json(path, dict(newest))
    return report


def _read_reports(path: Path) -> dict[str, Any]:
    """Return the stored reports by key; none of a file that is missing or damaged."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _digest_of(key: str, document: object) -> str:
    """Return what shows that a stored report was changed since it was computed."""
    return sha256(f"{key}{json.dumps(document, sort_keys=True)}".encode()).hexdigest()


def _key_of(task: NoisyTask) -> str:
    """Return a digest of everything that decides the report."""
    sources = accounting_digest().encode()
    return sha256(sources + b"\0" + task.parameters.noise_block).hexdigest()


@functools.cache
def accounting_digest() -> str:
    """Return a digest of all that decides a figure, except the task's own numbers.

    It covers the sources of accountants and reports, and the versions of NumPy and
    Python, so no version number has to be raised by hand. It takes some ten
    milliseconds, once in a process.
    """
    parts = [np.__version__, sys.version]
    for package in _SOURCES:
        parts += _sources(resources.files(package), package)
    return sha256("\0".join(parts).encode()).hexdigest()


def _sources(folder: Traversable, name: str) -> list[str]:
    """List path and digest of every source file below a folder, in order."""
    found: list[str] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"{name}/{entry.name}"
        if entry.is_dir():
            found += _sources(entry, path)
        elif entry.name.endswith(".py"):
            found += [path, sha256(entry.read_bytes()).hexdigest()]
    return found
