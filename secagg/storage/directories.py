"""Directories that programs make for themselves."""

from pathlib import Path

from secagg.errors import ErrorCode, ServiceError


def new_directory(path: Path) -> Path:
    """Make a directory that was not there, readable by its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; it exists and is not empty, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as error:
        raise ServiceError(
            f"{path} cannot be used: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Choose another directory.",
        ) from None
    if not is_empty:
        raise ServiceError(
            f"{path} is not empty",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Choose a directory that does not exist yet.",
        )
    return path
