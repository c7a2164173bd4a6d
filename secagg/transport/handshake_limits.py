"""Limits for connections of unauthenticated peers.

Rule 1: every limit applies before a certificate was shown.  So it affects the peer that
        exceeds it, and never authenticated clients.
Rule 2: all of them together fit into the files that the process may open; a limit that
        does not fit is refused when the process starts, not when the clients connect.

`secagg.transport.relay` enforces them.
"""

import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from secagg.errors import ErrorCode
from secagg.transport.address import Address

# The relay's two ends and gRPC's, all in one process.
FILES_PER_CONNECTION: Final = 3
# For other uses: storage, chunks in work, threads, health probes.
RESERVED_FILES: Final = 256
# More than one process of this kind can serve.
MOST_CONNECTIONS: Final = 8192
# Below this, even a small deployment cannot connect.
_FEWEST_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of connections, each with the consequence of exceeding it.

    Attributes:
        relay: Whether there is a relay before gRPC, which enforces them: "auto" has one
            on Linux, unless only this host can connect.
        connections: All open ones; newcomers are refused, by gRPC itself if there is no
            relay.  0 for as many as the process has files for; of a relay, which takes
            three for each, at most 8192.
        waiting: Those that have not begun TLS; the oldest is closed, so that idle peers
            keep no client out.
        per_address: Those of one address (IPv6: of one /64) that have made no call
            under a certificate; newcomers are refused.  0 for no limit, behind a
            balancer that shows its own address.
        handshakes: TLS handshakes in progress; later ones wait for their turn, one
            address after the other.  Each costs about 1.7 ms, so that without turns all
            would be too late when a large deployment returns at once.
        handshake_seconds: From its turn to the first call under a certificate; before
            that, to the first message of TLS.
        per_identity: Those of one identity; its oldest is closed, so that a client
            behind a broken link can connect again.
    """

    relay: Literal["auto", "on", "off"] = "auto"
    connections: int = 0
    waiting: int = 256
    per_address: int = 64
    handshakes: int = 256
    handshake_seconds: float = 10.0
    per_identity: int = 2

    def has_relay_at(self, address: Address) -> bool:
        """Return whether a port at `address` gets a relay.

        Raises:
            ServiceError: BAD_SETTINGS; a relay is configured but not possible.
        """
        # Only Linux lets a process dial from any address of 127.0.0.0/8, by which the
        # relay tells connections apart.
        is_possible = sys.platform == "linux"
        if self.relay == "on" and not is_possible:
            raise ErrorCode.BAD_SETTINGS.error(
                f"admission.relay works on Linux only, and this is {sys.platform}",
                fix='Set admission.relay = "off", and put a proxy with '
                "limits of its own before the port if unauthenticated "
                "peers can reach it.",
            )
        if self.relay == "auto":
            return is_possible and not address.is_loopback
        return self.relay == "on"

    def connections_within(self, files: int, *, through_relay: bool = True) -> int:
        """Return how many connections fit into so many files.

        Args:
            files: That the process may open.
            through_relay: Whether they go through a relay.

        Raises:
            ServiceError: BAD_SETTINGS; `connections` do not fit.  Through a relay also
                when none do; without one it may be tried.
        """
        each = FILES_PER_CONNECTION if through_relay else 1
        fitting = (files - RESERVED_FILES) // each
        wanted = self.connections or max(
            min(fitting, MOST_CONNECTIONS) if through_relay else fitting,
            _FEWEST_CONNECTIONS,
        )
        if wanted > fitting and (through_relay or self.connections):
            needed = wanted * each + RESERVED_FILES
            raise ErrorCode.BAD_SETTINGS.error(
                f"{wanted} connections need {needed} open files, and this process may "
                f"have {files}",
                fix=f"Raise the limit (LimitNOFILE={needed} in the unit, ulimit "
                f"-Hn {needed} in a shell), or lower admission.connections.",
            )
        return wanted


# For the port of health checks, whose callers are never authenticated: a probe
# connects, asks and leaves.  A peer that stays is closed after the time of a handshake.
PROBES: Final = AdmissionLimits(
    connections=32, waiting=16, per_address=0, handshakes=32
)


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS reports no limit, and refuses to set none.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return MOST_CONNECTIONS * 1024 if soft == resource.RLIM_INFINITY else soft
