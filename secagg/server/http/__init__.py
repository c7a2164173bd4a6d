"""Plain HTTP endpoints: probes and metrics."""
