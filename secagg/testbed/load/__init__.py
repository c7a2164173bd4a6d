"""Many real clients against one real aggregator on this machine: what they cost."""
