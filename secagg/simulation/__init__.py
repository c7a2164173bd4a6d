"""Whole sessions in one process, through the real client and server cores."""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
