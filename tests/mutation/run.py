"""Removes one check after the other and looks which test notices: `make mutants`.

The tree is copied first, so that work on it can go on.  One run of all tests, with a
mark at every site, tells which tests reach which check; then each mutant meets those
tests alone, the most specific first, until one fails.  No file is changed: in a fork of
a process that has collected the tests, the code of one function is exchanged.  A test
that also fails alone and without the mutant has caught nothing.  Where no test notices
and the code ran at import, and where a table is changed, the fork is made before
anything is imported, and the module gets another source.

Results are kept in `build/mutants.jsonl`: what a test has caught stays caught until the
function changes or the test leaves the default suite; what none has caught is tried
again.  `--again` tries all, the test that caught one last time first.  Ends with
status 1 if a mutant survives that `survivors.toml` beside this file does not explain.

    python tests/mutation/run.py [FILE ...] [--workers 2] [--again] [--fresh] [--json]
"""

import argparse
import asyncio  # noqa: F401 - loaded before the fork, for the tests
import builtins
import gc
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, Self

# Loaded once, before anything forks: what the tests need and this tool does not test.
import hypothesis
import numpy as np  # noqa: F401 - loaded before the fork, for the tests
import pytest

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutants import MODULE, Mutant, changed, instrumented, mutants_of  # noqa: E402 - from beside this script
from targets import FILES, PASSED_OVER, TESTS  # noqa: E402 - ditto

ROOT: Final = HERE.parents[1]
KEPT: Final = ROOT / "build" / "mutants.jsonl"
REACHED: Final = ROOT / "build" / "mutants-reach.json"
"""What the tests reach, for as long as neither they nor the package change."""
LOG: Final = ROOT / "build" / "mutants.log"
"""What the tests of the latest run have printed."""
ROWS: Final = ROOT / "build" / "mutants.md"
"""Counts, and a row for each mutant."""
SURVIVORS: Final = HERE / "survivors.toml"

EXAMPLES: Final = 50
"""As many as the default suite tries of each property (`tests/conftest.py`)."""
MARK: Final = "__reached_{}__"  # ends in underlines: classes mangle others
MOST_SECONDS: Final = 15
"""A mutant meets tests that took so long together, and no more."""
PATIENCE_SECONDS: Final = 20
"""A test may take eight times what it took before, and this: for what it shares."""
MOST_BYTES: Final = 4 << 30
"""A loop that never ends may also fill the memory; this much of it."""
CHUNK: Final = 32
"""So many mutants share one collection of tests."""

NEVER_REACHED: Final = "no test reaches it"
TIMED_OUT: Final = "a test that never ends"
IMPORT_OF: Final = "import of "
CONFTEST: Final = "import of a conftest.py"
NO_FILE: Final = ""


class _Source(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads some modules from another source than their files."""

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
        seconds: How long each of those tests took the processor.
        imported: For each file of tests, sites reached while it was imported; under
            `NO_FILE` those before any.
        failed: Tests that fail without any mutant.
    """

    sites: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    imported: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return what was written down."""
        return cls(
            {test: set(map(tuple, sites)) for test, sites in said["sites"].items()},
            said["seconds"],
            {file: set(map(tuple, sites)) for file, sites in said["imported"].items()},
            said["failed"],
        )

    def acts_at_import(self, mutant: Mutant) -> bool:
        """Return whether a mutant may have done work when a test begins."""
        site = (mutant.file, mutant.number)
        return mutant.function is None or any(
            site in sites for sites in self.imported.values()
        )

    def has(self, test: str) -> bool:
        """Return whether a test, or the import of its file, is part of the suite."""
        if test in {TIMED_OUT, CONFTEST}:
            return True
        if test.startswith(IMPORT_OF):
            return test.removeprefix(IMPORT_OF) in self.imported
        return test in self.sites

    def tests_for(
        self, mutant: Mutant, first: str | None, *, at_import: bool
    ) -> list[str]:
        """Return the tests that may notice a mutant, the most specific first.

        Args:
            mutant: What is changed.
            first: The test that noticed last time.
            at_import: Whether the mutant is there when the tests are imported.  If not,
                a file of tests that has used the code at import compares what one code
                made with what another did, and judges nothing.
        """
        site = (mutant.file, MODULE if at_import else mutant.number)
        home = f"test_{Path(mutant.file).stem}"

        def may_notice(test: str, sites: set[tuple[str, int]]) -> bool:
            before = site in self.imported.get(_file_of(test), ())
            return (
                before or site in sites if at_import else site in sites and not before
            )

        found = [test for test, sites in self.sites.items() if may_notice(test, sites)]
        # The quick ones, so that as many as possible fit, and what is written for it.
        found.sort(key=lambda test: (home not in test, self.seconds[test], test))
        known = [test for test in found if test == first]
        found = [test for test in found if test != first]
        seconds = accumulate(self.seconds[test] for test in found)
        affordable = [
            test
            for test, total in zip(found, seconds, strict=True)
            if total < MOST_SECONDS
        ]
        affordable.sort(key=lambda test: (home not in test, len(self.sites[test])))
        return known + affordable


def _file_of(test: str) -> str:
    return test.removeprefix(IMPORT_OF).split("::")[0]


class _Observer:
    """Records the sites that each test reaches."""

    def __init__(self) -> None:
        self.reach = Reach()
        self._now = self.reach.imported.setdefault(NO_FILE, set())
        self._bad: set[str] = set()

    @property
    def has_failures(self) -> bool:
        return bool(self.reach.failed)

    def mark(self, file: str) -> Callable[[int], None]:
        return lambda number: self._now.add((file, number))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        if isinstance(collector, pytest.Module):
            self._now = self.reach.imported.setdefault(collector.nodeid, set())
        return (yield)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.reach.failed.append(f"{IMPORT_OF}{report.nodeid}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._now = set()
        begun = time.process_time()
        result = yield
        self.reach.seconds[item.nodeid] = time.process_time() - begun
        if item.nodeid in self._bad:
            self.reach.failed.append(item.nodeid)
        else:
            self.reach.sites[item.nodeid] = self._now
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._bad.add(report.nodeid)


class _Judge:
    """Runs the tests of each of several mutants, in forks of one session.

    Args:
        trials: Which mutants; one that acts at import must be in the sources already.
    """

    def __init__(self, trials: Sequence["Trial"]) -> None:
        self._trials = trials
        self._caught_by: str | None = None
        self._functions: Mapping[_Place, list[FunctionType]] = {}
        self._innocent: set[str] = set()
        self._verdicts: list[str | None] = []

    @property
    def has_failures(self) -> bool:
        return bool(self._verdicts) or self._caught_by is not None

    @property
    def verdicts(self) -> list[str | None]:
        """Which test has caught each mutant.

        Raises:
            RuntimeError: A file of tests cannot be imported, without any mutant.
        """
        if self._caught_by is not None and not self._trials[0].at_import:
            raise RuntimeError(f"{self._caught_by} fails without any mutant")
        return self._verdicts or [self._caught_by]

    def record_conftest(self) -> None:
        """Record that pytest cannot import a conftest.py: it then collects nothing."""
        if self._trials[0].at_import:
            self._caught_by = CONFTEST

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._caught_by = self._caught_by or f"{IMPORT_OF}{report.nodeid}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._caught_by = self._caught_by or report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        if self._caught_by is not None:
            return True
        items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # what the tests have frozen is in no list
        self._functions = _functions({trial.mutant.file for trial in self._trials})
        gc.freeze()  # or the collector would make every fork copy all of it
        self._verdicts = [self._judged(trial, items) for trial in self._trials]
        return True

    def _judged(self, trial: "Trial", items: Mapping[str, Any]) -> str | None:
        """Return the first test that fails with a mutant, and does not without it."""
        # A name that holds the order of a set may be another one today.
        chosen = [items[test] for test in trial.tests if test in items]
        patience = PATIENCE_SECONDS + 8 * trial.seconds
        while chosen:
            try:
                caught_by: str | None = _in_child(
                    partial(self._meet, trial, chosen), patience
                )
            except TimeoutError:
                return TIMED_OUT
            if caught_by is None or trial.at_import or caught_by in self._innocent:
                return caught_by
            suspect = items[caught_by]
            if _in_child(partial(self._run, trial, [suspect]), patience) is None:
                self._innocent.add(caught_by)
                return caught_by
            chosen.remove(suspect)
        return None

    def _meet(self, trial: "Trial", items: Sequence[Any]) -> str | None:
        if not trial.at_import:
            _exchange(trial.mutant, trial.source, self._functions)
        return self._run(trial, items)

    def _run(self, trial: "Trial", items: Sequence[Any]) -> str | None:
        for item, following in pairwise([*items, None]):
            # Ends this process, so that a loop without end takes no more than it must.
            most = PATIENCE_SECONDS + 8 * trial.tests[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, most)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._caught_by is not None:
                break
        return self._caught_by


_Place = tuple[str, int, str]


def _place_of(code: CodeType) -> _Place:
    return code.co_qualname, code.co_firstlineno, code.co_filename


def _functions(files: Collection[str]) -> Mapping[_Place, list[FunctionType]]:
    """Find the functions of some files that exist by now."""
    paths = {str(Path(file).resolve()) for file in files}
    found = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in paths:
            found[_place_of(each.__code__)].append(each)
    return found


def _exchange(
    mutant: Mutant, source: str, functions: Mapping[_Place, list[FunctionType]]
) -> None:
    """Replace the code of an existing function by that of a mutant."""
    file = str(Path(mutant.file).resolve())
    place = (*(mutant.function or ("", 0)), file)
    module = compile(changed(source, mutant.number), file, "exec")
    new = next(code for code in _codes(module) if _place_of(code) == place)
    if not functions[place]:
        raise RuntimeError(f"{mutant.name}: there is no such function")
    for old in functions[place]:
        old.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_GO_ON: Final = "--continue-on-collection-errors"


def _run_tests(
    paths: Iterable[str], plugin: _Observer | _Judge, after_failure: str = _GO_ON
) -> None:
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, max_examples=EXAMPLES
    )
    # hypothesis is loaded already, which its plugin would rather have done itself.
    early = "ignore::pytest.PytestAssertRewriteWarning"
    options = ["-q", "-p", "no:cacheprovider", "-W", early]
    options += ["-m", "not slow and not services"]  # the default suite alone
    options += ["--hypothesis-profile=mutants"]
    options += [after_failure, *(f"--ignore={path}" for path in PASSED_OVER)]
    ended = pytest.main([*options, *paths], plugins=[plugin])
    # All paths were found when the tests were observed.
    if ended == pytest.ExitCode.USAGE_ERROR and isinstance(plugin, _Judge):
        plugin.record_conftest()
    if ended != pytest.ExitCode.OK and not plugin.has_failures:
        raise RuntimeError(f"pytest has ended with {ended!r}")


def _in_child(work: Callable[[], Any], seconds: float | None = None) -> Any:
    """Return what some work returns in a fork of this process.

    Raises:
        TimeoutError: It was not done in time; it is ended, or has ended itself.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
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
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        raise TimeoutError
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
            "imported": {file: sorted(at) for file, at in reach.imported.items()},
            "failed": reach.failed,
        }

    text = [path.read_bytes() for path in sorted(Path().glob("[!b]*/**/*.py"))]
    about = [sorted(sources), list(tests), sha256(b"".join(text)).hexdigest()]
    known = json.loads(REACHED.read_text()) if REACHED.exists() else {}
    if known.get("about") != about:
        known = _in_child(work) | {"about": about}
        REACHED.write_text(json.dumps(known))
    return Reach.of(known)


@dataclass(frozen=True, slots=True)
class Trial:
    """One mutant, and the tests that it has to pass, with the time that they took."""

    mutant: Mutant
    source: str
    tests: dict[str, float]
    at_import: bool
    last: str | None

    @property
    def seconds(self) -> float:
        return sum(self.tests.values())


def _try(trials: Sequence[Trial]) -> list[str | None]:
    """Return which test has caught each mutant."""
    first = trials[0]
    paths = list(dict.fromkeys(_file_of(test) for t in trials for test in t.tests))
    if not paths:
        return [None] * len(trials)
    if not first.at_import:
        found: list[str | None] = _in_child(lambda: _judged(trials, paths))
        return found
    # It is alone, and may never end before a test begins.
    patience = 2 * PATIENCE_SECONDS + 8 * first.seconds
    stages = [paths]
    if first.last is not None and _file_of(first.last) in paths:
        stages.insert(0, [_file_of(first.last)])
    try:
        for stage in stages:
            found = _in_child(partial(_judged, trials, stage), patience)
            if found != [None]:
                break
    except TimeoutError:
        return [TIMED_OUT]
    return found


def _judged(trials: Sequence[Trial], paths: Sequence[str]) -> list[str | None]:
    first = trials[0]
    if first.at_import:
        tree = changed(first.source, first.mutant.number)
        code = compile(tree, str(Path(first.mutant.file).resolve()), "exec")
        sys.meta_path.insert(0, _Source({_module_name(first.mutant.file): code}))
    judge = _Judge(trials)
    _run_tests(paths, judge, "--exitfirst" if first.at_import else _GO_ON)
    return judge.verdicts


class Results:
    """What was found, on the disk: one line per mutant, the last one counts."""

    def __init__(self, *, fresh: bool) -> None:
        self._found: dict[tuple[str, str], str | None] = {}
        self._last: dict[str, str | None] = {}
        KEPT.parent.mkdir(exist_ok=True)
        if fresh:
            KEPT.unlink(missing_ok=True)
        if KEPT.exists():
            for line in KEPT.read_text().splitlines():
                row = json.loads(line)
                self._found[row["digest"], row["mutant"]] = row["caught_by"]
                self._last[row["mutant"]] = row["caught_by"]

    def of(self, mutant: Mutant) -> str | None:
        """Return which test has caught a mutant of this very function."""
        return self._found.get((mutant.digest, mutant.name))

    def last(self, mutant: Mutant) -> str | None:
        """Return which test has caught a mutant of this name last time."""
        return self._last.get(mutant.name)

    def knows(self, mutant: Mutant) -> bool:
        """Return whether a mutant of this name was tried."""
        return mutant.name in self._last

    def has(self, mutant: Mutant) -> bool:
        """Return whether a mutant of this very function was tried."""
        return (mutant.digest, mutant.name) in self._found

    def add(self, mutant: Mutant, caught_by: str | None) -> None:
        """Keep a result."""
        self._found[mutant.digest, mutant.name] = caught_by
        row = {"digest": mutant.digest, "mutant": mutant.name, "caught_by": caught_by}
        with KEPT.open("a") as file:
            file.write(json.dumps(row) + "\n")


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


def page(sources: Mapping[str, str], results: Results) -> tuple[str, str]:
    """Return the line of counts, and one table of mutants for each file."""
    explained, tables = _explained(), []
    total: dict[str, int] = defaultdict(int)
    for file, source in sources.items():
        rows = []
        for mutant in mutants_of(file, source):
            if not results.has(mutant):
                total["untried"] += 1
                continue
            caught = results.of(mutant)
            total["caught" if caught else "survived"] += 1
            why = explained.get(mutant.name, "unexplained")
            verdict = _short(caught) if caught else f"**survives**: {why}"
            cells = (mutant.scope, mutant.change, mutant.rule, verdict)
            row = " | ".join(cell.replace("|", "\\|") for cell in cells)
            rows.append(f"| {row} |")
        tables.append(
            f"## `{file}`\n\n| In | Change | Rule | Caught by |\n|---|---|---|---|\n"
            + "\n".join(rows)
        )
    counts = (
        f"{sum(total.values())} mutants of {len(sources)} files: "
        f"{total['caught']} caught, {total['survived']} survive, "
        f"{total['untried']} not tried."
    )
    return counts, "\n\n".join(tables) + "\n"


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
    parser.add_argument("--again", action="store_true", help="try what was caught, too")
    parser.add_argument("--json", action="store_true", help="one line per mutant")
    parser.add_argument("--tests", nargs="*", help="default: all of targets.py")
    parser.add_argument("--list", action="store_true", help="print mutants, run none")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    everything = {file: (ROOT / file).read_text() for file in FILES}
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
        sys.path[:] = [str(Path.cwd()), *(p for p in sys.path if Path(p) != ROOT)]
        _try_all(mutants, chosen, results, options)
    counts, rows = page(everything, results)
    ROWS.write_text(f"# Mutants\n\n{counts}\n\n{rows}")
    return _verdict(mutants, chosen, results)


def _try_all(
    mutants: Sequence[Mutant],
    sources: Mapping[str, str],
    results: Results,
    options: argparse.Namespace,
) -> None:
    reach = observe(sources, options.tests or TESTS)
    if reach.failed:
        names = "\n  ".join(reach.failed)
        print(f"fail as it is, and judge nothing:\n  {names}", file=sys.stderr)
    due = []
    for mutant in mutants:
        caught_by = results.of(mutant)
        has_left = caught_by is not None and not reach.has(caught_by)
        if options.again or caught_by is None or (has_left and not options.tests):
            due.append(mutant)
    due.sort(key=results.knows)  # what was never tried comes first

    def trial(mutant: Mutant, *, at_import: bool) -> Trial:
        last = results.last(mutant)
        names = reach.tests_for(mutant, last, at_import=at_import)
        tests = {name: reach.seconds[name] for name in names}
        return Trial(mutant, sources[mutant.file], tests, at_import, last)

    # Forked, so that a worker finds the libraries loaded.
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:

        def judged(chunks: list[list[Trial]]) -> Iterator[tuple[Trial, str | None]]:
            for chunk, verdicts in zip(chunks, pool.imap(_try, chunks), strict=True):
                yield from zip(chunk, verdicts, strict=True)

        exchanged = [trial(m, at_import=False) for m in due if m.function]
        alone = [[trial(m, at_import=True)] for m in due if not m.function]
        chunks = [exchanged[i : i + CHUNK] for i in range(0, len(exchanged), CHUNK)]
        count = 0
        for each, caught in judged(chunks):
            if caught is None and reach.acts_at_import(each.mutant):
                alone.append([trial(each.mutant, at_import=True)])
                continue
            count += 1
            results.add(each.mutant, caught)
            _tell(each, caught, f"{count}/{len(due)}", as_json=options.json)
        for each, caught in judged(alone):
            count += 1
            results.add(each.mutant, caught)
            _tell(each, caught, f"{count}/{len(due)}", as_json=options.json)


def _tell(trial: Trial, caught: str | None, count: str, *, as_json: bool) -> None:
    mutant = trial.mutant
    if as_json:
        row = {"mutant": mutant.name, "kind": mutant.kind, "rule": mutant.rule}
        print(json.dumps(row | {"caught_by": caught}), flush=True)
        return
    survives = "SURVIVES" if trial.tests else f"SURVIVES: {NEVER_REACHED}"
    print(f"{count} {mutant.name}: {caught or survives}", flush=True)


def _verdict(
    mutants: Sequence[Mutant], sources: Mapping[str, str], results: Results
) -> int:
    explained = _explained()
    alive = {m.name for m in mutants if results.of(m) is None}
    unexplained = sorted(alive - set(explained))
    stale = sorted(
        name for name in set(explained) - alive if name.split(": ")[0] in sources
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
