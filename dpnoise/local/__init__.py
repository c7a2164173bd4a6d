"""Local randomisers: they protect a vector even from a party that sees it alone."""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".parameters": ("LocalParameters",),
    ".randomiser": ("LocalRandomiser", "make_randomiser", "randomiser_names"),
    ".reconstruction": ("epsilon_against_reconstruction", "reconstruction_probability"),
    ".separated": ("best_magnitude_epsilon",),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
