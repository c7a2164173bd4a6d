"""Takes 3 % of the noise away, one place at a time, and looks which test notices.

    python tests/mutation/less_noise.py [PART OF A NAME ...] [--page]

Every row of `less_noise.toml` beside this file is one fault: a sampler whose law is
narrower than it says, a mechanism that draws less than the share it owes, an accountant
that believes in more noise than there is.  The row names the tests that have to notice;
they share no code with what is broken.  The tree is copied, one file of the copy is
changed, and those tests run there.  Ends with status 1 if a fault is not noticed.

`--page` writes what was found into `docs/less-noise.md`.
"""

import argparse
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

__all__ = ["ROOT", "Fault", "faults"]

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
TABLE: Final = HERE / "less_noise.toml"
PAGE: Final = ROOT / "docs" / "less-noise.md"
COPIED: Final = ("dpnoise", "secagg", "tests", "pyproject.toml")

_FAILED: Final = re.compile(r"^FAILED (\S+?)::(\w+)", re.MULTILINE)
_ROWS: Final = re.compile(r"(?<=<!-- rows -->\n).*?(?=<!-- end of rows -->)", re.DOTALL)

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
    """One place that takes 3 % away.

    Attributes:
        what: The law, the share or the accountant that is broken.
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
        options = ("-q", "-rf", "--tb=no", "-p", "no:cacheprovider")
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *self.tests],
                cwd=copy,
                env={
                    **os.environ,
                    "PYTHONPATH": str(copy),
                    "OPENBLAS_NUM_THREADS": "1",
                },
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            place.write_text(whole, "utf-8")
        if ran.returncode not in {0, 1}:
            raise SystemExit(f"{self.what}: the tests did not run\n{ran.stdout}")
        return list(dict.fromkeys(_FAILED.findall(ran.stdout)))


def faults() -> list[Fault]:
    """Return all rows of the table."""
    return [Fault.of(row) for row in tomllib.loads(TABLE.read_text("utf-8"))["fault"]]


def row_of(fault: Fault, noticed: Sequence[tuple[str, str]]) -> str:
    """Return the line of the page."""
    shown = [f"`{Path(file).name}` {name}" for file, name in noticed[:3]]
    if len(noticed) > len(shown):
        shown.append(f"and {len(noticed) - len(shown)} more")
    return f"| {fault.what} | {fault.against} | {'; '.join(shown) or '**none**'} |"


def main() -> int:
    """Break what was asked for; return the status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", help="of names of rows; all without")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args()
    chosen = [
        fault
        for fault in faults()
        if not given.parts or any(part in fault.what for part in given.parts)
    ]
    rows, missed = [], 0
    with tempfile.TemporaryDirectory(prefix="less-noise-") as place:
        copy = Path(place)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            else:
                shutil.copy(source, copy / name)
        for fault in chosen:
            noticed = fault.noticed_by(copy)
            missed += not noticed
            rows.append(row_of(fault, noticed))
            print(rows[-1], flush=True)
    if given.page:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(_ROWS.sub(lambda _: "\n".join(rows) + "\n", page), "utf-8")
    print(f"{len(chosen) - missed} of {len(chosen)} faults are noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
