"""The gRPC server: guards, limits and certificates."""
