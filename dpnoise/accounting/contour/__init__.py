"""Rounded coordinates with Skellam noise, by an integral in the complex plane."""
