"""The demo's training: softmax regression on handwritten digits, and reference runs.

Rule 1: a client's update is the change that a few gradient steps on its own shard
        make; its L2 norm is clipped by the encoder, not here.
Rule 2: everything is deterministic, so that private and reference runs differ in
        nothing but clipping, rounding and noise.

scikit-learn ships the handwritten digits, which are distributed to clients.

Rule 3: only `split` imports scikit-learn, in the process that starts the others; a
        client reads its own shard from a file that no other client gets.
Rule 4: the preparation of a picture is fixed in advance and depends on no other
        picture, so it reveals nothing about other owners.
Rule 5: shards are unequal, as they are in practice.

Reference runs are the same training without privacy, and with noise that a trusted
party adds.

Rule 6: both runs use the functions of the private run, all clients, and the same number
        of steps.
Rule 7: the central run clips like the clients do.  It adds Gaussian noise of the exact
        deviation that the analytic Gaussian mechanism needs for the same budget.
Rule 8: a single run of the central mechanism varies; the accuracy reported is the mean
        of several.

They are references for the reader.  No release depends on them, so plain
floating-point Gaussians suffice here and nowhere else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode

CLASSES: Final = 10
# Eight by eight pixels and a constant.
_FEATURES: Final = 65
_TEST_PICTURES: Final = 360
MIN_PICTURES: Final = 8
_PIXEL_MAXIMUM: Final = 16.0
_MEAN_PIXEL: Final = 0.3
_SPREAD_SEED: Final = 20_240_501


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Pictures of one owner.

    Attributes:
        features: Shape (pictures, FEATURES), rows of norm close to one.
        labels: Shape (pictures,), digits 0 to 9.
    """

    features: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def split(clients: int) -> tuple[list[Shard], Shard]:
    """Split the digits into one shard per client and a test set.

    Args:
        clients: How many shards, 2 to 150.

    Returns:
        The shards, unequal in size, and pictures that no client holds.

    Raises:
        ServiceError: MISSING_EXTRA if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ErrorCode.MISSING_EXTRA.error(
            "the demo takes its digits from scikit-learn, which is not installed",
            fix="Run: pip install scikit-learn (it is the extra 'examples').",
        ) from None
    pixels, labels = load_digits(return_X_y=True)
    order = _fixed_order(len(labels))
    features = _features_of(np.asarray(pixels, dtype=np.float64)[order])
    labels = np.asarray(labels, dtype=np.int64)[order]
    training = len(labels) - _TEST_PICTURES
    cuts = _shard_ends(training, clients)
    shards = [
        Shard(features[start:stop], labels[start:stop])
        for start, stop in zip([0, *cuts[:-1]], cuts, strict=True)
    ]
    return shards, Shard(features[training:], labels[training:])


def save_shard(shard: Shard, path: Path) -> None:
    """Write one shard for its owner."""
    np.savez(path, features=shard.features, labels=shard.labels)


def load_shard(path: Path) -> Shard:
    """Read what `save_shard` wrote; nothing in it is executed."""
    with np.load(path, allow_pickle=False) as arrays:
        return Shard(arrays["features"], arrays["labels"])


def _features_of(pixels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the features of images, of norm 1."""
    centred = pixels / _PIXEL_MAXIMUM - _MEAN_PIXEL
    directions = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    constant = np.full((len(directions), 1), _MEAN_PIXEL)
    return np.concatenate([directions, constant], axis=1)


def _fixed_order(count: int) -> npt.NDArray[np.int64]:
    """Return a permutation that mixes the writers of the data set.

    Multiplication by a number without a common factor permutes; nothing here needs
    to be unpredictable, only the same everywhere.
    """
    stride = _SPREAD_SEED
    while np.gcd(stride, count) != 1:
        stride += 1
    return (np.arange(count, dtype=np.int64) * stride + count // 3) % count


def _shard_ends(total: int, clients: int) -> Sequence[int]:
    """Return the ends of shards whose sizes grow about fivefold from first to last."""
    weights = np.linspace(1.0, 5.0, clients)
    spare = total - clients * MIN_PICTURES
    sizes = MIN_PICTURES + np.floor(spare * weights / weights.sum()).astype(int)
    return [int(end) for end in np.cumsum(sizes)]


DIMENSION: Final = _FEATURES * CLASSES
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
        return cls(np.zeros((_FEATURES, CLASSES)))

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Read what `to_bytes` wrote: little-endian float64, row by row."""
        flat = np.frombuffer(payload, dtype="<f8")
        return cls(flat.reshape(_FEATURES, CLASSES).astype(np.float64))

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

    def after_step(
        self, total: npt.NDArray[np.float64], clients: int
    ) -> "SoftmaxModel":
        """Return the model after one step.

        Args:
            total: Sum of the clients' updates, shape (DIMENSION,), noisy or not.
            clients: How many updates the sum adds up.
        """
        change = total.reshape(_FEATURES, CLASSES) / clients
        return SoftmaxModel(self.weights + _SERVER_RATE * change)

    def accuracy_on(self, test: Shard) -> float:
        """Return the fraction of pictures that are recognised."""
        guesses = np.argmax(test.features @ self.weights, axis=1)
        return float(np.mean(guesses == test.labels))


_REPETITIONS: Final = 8


def reference_accuracies(
    shards: Sequence[Shard],
    test: Shard,
    *,
    steps: int,
    noise_stddev: float,
    entropy: Entropy,
) -> tuple[list[float], list[float]]:
    """Return accuracies after each step: without protection, and with central noise.

    Args:
        shards: One per client.
        test: Pictures that no client trained on.
        steps: Training steps.
        noise_stddev: Deviation of the central noise on the sum, per coordinate, in the
            units of the updates.
        entropy: Source of the noise.
    """
    runs = [
        _train(shards, test, steps, clip=L2_CLIP, noise=(noise_stddev, entropy))
        for _ in range(_REPETITIONS)
    ]
    mean = [float(np.mean(step)) for step in zip(*runs, strict=True)]
    return _train(shards, test, steps, clip=math.inf), mean


def _train(
    shards: Sequence[Shard],
    test: Shard,
    steps: int,
    *,
    clip: float,
    noise: tuple[float, Entropy] | None = None,
) -> list[float]:
    """Train on all shards in one place, and return the accuracy of each step."""
    model = SoftmaxModel.initial()
    accuracies = []
    for _ in range(steps):
        total = np.zeros(DIMENSION)
        for shard in shards:
            update = model.update_on(shard)
            total += update * min(1.0, clip / float(np.linalg.norm(update)))
        if noise is not None:
            stddev, entropy = noise
            total += stddev * _standard_normals(DIMENSION, entropy)
        model = model.after_step(total, len(shards))
        accuracies.append(model.accuracy_on(test))
    return accuracies


def _standard_normals(count: int, entropy: Entropy) -> npt.NDArray[np.float64]:
    """Draw by the method of Box and Muller."""
    words = np.frombuffer(entropy.token(16 * count), dtype="<u8").reshape(2, count)
    # 53 bits, shifted by half a step: never zero, so the logarithm is finite.
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)
    radius = np.sqrt(-2.0 * np.log(uniform[0]))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform[1]))
