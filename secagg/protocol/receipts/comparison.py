"""Comparison of receipts with one session id.

Rule 1: a session's id covers its offer and nothing after it.  A server that lies can
        show two rosters under one id, two sets over one roster, or two sums over one
        set.  Each receipt may pass by itself; only a comparison of two reveals it.
Rule 2: the comparison covers what every party of a session must know alike, and only
        fields that both receipts have: a client that left early has not seen
        everything.

Source: PROTOCOL §5.8.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from secagg.errors import ErrorCode
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import Verdict


@dataclass(frozen=True, slots=True)
class ShownSession:
    """What one receipt shows of a session, for comparison with others.

    Attributes:
        source: Origin of the receipt, for errors; for example its file.
        session_id: The session's, 32 bytes.
        shown: Values that every party must know alike, by name, in the order in which a
            session fixes them; empty values were never fixed, or not shown.
    """

    source: str
    session_id: bytes
    shown: Mapping[str, bytes]


def shown_in(verdict: Verdict, *, source: str) -> ShownSession:
    """Return what the receipt of one aggregator, or of its client, shows.

    Args:
        verdict: Of a receipt that passed.
        source: Origin of the receipt.
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
        sessions: Of receipts that passed, of any sessions.

    Raises:
        RemoteProtocolError: EQUIVOCATION; names two receipts and the first difference.
    """
    for one, other in combinations(sessions, 2):
        if one.session_id != other.session_id:
            continue
        for what, value in one.shown.items():
            # A set over another roster is another set, whatever its bytes are.
            if value and (seen := other.shown.get(what)) and seen != value:
                raise ErrorCode.EQUIVOCATION.error(
                    f"{one.source} and {other.source} show session "
                    f"{one.session_id.hex()} with another {what}: "
                    f"{value.hex()} and {seen.hex()}",
                    fix="Keep both receipts and ask the operator which one is true.",
                )
