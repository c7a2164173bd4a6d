"""gRPC's settings of both sides in one place, because they depend on each other.

Rule 1: a client pings no more often than the server tolerates; half of the client's
        interval is allowed, or connections end with "too many pings".
Rule 2: both sides accept and send messages of the same size.
Rule 3: retries below the application are few and for UNAVAILABLE only; the caller,
        which knows the round's deadline, decides about the rest.

docs/transport.md has the same numbers in one table; a test compares them.
"""

import json
from typing import Final

from secagg.wire.calls import MAX_MESSAGE_BYTES

SERVICE: Final = "secagg.v1.SecAggService"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
# Read by a server that serves plaintext for tests only.
TEST_IDENTITY_KEY: Final = "secagg-test-identity"

_Options = list[tuple[str, int | str]]

# A mobile carrier forgets idle connections after a few minutes; a minute keeps them.
KEEPALIVE_CLIENT_MS: Final = 60_000
KEEPALIVE_SERVER_MS: Final = 120_000
# A side that is delayed for less keeps its connections: closing all of them would cost
# it a handshake of each client.  The kernel notices a peer that has vanished.
KEEPALIVE_TIMEOUT_MS: Final = 60_000
MIN_PING_INTERVAL_MS: Final = KEEPALIVE_CLIENT_MS // 2

# Connections are renewed so that a new server behind a balancer gets its part and
# new certificates are seen; streams get the grace to end.
MAX_CONNECTION_AGE_MS: Final = 30 * 60_000
MAX_CONNECTION_GRACE_MS: Final = 5 * 60_000

# Open calls of one connection: the most that one client may have.
MAX_CONCURRENT_STREAMS: Final = 8

# Bytes of a call that may be in flight before the server asks for them, whatever the
# bandwidth.  They are the cost of all uploads that wait for their turn; a round's other
# messages fit.  A client that is asked may send the whole message, so a chunk takes two
# round trips in any case.
LOOKAHEAD_BYTES: Final = 16 << 10

# gRPC reads into pieces of 8 KiB, but of 64 KiB once it expects more.  It keeps the
# rest of the last one as long as the connection lasts: 60 KiB for each client that has
# uploaded.  With this value it expects no more.
_READ_BYTES: Final = 8 << 10

# The buffer that gRPC fills before TLS seals it: of this size for each connection, and
# as much of the one behind it that is written to.
_TLS_FRAME_BYTES: Final = 4 << 10

# A health check carries the name of a service.
MAX_HEALTH_BYTES: Final = 1024

RETRY_ATTEMPTS: Final = 4

_LIMITS: Final[_Options] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # A stream may be quiet for as long as a round lasts.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: Final[_Options] = [
    *_LIMITS,
    ("grpc.keepalive_time_ms", KEEPALIVE_SERVER_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.max_connection_age_ms", MAX_CONNECTION_AGE_MS),
    ("grpc.max_connection_age_grace_ms", MAX_CONNECTION_GRACE_MS),
    ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
    # Windows that follow the bandwidth would let a sender fill them before the call is
    # admitted.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    ("grpc.experimental.tcp_max_read_buffer_size", _READ_BYTES),
    ("grpc.tsi.max_frame_size", _TLS_FRAME_BYTES),
    # Otherwise a second aggregator on the same port would receive half of the clients.
    ("grpc.so_reuseport", 0),
]

# The port without certificates accepts requests from any peer: no more than a name.
HEALTH_SERVER_OPTIONS: Final[_Options] = [
    (key, MAX_HEALTH_BYTES if key == "grpc.max_receive_message_length" else value)
    for key, value in SERVER_OPTIONS
]

_SERVICE_CONFIG: Final = {
    # Five failures stop retries at this level, and ten successes make up for one: a
    # server without capacity is not asked four times as often.
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    "methodConfig": [
        {
            "name": [{"service": SERVICE}],
            "retryPolicy": {
                "maxAttempts": RETRY_ATTEMPTS,
                "initialBackoff": "0.2s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}

CLIENT_OPTIONS: Final[_Options] = [
    *_LIMITS,
    ("grpc.keepalive_time_ms", KEEPALIVE_CLIENT_MS),
    ("grpc.enable_retries", 1),
    # Clients of one process would share a connection, and its few open calls.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
]
