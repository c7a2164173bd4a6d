"""Transport of calls between clients and the aggregator: gRPC over mTLS, or memory."""
