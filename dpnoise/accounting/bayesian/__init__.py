"""What a person drawn from a population loses on average: never instead of a bound.

* A figure of this package holds for a person drawn at random. Other people, outliers
  first, may lose up to the worst case, which is always stated beside it.
* Nothing that plans, encodes, adds or refuses noise imports this package.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
