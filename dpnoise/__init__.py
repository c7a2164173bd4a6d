"""Integer-valued distributed differential privacy."""
