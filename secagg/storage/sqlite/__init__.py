"""The store over SQLite."""
