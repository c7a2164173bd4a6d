"""The two long-running programs, assembled from settings and the parts below."""

import os

# gRPC's C core reads this once, when it is imported, and would otherwise print every
# failed handshake of a stranger to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
