"""Credentials, revocation lists and how they are verified."""
