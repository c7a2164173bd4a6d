"""Between dataclasses and bytes: calls, errors, packing, size limits."""
