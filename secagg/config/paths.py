"""Files that one program reads and writes: each written file is distinct.

Rule 1: paths of a program differ pairwise.  Only files that are read for one purpose
        may be one file: a certificate and its key, or the payload of two tasks.
Rule 2: paths are compared as the system resolves them: links are followed, an existing
        file is known by its inode.  In a pattern, ``{session}`` stands for every
        number.
Rule 3: a state directory belongs to its state: no other file is written into it, and
        nothing in it is sent to a peer.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from secagg.config.client import ClientSettings
from secagg.config.common import DataSection, ProcessSection
from secagg.config.server import HostSection, HostSettings
from secagg.config.task import TaskSettings
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    SharingClientSettings,
)
from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.files import SESSION_PLACE
from secagg.storage.rollback_mark import default_mark, lock_of

_FILE_URL: Final = "file:"
# Keys of files that are read, and their purposes.
_PURPOSES: Final = {
    "ca": "tls",
    "certificate": "tls",
    "key": "tls",
    "private_key": "tls",
    "identity": "identity",
    "credential": "credential",
    "revoked": "revoked",
    "tasks_dir": "tasks",
}


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A file or directory, and the setting that names it.

    Attributes:
        name: The setting or option, such as ``tls.key``.
        path: As it was given; ``{session}`` in it stands for a number.
        purpose: Files that are read for one purpose may be one file; "" for none other.
        is_written: Whether the program makes it or writes it.
        is_sent: Whether its content leaves this host.
        is_state: Whether it is a directory in which only the state may write.
    """

    name: str
    path: Path
    purpose: str = ""
    is_written: bool = False
    is_sent: bool = False
    is_state: bool = False

    def may_share(self, other: "NamedPath") -> bool:
        """Return whether both may name one file."""
        if self.name == other.name:
            return True  # a directory and its own files, a mark and its lock
        if self.is_written or other.is_written:
            return False
        return self.purpose == other.purpose != ""


def client_paths(
    settings: ClientSettings,
    file: Path,
    *,
    inputs: Iterable[tuple[str, Path]] = (),
    outputs: Iterable[tuple[str, Path]] = (),
) -> list[NamedPath]:
    """Return every path that `secagg client` reads or writes.

    Args:
        settings: The client's.
        file: Their file.
        inputs: Files that options have it read, by option.
        outputs: Files that options have it write, by option.
    """
    return [
        *_section_paths(file, settings),
        *_state_paths(settings.client, settings.client.state_dir, "client"),
        *_claim_paths(settings.policy),
        *_option_paths(inputs, outputs),
    ]


def two_aggregator_paths(  # noqa: PLR0913 - settings, and what a part names beside
    settings: LeaderSettings | HelperSettings | SharingClientSettings,
    file: Path,
    *,
    inputs: Iterable[tuple[str, Path]] = (),
    outputs: Iterable[tuple[str, Path]] = (),
    states: Iterable[tuple[Path, Path | None]] = (),
    folders: Iterable[Path] = (),
) -> list[NamedPath]:
    """Return every path that a part of `secagg two-aggregators` reads or writes.

    Args:
        settings: The part's.
        file: Their file.
        inputs: Files that options have it read, by option.
        outputs: Files that options have it write, by option.
        states: State directory and rollback mark of each task of an aggregator.
        folders: As for `server_paths`.
    """
    if isinstance(settings, SharingClientSettings):
        own = settings.client
        state = [
            *_state_paths(own, own.state_dir, "client"),
            *_claim_paths(settings.policy),
        ]
    else:
        party = settings.server
        state = [
            *_state_paths(party, party.state_dir, "server"),
            *_admin_socket(party),
        ]
        for directory, mark in states:
            name = f"server.rollback_mark of task {directory.name}"
            state += _mark_paths(name, mark, directory)
    if isinstance(settings, LeaderSettings):
        for directory in (settings.server.output_dir, *folders):
            state += _sum_paths("server.output_dir", directory)
    return [*_section_paths(file, settings), *state, *_option_paths(inputs, outputs)]


def server_paths(
    settings: HostSettings,
    file: Path,
    tasks: Sequence[TaskSettings] = (),
    *,
    folders: Iterable[Path] = (),
) -> list[NamedPath]:
    """Return every path that `secagg server` reads or writes.

    Args:
        settings: The server's.
        file: Their file.
        tasks: Those in files.
        folders: Of their sums, where these do not lie in server.output_dir itself.
    """
    server = settings.server
    paths = [
        *_section_paths(file, settings),
        *_state_paths(server, server.state_dir, "server"),
    ]
    for directory in (server.output_dir, *folders):
        paths += _sum_paths("server.output_dir", directory)
    if settings.enrolment.revocations is not None:
        lists = settings.enrolment.revocations
        paths.append(NamedPath("enrolment.revocations", lists, "revocations"))
    paths += _admin_socket(server)
    if server.blobs is not None and server.blobs.startswith(_FILE_URL):
        blobs = Path(server.blobs.removeprefix(_FILE_URL))
        paths.append(NamedPath("server.blobs", blobs, is_written=True, is_state=True))
    for task in tasks:
        paths += _files_of(task)
    return paths


def refuse_shared_paths(paths: Iterable[NamedPath]) -> str:
    """Refuse a program that would overwrite one of its own files.

    Returns:
        What was compared, in a few words.

    Raises:
        ServiceError: BAD_SETTINGS; names both paths.
    """
    places = [_Place.of(each) for each in paths]
    for one, other in combinations(places, 2):
        if not one.named.may_share(other.named) and one.may_be(other):
            raise _shared_file_error(one.named, other.named)
        for file, state in ((one, other), (other, one)):
            if state.holds(file):
                inner, outer = file.named, state.named
                raise ErrorCode.BAD_SETTINGS.error(
                    f"{inner.name} {inner.path} lies in {outer.name} {outer.path}, "
                    "whose files are the state's own",
                    fix=f"Give {inner.name} a path outside it.",
                )
    return f"{len(places)} paths, none written over another"


# --- what a program names -------------------------------------------------------------


def _section_paths(file: Path, settings: Any) -> Iterator[NamedPath]:  # noqa: ANN401 - of any program
    """Yield the settings file, and the files that sections name as read."""
    yield NamedPath("--config", file)
    for part in dataclasses.fields(settings):
        section = getattr(settings, part.name)
        for key in dataclasses.fields(section):
            value = getattr(section, key.name)
            if isinstance(value, Path) and key.name in _PURPOSES:
                name = f"{part.name}.{key.name}"
                yield NamedPath(name, value, _PURPOSES[key.name])


def _files_of(task: TaskSettings) -> Iterator[NamedPath]:
    """Yield the files that the settings of a task name."""
    label = f"task {task.task.id!r}: "
    if task.task.payload is not None:
        payload = task.task.payload
        yield NamedPath(f"{label}task.payload", payload, "payload", is_sent=True)
    if task.enrolment.revocations is not None:
        lists = task.enrolment.revocations
        yield NamedPath(f"{label}enrolment.revocations", lists, "revocations")


def _state_paths(
    process: ProcessSection, directory: Path, section: str
) -> Iterator[NamedPath]:
    """Yield a state directory and its rollback mark."""
    name = f"{section}.state_dir"
    yield NamedPath(name, directory, is_written=True, is_state=True)
    yield from _mark_paths(f"{section}.rollback_mark", process.rollback_mark, directory)


def _admin_socket(server: HostSection) -> Iterator[NamedPath]:
    """Yield the socket of the operator, if it is set."""
    if server.admin_socket is not None:
        # It may lie beside the store, as it does by default; it replaces no file.
        yield NamedPath("server.admin_socket", server.admin_socket)


def _claim_paths(data: DataSection) -> Iterator[NamedPath]:
    """Yield the directory of shared claims and its mark."""
    if data.data_dir is None:
        return
    yield NamedPath("policy.data_dir", data.data_dir, is_written=True, is_state=True)
    given = data.data_rollback_mark
    yield from _mark_paths("policy.data_rollback_mark", given, data.data_dir)


def _mark_paths(name: str, given: Path | None, directory: Path) -> Iterator[NamedPath]:
    """Yield a rollback mark and its lock."""
    mark = given or default_mark(directory)
    yield NamedPath(name, mark, is_written=True)
    yield NamedPath(name, lock_of(mark), is_written=True)


def _sum_paths(name: str, directory: Path) -> Iterator[NamedPath]:
    """Yield an output directory and its files of each session."""
    yield NamedPath(name, directory, is_written=True)
    for file in ("sum-{}.npy", "report-{}.json", "receipt-{}.bin"):
        path = directory / file.format(SESSION_PLACE)
        yield NamedPath(name, path, is_written=True)


def _option_paths(
    inputs: Iterable[tuple[str, Path]], outputs: Iterable[tuple[str, Path]]
) -> Iterator[NamedPath]:
    """Yield the files that options name."""
    for option, path in inputs:
        yield NamedPath(option, path, "input", is_sent=True)
    for option, path in outputs:
        yield NamedPath(option, path, is_written=True)


# --- how paths are compared -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """The target of a path.

    Attributes:
        named: The path.
        resolved: With every link followed.
        spellings: It, and its part below the nearest existing directory.
        inodes: Of all that exists under it; of a pattern, of all its matches.
    """

    named: NamedPath
    resolved: Path
    spellings: frozenset[tuple[object, str]]
    inodes: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, named: NamedPath) -> "_Place":
        """Return all spellings of a path, as the system resolves it."""
        resolved = _resolved(named.path)
        spellings: set[tuple[object, str]] = {("", str(resolved))}
        anchor = next(each for each in (*resolved.parents, resolved) if _inode(each))
        rest = str(resolved.relative_to(anchor))
        spellings.add((_inode(anchor), rest))
        inodes = {_inode(each) for each in _existing(resolved)} - {None}
        return cls(
            named,
            resolved,
            frozenset(spellings),
            frozenset(each for each in inodes if each is not None),
        )

    def may_be(self, other: "_Place") -> bool:
        """Whether some number makes one file of both."""
        if self.inodes & other.inodes:
            return True
        return any(
            root == its_root and _overlap(rest, its_rest)
            for root, rest in self.spellings
            for its_root, its_rest in other.spellings
        )

    def holds(self, other: "_Place") -> bool:
        """Whether it is a state's directory, and the other a file written into it."""
        if not self.named.is_state or self.named.name == other.named.name:
            return False
        if not (other.named.is_sent or other.named.is_written):
            return False
        if other.named.is_state:
            return False  # such as uploads in their folder below the store
        return any(
            _overlap(str(self.resolved), str(each)) or _inode(each) in self.inodes
            for each in other.resolved.parents
        )


def _resolved(path: Path) -> Path:
    """Return a path without links; links in a circle lead nowhere."""
    try:
        return path.absolute().resolve()
    except (OSError, RuntimeError):  # links in a circle lead nowhere
        return path.absolute()


def _existing(path: Path) -> list[Path]:
    """Return what exists under a path; of a pattern, for every number."""
    if SESSION_PLACE not in str(path):
        return [path]
    parts = [re.sub(r"([*?[])", r"[\1]", each) for each in path.parts[1:]]
    pattern = str(Path(*parts)).replace(SESSION_PLACE, "*")
    try:
        found = list(Path(path.anchor).glob(pattern))
    except OSError:
        return []
    return [each for each in found if _overlap(str(path), str(each))]


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and number of a file; None for one that does not exist."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _overlap(one: str, other: str) -> bool:
    """Whether two names are one for some numbers in place of ``{session}``.

    Numbers are taken apart: what one session writes, a later one may read.
    """
    if SESSION_PLACE not in one + other:
        return one == other
    left, right = _symbols(one), _symbols(other)
    ends = (len(left), len(right))
    open_states, seen = [(0, 0)], {(0, 0)}
    while open_states:
        here = open_states.pop()
        if here == ends:
            return True
        for state in _next_states(left, right, here):
            if state not in seen:
                seen.add(state)
                open_states.append(state)
    return False


def _symbols(name: str) -> list[str]:
    """Split a name into characters; one digit and then any number for a place."""
    symbols: list[str] = []
    for index, piece in enumerate(name.split(SESSION_PLACE)):
        if index:
            symbols += [_DIGIT, _DIGITS]
        symbols += piece
    return symbols


_DIGIT: Final = "one digit"
_DIGITS: Final = "any digits"


def _next_states(
    left: list[str], right: list[str], here: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield where two automata stand after one common character, or after none."""
    at, its = here
    a = left[at] if at < len(left) else ""
    b = right[its] if its < len(right) else ""
    if a == _DIGITS:
        yield at + 1, its
    if b == _DIGITS:
        yield at, its + 1
    if a and b and _matches(a, b):
        yield at + (a != _DIGITS), its + (b != _DIGITS)


def _matches(a: str, b: str) -> bool:
    """Return whether two symbols may stand for one character."""
    places = (_DIGIT, _DIGITS)
    if a in places:
        return b in places or b.isdecimal()
    return a.isdecimal() if b in places else a == b


# --- messages -------------------------------------------------------------------------


def _shared_file_error(one: NamedPath, other: NamedPath) -> SecAggError:
    """Return the error for two settings that may name one file."""
    # The one that is written is the one to change.
    is_first = one.is_written and not other.is_written
    written, kept = (one, other) if is_first else (other, one)
    danger = (
        f"{written.name} would be written over it"
        if written.is_written
        else "each needs its own"
    )
    return ErrorCode.BAD_SETTINGS.error(
        f"{written.name} {written.path} and {kept.name} {kept.path} may be one file, "
        f"and {danger}",
        fix=f"Give {written.name} a path of its own.",
    )
