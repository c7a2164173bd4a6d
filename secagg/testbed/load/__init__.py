"""The costs of many real clients and one real aggregator on this host."""
