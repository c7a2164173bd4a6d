"""The same training without privacy, and with noise that a trusted party adds.

Rule 1: both runs use the functions of the private run, all clients, and the same number
        of steps.
Rule 2: the central run clips like the clients do.  It adds Gaussian noise of the exact
        deviation that the analytic Gaussian mechanism needs for the same budget.
Rule 3: a single run of the central mechanism varies; the accuracy reported is the mean
        of several.

The runs are references for the reader.  No release depends on them, so plain
floating-point Gaussians suffice here and nowhere else.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy
from secagg.testbed.demo.digits import Shard
from secagg.testbed.demo.softmax_model import DIMENSION, L2_CLIP, SoftmaxModel

_REPETITIONS: Final = 8


def nonprivate_accuracies(
    shards: Sequence[Shard], test: Shard, *, steps: int
) -> list[float]:
    """Return the accuracy after each step of training without any protection."""
    return _train(shards, test, steps=steps, clip=math.inf, noise_stddev=0.0)


def central_gaussian_accuracies(
    shards: Sequence[Shard],
    test: Shard,
    *,
    steps: int,
    noise_stddev: float,
    entropy: Entropy,
) -> list[float]:
    """Return the mean accuracy after each step with central Gaussian noise.

    Args:
        shards: One per client.
        test: Pictures that no client trained on.
        steps: Training steps.
        noise_stddev: Deviation of the noise on the sum, per coordinate, in the units of
            the updates.
        entropy: Source of the noise.
    """
    runs = [
        _train(
            shards,
            test,
            steps=steps,
            clip=L2_CLIP,
            noise_stddev=noise_stddev,
            entropy=entropy,
        )
        for _ in range(_REPETITIONS)
    ]
    return [float(np.mean(step)) for step in zip(*runs, strict=True)]


def _train(  # noqa: PLR0913 - the two runs differ in these
    shards: Sequence[Shard],
    test: Shard,
    *,
    steps: int,
    clip: float,
    noise_stddev: float,
    entropy: Entropy | None = None,
) -> list[float]:
    model = SoftmaxModel.initial()
    accuracies = []
    for _ in range(steps):
        total = np.zeros(DIMENSION)
        for shard in shards:
            update = model.update_on(shard)
            total += update * min(1.0, clip / float(np.linalg.norm(update)))
        if entropy is not None:
            total += noise_stddev * _standard_normals(DIMENSION, entropy)
        model = model.improved_by(total, len(shards))
        accuracies.append(model.accuracy_on(test))
    return accuracies


def _standard_normals(count: int, entropy: Entropy) -> npt.NDArray[np.float64]:
    """Draw by the method of Box and Muller."""
    words = np.frombuffer(entropy.token(16 * count), dtype="<u8").reshape(2, count)
    # 53 bits, shifted by half a step: never zero, so the logarithm is finite.
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)
    radius = np.sqrt(-2.0 * np.log(uniform[0]))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform[1]))
