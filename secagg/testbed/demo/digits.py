"""The handwritten digits that scikit-learn ships, distributed to clients.

Rule 1: only `deal_out` imports scikit-learn, in the process that starts the others; a
        client reads its own shard from a file that no other client gets.
Rule 2: the preparation of a picture is fixed in advance and depends on no other
        picture, so it reveals nothing about other owners.
Rule 3: shards are unequal, as they are in practice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode

CLASSES: Final = 10
# Eight by eight pixels and a constant.
FEATURES: Final = 65
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


def deal_out(clients: int) -> tuple[list[Shard], Shard]:
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
    cuts = _unequal_cuts(training, clients)
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


def _unequal_cuts(total: int, clients: int) -> Sequence[int]:
    """Return the ends of shards whose sizes grow about fivefold from first to last."""
    weights = np.linspace(1.0, 5.0, clients)
    spare = total - clients * MIN_PICTURES
    sizes = MIN_PICTURES + np.floor(spare * weights / weights.sum()).astype(int)
    return [int(end) for end in np.cumsum(sizes)]
