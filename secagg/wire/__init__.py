"""Conversion between dataclasses and bytes: calls, errors, packing, size limits."""
