"""A sum that two aggregators have released, as the leader returns it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.distributed_dp import AggregatorNoise, SumError, SumEstimate


@dataclass(frozen=True, slots=True)
class TwoAggregatorSum(SumEstimate):
    """A sum that two aggregators have released, with its error.

    Attributes:
        session_number: Number of the leader's session.
        session_id: Id of the leader's session.
        inputs: Number of vectors in the sum.
        ended: Time of the release, in Unix seconds of the leader's clock.
        sum_hash: SHA-256 of the packed residues, which clients receive as well.
        noise: The noise of the task when the session was opened.
        values: The estimate, shape (dim,), caller's units.
        residues: The noisy sum modulo m, shape (dimension,).
        error: How far `values` may be from the sum of the vectors, if both aggregators
            have added their noise.
    """

    session_number: int
    session_id: bytes
    inputs: int
    ended: int
    sum_hash: bytes
    noise: AggregatorNoise = field(repr=False)
    values: npt.NDArray[np.float64] = field(repr=False)
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    error: SumError = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the error from noise and inputs."""
        error = self.noise.sum_error(inputs=self.inputs)
        object.__setattr__(self, "error", error)

    def _cost(self) -> str:
        return self.noise.report().figures()

    def facts(self) -> dict[str, object]:
        """Return the fields of a report, as JSON values."""
        ended, budget = datetime.fromtimestamp(self.ended, UTC), self.noise.budget
        return {
            "session_number": self.session_number,
            "session_id": self.session_id.hex(),
            "released": ended.isoformat(timespec="seconds"),
            "inputs": self.inputs,
            "standard_error": self.standard_error,
            "no_interval": list(self.error.flaws),
            "dimension": self.noise.dim,
            "sum_hash": self.sum_hash.hex(),
            "charges_in_budget": budget.charges,
            "budget_epsilon": budget.epsilon,
            "budget_delta": budget.delta,
            "privacy": self.noise.report().to_dict(),
        }
