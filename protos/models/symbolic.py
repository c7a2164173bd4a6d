"""Run `resume.pv.in` and `answer.pv.in` without and with their rule, by ProVerif.

A template has one line `(* RULE *)`.  Without the rule every security query must be
false, which is an attack; with it every one must be true.  What must be reachable must
be reachable in both, so that no model is safe because it does nothing.

Run by `make models`.  Where `proverif` is not found it proves nothing, says so, and
ends with status 0; otherwise with status 1 if a verdict is not as it must be.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
PROGRAM: Final = "proverif"
RULE_LINE: Final = "(* RULE *)"

RULES: Final = {
    "resume": "if own = who then",
    "answer": "if checksign(proof2, v) = (bundles, c) then",
}
"""Model, and the line that is R5.0-6 or R5.3-13 in it."""

QUERIES: Final = {"resume": 6, "answer": 2}
"""How many verdicts each model must bring."""

_VERDICT: Final = re.compile(
    r"^RESULT (?P<query>.*?) (?:is (?P<found>true|false)|(?:cannot be proved))\b.*\.$",
    re.MULTILINE,
)


def model(name: str, *, with_rule: bool) -> str:
    """Return one variant of a model."""
    template = (FOLDER / f"{name}.pv.in").read_text()
    if template.count(RULE_LINE) != 1:
        raise SystemExit(f"{name}.pv.in must have one line {RULE_LINE}")
    return template.replace(RULE_LINE, RULES[name] if with_rule else "")


def _verdicts(text: str) -> list[tuple[str, str]]:
    """Return (query, verdict) of every query of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pv")
        path.write_text(text)
        done = subprocess.run(  # noqa: S603 - one fixed program
            [PROGRAM, str(path)], capture_output=True, text=True, check=False
        )
    found = [
        (each["query"], each["found"] or "cannot be proved")
        for each in _VERDICT.finditer(done.stdout)
    ]
    if done.returncode or not found:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return found


def must_be(query: str, *, with_rule: bool) -> str:
    """Return the verdict that a query must have."""
    is_reachability = query.startswith("not event(") and "==>" not in query
    return "true" if with_rule and not is_reachability else "false"


def main() -> int:
    """Run both variants of both models; return 1 if a verdict is not as it must be."""
    if shutil.which(PROGRAM) is None:
        print(
            f"{PROGRAM} not found: the symbolic models were NOT run. "
            "Build ProVerif 2.05 from its source and put it on the PATH."
        )
        return 0
    wrong = 0
    for name, queries in QUERIES.items():
        for with_rule in (False, True):
            verdicts = _verdicts(model(name, with_rule=with_rule))
            what = f"{name}, {'with' if with_rule else 'without'} its rule"
            if len(verdicts) != queries:
                wrong += 1
                print(f"{what}: {len(verdicts)} of {queries} verdicts   WRONG")
            for query, found in verdicts:
                as_said = found == must_be(query, with_rule=with_rule)
                wrong += not as_said
                print(f"{what}: {found}{'' if as_said else '   WRONG'}: {query}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
