"""The chain of checksums over the records of one session.

Each value binds the one before it, so that a record that is missing, doubled or changed
is noticed where it stands; the first binds the session's name and header.
"""

from hashlib import sha256
from typing import Final

from secagg.crypto.canonical import Writer
from secagg.storage.change import NewSession, Record

_CHAIN_BYTES: Final = 16
"""Bytes of a chain value: enough against a disk; it is no defence against a forger."""

_CHAIN_LABEL: Final = "secagg book v1"


def chain_start(key: str, new: NewSession) -> bytes:
    """Return the chain value before the first record: it binds name and header."""
    writer = Writer().text(_CHAIN_LABEL).text(key).text(new.role).text(new.task)
    writer.text(new.peer).u64(new.number).blob(new.header)
    return sha256(writer.getvalue()).digest()[:_CHAIN_BYTES]


def chain_next(chain: bytes, sequence: int, record: Record) -> bytes:
    """Return the chain value behind a record.

    Args:
        chain: Value before it.
        sequence: Its number.
        record: The record.
    """
    writer = Writer().fixed(chain).u64(sequence).u16(record.kind)
    writer.blob((record.sender or "").encode(errors="surrogateescape"))
    writer.blob(record.body)
    return sha256(writer.getvalue()).digest()[:_CHAIN_BYTES]
