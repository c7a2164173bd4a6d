"""Public parameters of a local randomiser: its name, vectors and privacy level.

* Two parties with equal parameters build the same randomiser.
* A malicious server may state the numbers, so each number has a limit.

`make_randomiser` builds the randomiser from them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from dpnoise.checks import check_integer, check_positive
from dpnoise.errors import ParameterError
from dpnoise.local.sphere_cap import MIN_EPSILON, check_epsilon
from dpnoise.mechanisms.parameter_checks import check_choice, read_fields

RANDOMISER_NAMES: Final = ("separated", "privunit2", "privunit-inf", "scalar-dp")
"""The names of all randomisers, the one for everyday vectors first."""

MAX_LOCAL_DIM: Final = 1 << 24
"""The arithmetic of caps is verified up to here; a draw takes seconds."""

_LARGEST_BOUND: Final = 2.0**400  # squares of it, and of its inverse, are floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameters:
    """What a local randomiser is built from.

    Args:
        randomiser: One of `RANDOMISER_NAMES`.
        dim: Coordinates of the caller's vector: at least 2 for `separated` and
            `privunit2`, exactly 1 for `scalar-dp`.
        bound: Largest L2 norm, caller's units; longer vectors are shortened to it. For
            `privunit-inf` the largest absolute entry; for `scalar-dp` the largest
            value, the smallest being 0.
        epsilon: Pure differential privacy of one release, nats, in [0.001, 1000].
        magnitude_epsilon: The part of it that `separated` spends on the norm; None for
            the others.

    Raises:
        ParameterError: A value is out of range, or belongs to another randomiser.
    """

    randomiser: str
    dim: int
    bound: float
    epsilon: float
    magnitude_epsilon: float | None = None

    def __post_init__(self) -> None:
        check_choice("randomiser", self.randomiser, RANDOMISER_NAMES)
        lowest = 2 if self.randomiser in {"separated", "privunit2"} else 1
        highest = 1 if self.randomiser == "scalar-dp" else MAX_LOCAL_DIM
        check_integer("dim", self.dim, lowest, highest)
        check_positive("bound", self.bound)
        if not 1.0 / _LARGEST_BOUND <= self.bound <= _LARGEST_BOUND:
            raise ParameterError.of("bound", self.bound, "must lie in [2^-400, 2^400]")
        check_epsilon("epsilon", self.epsilon)
        splits = self.randomiser == "separated"
        if splits != (self.magnitude_epsilon is not None):
            raise ParameterError(
                "magnitude_epsilon belongs to separated, and only to it",
                parameter="magnitude_epsilon",
                value=self.magnitude_epsilon,
                nearest=None if splits else "None",
            )
        if self.magnitude_epsilon is not None:
            magnitude = check_epsilon("magnitude_epsilon", self.magnitude_epsilon)
            if self.epsilon - magnitude < MIN_EPSILON:
                raise ParameterError(
                    f"magnitude_epsilon leaves less than {MIN_EPSILON:g} of epsilon "
                    "for the direction",
                    parameter="magnitude_epsilon",
                    value=magnitude,
                )

    def to_dict(self) -> dict[str, object]:
        """Return the parameters as JSON values, in the order of the fields."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, object]) -> Self:
        """Build parameters from what `to_dict` returned, or from a configuration.

        Args:
            entries: JSON values by field name; `magnitude_epsilon` may be missing.

        Raises:
            ParameterError: A key is unknown or missing, or a value cannot work.
        """
        values = read_fields(cls, entries, what="a set of local parameters")
        for name in ("bound", "epsilon", "magnitude_epsilon"):
            # JSON writers print 1.0 as 1, and equal numbers must stay equal.
            if isinstance(values.get(name), int):
                values[name] = check_positive(name, values[name])
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each one
