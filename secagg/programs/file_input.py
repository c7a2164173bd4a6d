"""The input of `secagg client`: one vector from one file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from secagg.errors import InputError
from secagg.parameters import SessionDescriptor
from secagg.plain_sums import encode_integers
from secagg.programs.vector_files import load_vector

__all__ = ["FileInput"]


@dataclass(frozen=True, slots=True, eq=False)
class FileInput:
    """Supplies the same vector to every session.

    Attributes:
        path: Where it came from, for messages.
        values: Shape (d,), finite numbers.
    """

    path: Path
    values: npt.NDArray[Any] = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the vector once, so that a later change of the file is harmless.

        Raises:
            InputError: See `load_vector`.
        """
        return cls(path, load_vector(path))

    def check(self, offered: SessionDescriptor, dimension: int) -> None:
        """Refuse a session that cannot take this vector, before others wait for it.

        Raises:
            InputError: Another dimension, or not whole numbers in range for a task
                that releases exact sums.
        """
        if len(self.values) != dimension:
            raise InputError(
                f"{self.path} has {len(self.values)} entries, the task adds up "
                f"vectors of {dimension}",
                next_step="Supply a vector of that length.",
            )
        if not offered.parameters.noise_block:
            encode_integers(self.values, offered.parameters)

    def vector(self, descriptor: SessionDescriptor, payload: bytes) -> npt.NDArray[Any]:
        """Return the vector, whatever the payload says."""
        del descriptor, payload
        return self.values
