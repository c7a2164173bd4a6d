"""Common parts of enrolment documents: names, tags, version and errors.

Enrolment precedes any session, hence its domain tags name no suite.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from secagg.crypto.canonical import Reader
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode

_Value = TypeVar("_Value")

VERSION: Final = 1
"""The first byte of every document."""

MAX_NAME_BYTES: Final = 255
"""Longest name of a client or of a trust domain that a certificate can hold."""

# Plain enough to be a file name, a log field and a table cell.
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)


def is_name(text: str) -> bool:
    """Return whether a text may name a client or a trust domain (R2.1-2)."""
    return _NAME.fullmatch(text) is not None


def not_a_name(text: str) -> str:
    """Return the complaint about a text that is not a valid name."""
    return (
        f"{text[:60]!r} is not 1 to {MAX_NAME_BYTES} of the characters "
        "A-Z a-z 0-9 . _ -"
    )


def enrolment_tag(role: str, usage: str) -> bytes:
    """Return the domain tag of one kind of document."""
    return domain_tag(role, usage, None)


def decoded(what: str, data: bytes, read: Callable[[Reader], _Value]) -> _Value:
    """Decode a whole document.

    Args:
        what: The kind of document, for the error.
        data: Its bytes.
        read: Decodes the fields; may raise ValueError.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    reader = Reader(data, what)
    try:
        value = read(reader)
        reader.end()
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(
            f"{what} is malformed: {error}",
            fix="Make it again with a release that supports this version.",
        ) from None
    return value


def read_version(reader: Reader) -> None:
    """Read the version that every document starts with.

    Raises:
        ValueError: Another version.
    """
    version = reader.u8()
    if version != VERSION:
        raise ValueError(f"it has version {version}, this release reads {VERSION}")


def read_name(reader: Reader) -> str:
    """Read a name.

    Raises:
        ValueError: It has other characters.
    """
    text = reader.text(max_bytes=MAX_NAME_BYTES)
    if not is_name(text):
        raise ValueError(not_a_name(text))
    return text


def read_header(reader: Reader) -> tuple[str, str]:
    """Read version, trust domain and name; return the latter two.

    Raises:
        ValueError: Another version, or a name of other characters.
    """
    read_version(reader)
    return read_name(reader), read_name(reader)
