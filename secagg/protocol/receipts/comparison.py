"""Whether receipts of one session show one session.

Rule 1: a session's id covers its offer and nothing after it.  A server that lies can
        show two rosters under one id, two sets over one roster, or two sums over one
        set; each receipt may hold by itself, and only two of them side by side show it.
Rule 2: compared is what every party of a session has to know alike, and only where both
        receipts have it: a client that left early has not seen everything.

Source:
    PROTOCOL §5.8.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import Verdict


@dataclass(frozen=True, slots=True)
class ShownSession:
    """What one receipt shows of a session, for comparison with others.

    Attributes:
        source: Where the receipt comes from, for errors; for example its file.
        session_id: The session's, 32 bytes.
        shown: By name what every party has to know alike, in the order in which a
            session fixes it; empty values were never fixed, or not shown.
    """

    source: str
    session_id: bytes
    shown: Mapping[str, bytes]


def shown_in(verdict: Verdict, *, source: str) -> ShownSession:
    """Return what the receipt of one aggregator, or of its client, shows.

    Args:
        verdict: Of a receipt that holds.
        source: Where the receipt comes from.
    """
    receipt = verdict.receipt
    return ShownSession(
        source,
        verdict.descriptor.session_id,
        {
            "ctx1": verdict.ctx1,
            "edge root": receipt.edge_root,
            "U2": receipt.sharers,
            "U3": receipt.survivors,
            "sum": receipt.sum_hash if receipt.outcome is Outcome.RELEASED else b"",
        },
    )


def check_one_session(sessions: Iterable[ShownSession]) -> None:
    """Check that receipts with one session id show one session (R5.8-3).

    Args:
        sessions: Of receipts that hold, of any sessions.

    Raises:
        RemoteProtocolError: EQUIVOCATION; names two receipts and the first thing in
            which they differ.
    """
    for one, other in combinations(sessions, 2):
        if one.session_id != other.session_id:
            continue
        for what, value in one.shown.items():
            # What follows from another roster is another set, whatever its bytes are.
            if value and (seen := other.shown.get(what)) and seen != value:
                raise RemoteProtocolError(
                    f"{one.source} and {other.source} show session "
                    f"{one.session_id.hex()} with another {what}: {value.hex()} and "
                    f"{seen.hex()}",
                    code=ErrorCode.EQUIVOCATION,
                    next_step="Keep both receipts and ask the operator of the "
                    "aggregator which of them is true.",
                )
