"""Receipts of sessions, verified without network, state or secrets."""
