"""What refusals are made of: unusable keys, altered bytes and altered rosters.

Rule 1: a case is recorded only if the reference refuses it with the code that was
        written down by hand.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import reference as ref
from reference_keys import public_key
from reference_roster import Advert, Roster
from session_vectors import Run, counting

P = 2**255 - 19
LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    (P - 1).to_bytes(32, "little"),
)
NOT_CANONICAL = (
    (P + 9).to_bytes(32, "little"),  # the base point once more
    (9 + 2**255).to_bytes(32, "little"),  # and with the top bit set
)


def agreeing(case: dict[str, Any], act: Callable[[], object]) -> dict[str, Any]:
    """Return the case, if the reference gives its code."""
    try:
        act()
    except ref.Refused as refused:
        if refused.code == case["code"]:
            return case
        raise AssertionError(case["name"], refused.code) from None
    raise AssertionError(case["name"], "accepted")


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class RosterForge:
    """Makes rosters out of a good one."""

    def __init__(self, run: Run) -> None:
        roster = run.roster()
        self.adverts = list(roster.adverts.values())
        self.graph_seed = roster.graph_seed

    def stranger(self, name: str, place: int) -> Advert:
        keys = (public_key(counting(start + place, 32)) for start in (7, 77))
        return Advert(name, *keys, counting(place, 32))

    def replaced(self, place: int, **changes: Any) -> bytes:
        adverts = list(self.adverts)
        adverts[place] = replace(adverts[place], **changes)
        return self.roster(adverts)

    def roster(self, adverts: list[Advert], graph_seed: bytes | None = None) -> bytes:
        seed = self.graph_seed if graph_seed is None else graph_seed
        return Roster.whole(adverts, seed).encode()

    def reordered(self, graph_seed: bytes) -> Roster:
        return Roster.whole(
            sorted(self.adverts, key=lambda one: ref.rank(one.identity, graph_seed)),
            graph_seed,
        )
