"""Secure aggregation: a server adds up vectors and learns only the sum."""
