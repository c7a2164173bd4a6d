"""Noise that hides a shift like a Gaussian does."""
