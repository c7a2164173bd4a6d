"""The store over PostgreSQL."""
