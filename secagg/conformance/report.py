"""What a run of the kit leaves behind: JUnit, transcripts, and a certificate.

Rule 1: what a program has said stands in a report only as printable text.
Rule 2: the certificate says "passed these cases", and nothing more.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import quoteattr

from secagg.conformance.kit import (
    PROTOCOL,
    Abilities,
    CaseVerdict,
    State,
    cases,
    chosen,
    digest,
)
from secagg.conformance.server_role import server_cases
from secagg.errors import printable

_MAX_TEXT: Final = 1000
_MAX_LISTED: Final = 1 << 20
_WITHOUT_CASES: Final[Mapping[str, tuple[str, ...]]] = {
    "client": (
        "what not_live.toml lists",
        "timing",
        "how secrets are drawn and erased",
    ),
    "server": ("receipts", "deadlines", "several sessions"),
}


def known_failing(path: Path) -> frozenset[str]:
    """Return the ids of cases that are known to fail: one a line, # begins a comment.

    Raises:
        ValueError: A line names no case.
        OSError: The file cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        lines = file.read(_MAX_LISTED).splitlines()
    found = {line.partition("#")[0].strip() for line in lines} - {""}
    every = {case.id for case in cases()} | {case.id for case in server_cases()}
    unknown = sorted(found - every)
    if unknown:
        raise ValueError(f"no case is called {unknown[0]!r}")
    return frozenset(found)


def with_known(verdict: CaseVerdict, known: frozenset[str]) -> CaseVerdict:
    """Return a verdict as the list of known failures has it.

    A case on the list that passes is an error: the list must shrink.
    """
    if verdict.case.id not in known or verdict.state is State.SKIPPED:
        return verdict
    state, why = State.KNOWN, verdict.why
    if verdict.state is State.PASSED:
        state, why = State.MENDED, "it passes: remove it from the list"
    case, seconds = verdict.case, verdict.seconds
    return CaseVerdict(case, state, why, seconds, verdict.lines)


def junit(verdicts: Sequence[CaseVerdict]) -> str:
    """Return the run as JUnit XML: classname is the rule, name the case."""
    counts = Counter(verdict.state for verdict in verdicts)
    silent = counts[State.SILENT]
    skipped = counts[State.SKIPPED] + counts[State.KNOWN]
    failures = counts[State.FAILED] + counts[State.MENDED]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        (
            f'<testsuite name="secagg.v1" tests="{len(verdicts)}" '
            f'failures="{failures}" errors="{silent}" skipped="{skipped}">'
        ),
    ]
    for verdict in verdicts:
        case = verdict.case
        head = (
            f"  <testcase classname={quoteattr(case.rules[0])} "
            f'name={quoteattr(case.id)} time="{verdict.seconds:.3f}"'
        )
        kind = {
            State.PASSED: "",
            State.SILENT: "error",
            State.SKIPPED: "skipped",
            State.KNOWN: "skipped",
        }.get(verdict.state, "failure")
        why = quoteattr(printable(verdict.why, max_bytes=_MAX_TEXT))
        inside = f"><{kind} message={why}/></testcase>" if kind else "/>"
        lines.append(head + inside)
    return "\n".join([*lines, "</testsuite>", ""])


def write_transcript(directory: Path, verdict: CaseVerdict, errors: bytes) -> None:
    """Write what kit and program said in a case, and the program's error output.

    Args:
        directory: Of the transcripts; made where it is missing.
        verdict: Of the case.
        errors: The last bytes of the error output.

    Raises:
        OSError: It cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[Mapping[str, Any]] = [
        {"from": sender, "line": line} for sender, line in verdict.lines
    ]
    rows.append({"verdict": verdict.state, "why": verdict.why})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path = directory / f"{verdict.case.id}.jsonl"
    path.write_text(text, encoding="utf-8")
    if errors:
        path.with_suffix(".stderr").write_bytes(errors)


def certificate(
    abilities: Abilities, verdicts: Sequence[CaseVerdict], *, role: str, seed: int
) -> dict[str, Any]:
    """Return what was tested, with what, how it went, and what was not tested.

    Args:
        abilities: What the program claims.
        verdicts: Of the cases that were chosen.
        role: What the program is: client, or server.
        seed: Of the run.
    """
    by_state: dict[str, list[str]] = {}
    every = len(chosen((1, 2), role=role))
    for verdict in verdicts:
        by_state.setdefault(verdict.state, []).append(verdict.case.id)
    return {
        "program": printable(abilities.name, max_bytes=_MAX_TEXT),
        "version": printable(abilities.version, max_bytes=_MAX_TEXT),
        "profiles": sorted(abilities.profiles),
        "graphs": sorted(printable(x, max_bytes=_MAX_TEXT) for x in abilities.graphs),
        "mechanisms": sorted(
            printable(each, max_bytes=_MAX_TEXT) for each in abilities.mechanisms
        ),
        "restart": abilities.restart or None,
        "role": role,
        "protocol": "secagg.v1",
        "lines": PROTOCOL,
        "kit": metadata.version("secagg"),
        "cases": digest(),
        "seed": seed,
        "counts": {state: len(ids) for state, ids in sorted(by_state.items())},
        "not_chosen": every - len(verdicts),
        "without_cases": list(_WITHOUT_CASES[role]),
        "skipped": by_state.get(State.SKIPPED, []),
        "known_failing": by_state.get(State.KNOWN, []),
    }


def certificate_text(found: Mapping[str, Any]) -> list[str]:
    """Return the certificate in lines for people."""
    counts = found["counts"]
    passed, omitted = counts.get(State.PASSED, 0), found["not_chosen"]
    total = sum(counts.values()) + omitted
    skipped, known = found["skipped"], found["known_failing"]
    return [
        (
            f"{found['program']} {found['version']} has passed {passed} of {total} "
            f"cases for a {found['role']} of the kit of secagg {found['kit']} for "
            f"{found['protocol']}."
        ),
        (
            f"It claims profiles {', '.join(map(str, found['profiles']))}; "
            f"graphs {', '.join(found['graphs'])}; "
            f"mechanisms {', '.join(found['mechanisms']) or 'none'}; "
            f"restart {found['restart'] or 'not claimed'}; seed {found['seed']}."
        ),
        f"Cases: SHA-256 {found['cases']}.",
        f"Skipped: {', '.join(skipped) or 'none'}; not chosen: {omitted}.",
        f"The kit has no case for: {', '.join(found['without_cases'])}.",
        f"Known to fail: {', '.join(known) or 'none'}.",
        "It says that these cases passed, and nothing more.",
    ]
