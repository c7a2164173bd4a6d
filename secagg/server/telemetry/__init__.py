"""Exporters of metrics and traces."""
