"""The relay in front of an aggregator: handshakes and their limits."""
