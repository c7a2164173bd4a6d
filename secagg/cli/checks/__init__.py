"""Checks of a set-up, as commands show them."""
