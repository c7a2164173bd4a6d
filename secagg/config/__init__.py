"""Settings of the programs: file, environment and flags, in rising priority.

The classes are the reference of all settings: `deploy/config/*.full.toml` lists exactly
their keys, and a test compares the two.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
