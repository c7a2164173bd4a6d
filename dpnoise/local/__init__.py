"""Local randomisers: what protects a vector even from those who see it alone."""

from dpnoise.local.parameters import LocalParameters
from dpnoise.local.randomiser import LocalRandomiser
from dpnoise.local.reconstruction import (
    epsilon_against_reconstruction,
    reconstruction_probability,
)
from dpnoise.local.registry import make_randomiser, randomiser_names
from dpnoise.local.separated import best_magnitude_epsilon

__all__ = [
    "LocalParameters",
    "LocalRandomiser",
    "best_magnitude_epsilon",
    "epsilon_against_reconstruction",
    "make_randomiser",
    "randomiser_names",
    "reconstruction_probability",
]
