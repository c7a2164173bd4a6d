"""Everything that runs at a client."""
