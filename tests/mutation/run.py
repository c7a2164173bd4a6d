"""Removes one check after the other and looks which test notices: `make mutants`.

The tree is copied first, so that work on it can go on.  One run of all tests, with a
mark at every site, tells which tests reach which check; then each mutant meets those
tests alone, the most specific first, until one fails.  Every run is a fork of a process
that has the libraries loaded and nothing of this repository; the mutant replaces its
module as that is imported, and no file is changed.

Results are kept in `build/mutants.jsonl`: what a test has caught stays caught until the
file changes, what none has caught is tried again.  Ends with status 1 if a mutant
survives that `survivors.toml` beside this file does not explain.

    python tests/mutation/run.py [FILE ...] [--workers 2] [--fresh] [--json]
"""

import argparse
import asyncio  # noqa: F401
import builtins
import hashlib
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Final

# Loaded once, before anything forks: what the tests need and this tool does not test.
import hypothesis
import numpy as np  # noqa: F401
import pytest

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutants import MODULE, Mutant, changed, instrumented, mutants_of  # noqa: E402
from targets import FILES, TESTS  # noqa: E402

ROOT: Final = HERE.parents[1]
KEPT: Final = ROOT / "build" / "mutants.jsonl"
LOG: Final = ROOT / "build" / "mutants.log"
"""What the tests of the latest run have printed."""
PAGE: Final = ROOT / "docs" / "mutants.md"
SURVIVORS: Final = HERE / "survivors.toml"

MARK: Final = "__reached_{}__"  # ends in underlines: classes mangle others
FIRST: Final = 8
"""So many tests are tried before the rest: most mutants need no more."""
PATIENCE_SECONDS: Final = 60
"""A run may take ten times what its tests took before, and this."""

NEVER_REACHED: Final = "no test reaches it"
TIMED_OUT: Final = "a test that never ends"


class _Source(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives some modules another source than their files."""

    def __init__(self, code: Mapping[str, CodeType]) -> None:
        self._code = code

    def find_spec(self, name: str, *_: Any) -> Any:
        if name not in self._code:
            return None
        file = self._code[name].co_filename
        return importlib.util.spec_from_file_location(name, file, loader=self)

    def create_module(self, _: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code[module.__name__], module.__dict__)


def _module_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


@dataclass(slots=True)
class Reach:
    """Which tests reach which sites, as one run of the tests has shown.

    Attributes:
        sites: For each test that passed, (file, number of site).
        seconds: How long each of those tests took.
        imported: Sites reached while modules were imported.
        failed: Tests that fail without any mutant.
    """

    sites: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    imported: set[tuple[str, int]] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Return the tests that may notice a mutant, the most specific first."""
        site = (mutant.file, mutant.number)
        if mutant.at_import or site in self.imported:
            site = (mutant.file, MODULE)
        found = [test for test, sites in self.sites.items() if site in sites]
        home = Path(mutant.file).stem
        return sorted(
            found,
            key=lambda test: (
                f"test_{home}" not in test,
                self.seconds[test] > 1,
                len(self.sites[test]),
                test,
            ),
        )


class _Observer:
    """Notes what each test reaches."""

    def __init__(self) -> None:
        self.reach = Reach()
        self._now: set[tuple[str, int]] = self.reach.imported
        self._bad: set[str] = set()

    @property
    def has_failures(self) -> bool:
        return bool(self.reach.failed)

    def mark(self, file: str) -> Callable[[int], None]:
        return lambda number: self._now.add((file, number))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.reach.failed.append(f"import of {report.nodeid}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._now = set()
        result = yield
        if item.nodeid in self._bad:
            self.reach.failed.append(item.nodeid)
        else:
            self.reach.sites[item.nodeid] = self._now
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        before = self.reach.seconds.get(report.nodeid, 0.0)
        self.reach.seconds[report.nodeid] = before + report.duration
        if report.failed:
            self._bad.add(report.nodeid)


class _Judge:
    """Runs chosen tests in a chosen order, and remembers the first that fails."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(wanted)}
        self.caught_by: str | None = None

    @property
    def has_failures(self) -> bool:
        return self.caught_by is not None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places),
            key=lambda item: self._places[item.nodeid],
        )

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.caught_by = self.caught_by or f"import of {report.nodeid}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.caught_by = self.caught_by or report.nodeid


_GO_ON: Final = "--continue-on-collection-errors"


def _run_tests(paths: Iterable[str], plugin: _Observer | _Judge) -> None:
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    # hypothesis is loaded already, which its plugin would rather have done itself.
    early = "ignore::pytest.PytestAssertRewriteWarning"
    options = ["-q", "-p", "no:cacheprovider", "-W", early]
    options.append("-x" if isinstance(plugin, _Judge) else _GO_ON)
    ended = pytest.main([*options, *paths], plugins=[plugin])
    if ended != pytest.ExitCode.OK and not plugin.has_failures:
        raise RuntimeError(f"pytest has ended with {ended!r}")


def _in_child(work: Callable[[], Any], seconds: float | None = None) -> Any:
    """Return what some work returns in a fork of this process.

    Raises:
        TimeoutError: It was not done in time; it is ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        log = os.open(LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        with os.fdopen(writer, "w") as answer:
            try:
                said = {"value": work()}
            except BaseException:  # noqa: BLE001 - the fork ends here, whatever it was
                said = {"error": traceback.format_exc()}
            json.dump(said, answer)
        os._exit(0)
    os.close(writer)
    try:
        with os.fdopen(reader) as answer:
            if not select.select([answer], [], [], seconds)[0]:
                raise TimeoutError
            said = json.loads(answer.read() or '{"error": "it died"}')
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if "error" in said:
        raise RuntimeError(f"a run of the tests has failed: {said['error']}")
    return said["value"]


def observe(sources: Mapping[str, str], tests: Sequence[str]) -> Reach:
    """Run the tests once and return what they reach."""

    def work() -> Any:
        observer = _Observer()
        code = {}
        for number, (file, source) in enumerate(sources.items()):
            mark = MARK.format(number)
            setattr(builtins, mark, observer.mark(file))
            code[_module_name(file)] = compile(
                instrumented(source, mark), str(Path(file).resolve()), "exec"
            )
        sys.meta_path.insert(0, _Source(code))
        _run_tests(tests, observer)
        reach = observer.reach
        return {
            "sites": {test: sorted(sites) for test, sites in reach.sites.items()},
            "seconds": reach.seconds,
            "imported": sorted(reach.imported),
            "failed": reach.failed,
        }

    said = _in_child(work)
    return Reach(
        sites={test: set(map(tuple, sites)) for test, sites in said["sites"].items()},
        seconds=said["seconds"],
        imported=set(map(tuple, said["imported"])),
        failed=said["failed"],
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One mutant and the tests that it has to pass."""

    mutant: Mutant
    source: str
    tests: list[str]
    seconds: list[float]

    def caught_by(self) -> str | None:
        """Return the test that notices the mutant; None if none does."""
        for first, last in ((0, FIRST), (FIRST, len(self.tests))):
            tests = self.tests[first:last]
            if not tests:
                continue
            patience = PATIENCE_SECONDS + 10 * sum(self.seconds[first:last])
            try:
                caught = _in_child(lambda tests=tests: self._meet(tests), patience)
            except TimeoutError:
                return TIMED_OUT
            if caught is not None:
                return str(caught)
        return None

    def _meet(self, tests: Sequence[str]) -> str | None:
        file = self.mutant.file
        code = compile(
            changed(self.source, self.mutant.number), str(Path(file).resolve()), "exec"
        )
        sys.meta_path.insert(0, _Source({_module_name(file): code}))
        judge = _Judge(tests)
        _run_tests(dict.fromkeys(test.split("::")[0] for test in tests), judge)
        return judge.caught_by


def _try(trial: Trial) -> str | None:
    return trial.caught_by()


class Results:
    """What was found, on the disk: one line per mutant, the last one counts."""

    def __init__(self, *, fresh: bool) -> None:
        self._found: dict[tuple[str, str], str | None] = {}
        KEPT.parent.mkdir(exist_ok=True)
        if fresh:
            KEPT.unlink(missing_ok=True)
        if KEPT.exists():
            for line in KEPT.read_text().splitlines():
                row = json.loads(line)
                self._found[row["source"], row["mutant"]] = row["caught_by"]

    def of(self, source: str, mutant: Mutant) -> str | None:
        """Return which test has caught a mutant of this very source."""
        return self._found.get((_digest(source), mutant.name))

    def has(self, source: str, mutant: Mutant) -> bool:
        """Return whether a mutant was tried."""
        return (_digest(source), mutant.name) in self._found

    def add(self, source: str, mutant: Mutant, caught_by: str | None) -> None:
        """Keep a result."""
        key = (_digest(source), mutant.name)
        self._found[key] = caught_by
        row = {"source": key[0], "mutant": key[1], "caught_by": caught_by}
        with KEPT.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _explained() -> dict[str, str]:
    rows = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {row["mutant"]: row["why"] for row in rows}


def _copy_of_the_tree(into: str) -> Path:
    copy = Path(into) / "tree"
    no = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, copy, ignore=no)
    return copy


def page(sources: Mapping[str, str], results: Results) -> str:
    """Return docs/mutants.md."""
    explained, tables = _explained(), []
    total: dict[str, int] = defaultdict(int)
    for file, source in sources.items():
        rows = []
        for mutant in mutants_of(file, source):
            if not results.has(source, mutant):
                total["untried"] += 1
                continue
            caught = results.of(source, mutant)
            total["caught" if caught else "survived"] += 1
            verdict = _short(caught) if caught else explained.get(mutant.name)
            cells = (
                mutant.scope,
                mutant.change,
                mutant.rule,
                verdict if caught else f"**survives**: {verdict or 'unexplained'}",
            )
            row = " | ".join(cell.replace("|", "\\|") for cell in cells)
            rows.append(f"| {row} |")
        tables.append(
            f"## `{file}`\n\n| In | Change | Rule | Caught by |\n|---|---|---|---|\n"
            + "\n".join(rows)
        )
    count = sum(total.values())
    head = (HERE / "page.md").read_text().format(
        mutants=count,
        files=len(sources),
        caught=total["caught"],
        survived=total["survived"],
        untried=total["untried"],
    )
    return head + "\n" + "\n\n".join(tables) + "\n"


def _short(test: str) -> str:
    """Return a test's file and function, without the case of a table."""
    if test == TIMED_OUT:
        return test
    where, _, name = test.partition("::")
    return f"`{where.removeprefix('tests/')}` {name.split('[')[0]}".strip()


def main() -> int:
    """Run what was not run yet; return 1 if a survivor is unexplained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", help="default: all of targets.py")
    parser.add_argument("--workers", type=int, choices=(1, 2), default=2)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--json", action="store_true", help="one line per mutant")
    parser.add_argument("--tests", nargs="*", help="default: all of targets.py")
    parser.add_argument("--list", action="store_true", help="print mutants, run none")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    everything = {
        file: (ROOT / file).read_text() for file in FILES if (ROOT / file).exists()
    }
    chosen = {
        file: source
        for file, source in everything.items()
        if not options.files or any(name in file for name in options.files)
    }
    mutants = [m for file, source in chosen.items() for m in mutants_of(file, source)]
    if options.list:
        print("\n".join(mutant.name for mutant in mutants))
        return 0
    results = Results(fresh=options.fresh)
    with tempfile.TemporaryDirectory(prefix="secagg-mutants-") as folder:
        os.chdir(_copy_of_the_tree(folder))
        sys.path[:] = [os.getcwd(), *(p for p in sys.path if Path(p) != ROOT)]
        _try_all(mutants, chosen, results, options)
    if not options.files:
        PAGE.write_text(page(everything, results))
    return _verdict(mutants, chosen, results)


def _try_all(
    mutants: Sequence[Mutant],
    sources: Mapping[str, str],
    results: Results,
    options: argparse.Namespace,
) -> None:
    due = [m for m in mutants if results.of(sources[m.file], m) is None]
    if not due:
        return
    reach = observe(
        {file: sources[file] for file in {m.file: None for m in due}},
        options.tests or TESTS,
    )
    if reach.failed:
        names = "\n  ".join(reach.failed)
        print(f"fail as it is, and judge nothing:\n  {names}", file=sys.stderr)
    trials = []
    for mutant in due:
        tests = reach.tests_for(mutant)
        seconds = [reach.seconds[test] for test in tests]
        trials.append(Trial(mutant, sources[mutant.file], tests, seconds))
    # Forked, so that a worker finds the libraries loaded.
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for count, (trial, caught) in enumerate(
            zip(trials, pool.imap(_try, trials), strict=True), 1
        ):
            results.add(trial.source, trial.mutant, caught)
            if options.json:
                row = {"mutant": trial.mutant.name, "kind": trial.mutant.kind}
                row |= {"rule": trial.mutant.rule, "caught_by": caught}
                print(json.dumps(row), flush=True)
            else:
                fate = caught or (
                    "SURVIVES" if trial.tests else f"SURVIVES: {NEVER_REACHED}"
                )
                print(
                    f"{count}/{len(trials)} {trial.mutant.name}: {fate}", flush=True
                )


def _verdict(
    mutants: Sequence[Mutant], sources: Mapping[str, str], results: Results
) -> int:
    explained = _explained()
    alive = {m.name for m in mutants if results.of(sources[m.file], m) is None}
    unexplained = sorted(alive - set(explained))
    stale = sorted(
        name
        for name in set(explained) - alive
        if name.split(": ")[0] in sources
    )
    print(
        f"{len(mutants)} mutants, {len(mutants) - len(alive)} caught, "
        f"{len(alive)} survive, {len(unexplained)} of them unexplained",
        file=sys.stderr,
    )
    for name in stale:
        print(f"explained, and no survivor: {name}", file=sys.stderr)
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main())
