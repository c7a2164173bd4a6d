"""Files of vectors, payloads and reports, of clients and aggregators.

Rule 1: an input is one row of numbers in numpy's ``.npy`` format; nothing in a file is
        ever executed.
Rule 2: a file appears whole or not at all (`secagg.runtime.files`).
Rule 3: an existing file is only ever replaced by the same result.
Rule 4: reports, receipts and payloads are their owner's alone: they name clients.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode
from secagg.protocol.arguments import as_vector
from secagg.runtime.files import PUBLIC, replace_with

_PRIVATE: Final = 0o600


def load_vector(path: Path) -> npt.NDArray[Any]:
    """Read one client's input.

    Returns:
        A one-dimensional array of finite numbers.

    Raises:
        InputError: The file is missing, is not a ``.npy`` file, or holds something else
            than one row of finite numbers.
    """
    try:
        with path.open("rb") as stream:
            # np.load would also open archives and other formats.
            loaded = np.lib.format.read_array(stream, allow_pickle=False)
    except OSError as error:
        raise ErrorCode.BAD_INPUT.error(
            f"the input {path} cannot be read: {error.strerror}",
            fix="Check the path, and who may read it.",
        ) from None
    except MemoryError:  # its head may claim any size
        raise ErrorCode.BAD_INPUT.error(
            f"the header of the input {path} states more entries than fit into memory",
            fix="Write it with numpy.save(path, vector).",
        ) from None
    except (ValueError, EOFError):
        raise ErrorCode.BAD_INPUT.error(
            f"the input {path} is not a plain .npy file of numbers",
            fix="Write it with numpy.save(path, vector).",
        ) from None
    return as_vector(loaded, name=f"the input {path}")


def write_vector(path: Path, vector: npt.NDArray[Any]) -> None:
    """Write a vector in numpy's format, whole or not at all.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    _replace(path, lambda stream: np.save(stream, vector, allow_pickle=False))


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON document for people and programs, whole or not at all.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False)
    write_bytes(path, f"{text}\n".encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a payload, whole or not at all.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    _replace(path, lambda stream: stream.write(data), mode=_PRIVATE)


def _replace(
    path: Path, save: Callable[[IO[bytes]], object], *, mode: int = PUBLIC
) -> None:
    """Replace a file, or say why its directory refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_with(path, save, mode=mode)
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} cannot be written: {error.strerror}",
            fix="Check the directory, its owner and the free space; no "
            "client's data were lost.",
        ) from None
