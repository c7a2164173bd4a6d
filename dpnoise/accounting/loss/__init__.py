"""Distributions of the privacy loss, composed by Fourier transforms."""
