"""How calls travel between clients and the aggregator: gRPC over mTLS, or memory."""
