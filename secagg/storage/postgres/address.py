"""The address of a store in a PostgreSQL database, checked before a connection is made.

Rule 1: an address contains no secret, since it ends up in settings, process lists and
        logs. A password comes from `passfile=`, from `PGPASSFILE` or from `~/.pgpass`.
Rule 2: the store holds seeds and shares.  Beyond this machine it travels encrypted, to
        a server whose certificate was checked.
"""

from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

from secagg.errors import ErrorCode, LocalProtocolError

# What an address may say beside host, port, user and database.
_OPTIONS: Final = frozenset({"host", "port", "passfile", "sslmode", "sslrootcert"})
_CHECKED: Final = "verify-full"


def checked_address(url: str) -> str:
    """Return an address that may be dialled, as it was given.

    Args:
        url: `postgresql://user@host:port/database?sslmode=verify-full`; a path as
            `host=` in the query is the directory of a Unix socket.

    Raises:
        LocalProtocolError: BAD_SETTINGS; it holds a secret, an option that is not
            known here, no database, or a way that others can listen on.
    """
    try:
        parts = urlsplit(url)
        query = parts.query
        options = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise _address_error("cannot be read", _EXAMPLE) from None
    if parts.scheme != "postgresql":
        raise _address_error("names another kind of database", _EXAMPLE)
    # The driver takes all behind the first @ for hosts, and no host has one.
    user, is_behind, rest = parts.netloc.partition("@")
    named = (rest if is_behind else user, *options.get("host", ()))
    hosts = [host for names in named for host in names.split(",") if host]
    if parts.password:
        raise _address_error("holds a password", "Write it into a file for passfile=.")
    if any("@" in host for host in hosts):
        raise _address_error(
            "has more than one @", "Write %40 for an @ in the user's name."
        )
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise _address_error(
            f"has options that are not known here: {', '.join(unknown)}",
            f"Use {', '.join(sorted(_OPTIONS))} only.",
        )
    if len(parts.path) < len("/x"):
        raise _address_error("names no database", _EXAMPLE)
    if not hosts:
        raise _address_error("names no host", _EXAMPLE)
    if options.get("sslmode") != [_CHECKED] and not all(map(_is_local_host, hosts)):
        raise _address_error(
            "leads to another machine without a check of its certificate",
            f"Add sslmode={_CHECKED}, and sslrootcert= for an authority of your own.",
        )
    return url


_EXAMPLE: Final = (
    "Write postgresql://user@host:5432/database?sslmode=verify-full, or "
    "postgresql://user@/database?host=/run/postgresql for a socket."
)


def _is_local_host(host: str) -> bool:
    """Say whether a host, perhaps with a port, is this machine."""
    if host.startswith("/"):
        return True
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _address_error(complaint: str, next_step: str) -> LocalProtocolError:
    """Return the error of an address that cannot be used."""
    # The address itself is never repeated: it may hold what it should not.
    return ErrorCode.BAD_SETTINGS.error(
        f"the address of the PostgreSQL store {complaint}",
        kind=LocalProtocolError,
        fix=next_step,
    )
