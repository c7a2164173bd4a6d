"""Federated training on handwritten digits with real processes on one machine."""
