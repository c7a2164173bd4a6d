"""From a float vector to integers modulo m, and from a modular sum back to floats.

The order is: clip, rotate, scale, fixed point, round, (noise), wrap; and for the sum:
centre, scale back, rotate back.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
