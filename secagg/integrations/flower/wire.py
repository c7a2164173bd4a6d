"""What travels in messages of Flower: byte strings in one record of arrays.

Only arrays are cut into pieces by Flower, so that even a large upload fits.  Nothing of
them is read as numpy's format: a peer's header would decide about memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from secagg.errors import ErrorCode
from secagg.integrations.flower.node import NodeReply

try:
    from flwr.app import Array, ArrayRecord
except ImportError:
    raise ErrorCode.MISSING_EXTRA.error(
        "Flower is not installed", fix="pip install 'secagg[flower]'"
    ) from None

RECORD: Final = "secagg"
"""Name of the record, both ways."""
_STYPE: Final = "secagg.bytes"
_VIEW: Final = "view"
# A client never says more than two messages at once; the rest of a reply is refused.
_MOST_MESSAGES: Final = 4
# Flower's own codes of errors end far below.
_FIRST_CODE: Final = 1000


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a server says to a node.

    Attributes:
        offer: The encoded descriptor of the session.
        update: News for this node; b"" for none.
    """

    offer: bytes
    update: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What a node has replied.

    Attributes:
        messages: Of the protocol, in order.
        view: To be compared before the model is sent; b"" for none.
    """

    messages: tuple[bytes, ...] = field(repr=False)
    view: bytes = field(repr=False)


def instruction_record(instruction: Instruction) -> ArrayRecord:
    """Return an instruction as a record."""
    return _as_record({"offer": instruction.offer, "update": instruction.update})


def read_instruction(content: Mapping[str, Any]) -> Instruction:
    """Read the instruction of a message.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION without one: nothing is trained outside a
            session.  BAD_ENCODING for one that is incomplete.
    """
    record = content.get(RECORD)
    if record is None:
        raise ErrorCode.POLICY_VIOLATION.error(
            "a message of training without a session would be answered in the clear",
            fix="Give the strategy SecureGrid(grid, task, strategy) as its grid.",
        )
    offer = _bytes_in(record, "offer")
    if not offer:
        raise ErrorCode.BAD_ENCODING.error("a message of Flower has no offer")
    return Instruction(offer, _bytes_in(record, "update"))


def reply_record(reply: NodeReply) -> ArrayRecord:
    """Return what a node says as a record."""
    said = {str(number): each for number, each in enumerate(reply.messages)}
    return _as_record({_VIEW: reply.view, **said})


def read_reply(content: Mapping[str, Any]) -> Said:
    """Read the reply of a node.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    record = content.get(RECORD)
    if record is None or len(record) > 1 + _MOST_MESSAGES:
        raise ErrorCode.BAD_ENCODING.error("a reply is not one of a secagg node")
    parts = (_bytes_in(record, str(number)) for number in range(_MOST_MESSAGES))
    return Said(tuple(filter(None, parts)), _bytes_in(record, _VIEW))


def refusal_code(code: ErrorCode) -> int:
    """Return the number of a refusal among Flower's codes of errors."""
    return _FIRST_CODE + int(code)


def _as_record(parts: Mapping[str, bytes]) -> ArrayRecord:
    """Return parts of bytes as a record of arrays."""
    return ArrayRecord(
        {
            name: Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)
            for name, data in parts.items()
            if data
        }
    )


def _bytes_in(record: Any, name: str) -> bytes:  # noqa: ANN401 - a record of a peer
    """Return one byte string of a record; b"" where it has none."""
    part = record.get(name) if isinstance(record, Mapping) else None
    if part is None:
        return b""
    if getattr(part, "stype", None) != _STYPE:
        raise ErrorCode.BAD_ENCODING.error(f"{name} of a message is no byte string")
    return bytes(part.data)
