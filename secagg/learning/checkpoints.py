"""Checkpoints of a training: one directory for each session whose sum was used.

Rule 1: a directory is written under another name, reaches the disk, and is renamed:
        one with its name is whole.
Rule 2: a step is computed once.  A sum that is given again, because its taker died,
        finds its directory, which is loaded.
Rule 3: a directory is of one task, one schema and one sum; others are refused.
Rule 4: it is for its owner alone: a model that is trained without noise may be in it.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from secagg.errors import ErrorCode, InputError
from secagg.learning.array_files import read_arrays_in, read_file, write_arrays
from secagg.learning.curve import TrainingStep
from secagg.learning.vectors import Flat
from secagg.runtime.files import disk, replace_file, sync_directory

_PREFIX: Final = "session-"
# Of the largest number of a session, so that names sort like numbers.
_DIGITS: Final = 20
_ARRAYS: Final = "arrays.npz"
_STATE: Final = "state.json"
# Own files, on this machine's disk: as large as memory allows.
_MAX_BYTES: Final = 1 << 36
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training after one step.

    Attributes:
        run: What must be alike in all checkpoints of a directory: task, schema, rule.
        sum_hash: Of the sum that the last step used.
        steps: All steps so far.
        arrays: The model and what its optimiser keeps, flat, by name.
    """

    run: Mapping[str, Any]
    sum_hash: str
    steps: tuple[TrainingStep, ...]
    arrays: Mapping[str, Flat]


class CheckpointDirectory:
    """The checkpoints of one training.

    Args:
        path: Where they are.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def newest(self) -> Checkpoint | None:
        """Return the last step's checkpoint; None before the first.

        Raises:
            ServiceError: STATE_DAMAGED or STORAGE_FAILED.
        """
        with disk(self.path):
            names = sorted(one.name for one in self.path.glob(f"{_PREFIX}*"))
            return self._read_checkpoint(self.path / names[-1]) if names else None

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, whole or not at all.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        number = checkpoint.steps[-1].session_number
        final = self.path / f"{_PREFIX}{number:0{_DIGITS}}"
        partial = self.path / f".{final.name}.partial"
        document = {
            "run": dict(checkpoint.run),
            "sum_hash": checkpoint.sum_hash,
            "steps": [asdict(step) for step in checkpoint.steps],
        }
        arrays, state = write_arrays(checkpoint.arrays), json.dumps(document, indent=1)
        with disk(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=_PRIVATE_DIRECTORY)
            replace_file(partial / _ARRAYS, arrays, mode=_PRIVATE_FILE)
            replace_file(partial / _STATE, state.encode(), mode=_PRIVATE_FILE)
            os.replace(partial, final)  # noqa: PTH105 - the name says what it does
            sync_directory(self.path)

    def _read_checkpoint(self, directory: Path) -> Checkpoint:
        """Return the checkpoint in a directory."""
        try:
            state = json.loads(
                read_file(directory / _STATE, max_bytes=_MAX_BYTES, what=_STATE)
            )
            arrays = read_arrays_in(
                directory / _ARRAYS, max_bytes=_MAX_BYTES, what=_ARRAYS
            )
            steps = tuple(TrainingStep(**step) for step in state["steps"])
            return Checkpoint(state["run"], state["sum_hash"], steps, arrays)
        except (InputError, ValueError, LookupError, TypeError):
            raise ErrorCode.STATE_DAMAGED.error(
                f"the checkpoint {directory} cannot be read",
                fix="Restore it, or choose an empty checkpoint_dir and a new task.",
            ) from None
