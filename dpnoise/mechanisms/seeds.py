"""The seeds of one encoding: what is read from each, under which label.

* Noise, rounding and coin (`selection`) read separate streams of the private seed.
  Every layer of noise has a seed of its own.
* A seed is checked before anything is drawn from it, and never shown.

It draws no seed: `dpnoise.samplers.fresh_seed` does.
"""

from typing import Final

from dpnoise.errors import InputError
from dpnoise.samplers import SEED_BYTES

NOISE_LABEL: Final = b"dpnoise/v1/noise"
"""Label of the stream that the noise share, or its base, is drawn from."""

LAYER_LABEL: Final = b"dpnoise/v1/layer"
"""Label of the stream that a layer is drawn from, under the layer's own seed."""

ROUNDING_LABEL: Final = b"dpnoise/v1/rounding"
"""Label of the stream that rounding bits are drawn from."""


def check_seed(argument: str, seed: object) -> None:
    """Refuse anything but 32 bytes, without showing it.

    Args:
        argument: Name for the error.
        seed: What the caller passed.

    Raises:
        InputError: It is not a bytes object of length 32.
    """
    if not isinstance(seed, bytes):
        raise InputError(f"{argument} must be bytes, got {type(seed).__name__}")
    if len(seed) != SEED_BYTES:
        raise InputError(f"{argument} must be {SEED_BYTES} bytes, got {len(seed)}")
