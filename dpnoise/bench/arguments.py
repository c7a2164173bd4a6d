"""Arguments of experiments: the vectors of a cohort, and the keywords of plans.

* Vectors are spread over a sphere, all the same, or yours. On a sphere they are nearly
  orthogonal and their sum is short. All the same point of it is the largest sum that
  the clip allows. They bracket what happens.
* A callable gets a number that seeds whatever generator it likes.

Nothing here is private, and nothing is planned.
"""

import math
from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import InputError, ParameterError
from dpnoise.mechanisms.parameter_checks import check_choice
from dpnoise.planning import PlanRequest
from dpnoise.samplers import BitSource

Vectors: TypeAlias = NDArray[np.floating] | NDArray[np.integer]
"""One client's vector a row, caller's units."""


Inputs: TypeAlias = Literal["sphere", "same"] | Callable[[int], Vectors]
"""Uniform on the sphere of the clip, one point of it for all, or a function of a
64-bit seed that returns a matrix of shape (clients, dimension)."""

_LABEL: Final = b"dpnoise/v1/bench/inputs"
_UNIFORM_BITS: Final = 53


def cohort(
    inputs: Inputs, *, clients: int, dimension: int, l2_clip: float, seed: bytes
) -> Vectors:
    """Make the vectors of one sum.

    Args:
        inputs: What to make.
        clients: Rows.
        dimension: Columns.
        l2_clip: Norm of the vectors of "sphere" and "same".
        seed: 32 bytes; equal ones give equal vectors.

    Returns:
        Shape (clients, dimension), caller's units.

    Raises:
        InputError: The callable returned another shape.
        ParameterError: The name is unknown.
    """
    source = BitSource(seed, _LABEL)
    if callable(inputs):
        made: object = inputs(int(source.uint64(0, 1)[0]))
        if not isinstance(made, np.ndarray) or made.shape != (clients, dimension):
            raise InputError(
                f"inputs must return a matrix of shape ({clients}, {dimension}), got "
                f"{getattr(made, 'shape', type(made).__name__)}"
            )
        return made
    check_choice("inputs", inputs, ("sphere", "same"))
    rows = clients if inputs == "sphere" else 1
    points = _normals(source, rows * dimension).reshape(rows, dimension)
    points *= l2_clip / np.linalg.norm(points, axis=1, keepdims=True)
    return np.broadcast_to(points, (clients, dimension))


def _normals(source: BitSource, count: int) -> NDArray[np.float64]:
    """Draw normal numbers, after G. Box and M. Muller."""
    words = source.uint64(0, 2 * count) >> np.uint64(64 - _UNIFORM_BITS)
    # Midpoints of equal intervals: never 0, so the logarithm is finite.
    uniforms = (words.astype(np.float64) + 0.5) * 2.0**-_UNIFORM_BITS
    radii = np.sqrt(-2.0 * np.log(uniforms[:count]))
    return np.asarray(radii * np.cos(2.0 * math.pi * uniforms[count:]))


NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
"""Nothing beside the arguments."""


def plan_keywords(
    settings: Mapping[str, Any], *reserved: str, **arguments: object
) -> dict[str, Any]:
    """Join arguments and settings; neither may contradict the other.

    Args:
        settings: Further keywords of `dpnoise.plan`.
        reserved: Keywords that are decided elsewhere.
        arguments: Keywords that have an argument of their own.

    Raises:
        ParameterError: A setting has an argument of its own, or a plan has none such.
    """
    for name in settings:
        if name in arguments or name in reserved:
            raise ParameterError(
                f"{name} is an argument of its own here, not one of the settings",
                parameter="settings",
                value=name,
            )
        check_choice("settings", name, tuple(signature(PlanRequest).parameters))
    return arguments | dict(settings)
