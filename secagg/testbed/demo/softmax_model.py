"""A small model: softmax regression, trained by federated averaging.

Rule 1: a client's update is the change that a few gradient steps on its own shard
        make; its L2 norm is clipped by the encoder, not here.
Rule 2: everything is deterministic, so that private and reference runs differ in
        nothing but clipping, rounding and noise.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from secagg.testbed.demo.digits import CLASSES, FEATURES, Shard

DIMENSION: Final = FEATURES * CLASSES
# Updates of a shard are a little longer than this in the first steps and shorter
# towards the end: clipping costs little accuracy, and the noise scales with it.
L2_CLIP: Final = 1.0
_LOCAL_STEPS: Final = 4
_LOCAL_RATE: Final = 4.0
_SERVER_RATE: Final = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxModel:
    """Weights of shape (FEATURES, CLASSES)."""

    weights: npt.NDArray[np.float64]

    @classmethod
    def initial(cls) -> Self:
        """Return the model that knows nothing."""
        return cls(np.zeros((FEATURES, CLASSES)))

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Read what `to_bytes` wrote: little-endian float64, row by row."""
        flat = np.frombuffer(payload, dtype="<f8")
        return cls(flat.reshape(FEATURES, CLASSES).astype(np.float64))

    def to_bytes(self) -> bytes:
        """Return the weights as the payload of a session."""
        return self.weights.astype("<f8").tobytes()

    def update_on(self, shard: Shard) -> npt.NDArray[np.float64]:
        """Return the change that one client proposes, shape (DIMENSION,)."""
        weights = self.weights.copy()
        targets = np.eye(CLASSES)[shard.labels]
        for _ in range(_LOCAL_STEPS):
            scores = np.exp(shard.features @ weights)
            probabilities = scores / scores.sum(axis=1, keepdims=True)
            gradient = shard.features.T @ (probabilities - targets) / len(shard)
            weights -= _LOCAL_RATE * gradient
        change: npt.NDArray[np.float64] = (weights - self.weights).ravel()
        return change

    def improved_by(
        self, total: npt.NDArray[np.float64], clients: int
    ) -> "SoftmaxModel":
        """Return the model after one step.

        Args:
            total: Sum of the clients' updates, shape (DIMENSION,), noisy or not.
            clients: How many updates the sum adds up.
        """
        change = total.reshape(FEATURES, CLASSES) / clients
        return SoftmaxModel(self.weights + _SERVER_RATE * change)

    def accuracy_on(self, test: Shard) -> float:
        """Return the fraction of pictures that are recognised."""
        guesses = np.argmax(test.features @ self.weights, axis=1)
        return float(np.mean(guesses == test.labels))
