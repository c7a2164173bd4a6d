"""Mechanisms: float vectors in, noisy residues out, and back."""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
