"""Planning: from a privacy budget to parameters, with their cost and their error."""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
