"""Bounds as their publications state them, for comparison."""
