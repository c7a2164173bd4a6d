"""What was spent: bounds on the privacy loss of the releases of dpnoise."""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
