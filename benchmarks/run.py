"""Runs every benchmark of this directory: one JSON line per result, and a table.

Standard output has the JSON, standard error at the end the same in columns for people.

`--tiny` checks in seconds that every benchmark still runs.  `--check` compares the
results with the project's targets and exits with 1 if one is missed.  Neither is part
of the test suite: timings on a shared machine are not reproducible.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

# Before numpy is imported: one thread of BLAS, so that CPU time means one core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_DIRECTORY = Path(__file__).parent


def main() -> int:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="bench_NAME.py; all without names")
    parser.add_argument("--tiny", action="store_true", help="only prove that they run")
    parser.add_argument("--check", action="store_true", help="compare with promises")
    options = parser.parse_args()
    sys.path.insert(0, str(_DIRECTORY))
    found = sorted(path.stem for path in _DIRECTORY.glob("bench_*.py"))
    wanted = [f"bench_{name}" for name in options.names] or found
    unknown = sorted(set(wanted) - set(found))
    if unknown:
        known = ", ".join(name.removeprefix("bench_") for name in found)
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are: {known}")
    for number, name in enumerate(wanted, start=1):
        if sys.stderr.isatty():
            print(f"{number} of {len(wanted)}: {name}", file=sys.stderr)
        importlib.import_module(name).main(tiny=options.tiny)
    measurement = importlib.import_module("measurement")
    for line in measurement.table():
        print(line, file=sys.stderr)
    missed = measurement.broken_promises() if options.check else []
    for line in missed:
        print(f"promise broken: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
