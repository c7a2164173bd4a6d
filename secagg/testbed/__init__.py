"""Processes on this host: the demo and the load test."""
