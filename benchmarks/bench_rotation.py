"""Speed of the rotations beside a plain in-place butterfly in numpy.

Target: the Hadamard rotation, signs and padding included, takes at most a third of the
baseline's time.
"""

import sys
from functools import partial

import numpy as np
import numpy.typing as npt
from measurement import cpu_seconds, emit

from dpnoise.encoding import make_rotation, rotation_names
from dpnoise.samplers import fresh_seed


def butterfly(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The textbook Walsh–Hadamard transform, unnormalised; the baseline."""
    result = vector.copy()
    half = 1
    while half < result.size:
        pairs = result.reshape(-1, 2, half)
        upper = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = upper
        half *= 2
    return result


def main(*, tiny: bool = False) -> None:
    """Print one line per rotation, direction and size."""
    repeats = 1 if tiny else 7
    seed = fresh_seed()
    generator = np.random.default_rng()
    for dim in (1 << 8,) if tiny else (1 << 16, 1_000_000, 1 << 20):
        vector = generator.normal(size=dim)
        padded = np.zeros(1 << (dim - 1).bit_length())
        padded[:dim] = vector
        baseline = cpu_seconds(partial(butterfly, padded), repeats=repeats)
        for name in rotation_names():
            rotation = make_rotation(name, dim, seed)
            rotated = rotation.forward(vector)
            for direction, transform, argument in (
                ("forward", rotation.forward, vector),
                ("inverse", rotation.inverse, rotated),
            ):
                seconds = cpu_seconds(partial(transform, argument), repeats=repeats)
                emit(
                    f"rotation/{name}/{direction}",
                    parameters={"dim": dim, "encoded_dim": rotation.encoded_dim},
                    value=seconds * 1e3,
                    unit="ms",
                    baseline="in-place butterfly on the padded vector",
                    ratio=baseline / seconds,
                    target_met=baseline >= 3 * seconds
                    if name == "hadamard" and not tiny
                    else None,
                )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
