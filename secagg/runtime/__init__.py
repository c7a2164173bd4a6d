"""Where clock, entropy, storage and the protocol core meet."""
