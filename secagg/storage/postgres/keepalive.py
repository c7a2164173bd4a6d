"""A connection to a database over a network that swallows everything it is given.

Nobody says that such a connection is gone: what is sent is sent again, for a quarter of
an hour by default.  A database that is merely slow is something else: its machine
acknowledges at once what it answers later.  The operating systems at both ends can tell
the two apart, when they are asked to.
"""

import socket
from typing import Any, Final

# A connection on which nothing is said is asked after so long, so often.
IDLE_SECONDS: Final = 4
PROBE_SECONDS: Final = 2
PROBES: Final = 3
# One on which something is said ends when nobody has acknowledged it for so long.
UNHEARD_MILLISECONDS: Final = 1000 * (IDLE_SECONDS + PROBE_SECONDS * PROBES)

_OPTIONS: Final = {
    "TCP_KEEPIDLE": IDLE_SECONDS,
    "TCP_KEEPINTVL": PROBE_SECONDS,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": UNHEARD_MILLISECONDS,
}


def notice_silence(connection: Any) -> None:  # noqa: ANN401 - asyncpg has no types
    """Have the system end a connection whose other end is not heard of any more.

    Where it cannot (a socket of this machine needs no network, and not every system has
    every option), a command's own time limit ends it.

    Args:
        connection: Of asyncpg, just made.
    """
    # It gives its socket to nobody; `test_postgres_book.py` sees that this is one.
    transport = connection._transport  # noqa: SLF001 - see the line before
    link: socket.socket = transport.get_extra_info("socket")
    if link.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
