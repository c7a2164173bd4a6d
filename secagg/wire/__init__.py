"""Between dataclasses and bytes: packing, codec, size limits, status."""
