"""Inject one fault at a time into the noise, and record which tests detect it.

    python tests/mutation/less_noise.py [PART OF A NAME ...] [--write]

Every row of a table beside this file is one fault.  In `less_noise.toml` 3 % of the
noise are missing: a sampler has a narrower law than it states, a mechanism draws less
than its share, an accountant assumes more noise than there is.  In `false_claims.toml`
the code acts on a false claim: a selection that is not secret, shares that no client
adds.  The row names the tests that must fail; they share no code with the fault.  The
script copies the tree and runs those tests there: they must pass.  Then it changes one
file of the copy at a time and runs the file's tests again.  It exits with status 1 if
a fault is not detected.

`--write` records the results in `less_noise.json` beside this file, fault by fault: the
first three tests that failed and the number of further ones.  Faults that were not
selected keep their results.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
TABLES: Final = ("less_noise", "false_claims")
"""Names of the tables: of their files, and of their keys in what was found."""
FOUND: Final = HERE / "less_noise.json"
COPIED: Final = ("dpnoise", "secagg", "tests", "pyproject.toml")

_DEFAULT_SUITE: Final = "not slow and not services"
_FAILED: Final = re.compile(r"^FAILED (\S+?)::(\w+)", re.MULTILINE)

# An accountant is broken from outside, all of them in one way: what it is asked about
# has 3 % more noise than what is released.
_ACCOUNTANT: Final = "dpnoise/accounting/accountant.py"
_ASKED: Final = "self._add(release, claimed_rate, count)"
_BELIEVES: Final = """self._add(
                _believed(release) if self.name == {name!r} else release,
                claimed_rate,
                count,
            )"""
_BELIEVED: Final = """

def _believed(release):
    from dataclasses import fields, replace
    for name in ("aggregate_noise_variance", "noise_variance", "local_noise_variance"):
        if name in {field.name for field in fields(release)}:
            return replace(release, **{name: getattr(release, name) * 100 / 97})
    return replace(release, num_trials=math.ceil(release.num_trials * 100 / 97))
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One place that leaves less noise than is claimed.

    Attributes:
        what: The law, the share or the accountant that is broken, or the false claim.
        against: What the tests compare it with.
        file: Path below the root of the repository.
        old: Text that stands once in the file.
        new: What stands there instead.
        tests: Files or tests, paths as pytest takes them.
    """

    what: str
    against: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read one row of the table."""
        given = {**row, "tests": tuple(row["tests"])}
        if "accountant" in given:
            name = given.pop("accountant")
            given |= {"what": name, "file": _ACCOUNTANT, "old": _ASKED}
            given["new"] = _BELIEVES.format(name=name)
        return cls(**given)

    def broken(self, source: str) -> str:
        """Return the source with the fault in it."""
        added = _BELIEVED if self.old == _ASKED else ""
        return source.replace(self.old, self.new) + added

    def noticed_by(self, copy: Path) -> list[tuple[str, str]]:
        """Break the copy, run the tests, mend the copy.

        Returns:
            File and name of the tests that fail, each once.
        """
        place = copy / self.file
        whole = place.read_text("utf-8")
        place.write_text(self.broken(whole), "utf-8")
        try:
            return failing(copy, self.tests)
        finally:
            place.write_text(whole, "utf-8")


def failing(copy: Path, tests: Sequence[str]) -> list[tuple[str, str]]:
    """Run tests of a copy of the tree, those of the default suite alone.

    Returns:
        File and name of the tests that fail, each once.
    """
    options = ("-q", "-rf", "--tb=no", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-m", _DEFAULT_SUITE, *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode not in {0, 1}:
        raise SystemExit(f"the tests did not run\n{ran.stdout}")
    return list(dict.fromkeys(_FAILED.findall(ran.stdout)))


def faults(table: str) -> list[Fault]:
    """Return all rows of a table."""
    given = tomllib.loads((HERE / f"{table}.toml").read_text("utf-8"))
    return [Fault.of(row) for row in given["fault"]]


def row_of(noticed: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return what is kept of a fault: the first tests, and how many more noticed."""
    shown = [f"{Path(file).name}::{name}" for file, name in noticed[:3]]
    return {"noticed_by": shown, "more": len(noticed) - len(shown)}


def main() -> int:
    """Break what was asked for; return the status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", help="of names of rows; all without")
    parser.add_argument("--write", action="store_true", help=f"write {FOUND.name}")
    given = parser.parse_args()
    chosen = {
        table: [
            fault
            for fault in faults(table)
            if not given.parts or any(part in fault.what for part in given.parts)
        ]
        for table in TABLES
    }
    with tempfile.TemporaryDirectory(prefix="less-noise-") as place:
        copy = Path(place)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            else:
                shutil.copy(source, copy / name)
        every = [fault for table in chosen.values() for fault in table]
        tests = dict.fromkeys(test for fault in every for test in fault.tests)
        if at_fault := failing(copy, list(tests)):
            raise SystemExit(f"these fail without a fault: {at_fault}")
        missed = 0
        for name in TABLES:
            for fault in chosen[name]:
                row = row_of(fault.noticed_by(copy))
                missed += not row["noticed_by"]
                print(f"{fault.what}: {row}", flush=True)
                if given.write:
                    _write(name, fault.what, row)
    print(f"{len(every) - missed} of {len(every)} faults are noticed")
    return 1 if missed else 0


def _write(table: str, what: str, row: Mapping[str, Any]) -> None:
    kept = json.loads(FOUND.read_text("utf-8"))
    known = kept[table] | {what: row}
    order = [each.what for each in faults(table) if each.what in known]
    kept[table] = {each: known[each] for each in order}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    FOUND.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
