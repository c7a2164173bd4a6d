"""Addresses on which a process listens, and the reasons why it cannot."""

import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError

_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port: ``127.0.0.1:7000``, ``[::1]:7000``.

    Attributes:
        host: DNS name or address, without brackets.
        port: 0 lets the system choose one to listen on.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, name: str = "address") -> Self:
        """Read ``host:port``.

        Args:
            text: The text of the operator.
            name: A setting or an argument, for the complaint.

        Raises:
            ServiceError: BAD_SETTINGS; states what was expected.
        """
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if (
            not colon
            or not bare
            or not (port.isascii() and port.isdigit())
            or int(port) > _MAX_PORT
            or (":" in bare and not is_bracketed)
        ):
            raise ErrorCode.BAD_SETTINGS.error(
                f"{name}: expected host:port, not {text[:80]!r}",
                fix="Write 127.0.0.1:7000, aggregator.example:7000 or [::1]:7000.",
            )
        return cls(bare, int(port))

    def __str__(self) -> str:
        return (
            f"[{self.host}]:{self.port}"
            if ":" in self.host
            else (f"{self.host}:{self.port}")
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def bind_error(self) -> SecAggError:
        """Return why listening here fails, by a second attempt."""
        reason = "the transport refused it"
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
        except socket.gaierror:
            reason = "the host name cannot be resolved"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return ErrorCode.PORT_IN_USE.error(
                    f"cannot listen on {self}: the port is in use",
                    fix="Stop the other process or choose another port.",
                )
            reason = error.strerror or type(error).__name__
        return ErrorCode.BAD_SETTINGS.error(
            f"cannot listen on {self}: {reason}",
            fix="Choose an address of this host and a port above 1023.",
        )


def address_group(address: str) -> str:
    """Return the group of an address for counts: IPv4 whole, IPv6 by its /64."""
    where = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(where, ipaddress.IPv6Address):
        if where.ipv4_mapped is not None:
            return str(where.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(where) >> 64 << 64, 64)))
    return str(where)
