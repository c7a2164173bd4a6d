"""Run the models of one session as they stand, and without each defence, by spin.

`agreement.pml` is one roster with restarts, `rosters.pml` two rosters in one session,
`connections.pml` a second aggregator beside the one that made the offer.

Needs `spin` and a C compiler.  Run by `make models`; ends with status 1 when a claim
fails that must hold, or holds although the defence that it rests on is gone.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent

# By model, what is taken away, and whether a claim must fail then.  A name NEVER_...
# adds a false claim instead: that it fails shows that the model gets so far.
VARIANTS: Final = {
    "agreement.pml": {
        "": False,
        "SIGN_BEFORE_PERSIST": True,
        "SIGN_AGAIN": True,
        "QUORUM_ONE_LESS": True,
        "REFUND_AFTER_INPUT": True,
        "ANSWER_ANY_QUORUM": False,
        "NO_OWN_MEMBERSHIP": False,
    },
    "rosters.pml": {
        "": False,
        "NO_ROSTER_PROOF": True,
        "ACCEPT_AGAIN": True,
        "QUORUM_ONE_LESS": True,
    },
    "connections.pml": {
        "": False,
        "NO_RULE_INPUT": True,
        "NO_RULE_ANSWER": True,
        "NO_RULE_REFUND": True,
        "NO_RULE_SUM": True,
        "FIRST_CONNECTION_ONLY": True,
        "REFUND_AFTER_U3": False,
        "NEVER_REFUNDED": True,
        "NEVER_BELIEVED": True,
    },
}


def _search(model: str, variant: str, folder: Path) -> tuple[int, int]:
    """Return (states, violated claims) of one exhaustive search."""
    define = [f"-D{variant}"] if variant else []
    commands = (
        ["spin", *define, "-a", str(FOLDER / model)],
        ["cc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        ["./pan", "-m1000000", "-w24"],
    )
    for command in commands:
        done = subprocess.run(  # noqa: S603 - three fixed programs
            command, cwd=folder, capture_output=True, text=True, check=True
        )
    states = re.search(r"(\d+) states, stored", done.stdout)
    errors = re.search(r"errors: (\d+)", done.stdout)
    if states is None or errors is None or "max search depth" in done.stdout:
        raise SystemExit(f"the search is not complete:\n{done.stdout}")
    return int(states[1]), int(errors[1])


def _told(variant: str) -> str:
    if not variant:
        return "as specified"
    kind = (
        "with the false claim"
        if variant.startswith("NEVER_")
        else "without the defence"
    )
    return f"{kind} {variant}"


def main() -> int:
    """Search every variant; return 1 if one is not as it must be."""
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing:
        print(
            f"{' and '.join(missing)} not found: the model of set agreement needs spin "
            "and a C compiler (packages spin and gcc)"
        )
        return 1
    rows = [(model, *row) for model, rows in VARIANTS.items() for row in rows.items()]
    wrong = 0
    for model, variant, must_fail in rows:
        with tempfile.TemporaryDirectory() as folder:
            states, errors = _search(model, variant, Path(folder))
        as_said = bool(errors) == must_fail
        wrong += not as_said
        found = "a claim fails" if errors else "every claim holds"
        what = _told(variant)
        print(
            f"{model:15} {what:47} {found:18} {states:9} states"
            f"{'' if as_said else '   WRONG'}",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
