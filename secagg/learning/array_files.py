"""Arrays by name in numpy's ``.npz`` format, written alike and read with limits.

Rule 1: nothing in a file is ever executed: no pickles, no objects.
Rule 2: sizes are added up from what a file declares before anything is unpacked, and
        nothing is read beyond them.  A few kilobytes may unpack to gigabytes.
Rule 3: the same arrays give the same bytes.
"""

import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode, InputError

Array = npt.NDArray[Any]

# Models have hundreds of arrays; the list of a file's members is read before anything.
_MAX_ARRAYS: Final = 10_000
# The head of one array: 128 bytes for up to some 20 sides.
_HEAD_BYTES: Final = 4096
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SUFFIX: Final = ".npy"


def write_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of an ``.npz`` file, the arrays in the order of their names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays, key=str.encode):
            with archive.open(
                zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True
            ) as member:
                np.lib.format.write_array(
                    member, np.asarray(arrays[name]), allow_pickle=False
                )
    return buffer.getvalue()


def read_arrays(data: bytes, *, max_bytes: int, what: str) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file by their names.

    Args:
        data: The file.
        max_bytes: Most bytes that the arrays may take.
        what: Subject of the sentence in the error.

    Raises:
        InputError: It is no such file, has too much in it, or arrays of other things
            than numbers.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, max_bytes=max_bytes, what=what)
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(_SUFFIX)
                    arrays[name] = _read_array(stream, member.file_size)
            return arrays
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - zipfile and numpy raise many kinds
        raise _unreadable_error(what) from None


def read_arrays_in(path: Path, *, max_bytes: int, what: str) -> dict[str, Array]:
    """Return the arrays of a file; see `read_file` and `read_arrays`."""
    data = read_file(path, max_bytes=max_bytes, what=what)
    return read_arrays(data, max_bytes=max_bytes, what=what)


def read_array(data: bytes, *, what: str) -> Array:
    """Return the array of an ``.npy`` file.

    Args:
        data: The file.
        what: Subject of the sentence in the error.

    Raises:
        InputError: It is no such file.
    """
    try:
        return _read_array(io.BytesIO(data), len(data))
    except Exception:  # noqa: BLE001 - numpy parses the head as Python
        raise ErrorCode.BAD_INPUT.error(
            f"{what} is not a plain .npy file of numbers",
            fix="Write it with numpy.save(path, vector).",
        ) from None


def read_file(path: Path, *, max_bytes: int, what: str) -> bytes:
    """Return the bytes of a regular file that another program has written.

    Args:
        path: The file; a link is not followed.
        max_bytes: Most bytes that it may have.
        what: Subject of the sentence in the error.

    Raises:
        InputError: It is missing, is no regular file, or is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ErrorCode.BAD_INPUT.error(
            f"{what} was not written", fix="Write it before the program ends."
        ) from None
    except OSError:
        raise ErrorCode.BAD_INPUT.error(
            f"{what} is not a regular file that can be read",
            fix="Write the file itself, and no link.",
        ) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ErrorCode.BAD_INPUT.error(
                f"{what} is not a regular file", fix="Write a file of numbers."
            )
        # One byte more shows that it still grows.
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            data = stream.read(min(found.st_size, max_bytes) + 1)
    finally:
        os.close(descriptor)
    if len(data) > min(found.st_size, max_bytes):
        raise ErrorCode.BAD_INPUT.error(
            f"{what} has more than {max_bytes} bytes, or is still being written",
            fix="Write the arrays of the model and nothing else.",
        )
    return data


def _check_members(
    members: list[zipfile.ZipInfo], *, max_bytes: int, what: str
) -> None:
    """Refuse a file with too many, too large or doubled arrays."""
    names = {member.filename for member in members}
    if len(members) > _MAX_ARRAYS or len(names) != len(members):
        raise ErrorCode.BAD_INPUT.error(
            f"{what} has more than {_MAX_ARRAYS} arrays, or two of one name",
            fix="Write each array once.",
        )
    if any(
        not member.filename.endswith(_SUFFIX) or member.compress_type not in _METHODS
        for member in members
    ):
        raise _unreadable_error(what)
    declared = sum(member.file_size for member in members)
    if declared > max_bytes + _HEAD_BYTES * len(members):
        raise ErrorCode.BAD_INPUT.error(
            f"{what} unpacks to {declared} bytes, expected at most {max_bytes}",
            fix="Write the arrays of the model and nothing else.",
        )


def _read_array(stream: IO[bytes], size: int) -> Array:
    """Read one array from a stream of `size` bytes.

    Raises:
        Exception: Its head is not of numbers, or states another size.
    """
    version = np.lib.format.read_magic(stream)
    read_head = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, is_fortran, dtype = read_head(stream, max_header_size=_HEAD_BYTES)
    if dtype.hasobject or dtype.kind not in "iufb":
        raise ValueError("it holds no numbers")
    body = stream.read(size)
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ValueError("it states another size")
    array = np.frombuffer(body, dtype)
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def _unreadable_error(what: str) -> InputError:
    """Return the error of a file without numbers."""
    return ErrorCode.BAD_INPUT.error(
        f"{what} is not an .npz file of numbers",
        kind=InputError,
        fix="Write it with numpy.savez(path, **arrays).",
    )
