"""A disk that keeps what was synced and nothing else: the power fails.

A shim in front of SQLite's file system records a file's content at each sync that
SQLite asks for.  It is registered in the library that the interpreter has loaded, so it
sees the calls of the product's own connections.
"""

import ctypes
import os
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
# Where the tables of SQLite's `sqlite3_vfs` and `sqlite3_io_methods` hold a function.
_VFS_BYTES, _OPEN = 21 * _POINTER, 5 * _POINTER
_METHODS_BYTES, _SYNC = 19 * _POINTER, 5 * _POINTER
_OPENED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)
_SYNCED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


def _library() -> str | None:
    """Return the path of the SQLite library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.rpartition(" ")[2]
        if "libsqlite3" in path:
            return path
    return None


def shares_a_sqlite_library() -> bool:
    """Whether the interpreter's SQLite is a library that others can load, too."""
    return sqlite3.sqlite_version != "" and _library() is not None


class PowerCut:
    """Records SQLite's files as synced to disk, from `__enter__` to `__exit__`.

    Connections that are opened in the block are watched until they are closed.

    Attributes:
        syncs: How many syncs SQLite has asked for.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self._synced: dict[Path, bytes] = {}
        self._descriptors: dict[Path, int] = {}
        self._path_of: dict[int, Path] = {}
        self._kept: list[object] = []  # what SQLite holds pointers to
        self._sqlite: Any = None
        self._vfs: Any = None

    def __enter__(self) -> Self:
        """Put the shim in front of the default file system."""
        self._sqlite = sqlite = ctypes.CDLL(_library())
        sqlite.sqlite3_vfs_find.restype = ctypes.c_void_p
        sqlite.sqlite3_vfs_register.argtypes = [ctypes.c_void_p, ctypes.c_int]
        sqlite.sqlite3_vfs_unregister.argtypes = [ctypes.c_void_p]
        real = sqlite.sqlite3_vfs_find(None)
        self._vfs = vfs = ctypes.create_string_buffer(
            ctypes.string_at(real, _VFS_BYTES), _VFS_BYTES
        )
        name = ctypes.create_string_buffer(b"power cut")
        ctypes.c_void_p.from_buffer(vfs, 3 * _POINTER).value = ctypes.addressof(name)
        place = ctypes.c_void_p.from_buffer(vfs, _OPEN)
        opened = self._watching(_OPENED(place.value or 0), real)
        place.value = ctypes.cast(opened, ctypes.c_void_p).value
        self._kept += [name, opened]
        sqlite.sqlite3_vfs_register(ctypes.addressof(vfs), 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the shim."""
        self._sqlite.sqlite3_vfs_unregister(ctypes.addressof(self._vfs))
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def write_remaining(self, directory: Path, into: Path) -> None:
        """Write the files of a directory as they lie on the disk after a power cut now.

        Args:
            directory: Where SQLite has written.
            into: A directory, made here.
        """
        into.mkdir()
        for path, content in self._synced.items():
            # What was removed stays so: a journal that came back would be replayed.
            if path.parent == directory and path.exists():
                (into / path.name).write_bytes(content)

    def _watching(self, really: Any, real: int) -> Any:
        def opened(
            _: int, name: bytes | None, file: int, flags: int, result: int
        ) -> int:
            code = int(really(real, name, file, flags, result))
            if code == 0 and name is not None:
                self._watch(file, Path(os.fsdecode(name)))
            return code

        return _OPENED(opened)

    def _watch(self, file: int, path: Path) -> None:
        self._path_of[file] = path
        held = ctypes.c_void_p.from_address(file)
        methods = ctypes.create_string_buffer(
            ctypes.string_at(held.value or 0, _METHODS_BYTES), _METHODS_BYTES
        )
        place = ctypes.c_void_p.from_buffer(methods, _SYNC)
        really = _SYNCED(place.value or 0)

        def synced(of: int, flags: int) -> int:
            code = int(really(of, flags))
            if code == 0:
                self._record(self._path_of[of])
            return code

        noted = _SYNCED(synced)
        place.value = ctypes.cast(noted, ctypes.c_void_p).value
        self._kept += [methods, noted]
        held.value = ctypes.addressof(methods)

    def _record(self, path: Path) -> None:
        self.syncs += 1
        # Kept open: closing a descriptor would drop the locks of this process.
        if path not in self._descriptors:
            self._descriptors[path] = os.open(path, os.O_RDONLY)
        descriptor = self._descriptors[path]
        self._synced[path] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
