"""The server's state machine."""
