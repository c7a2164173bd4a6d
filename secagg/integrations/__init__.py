"""Other frameworks that carry the bytes of sessions; each needs an extra of its own."""
