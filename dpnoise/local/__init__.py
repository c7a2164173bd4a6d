"""Local randomisers: they protect a vector even from a party that sees it alone."""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
