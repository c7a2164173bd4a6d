"""What becomes of the charge for a session when it ends: one table, no judgement.

A client charges its privacy budget before the first byte of its masked input leaves.
When the session ends, the charge may be given back only if the server cannot have
learnt anything from that input.  Three things decide, and nothing else: the profile,
how far this client had come, and the fate that the server's last update stated.

Rule 1: error codes play no part.  A silent colluder, a cancelled session and a lost
        answer end sessions under any code; what was unmasked stays unmasked.
Rule 2: only an update states a fate.  The error of a failed call states none.
Rule 3: kept is final.
Rule 4: how many charges of a task come back is limited besides, where they are counted
        (`secagg.storage.budget_ledger`).

Why NOT_INCLUDED gives back in profile 1: the server may hold y_u and rebuild s_u, but
b_u stays with fewer than t colluders as long as it follows the protocol.  In the other
profiles it need not, hence they give nothing back.

Source:
    R5.6-3.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto, unique
from typing import Final

from secagg.protocol.messages import Fate
from secagg.protocol.profiles import Profile


@unique
class ReachedStage(Enum):
    """How far a client had come when its session ended."""

    UNBOUND = auto()
    """No input was bound to the masks."""
    MASKED = auto()
    """An input was bound; some of it may have left."""
    SIGNED = auto()
    """The client has signed a U3 that names it."""
    ANSWERED = auto()
    """The client has revealed its shares for a U3 that names it."""


@unique
class Charge(StrEnum):
    """What becomes of the charge for a session."""

    NEVER = "never charged"
    GIVEN_BACK = "given back"
    KEPT = "kept"


def _row(
    standing: ReachedStage, never_fixed: Charge, left_out: Charge, included: Charge
) -> Mapping[tuple[ReachedStage, Fate | None], Charge]:
    return {
        (standing, Fate.NEVER_FIXED): never_fixed,
        (standing, Fate.NOT_INCLUDED): left_out,
        (standing, Fate.INCLUDED): included,
        # Not told: a violation, a deadline of one's own, an aggregator out of reach.
        (standing, None): included,
    }


_NEVER, _BACK, _KEPT = Charge.NEVER, Charge.GIVEN_BACK, Charge.KEPT
_FOLLOWED: Final = {
    #     own last state      never fixed  left out  included, or not told
    **_row(ReachedStage.UNBOUND,  _NEVER,      _NEVER,   _NEVER),
    **_row(ReachedStage.MASKED,   _BACK,       _BACK,    _KEPT),
    **_row(ReachedStage.SIGNED,   _KEPT,       _KEPT,    _KEPT),  # there are none
    # Who has answered knows better than any fate but INCLUDED: the server lies.
    **_row(ReachedStage.ANSWERED, _KEPT,       _KEPT,    _KEPT),
}  # fmt: skip
_ARBITRARY: Final = {
    **_row(ReachedStage.UNBOUND,  _NEVER,      _NEVER,   _NEVER),
    **_row(ReachedStage.MASKED,   _KEPT,       _KEPT,    _KEPT),
    **_row(ReachedStage.SIGNED,   _KEPT,       _KEPT,    _KEPT),
    **_row(ReachedStage.ANSWERED, _KEPT,       _KEPT,    _KEPT),
}  # fmt: skip

CHARGES: Final[Mapping[Profile, Mapping[tuple[ReachedStage, Fate | None], Charge]]] = {
    Profile.HONEST_CURIOUS_SERVER: _FOLLOWED,
    Profile.MALICIOUS_SERVER: _ARBITRARY,
    Profile.MALICIOUS_SERVER_SPARSE: _ARBITRARY,
}


def charge_after(profile: Profile, standing: ReachedStage, fate: Fate | None) -> Charge:
    """Return what becomes of the charge for a session.

    Args:
        profile: Of the session.
        standing: How far this client had come.
        fate: What the server's last update stated; None when none ended the session.
    """
    return CHARGES[profile][standing, fate]
