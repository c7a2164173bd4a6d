"""The table of refunds: every cell, as the specification prints it."""

import re
from itertools import product
from pathlib import Path

import pytest

from secagg.protocol.messages import Fate
from secagg.protocol.profiles import Profile
from secagg.protocol.refund import CHARGES, ChargeOutcome, ReachedStage, charge_after

PROTOCOL = (Path(__file__).parents[4] / "protos" / "PROTOCOL.md").read_text()
FATES = (Fate.NEVER_FIXED, Fate.NOT_INCLUDED, Fate.INCLUDED, None)
# (where the server may do anything, how far the client came) -> one word for each fate
ROWS = {
    (False, ReachedStage.UNBOUND): ("never charged",) * 4,
    (False, ReachedStage.MASKED): ("given back", "given back", "kept", "kept"),
    (False, ReachedStage.SIGNED): ("kept",) * 4,
    (False, ReachedStage.ANSWERED): ("kept",) * 4,
    (True, ReachedStage.UNBOUND): ("never charged",) * 4,
    (True, ReachedStage.MASKED): ("kept",) * 4,
    (True, ReachedStage.SIGNED): ("kept",) * 4,
    (True, ReachedStage.ANSWERED): ("kept",) * 4,
}


@pytest.mark.parametrize(
    ("profile", "standing", "fate"), [*product(Profile, ReachedStage, FATES)]
)
def test_every_cell_of_the_refund_table_matches_the_specification(
    profile, standing, fate
):
    # R5.6-3
    arbitrary = profile is not Profile.HONEST_CURIOUS_SERVER
    expected = ROWS[arbitrary, standing][FATES.index(fate)]
    assert charge_after(profile, standing, fate) is ChargeOutcome(expected)


def test_the_refund_table_is_complete():
    assert set(CHARGES) == set(Profile)
    for cells in CHARGES.values():
        assert set(cells) == set(product(ReachedStage, FATES))


def test_the_specification_prints_the_same_table():
    section = PROTOCOL.split("### 5.6")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| (input .+?|answered.*?|none.*?) \|(.+)\|$", section, re.MULTILINE
    )
    printed = {
        label: tuple(cell.strip() for cell in cells.split("|")) for label, cells in rows
    }
    assert printed == {
        "none bound": ROWS[False, ReachedStage.UNBOUND],
        "input bound, profile 1": ROWS[False, ReachedStage.MASKED],
        "answered, profile 1": ROWS[False, ReachedStage.ANSWERED],
        "input bound, signed or answered, profiles 2 and 3": ROWS[
            True, ReachedStage.MASKED
        ],
    }
    assert ROWS[True, ReachedStage.MASKED] == ROWS[True, ReachedStage.SIGNED]
    assert ROWS[True, ReachedStage.MASKED] == ROWS[True, ReachedStage.ANSWERED]
