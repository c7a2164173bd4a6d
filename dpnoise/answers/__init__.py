"""Questions with short answers, and what noisy sums say about them.

A question turns one person's answer into a vector: integers for the mechanism
`skellam-counts`, or reals. It turns the noisy sum of all vectors into an answer with
its error.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
