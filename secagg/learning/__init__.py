"""Federated learning over private sums, by numpy alone.

A server hands out a model, clients train it on data of their own, and the noisy sum of
their updates moves it.  Models are trees of arrays: of numpy, PyTorch, JAX, or what
scikit-learn has fitted.  docs/learning.md shows it.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
