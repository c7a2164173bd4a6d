"""The client's state machine."""
