"""Everything that runs at an aggregator."""
