"""The charge for a session after its end: one table, no discretion.

A client charges its privacy budget before the first byte of its masked input leaves.
When the session ends, the charge may be returned only if the server cannot have learnt
anything from that input.  Only three facts decide: the profile, the stage that this
client had reached, and the fate that the server's last update stated.

Rule 1: error codes play no part.  A colluder that stops answering, a cancelled session
        and a lost answer end sessions under any code; what was unmasked stays unmasked.
Rule 2: only an update states a fate.  The error of a failed call states none.
Rule 3: a kept charge is final.
Rule 4: `secagg.storage.budget_ledger` also limits how many charges of a task return.

NOT_INCLUDED returns the charge in profile 1 for this reason.  The server may hold y_u
and rebuild s_u, but as long as it follows the protocol, fewer than t colluders cannot
learn b_u.  In the other profiles it may deviate, hence they return nothing.

Source: R5.6-3.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto, unique
from typing import Final

from secagg.protocol.messages import Fate
from secagg.protocol.profiles import Profile


@unique
class ReachedStage(Enum):
    """The stage that a client had reached when its session ended."""

    UNBOUND = auto()
    """No input was bound to the masks."""
    MASKED = auto()
    """An input was bound; part of it may have been sent."""
    SIGNED = auto()
    """The client has signed a U3 that names it."""
    ANSWERED = auto()
    """The client has revealed its shares for a U3 that names it."""


@unique
class ChargeOutcome(StrEnum):
    """What becomes of the charge for a session."""

    NEVER = "never charged"
    GIVEN_BACK = "given back"
    KEPT = "kept"


def _row(
    standing: ReachedStage,
    never_fixed: ChargeOutcome,
    not_included: ChargeOutcome,
    included: ChargeOutcome,
) -> Mapping[tuple[ReachedStage, Fate | None], ChargeOutcome]:
    """Return the table's entries of one stage."""
    return {
        (standing, Fate.NEVER_FIXED): never_fixed,
        (standing, Fate.NOT_INCLUDED): not_included,
        (standing, Fate.INCLUDED): included,
        # No fate: a violation, a deadline of the client, an unavailable aggregator.
        (standing, None): included,
    }


_NEVER, _BACK, _KEPT = ChargeOutcome.NEVER, ChargeOutcome.GIVEN_BACK, ChargeOutcome.KEPT
_FOLLOWED: Final = {
    # own last state      never fixed  not included  included, or no fate
    **_row(ReachedStage.UNBOUND,  _NEVER,      _NEVER,   _NEVER),
    **_row(ReachedStage.MASKED,   _BACK,       _BACK,    _KEPT),
    **_row(ReachedStage.SIGNED,   _KEPT,       _KEPT,    _KEPT),  # no charge exists
    # A client that has answered knows that any fate but INCLUDED is a lie of the
    # server.
    **_row(ReachedStage.ANSWERED, _KEPT,       _KEPT,    _KEPT),
}  # fmt: skip
_ARBITRARY: Final = {
    **_row(ReachedStage.UNBOUND,  _NEVER,      _NEVER,   _NEVER),
    **_row(ReachedStage.MASKED,   _KEPT,       _KEPT,    _KEPT),
    **_row(ReachedStage.SIGNED,   _KEPT,       _KEPT,    _KEPT),
    **_row(ReachedStage.ANSWERED, _KEPT,       _KEPT,    _KEPT),
}  # fmt: skip

CHARGES: Final[
    Mapping[Profile, Mapping[tuple[ReachedStage, Fate | None], ChargeOutcome]]
] = {
    Profile.HONEST_CURIOUS_SERVER: _FOLLOWED,
    Profile.MALICIOUS_SERVER: _ARBITRARY,
    Profile.MALICIOUS_SERVER_SPARSE: _ARBITRARY,
}


def charge_after(
    profile: Profile, standing: ReachedStage, fate: Fate | None
) -> ChargeOutcome:
    """Return what becomes of the charge for a session.

    Args:
        profile: Of the session.
        standing: The stage that this client had reached.
        fate: The fate in the server's last update; None if none ended the session.
    """
    return CHARGES[profile][standing, fate]
