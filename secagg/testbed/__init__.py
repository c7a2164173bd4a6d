"""Processes on this machine: the demo and the load test."""
